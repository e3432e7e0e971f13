//! `stmatrix`: four 8x8 matrices of 16-bit elements from a warp's registers into shared memory.
//!
//! Lane `l` gives the address of row `l % 8` of matrix `l / 8`. Register `r` holds, of matrix `r`, columns `2t, 2t+1` of row
//! `g` (`g = lane / 4`, `t = lane % 4`), as for [`ldmatrix`](super::ldmatrix). With `.trans` a row in memory is a column
//! in registers.

use core::arch::asm;

stores! {
    u32 in reg32, "# Safety
Every lane of the warp must reach the same call. Each lane's `address` is 16-byte aligned, inside the block's shared
memory; no other warp uses these bytes now.";

    /// Stores four matrices.
    x4 = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{}], {{{}, {}, {}, {}}};" [a b c d: u32 in reg32; 4];

    /// Stores four matrices, transposed.
    x4_trans = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{}], {{{}, {}, {}, {}}};" [a b c d: u32 in reg32; 4];
}
