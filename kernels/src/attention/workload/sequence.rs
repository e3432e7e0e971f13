//! The lengths of a batch entry, and where its rows start: nothing else reads lengths from the parameters.

use crate::abi::{ForwardParams, MAX_SEQLEN, TensorRef};
use crate::layout::{element, rows::Strided};
use core::hint::assert_unchecked;

/// The queries and keys of one batch entry.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Number of the batch entry.
    pub batch: u32,
    /// Queries of a head.
    pub queries: u32,
    /// Keys of a head.
    pub keys: u32,
}

/// The keys `first..first + keys` of a sequence, which a block takes as a sequence of its own: masks count
/// from key `first`.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// The first key.
    pub first: u32,
    /// How many keys.
    pub keys: u32,
    /// Whether it is the first one of the sequence, whose rows take in the sink.
    pub is_first: bool,
}

impl Sequence {
    /// The sequence of a batch entry.
    #[inline(always)]
    pub fn new(params: &ForwardParams, batch: u32) -> Self {
        Sequence {
            batch,
            queries: params.seqlen_q,
            keys: params.seqlen_kv,
        }
    }

    /// The sequence of a batch entry, whose lengths the compiler knows to be allowed: else masks check the order of their bounds,
    /// and panic.
    #[inline(always)]
    pub fn bounded(params: &ForwardParams, batch: u32) -> Self {
        let sequence = Self::new(params, batch);
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(sequence.queries <= MAX_SEQLEN && sequence.keys <= MAX_SEQLEN) }
        sequence
    }

    /// Elements from a tensor's start to the first query of head 0 (q, o), or to its first key (k, v).
    #[inline(always)]
    pub fn offset(self, tensor: &TensorRef) -> i64 {
        i64::from(self.batch) * tensor.batch_stride
    }

    /// The rows of a head, with `elements` elements each.
    #[inline(always)]
    pub fn head_rows(self, tensor: &TensorRef, head: u32, elements: u32) -> Strided {
        let offset = self.offset(tensor) + i64::from(head) * tensor.head_stride;
        Strided {
            address: element::at(tensor.address, offset),
            row_bytes: element::bytes(tensor.row_stride),
            elements,
        }
    }

    /// Rows of the partial results of one split: the queries of all heads of all batch entries.
    #[inline(always)]
    pub fn partial_rows(params: &ForwardParams) -> u64 {
        u64::from(params.batch_heads) * u64::from(params.seqlen_q)
    }

    /// The batch entry, query and head of a row of the partial results. Tiles hold `packed` heads each.
    #[inline(always)]
    pub fn of_partial_row(params: &ForwardParams, row: u64, packed: u32) -> (Self, u32, u32) {
        let tile_rows = u64::from(params.seqlen_q) * u64::from(packed);
        let (group, in_group) = (row / tile_rows, (row % tile_rows) as u32);
        let query = in_group / packed;
        let head = group as u32 * packed + in_group % packed;
        let (batch, head) = (head / params.heads, head % params.heads);
        (Self::new(params, batch), query, head)
    }

    /// Splits of the keys, the same for every batch entry.
    #[inline(always)]
    pub fn split_count(params: &ForwardParams) -> u32 {
        params.splits
    }

    /// All keys as one split.
    #[inline(always)]
    pub fn whole(self) -> Split {
        Split {
            first: 0,
            keys: self.keys,
            is_first: true,
        }
    }

    /// Split number `split` of the keys.
    #[inline(always)]
    pub fn split(self, params: &ForwardParams, split: u32) -> Split {
        let first = split * params.split_keys;
        Split {
            first,
            keys: (self.keys - first).min(params.split_keys),
            is_first: split == 0,
        }
    }

    /// Index of a query of a head among the rows of all batch entries.
    #[inline(always)]
    pub fn row_index(self, params: &ForwardParams, head: u32, query: u32) -> u64 {
        self.head_index(params, head) * u64::from(self.queries) + u64::from(query)
    }

    /// Index of a tile's row, in the order of the tiles, among the partial results of all splits. `head` is
    /// the tile's first.
    #[inline(always)]
    pub fn partial_index(self, params: &ForwardParams, split: u32, head: u32, row: u32) -> u64 {
        let heads =
            u64::from(split) * u64::from(params.batch_heads) + self.head_index(params, head);
        heads * u64::from(self.queries) + u64::from(row)
    }

    /// Index of a tile's row among the partial results of all [units](crate::abi::UnitsRef).
    #[inline(always)]
    pub fn unit_index(params: &ForwardParams, unit: u32, head: u32, row: u32) -> u64 {
        let heads = u64::from(unit) * u64::from(params.heads) + u64::from(head);
        heads * u64::from(params.seqlen_q) + u64::from(row)
    }

    /// Index of a head among the heads of all batch entries.
    #[inline(always)]
    pub fn head_index(self, params: &ForwardParams, head: u32) -> u64 {
        u64::from(self.batch) * u64::from(params.heads) + u64::from(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Divisor;
    use crate::attention::workload::heads::{HeadGroup, Heads, OneHead};
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;

    /// Every row of every tile has its own partial result on each split, which a combine kernel maps back to the
    /// row's batch entry, query and head.
    fn partial_results_are_found<H: Heads>(
        params: &ForwardParams,
        packed: u32,
    ) -> Result<(), TestCaseError> {
        let rows = Sequence::partial_rows(params);
        let batch = params.batch_heads / params.heads;
        let mut found = HashSet::new();
        for (batch, split) in (0..batch).flat_map(|b| (0..params.splits).map(move |s| (b, s))) {
            let sequence = Sequence::new(params, batch);
            for tile_head in 0..params.heads / packed {
                let heads = H::new(params, tile_head);
                for row in 0..heads.row_count(sequence.queries) {
                    let index = sequence.partial_index(params, split, heads.first(), row);
                    prop_assert!(found.insert(index) && index < u64::from(params.splits) * rows);
                    let (entry, query, head) =
                        Sequence::of_partial_row(params, index % rows, packed);
                    prop_assert_eq!(index / rows, u64::from(split));
                    prop_assert_eq!((query, head), heads.query_and_head(row));
                    prop_assert_eq!(entry.batch, batch);
                }
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn combine_finds_the_rows_of_all_tiles(
            batch in 1_u32..4, kv_heads in 1_u32..4, group in 1_u32..5, seqlen_q in 1_u32..20,
            splits in 1_u32..4,
        ) {
            let heads = kv_heads * group;
            let params = ForwardParams {
                heads,
                batch_heads: batch * heads,
                group: Divisor::new(group),
                seqlen_q,
                splits,
                ..ForwardParams::default()
            };
            partial_results_are_found::<OneHead>(&params, 1)?;
            partial_results_are_found::<HeadGroup>(&params, group)?;
        }
    }
}
