//! Which rows and which keys a block takes.

use crate::abi::Divisor;
use crate::abi::{ForwardParams, TensorRef};
use crate::ptx::special;
use crate::tile::GlobalRows;
use crate::tile::registers;

/// A block's query tile, and its split of the keys.
///
/// The rows of a tile are queries of one head or, if `PACKED`, of all heads that share a key/value
/// head, in turns: row `r` is query `r / group` of the group's head `r % group`, so that later rows
/// see no fewer keys.
pub struct Place<const PACKED: bool> {
    batch: u32,
    /// Query head, or the first of the group.
    head: u32,
    group: Divisor,
    /// First row of the tile.
    pub first: u32,
    split: u32,
    dim: u32,
}

impl<const PACKED: bool> Place<PACKED> {
    /// That of this block, when tiles have `br` rows.
    #[inline(always)]
    pub fn of_block(p: &ForwardParams, br: u32) -> Self {
        let (split, tile, head) = p.order.place(special::block());
        let (batch, head) = p.tile_heads.divide(head);
        Place {
            batch,
            head: if PACKED { head * p.group.value } else { head },
            group: p.group,
            first: tile * br,
            split,
            dim: registers::opaque(p.dim),
        }
    }

    /// Rows of the head or group, in all its tiles.
    #[inline(always)]
    pub fn row_count(p: &ForwardParams) -> u32 {
        p.seqlen_q * if PACKED { p.group.value } else { 1 }
    }

    /// First key of the split, and how many keys it has.
    #[inline(always)]
    pub fn keys(&self, p: &ForwardParams) -> (u32, u32) {
        let first = self.split * p.split_keys;
        (first, (p.seqlen_kv - first).min(p.split_keys))
    }

    /// The rows of q or o.
    #[inline(always)]
    pub fn q_rows(&self, tensor: &TensorRef) -> GlobalRows<PACKED> {
        self.rows(tensor, self.head)
    }

    /// The rows of k or v from key `first` on.
    #[inline(always)]
    pub fn kv_rows(&self, tensor: &TensorRef, first: u32) -> GlobalRows<false> {
        self.rows(tensor, self.group.divide(self.head).0)
            .skip(first)
    }

    /// The rows from a head of a tensor on, in this batch.
    #[inline(always)]
    fn rows<const PACKED_ROWS: bool>(&self, t: &TensorRef, head: u32) -> GlobalRows<PACKED_ROWS> {
        let batch = i64::from(self.batch) * t.batch_stride;
        let offset = batch + i64::from(head) * t.head_stride;
        GlobalRows {
            address: t.address.wrapping_add_signed(2 * offset),
            row_bytes: 2 * t.row_stride,
            head_bytes: 2 * t.head_stride,
            group: self.group,
            first: 0,
            dim: self.dim,
        }
    }

    /// Address of the lse of a row.
    #[inline(always)]
    pub fn lse(&self, p: &ForwardParams, row: u32) -> u64 {
        let (query, head) = if PACKED {
            let (query, head) = p.group.divide(row);
            (query, self.head + head)
        } else {
            (row, self.head)
        };
        let head = u64::from(self.batch) * u64::from(p.heads) + u64::from(head);
        p.lse + 4 * (head * u64::from(p.seqlen_q) + u64::from(query))
    }

    /// Index of a row among the partial results of all splits.
    #[inline(always)]
    pub fn partial(&self, p: &ForwardParams, row: u32) -> u64 {
        let heads = u64::from(self.split) * u64::from(p.batch_heads)
            + u64::from(self.batch) * u64::from(p.heads)
            + u64::from(self.head);
        heads * u64::from(p.seqlen_q) + u64::from(row)
    }
}
