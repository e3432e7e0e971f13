//! `wgmma`: asynchronous matrix products of a warpgroup, four warps that start at a multiple of four.
//!
//! A product multiplies 64 rows of A by columns of B, 16 deep. B, and A too or not, lie in shared memory, described
//! by [`Descriptor`]s. A warp has 16 of the rows; its accumulators lie in its lanes as for
//! [`mma`](crate::ptx::mma).
//!
//! ```text
//! fence   product  product  ...  commit   other work   wait
//!         `--------- a group ---------'                the group's accumulators are ready
//! ```
//!
//! The assembler (`ptxas`) must see that no instruction touches the registers of a product between its issue and
//! the wait. It waits for each product at once where it does not (warning C7510 and its neighbours). So a product
//! is one `asm!`, and [`pin`] says at the fence and the wait that the accumulators are new values.

use super::{Accumulator, Element, Operand};
use crate::layout::descriptor::Descriptor;
pub use crate::ptx::wgmma::{commit, fence, wait};
use core::arch::asm;

/// Makes accumulators values that the compiler cannot move across this point.
#[inline(always)]
pub fn pin<const NT: usize>(tiles: &mut [Accumulator; NT]) {
    for nt in 0..NT {
        for i in 0..8 {
            // SAFETY: no instruction.
            unsafe { asm!("/* {} */", inout(reg32) tiles[nt].0[i], options(nostack)) }
        }
    }
}

/// Products with accumulators of 64 rows by as many slices of 16 columns as the array has tiles.
pub trait Product {
    /// `self = a * b^T`, or `self += a * b^T` where `add` says so, a constant after inlining, of 16-bit elements whose rows are 16 deep along memory.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, after a [`fence`]. The operands are written and visible to the
    /// asynchronous proxy. No thread writes them, and this thread does not touch `self`, before the
    /// [`wait`] for the product's group.
    unsafe fn rows<E: Element>(&mut self, a: Descriptor, b: Descriptor, add: bool);

    /// [`rows`](Self::rows) with 16 rows of `b`, whose columns lie along memory: `a * b`.
    ///
    /// # Safety
    /// The conditions of [`rows`](Self::rows).
    unsafe fn rows_columns<E: Element>(&mut self, a: Descriptor, b: Descriptor, add: bool);

    /// `self += a * b`, with `a` in registers, 16 rows a warp, and 16 rows of `b`, whose columns lie along memory.
    ///
    /// # Safety
    /// The conditions of [`rows`](Self::rows).
    unsafe fn columns<E: Element>(&mut self, a: Operand, b: Descriptor);

    /// `self += a * b^T`, with `a` in registers, 16 rows a warp, and rows of `b` that are 16 deep along memory.
    ///
    /// # Safety
    /// The conditions of [`rows`](Self::rows).
    unsafe fn operand_rows<E: Element>(&mut self, a: Operand, b: Descriptor);
}

/// The text for eight registers more.
macro_rules! eight {
    ($tile:literal) => {
        ", {}, {}, {}, {}, {}, {}, {}, {}"
    };
}

/// One instruction: its text around the accumulators, and its other operands.
macro_rules! product {
    ($self:ident $columns:literal [$($tile:literal)*] $dtype:literal $inout:ident
        $head:literal $add:literal $set:literal, $tail:expr, $($operand:tt)*) => {
        asm!(
            concat!(
                $head, $add, $set, "wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $dtype, ".", $dtype,
                " {{{}, {}, {}, {}, {}, {}, {}, {}", $(eight!($tile),)* "}}, ", $tail
            ),
            $inout(reg32) $self[0].0[0], $inout(reg32) $self[0].0[1],
            $inout(reg32) $self[0].0[2], $inout(reg32) $self[0].0[3],
            $inout(reg32) $self[0].0[4], $inout(reg32) $self[0].0[5],
            $inout(reg32) $self[0].0[6], $inout(reg32) $self[0].0[7],
            $(
                $inout(reg32) $self[$tile].0[0], $inout(reg32) $self[$tile].0[1],
                $inout(reg32) $self[$tile].0[2], $inout(reg32) $self[$tile].0[3],
                $inout(reg32) $self[$tile].0[4], $inout(reg32) $self[$tile].0[5],
                $inout(reg32) $self[$tile].0[6], $inout(reg32) $self[$tile].0[7],
            )*
            $($operand)*
            options(nostack)
        )
    };
}

