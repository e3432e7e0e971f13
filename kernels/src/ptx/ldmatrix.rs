//! `ldmatrix`: four 8x8 matrices of 16-bit elements from shared memory into a warp's registers.
//!
//! Lane `l` gives the address of row `l % 8` of matrix `l / 8`. Register `r` then holds, of matrix
//! `r`, elements `2t, 2t+1` of row `g` (`g = lane / 4`, `t = lane % 4`): see
//! [`fragment`](crate::layout::fragment).

use core::arch::asm;

/// Reads four matrices as they are stored.
///
/// # Safety
/// Every lane of the warp must reach the same call. Each lane's `address` is 16-byte aligned. The 16 bytes
/// there lie in the block's shared memory, are written, and no thread writes them now.
#[inline(always)]
pub unsafe fn x4(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: address and convergence are the caller's promise.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack));
    }
    [a, b, c, d]
}

/// Reads four matrices transposed: register `r` holds elements `[2t][g]` and `[2t+1][g]`.
///
/// # Safety
/// As [`x4`].
#[inline(always)]
pub unsafe fn x4_trans(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: address and convergence are the caller's promise.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack));
    }
    [a, b, c, d]
}
