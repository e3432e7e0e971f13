//! Packing: which query head and which query a row of a tile is.

use crate::abi::{Divisor, ForwardParams, TensorRef};
use crate::layout::element;
use crate::layout::rows::{Grouped, Rows, Strided};
#[cfg(target_arch = "nvptx64")]
use crate::ptx::switch;

/// The query heads whose queries are the rows of a tile.
///
/// Later rows are never earlier queries, so that under the causal mask later rows see no fewer keys.
pub trait Heads: Copy {
    /// Whether the rows of a tile may lie a stride apart, as the rows of a tensor map's box do.
    const STRIDED: bool;

    /// Whether the rows of the launch's tiles do.
    #[inline(always)]
    fn are_strided() -> bool {
        Self::STRIDED
    }

    /// Where the rows of q and o lie.
    type Rows: Rows;

    /// The heads of tiles number `tile_head` in a batch entry.
    fn new(params: &ForwardParams, tile_head: u32) -> Self;

    /// The first head.
    fn first(&self) -> u32;

    /// Which slice of O's columns the tiles compute, where several tiles share them.
    #[inline(always)]
    fn slice(&self) -> u32 {
        0
    }

    /// The key/value head that all of them read.
    fn kv_head(&self) -> u32;

    /// Rows of all tiles together.
    fn row_count(&self, queries: u32) -> u32;

    /// The query of a row, and its head.
    fn query_and_head(&self, row: u32) -> (u32, u32);

    /// The rows of q or o, from the address of the first head's first row.
    fn rows(&self, tensor: &TensorRef, first_head: Strided) -> Self::Rows;
}

/// One query head: row `r` is its query `r`.
#[derive(Clone, Copy, Debug)]
pub struct OneHead {
    head: u32,
    group: Divisor,
}

impl Heads for OneHead {
    const STRIDED: bool = true;
    type Rows = Strided;

    #[inline(always)]
    fn new(params: &ForwardParams, tile_head: u32) -> Self {
        OneHead {
            head: tile_head,
            group: params.group,
        }
    }

    #[inline(always)]
    fn first(&self) -> u32 {
        self.head
    }

    #[inline(always)]
    fn kv_head(&self) -> u32 {
        self.group.divide(self.head).0
    }

    #[inline(always)]
    fn row_count(&self, queries: u32) -> u32 {
        queries
    }

    #[inline(always)]
    fn query_and_head(&self, row: u32) -> (u32, u32) {
        (row, self.head)
    }

    #[inline(always)]
    fn rows(&self, _tensor: &TensorRef, first_head: Strided) -> Strided {
        first_head
    }
}

/// One query head, whose tiles have one of `SLICES` equal slices of O's columns: tile head `SLICES * head + slice`.
#[derive(Clone, Copy, Debug)]
pub struct HeadSlice<const SLICES: u32> {
    head: OneHead,
    slice: u32,
}

impl<const SLICES: u32> Heads for HeadSlice<SLICES> {
    const STRIDED: bool = true;
    type Rows = Strided;

    #[inline(always)]
    fn new(params: &ForwardParams, tile_head: u32) -> Self {
        HeadSlice {
            head: OneHead::new(params, tile_head / SLICES),
            slice: tile_head % SLICES,
        }
    }

    #[inline(always)]
    fn first(&self) -> u32 {
        self.head.first()
    }

    #[inline(always)]
    fn slice(&self) -> u32 {
        self.slice
    }

    #[inline(always)]
    fn kv_head(&self) -> u32 {
        self.head.kv_head()
    }

    #[inline(always)]
    fn row_count(&self, queries: u32) -> u32 {
        self.head.row_count(queries)
    }

    #[inline(always)]
    fn query_and_head(&self, row: u32) -> (u32, u32) {
        self.head.query_and_head(row)
    }

    #[inline(always)]
    fn rows(&self, tensor: &TensorRef, first_head: Strided) -> Strided {
        self.head.rows(tensor, first_head)
    }
}

/// All query heads that share a key/value head, in turns: row `r` is query `r / group` of the group's head
/// `r % group`.
#[derive(Clone, Copy, Debug)]
pub struct HeadGroup {
    kv_head: u32,
    group: Divisor,
}

impl Heads for HeadGroup {
    const STRIDED: bool = false;
    type Rows = Grouped;

    #[inline(always)]
    fn new(params: &ForwardParams, tile_head: u32) -> Self {
        HeadGroup {
            kv_head: tile_head,
            group: params.group,
        }
    }

    #[inline(always)]
    fn first(&self) -> u32 {
        self.kv_head * self.group.value
    }

    #[inline(always)]
    fn kv_head(&self) -> u32 {
        self.kv_head
    }

    #[inline(always)]
    fn row_count(&self, queries: u32) -> u32 {
        queries * self.group.value
    }

    #[inline(always)]
    fn query_and_head(&self, row: u32) -> (u32, u32) {
        let (query, head) = self.group.divide(row);
        (query, self.first() + head)
    }

    #[inline(always)]
    fn rows(&self, tensor: &TensorRef, first_head: Strided) -> Grouped {
        Grouped {
            head: first_head,
            head_bytes: element::bytes(tensor.head_stride),
            heads: self.group,
            first: 0,
        }
    }
}

