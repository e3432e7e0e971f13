//! `ldmatrix`: four 8x8 matrices of 16-bit elements from shared memory into a warp's registers.
//!
//! Lane `l` gives the address of row `l % 8` of matrix `l / 8`. Register `r` then holds, of matrix
//! `r`, elements `2t, 2t+1` of row `g` (`g = lane / 4`, `t = lane % 4`): see
//! [`fragment`](crate::layout::fragment).

use core::arch::asm;

loads! {
    u32 in reg32, "# Safety
Every lane of the warp must reach the same call. Each lane's `address` is 16-byte aligned. The 16 bytes there lie in the
block's shared memory, are written, and no thread writes them now.";

    /// Reads four matrices as they are stored.
    x4 = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];" [a b c d: u32 in reg32; 4];

    /// Reads four matrices transposed: register `r` holds elements `[2t][g]` and `[2t+1][g]`.
    x4_trans = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];"
        [a b c d: u32 in reg32; 4];
}
