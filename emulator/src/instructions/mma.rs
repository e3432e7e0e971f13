//! `mma.sync`: `D = A * B + C` on the tensor cores, of 16-bit operands.
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
//! C and D hold f32, or pairs of f16 (`c0 c1` and `c2 c3` in a register).

use super::convert::f16_bits;
use super::elements::{Bf16, Element, F16, FusedF16};
use super::lanes;
use super::tiles::{self, Tile};
use crate::block::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::Violation;
use crate::host;
use crate::registers::{Reg, row_of};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("mma.sync.aligned.") else {
        return Ok(None);
    };
    match (modifiers, host::is_wide()) {
        ("m16n8k16.row.col.f32.f16.f16.f32", true) => single::<FusedF16, 4, 2>(d),
        ("m16n8k16.row.col.f32.f16.f16.f32", false) => single::<F16, 4, 2>(d),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", _) => single::<Bf16, 4, 2>(d),
        ("m16n8k16.row.col.f16.f16.f16.f16", _) => half::<4, 2>(d),
        ("m16n8k8.row.col.f32.f16.f16.f32", _) => single::<F16, 2, 1>(d),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", _) => single::<Bf16, 2, 1>(d),
        ("m16n8k8.row.col.f16.f16.f16.f16", _) => half::<2, 1>(d),
        _ => Ok(None),
    }
}

/// A 16x8 accumulator: its upper and its lower half.
type Accumulator = [Tile<f32>; 2];

/// With f32 accumulators. `A` and `B` are the numbers of the operands' registers.
fn single<E: Element, const A: usize, const B: usize>(d: &mut Decoder) -> Decoded {
    let [to, a, b, from] = d.operands()?;
    let (to, from): ([Reg<u32>; 4], [Reg<u32>; 4]) = (d.destinations(to)?, d.vector(from)?);
    let (a, b): ([Reg<u32>; A], [Reg<u32>; B]) = (d.vector(a)?, d.vector(b)?);
    lanes!(move |c| {
        let mut sums = Accumulator::default();
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = tiles::from_words(c.row(from[2 * i])?, c.row(from[2 * i + 1])?);
        }
        multiply_add::<E, A, B>(c, &mut sums, &a, &b)?;
        for (i, sums) in sums.iter().enumerate() {
            let [even, odd] = tiles::to_words(sums);
            c.write(to[2 * i], even);
            c.write(to[2 * i + 1], odd);
        }
        Ok(())
    })
}

/// With f16 accumulators, of f16.
fn half<const A: usize, const B: usize>(d: &mut Decoder) -> Decoded {
    let [to, a, b, from] = d.operands()?;
    let (to, from): ([Reg<u32>; 2], [Reg<u32>; 2]) = (d.destinations(to)?, d.vector(from)?);
    let (a, b): ([Reg<u32>; A], [Reg<u32>; B]) = (d.vector(a)?, d.vector(b)?);
    lanes!(move |c| {
        let mut sums = Accumulator::default();
        for (sums, register) in sums.iter_mut().zip(&from) {
            *sums = tiles::widened::<F16>(&tiles::from_pairs(c.row(*register)?));
        }
        multiply_add::<F16, A, B>(c, &mut sums, &a, &b)?;
        for (sums, to) in sums.iter().zip(&to) {
            let values = row_of(|lane| {
                let element = |i| u32::from(f16_bits(sums[lane / 4][2 * (lane % 4) + i]));
                element(1) << 16 | element(0)
            });
            c.write(*to, values);
        }
        Ok(())
    })
}

/// `sums += A * B`, in order of `k`.
#[inline(always)]
fn multiply_add<E: Element, const A: usize, const B: usize>(
    c: &mut Context,
    sums: &mut Accumulator,
    a: &[Reg<u32>; A],
    b: &[Reg<u32>; B],
) -> Result<(), Box<Violation>> {
    c.require(u32::MAX)?;
    let depth = 8 * B;
    c.tally.flops += 2 * 16 * 8 * depth as u64;
    let mut left = [[0.0_f32; 16]; 16];
    for (i, register) in a.iter().enumerate() {
        let tile = tiles::widened::<E>(&tiles::from_pairs(c.row(*register)?));
        for (left, elements) in left[8 * (i % 2)..].iter_mut().zip(&tile) {
            left[8 * (i / 2)..][..8].copy_from_slice(elements);
        }
    }
    let mut right = [Tile::default(); B];
    for (right, register) in right.iter_mut().zip(b) {
        *right = tiles::widened::<E>(&tiles::from_pairs_transposed(c.row(*register)?));
    }
    tiles::add_products::<E>(sums, &left, right.as_flattened());
    Ok(())
}
