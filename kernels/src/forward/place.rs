//! Which query tile a block computes.

use crate::order::tile_of_block;
use crate::params::{ForwardParams, TensorRef};
use crate::ptx::special;
use crate::tile::GlobalRows;

/// The query tile of a block.
pub struct Place {
    batch: u32,
    /// Query head.
    pub head: u32,
    /// First row.
    pub first: u32,
    dim: u32,
    aligned: u32,
}

impl Place {
    /// The tile of this block, when tiles have `br` rows.
    #[inline(always)]
    pub fn of_block(p: &ForwardParams, br: u32) -> Self {
        let (tile, head) = tile_of_block(special::block(), p.batch_heads, p.q_tiles, p.wave_heads);
        Place {
            batch: head / p.heads,
            head: head % p.heads,
            first: tile * br,
            dim: special::opaque(p.dim),
            aligned: special::opaque(p.aligned),
        }
    }

    /// The rows of a head of a tensor, in this batch.
    #[inline(always)]
    pub fn rows(&self, tensor: &TensorRef, head: u32) -> GlobalRows {
        let batch = i64::from(self.batch) * tensor.batch_stride;
        let offset = batch + i64::from(head) * tensor.head_stride;
        GlobalRows {
            address: tensor.address.wrapping_add_signed(2 * offset),
            row_bytes: 2 * tensor.row_stride,
            dim: self.dim,
            aligned: self.aligned != 0,
        }
    }

    /// Address of the lse of the head's row 0.
    #[inline(always)]
    pub fn lse(&self, p: &ForwardParams) -> u64 {
        let head = u64::from(self.batch) * u64::from(p.heads) + u64::from(self.head);
        p.lse + 4 * head * u64::from(p.seqlen_q)
    }
}
