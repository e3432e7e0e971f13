//! `mma.sync.m16n8k16`: `D = A * B + D` on the tensor cores, 16-bit operands, f32 or f16 accumulators.
//!
//! A is 16x16 row-major (4 registers a lane), B 16x8 column-major (2), D 16x8 (4, in pairs of f16 2):
//! [`fragment`](crate::layout::fragment) says which lane holds which element.

use core::arch::asm;

macro_rules! m16n8k16 {
    ($(#[$doc:meta])* $name:ident, $types:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Every lane of the warp must reach the same call.
        #[inline(always)]
        pub unsafe fn $name(mut d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
            // SAFETY: convergence is the caller's promise; all operands are registers.
            unsafe {
                asm!(
                    concat!("mma.sync.aligned.m16n8k16.row.col.", $types,
                        " {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"),
                    inout(reg32) d[0], inout(reg32) d[1], inout(reg32) d[2], inout(reg32) d[3],
                    in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                    in(reg32) b[0], in(reg32) b[1],
                    options(nostack),
                );
            }
            d
        }
    };
}

m16n8k16!(
    /// `a * b + d` with f16 operands.
    f16,
    "f32.f16.f16.f32"
);
m16n8k16!(
    /// `a * b + d` with bf16 operands.
    bf16,
    "f32.bf16.bf16.f32"
);

/// `a * b + d` with f16 operands and pairs of f16 as accumulators: row `g`, then row `g + 8`.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn f16_half(mut d: [u32; 2], a: [u32; 4], b: [u32; 2]) -> [u32; 2] {
    // SAFETY: convergence is the caller's promise; all operands are registers.
    unsafe {
        asm!(
            concat!("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
                " {{{0}, {1}}}, {{{2}, {3}, {4}, {5}}}, {{{6}, {7}}}, {{{0}, {1}}};"),
            inout(reg32) d[0], inout(reg32) d[1],
            in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
            in(reg32) b[0], in(reg32) b[1],
            options(nostack),
        );
    }
    d
}