/// Implements [`Product`] for `columns` columns: tile 0 and the others.
macro_rules! products {
    ($($tiles:literal $columns:literal $others:tt;)*) => {
        $(impl Product for [Accumulator; $tiles] {
            #[inline(always)]
            unsafe fn rows<E: Element>(&mut self, a: Descriptor, b: Descriptor, add: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    match (E::IS_BF16, add) {
                        (false, false) => products!(@rows self $columns $others "f16" out "0" "0", a, b),
                        (false, true) => products!(@rows self $columns $others "f16" inout "1" "0", a, b),
                        (true, false) => products!(@rows self $columns $others "bf16" out "0" "0", a, b),
                        (true, true) => products!(@rows self $columns $others "bf16" inout "1" "0", a, b),
                    }
                }
            }

            #[inline(always)]
            unsafe fn rows_columns<E: Element>(&mut self, a: Descriptor, b: Descriptor, add: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    match (E::IS_BF16, add) {
                        (false, false) => products!(@rows self $columns $others "f16" out "0" "1", a, b),
                        (false, true) => products!(@rows self $columns $others "f16" inout "1" "1", a, b),
                        (true, false) => products!(@rows self $columns $others "bf16" out "0" "1", a, b),
                        (true, true) => products!(@rows self $columns $others "bf16" inout "1" "1", a, b),
                    }
                }
            }

            #[inline(always)]
            unsafe fn columns<E: Element>(&mut self, a: Operand, b: Descriptor) {
                // SAFETY: the caller's promise.
                unsafe {
                    if E::IS_BF16 {
                        products!(@operand self $columns $others "bf16" "1", a, b);
                    } else {
                        products!(@operand self $columns $others "f16" "1", a, b);
                    }
                }
            }

            #[inline(always)]
            unsafe fn operand_rows<E: Element>(&mut self, a: Operand, b: Descriptor) {
                // SAFETY: the caller's promise.
                unsafe {
                    if E::IS_BF16 {
                        products!(@operand self $columns $others "bf16" "0", a, b);
                    } else {
                        products!(@operand self $columns $others "f16" "0", a, b);
                    }
                }
            }
        })*
    };
    (@rows $self:ident $columns:literal $others:tt $dtype:literal $inout:ident $add:literal $trans:literal, $a:ident, $b:ident) => {
        product!($self $columns $others $dtype $inout
            "{{ .reg .b64 a, b; .reg .pred add; mov.b64 a, {{{a}, {a_high}}}; mov.b64 b, {{{b}, {b_high}}}; \
             setp.ne.b32 add, " $add ", 0; ",
            concat!("a, b, add, 1, 1, 0, ", $trans, "; }}"),
            a = in(reg32) $a.low, a_high = in(reg32) $a.high,
            b = in(reg32) $b.low, b_high = in(reg32) $b.high,
        )
    };
    (@operand $self:ident $columns:literal $others:tt $dtype:literal $trans:literal, $a:ident, $b:ident) => {
        product!($self $columns $others $dtype inout
            "{{ .reg .b64 b; mov.b64 b, {{{b}, {b_high}}}" ";" " ",
            concat!("{{{a0}, {a1}, {a2}, {a3}}}, b, 1, 1, 1, ", $trans, "; }}"),
            a0 = in(reg32) $a.0[0], a1 = in(reg32) $a.0[1], a2 = in(reg32) $a.0[2], a3 = in(reg32) $a.0[3],
            b = in(reg32) $b.low, b_high = in(reg32) $b.high,
        )
    };
}

products! {
    2 32 [1];
    4 64 [1 2 3];
    5 80 [1 2 3 4];
    6 96 [1 2 3 4 5];
    8 128 [1 2 3 4 5 6 7];
    12 192 [1 2 3 4 5 6 7 8 9 10 11];
    16 256 [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
}