/// [`OneHead`] or, where [`Switch::Group`](crate::abi::Switch::Group) is on, [`HeadGroup`].
#[cfg(target_arch = "nvptx64")]
#[derive(Clone, Copy)]
pub struct HeadOrGroup {
    tile_head: u32,
    group: Divisor,
}

#[cfg(target_arch = "nvptx64")]
impl Heads for HeadOrGroup {
    const STRIDED: bool = true;
    type Rows = StridedOrGrouped;

    #[inline(always)]
    fn are_strided() -> bool {
        !switch::group()
    }

    #[inline(always)]
    fn new(params: &ForwardParams, tile_head: u32) -> Self {
        HeadOrGroup {
            tile_head,
            group: params.group.one_by_one(),
        }
    }

    #[inline(always)]
    fn first(&self) -> u32 {
        let of_group = self.tile_head * self.group.value;
        choose(of_group, self.tile_head)
    }

    #[inline(always)]
    fn kv_head(&self) -> u32 {
        let of_head = self.group.divide(self.tile_head).0;
        choose(self.tile_head, of_head)
    }

    #[inline(always)]
    fn row_count(&self, queries: u32) -> u32 {
        let of_group = queries * self.group.value;
        choose(of_group, queries)
    }

    #[inline(always)]
    fn query_and_head(&self, row: u32) -> (u32, u32) {
        let (query, head) = self.group.divide(row);
        (choose(query, row), self.first() + choose(head, 0))
    }

    #[inline(always)]
    fn rows(&self, tensor: &TensorRef, first_head: Strided) -> StridedOrGrouped {
        StridedOrGrouped(Grouped {
            head: first_head,
            head_bytes: element::bytes(tensor.head_stride),
            heads: self.group,
            first: 0,
        })
    }
}

/// The first number where rows are those of several heads, else the other one.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn choose(of_group: u32, of_head: u32) -> u32 {
    if switch::group() { of_group } else { of_head }
}

/// The rows of [`HeadOrGroup`].
#[cfg(target_arch = "nvptx64")]
#[derive(Clone, Copy)]
pub struct StridedOrGrouped(Grouped);

#[cfg(target_arch = "nvptx64")]
impl Rows for StridedOrGrouped {
    #[inline(always)]
    fn elements(&self) -> u32 {
        self.0.elements()
    }

    #[inline(always)]
    fn at(&self, row: u32) -> u64 {
        match switch::group() {
            false => self.0.head.at(self.0.first + row),
            true => self.0.at(row),
        }
    }

    #[inline(always)]
    fn below(&self, above: u64, down: u32, row: u32) -> u64 {
        match switch::group() {
            false => self.0.head.below(above, down, row),
            true => self.0.at(row),
        }
    }

    #[inline(always)]
    fn skip(self, rows: u32) -> Self {
        StridedOrGrouped(self.0.skip(rows))
    }

    #[inline(always)]
    fn skip_bytes(self, bytes: u64) -> Self {
        StridedOrGrouped(self.0.skip_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;
    use std::vec::Vec;

    /// Query, head and key/value head of every row of all tiles.
    fn rows<H: Heads>(params: &ForwardParams, tile_heads: u32) -> Vec<(u32, u32, u32)> {
        let mut rows = Vec::new();
        for tile_head in 0..tile_heads {
            let heads = H::new(params, tile_head);
            assert_eq!(heads.slice(), 0);
            let of_tile: Vec<_> = (0..heads.row_count(params.seqlen_q))
                .map(|row| heads.query_and_head(row))
                .collect();
            assert!(of_tile.is_sorted_by_key(|(query, _)| *query));
            assert_eq!(of_tile[0].1, heads.first());
            rows.extend(
                of_tile
                    .iter()
                    .map(|&(query, head)| (query, head, heads.kv_head())),
            );
        }
        rows
    }

    proptest! {
        #[test]
        fn every_query_of_every_head_is_one_row(
            seqlen_q in 1_u32..40, kv_heads in 1_u32..6, group in 1_u32..9,
        ) {
            let params = ForwardParams {
                seqlen_q,
                group: Divisor::new(group),
                ..ForwardParams::default()
            };
            let expected: HashSet<_> = (0..seqlen_q)
                .flat_map(|query| {
                    (0..kv_heads * group).map(move |head| (query, head, head / group))
                })
                .collect();
            for tile_head in 0..3 * kv_heads * group {
                let (head, slice) = (tile_head / 3, tile_head % 3);
                let sliced = HeadSlice::<3>::new(&params, tile_head);
                prop_assert_eq!((sliced.first(), sliced.slice()), (head, slice));
                prop_assert_eq!(sliced.kv_head(), head / group);
                prop_assert_eq!(sliced.query_and_head(seqlen_q - 1), (seqlen_q - 1, head));
                prop_assert_eq!(sliced.row_count(seqlen_q), seqlen_q);
            }
            for rows in [
                rows::<OneHead>(&params, kv_heads * group),
                rows::<HeadGroup>(&params, kv_heads),
            ] {
                prop_assert_eq!(rows.len(), expected.len());
                prop_assert_eq!(rows.into_iter().collect::<HashSet<_>>(), expected.clone());
            }
        }
    }
}
