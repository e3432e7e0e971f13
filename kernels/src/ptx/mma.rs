//! `mma.sync.m16n8k16`: `D = A * B + D` on the tensor cores, 16-bit operands, f32 or f16 accumulators.
//!
//! A is 16x16 row-major (4 registers a lane), B 16x8 column-major (2), D 16x8 (4, in pairs of f16 2):
//! [`fragment`](crate::layout::fragment) says which lane holds which element.

use core::arch::asm;

/// Defines functions by the types of the instruction, with the registers of `D` and their text.
macro_rules! m16n8k16 {
    ($($(#[$doc:meta])* $name:ident = $types:literal [$($i:literal)+: $type:ident; $count:literal] $d:literal $($mark:literal)?;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Every lane of the warp must reach the same call.
        #[inline(always)]
        pub unsafe fn $name(mut d: [$type; $count], a: [u32; 4], b: [u32; 2]) -> [$type; $count] {
            // SAFETY: convergence is the caller's promise; all operands are registers.
            unsafe {
                asm!(
                    concat!("mma.sync.aligned.m16n8k16.row.col.", $types,
                        " ", $d, ", {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, ", $d, ";" $(, $mark)?),
                    $(inout(reg32) d[$i],)+
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b0 = in(reg32) b[0], b1 = in(reg32) b[1],
                    options(nostack),
                );
            }
            d
        }
    )*};
}

m16n8k16! {
    /// `a * b + d` with f16 operands.
    f16 = "f32.f16.f16.f32" [0 1 2 3: f32; 4] "{{{0}, {1}, {2}, {3}}}";

    /// [`f16`], in kernels of any type (`half.rs`).
    any_f16 = "f32.f16.f16.f32" [0 1 2 3: f32; 4] "{{{0}, {1}, {2}, {3}}}" " /* f16 */";

    /// `a * b + d` with bf16 operands.
    bf16 = "f32.bf16.bf16.f32" [0 1 2 3: f32; 4] "{{{0}, {1}, {2}, {3}}}";

    /// `a * b + d` with f16 operands and pairs of f16 as accumulators: row `g`, then row `g + 8`.
    f16_half = "f16.f16.f16.f16" [0 1: u32; 2] "{{{0}, {1}}}";
}
