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
use super::float::canonical_bits;
use super::lanes;
use crate::block::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::Violation;
use crate::host;
use crate::registers::{Reg, Row, map_row, row_of};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("mma.sync.aligned.") else {
        return Ok(None);
    };
    match modifiers {
        "m16n8k16.row.col.f32.f16.f16.f32" => single::<4, 2>(d, from_f16),
        "m16n8k16.row.col.f32.bf16.bf16.f32" => single::<4, 2>(d, from_bf16),
        "m16n8k16.row.col.f16.f16.f16.f16" => half::<4, 2>(d, from_f16),
        "m16n8k8.row.col.f32.f16.f16.f32" => single::<2, 1>(d, from_f16),
        "m16n8k8.row.col.f32.bf16.bf16.f32" => single::<2, 1>(d, from_bf16),
        "m16n8k8.row.col.f16.f16.f16.f16" => half::<2, 1>(d, from_f16),
        _ => Ok(None),
    }
}

/// An f16 as f32: its bits are shifted into place. A factor of 2^112 corrects the exponent, of
/// subnormals too; infinities and NaN get the largest exponent.
#[inline(always)]
pub(super) fn from_f16(bits: u32) -> f32 {
    let magnitude = (bits & 0x7fff) << 13;
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
}

/// A bf16 as f32.
#[inline(always)]
pub(super) fn from_bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// A 16x8 accumulator by rows.
type Accumulator = [[f32; 8]; 16];

/// With f32 accumulators. `A` and `B` are the operands' registers.
fn single<const A: usize, const B: usize>(
    d: &mut Decoder,
    widen: impl Fn(u32) -> f32 + Send + Sync + 'static,
) -> Decoded {
    let [to, a, b, from] = d.operands()?;
    let (to, from): ([Reg<u32>; 4], [Reg<u32>; 4]) = (d.destinations(to)?, d.vector(from)?);
    let (a, b): ([Reg<u32>; A], [Reg<u32>; B]) = (d.vector(a)?, d.vector(b)?);
    lanes!(move |c| {
        let mut sums = Accumulator::default();
        for (i, register) in from.iter().enumerate() {
            let values = c.row(*register)?;
            for (lane, value) in values.iter().enumerate() {
                let (row, column) = accumulator(lane, i);
                sums[row][column] = f32::from_bits(*value);
            }
        }
        multiply_add(c, &mut sums, &a, &b, &widen)?;
        for (i, register) in to.iter().enumerate() {
            c.write(
                *register,
                row_of(|lane| {
                    let (row, column) = accumulator(lane, i);
                    canonical_bits(sums[row][column])
                }),
            );
        }
        Ok(())
    })
}

/// With f16 accumulators.
fn half<const A: usize, const B: usize>(
    d: &mut Decoder,
    widen: impl Fn(u32) -> f32 + Send + Sync + 'static,
) -> Decoded {
    let [to, a, b, from] = d.operands()?;
    let (to, from): ([Reg<u32>; 2], [Reg<u32>; 2]) = (d.destinations(to)?, d.vector(from)?);
    let (a, b): ([Reg<u32>; A], [Reg<u32>; B]) = (d.vector(a)?, d.vector(b)?);
    lanes!(move |c| {
        let mut sums = Accumulator::default();
        for (i, register) in from.iter().enumerate() {
            let values = c.read(*register)?;
            for (lane, pair) in values.into_iter().enumerate() {
                let (row, column) = accumulator(lane, 2 * i);
                sums[row][column] = from_f16(pair & 0xffff);
                sums[row][column + 1] = from_f16(pair >> 16);
            }
        }
        multiply_add(c, &mut sums, &a, &b, &widen)?;
        for (i, register) in to.iter().enumerate() {
            c.write(
                *register,
                row_of(|lane| {
                    let (row, column) = accumulator(lane, 2 * i);
                    let round = |x: f32| u32::from(f16_bits(x));
                    round(sums[row][column + 1]) << 16 | round(sums[row][column])
                }),
            );
        }
        Ok(())
    })
}

/// Row and column of an accumulator element of a lane.
#[inline(always)]
pub(super) fn accumulator(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
}

/// `sums += A * B`, in order of `k`.
#[inline(always)]
fn multiply_add<const A: usize, const B: usize>(
    c: &mut Context,
    sums: &mut Accumulator,
    a: &[Reg<u32>; A],
    b: &[Reg<u32>; B],
    widen: impl Fn(u32) -> f32,
) -> Result<(), Box<Violation>> {
    c.require(u32::MAX)?;
    let depth = 8 * B;
    c.tally.flops += 2 * 16 * 8 * depth as u64;
    let widen_pairs = |row: &Row<u32>| -> (Row<f32>, Row<f32>) {
        (
            map_row(row, |pair| widen(pair & 0xffff)),
            map_row(row, |pair| widen(pair >> 16)),
        )
    };
    let mut left = [[0.0_f32; 16]; 16];
    for (i, register) in a.iter().enumerate() {
        let (low, high) = widen_pairs(c.row(*register)?);
        for lane in 0..32 {
            let (row, k) = (lane / 4 + 8 * (i % 2), 2 * (lane % 4) + 8 * (i / 2));
            left[row][k] = low[lane];
            left[row][k + 1] = high[lane];
        }
    }
    let mut right = [[0.0_f32; 8]; 16];
    for (i, register) in b.iter().enumerate() {
        let (low, high) = widen_pairs(c.row(*register)?);
        for lane in 0..32 {
            let (k, column) = (2 * (lane % 4) + 8 * i, lane / 4);
            right[k][column] = low[lane];
            right[k + 1][column] = high[lane];
        }
    }
    match host::is_wide() {
        // SAFETY: the host was asked.
        true => unsafe { add_products_wide(sums, &left, &right, depth) },
        false => add_products(sums, &left, &right, depth),
    }
    Ok(())
}

/// `sums += left * right`, in order of `k` up to `depth`.
#[inline(always)]
fn add_products(
    sums: &mut Accumulator,
    left: &[[f32; 16]; 16],
    right: &[[f32; 8]; 16],
    depth: usize,
) {
    for (sums, left) in sums.iter_mut().zip(left) {
        let mut row = *sums;
        for (factor, right) in left.iter().zip(right).take(depth) {
            for (sum, right) in row.iter_mut().zip(right) {
                *sum += factor * right;
            }
        }
        *sums = row;
    }
}

/// [`add_products`] with vectors of eight. It is a function of its own: as a part of the instruction's, which is large and
/// stands in two places, it would not be compiled for them.
///
/// # Safety
/// The host must be [wide](host::is_wide).
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn add_products_wide(
    sums: &mut Accumulator,
    left: &[[f32; 16]; 16],
    right: &[[f32; 8]; 16],
    depth: usize,
) {
    add_products(sums, left, right, depth);
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (from_f16(u32::from(bits)), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }
}
