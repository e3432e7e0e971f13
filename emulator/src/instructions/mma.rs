//! `mma.sync`: `D = A * B + C` on the tensor cores, of elements of 16 or 8 bits.
//!
//! With `g = lane / 4` and `t = lane % 4`, and `K` 8 or 16:
//!
//! ```text
//! A (16xK, 16 bit)          B (Kx8, 16 bit)         C, D (16x8)
//!        k 2t,2t+1  2t+8,+9         n = g                   n 2t,  2t+1
//! row g      a0       a2     k 2t,2t+1   b0          row g     c0   c1
//! row g+8    a1       a3     k 2t+8,+9   b1          row g+8   c2   c3
//! ```
//!
//! A register of 8-bit elements holds `k` from `4t` to `4t + 3`, or from `4t + 16` on in place of `2t + 8`. C and D hold f32,
//! or pairs of f16 (`c0 c1` and `c2 c3` in a register).

use super::accumulators::{Accumulator, Half, Single};
use super::elements::{Bf16, Element, F16, FusedF16};
use super::fp8::{E4m3, E5m2};
use super::lanes;
use super::tiles::{self, Tile};
use crate::context::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::Violation;
use crate::host;
use crate::registers::Reg;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("mma.sync.aligned.") else {
        return Ok(None);
    };
    match (modifiers, host::is_wide()) {
        ("m16n8k16.row.col.f32.f16.f16.f32", true) => f32_sums::<FusedF16, FusedF16, 4, 2, 16>(d),
        ("m16n8k16.row.col.f32.f16.f16.f32", false) => f32_sums::<F16, F16, 4, 2, 16>(d),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", _) => f32_sums::<Bf16, Bf16, 4, 2, 16>(d),
        ("m16n8k16.row.col.f16.f16.f16.f16", _) => f16_sums::<4, 2, 16>(d),
        ("m16n8k8.row.col.f32.f16.f16.f32", _) => f32_sums::<F16, F16, 2, 1, 8>(d),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", _) => f32_sums::<Bf16, Bf16, 2, 1, 8>(d),
        ("m16n8k8.row.col.f16.f16.f16.f16", _) => f16_sums::<2, 1, 8>(d),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", _) => fp8::<E4m3, E4m3>(d),
        ("m16n8k32.row.col.f32.e4m3.e5m2.f32", _) => fp8::<E4m3, E5m2>(d),
        ("m16n8k32.row.col.f32.e5m2.e4m3.f32", _) => fp8::<E5m2, E4m3>(d),
        ("m16n8k32.row.col.f32.e5m2.e5m2.f32", _) => fp8::<E5m2, E5m2>(d),
        _ => Ok(None),
    }
}

/// Products of FP8, with f32 accumulators.
fn fp8<L: Element, R: Element>(d: &mut Decoder) -> Decoded {
    d.require_target(89)?;
    f32_sums::<L, R, 4, 2, 32>(d)
}

/// With f32 accumulators. `A` and `B` are the numbers of the operands' registers.
fn f32_sums<L: Element, R: Element, const A: usize, const B: usize, const DEPTH: usize>(
    d: &mut Decoder,
) -> Decoded {
    multiply::<L, R, Single, 4, A, B, DEPTH>(d)
}

/// With f16 accumulators, of f16.
fn f16_sums<const A: usize, const B: usize, const DEPTH: usize>(d: &mut Decoder) -> Decoded {
    multiply::<F16, F16, Half, 2, A, B, DEPTH>(d)
}

/// A product; `C` is the number of its accumulators' registers.
fn multiply<
    L: Element,
    R: Element,
    S: Accumulator,
    const C: usize,
    const A: usize,
    const B: usize,
    const DEPTH: usize,
>(
    d: &mut Decoder,
) -> Decoded {
    let [to, a, b, from] = d.operands()?;
    let (to, from): ([Reg<u32>; C], [Reg<u32>; C]) = (d.destinations(to)?, d.vector(from)?);
    let (a, b): ([Reg<u32>; A], [Reg<u32>; B]) = (d.vector(a)?, d.vector(b)?);
    lanes!(move |c| {
        c.require(u32::MAX)?;
        let mut sums = [Tile::default(); 2];
        for (sums, from) in sums.iter_mut().zip(from.chunks_exact(S::REGISTERS)) {
            *sums = S::read(|i| c.row(from[i]))?;
        }
        add_products::<L, R, DEPTH>(c, &mut sums, &a, &b)?;
        for (sums, to) in sums.iter().zip(to.chunks_exact(S::REGISTERS)) {
            S::write(sums, |i, row| c.write(to[i], row));
        }
        Ok(())
    })
}

/// `sums += A * B`, in order of `k`.
#[inline(always)]
fn add_products<L: Element, R: Element, const DEPTH: usize>(
    c: &mut Context,
    sums: &mut [Tile<f32>; 2],
    a: &[Reg<u32>],
    b: &[Reg<u32>],
) -> Result<(), Box<Violation>> {
    c.tally.flops += 2 * 16 * 8 * DEPTH as u64;
    // Tiles of a register.
    let parts = 2 / L::BYTES;
    let mut left = [[0.0_f32; DEPTH]; 16];
    for (i, register) in a.iter().enumerate() {
        for part in 0..parts {
            let tile = tiles::widened::<L>(&tiles::from_register::<L>(c.row(*register)?, part));
            for (left, elements) in left[8 * (i % 2)..].iter_mut().zip(&tile) {
                left[8 * (parts * (i / 2) + part)..][..8].copy_from_slice(elements);
            }
        }
    }
    let mut right = [[0.0; 8]; DEPTH];
    for (i, register) in b.iter().enumerate() {
        for part in 0..parts {
            let tile = tiles::from_register_transposed::<R>(c.row(*register)?, part);
            right[8 * (parts * i + part)..][..8].copy_from_slice(&tiles::widened::<R>(&tile));
        }
    }
    tiles::add_products::<L, DEPTH>(sums, &left, &right);
    Ok(())
}
