//! FP8: numbers of e4m3 in registers, and products of a warpgroup with them.
//!
//! An operand of e4m3 is as large as one of 16-bit elements, and holds twice as many: 32 columns of 16 rows. Both
//! operands of a product lie with their inner dimension along memory (PTX manual, `wgmma.mma_async`).

use super::{HalfAccumulator, Operand};
use crate::layout::descriptor::Descriptor;
use core::arch::asm;

/// Makes accumulators values that the compiler cannot move across this point.
#[inline(always)]
pub fn pin<const NT: usize>(tiles: &mut [HalfAccumulator; NT]) {
    for nt in 0..NT {
        for i in 0..4 {
            // SAFETY: no instruction.
            unsafe { asm!("/* {} */", inout(reg32) tiles[nt].0[i], options(nostack)) }
        }
    }
}

/// Makes operands values that stay in their registers up to this point.
#[inline(always)]
pub fn pin_operands<const PT: usize>(operands: &mut [Operand; PT]) {
    for operand in operands {
        for word in &mut operand.0 {
            // SAFETY: no instruction.
            unsafe { asm!("/* {} */", inout(reg32) * word, options(nostack)) }
        }
    }
}

/// Sums of 64 rows, in f16, with 16 columns for each tile of the array.
pub trait Products {
    /// `self = a * b^T`, or `self += a * b^T` where `add` says so, a constant after inlining, 32 deep.
    ///
    /// # Safety
    /// The conditions of [`Product::rows`](super::wgmma::Product::rows).
    unsafe fn rows(&mut self, a: Descriptor, b: Descriptor, add: bool);

    /// [`rows`](Self::rows) with `a` in registers, 16 rows a warp.
    ///
    /// # Safety
    /// The conditions of [`rows`](Self::rows).
    unsafe fn operand_rows(&mut self, a: Operand, b: Descriptor, add: bool);
}

/// One instruction: its types, its accumulators, and its other operands.
macro_rules! product {
    ($self:ident [$($i:literal)*] $others:tt $head:expr, $tail:literal, $inout:ident $($operand:tt)*) => {
        product!(@ $self [$($i)*] $others [$head, $tail] $inout [$($operand)*] [$([0 $i])*])
    };
    (@ $self:ident $is:tt [] [$head:expr, $tail:literal] $inout:ident [$($operand:tt)*] [[$t0:literal $i0:literal] $([$t:literal $i:literal])*]) => {
        asm!(
            concat!($head, "{{{}", $(product!(@comma $t),)* "}}, ", $tail),
            $inout(reg32) $self[$t0].0[$i0],
            $($inout(reg32) $self[$t].0[$i],)*
            $($operand)*
            options(nostack)
        )
    };
    (@ $self:ident [$($i:literal)*] [$tile:literal $($others:literal)*] $text:tt $inout:ident $operand:tt [$($all:tt)*]) => {
        product!(@with $self [$($i)*] $tile [$($others)*] $text $inout $operand [$($all)*])
    };
    (@with $self:ident [$i0:literal $i1:literal $i2:literal $i3:literal] $tile:literal $others:tt $text:tt $inout:ident $operand:tt [$($all:tt)*]) => {
        product!(@ $self [$i0 $i1 $i2 $i3] $others $text $inout $operand
            [$($all)* [$tile $i0] [$tile $i1] [$tile $i2] [$tile $i3]])
    };
    (@comma $t:literal) => { ", {}" };
}

/// Implements [`Products`] for `columns` columns: tile 0 and the others.
macro_rules! products {
    ($($tiles:literal $columns:literal $others:tt;)*) => {$(
        impl Products for [HalfAccumulator; $tiles] {
            #[inline(always)]
            unsafe fn rows(&mut self, a: Descriptor, b: Descriptor, add: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    match add {
                        false => products!(@rows self $columns $others out "0", a, b),
                        true => products!(@rows self $columns $others inout "1", a, b),
                    }
                }
            }

            #[inline(always)]
            unsafe fn operand_rows(&mut self, a: Operand, b: Descriptor, add: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    match add {
                        false => products!(@operand self $columns $others out "0", a, b),
                        true => products!(@operand self $columns $others inout "1", a, b),
                    }
                }
            }
        }
    )*};
    (@rows $self:ident $columns:literal $others:tt $inout:ident $add:literal, $a:ident, $b:ident) => {
        product!($self [0 1 2 3] $others
            concat!(
                "{{ .reg .b64 a, b; .reg .pred add; mov.b64 a, {{{a}, {a_high}}}; mov.b64 b, {{{b}, {b_high}}}; ",
                "setp.ne.b32 add, ", $add, ", 0; wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f16.e4m3.e4m3 "
            ),
            "a, b, add, 1, 1; }}",
            $inout
            a = in(reg32) $a.low, a_high = in(reg32) $a.high, b = in(reg32) $b.low, b_high = in(reg32) $b.high,
        )
    };
    (@operand $self:ident $columns:literal $others:tt $inout:ident $add:literal, $a:ident, $b:ident) => {
        product!($self [0 1 2 3] $others
            concat!(
                "{{ .reg .b64 b; .reg .pred add; mov.b64 b, {{{b}, {b_high}}}; ",
                "setp.ne.b32 add, ", $add, ", 0; wgmma.mma_async.sync.aligned.m64n", $columns, "k32.f16.e4m3.e4m3 "
            ),
            "{{{a0}, {a1}, {a2}, {a3}}}, b, add, 1, 1; }}",
            $inout
            a0 = in(reg32) $a.0[0], a1 = in(reg32) $a.0[1], a2 = in(reg32) $a.0[2], a3 = in(reg32) $a.0[3],
            b = in(reg32) $b.low, b_high = in(reg32) $b.high,
        )
    };
}

products! {
    4 64 [1 2 3];
    8 128 [1 2 3 4 5 6 7];
    16 256 [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
}
