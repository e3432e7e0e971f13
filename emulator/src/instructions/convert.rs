//! `cvt`: between integer widths, between integers and floats, and between float widths, FP8 among them.

use super::elements::from_f16;
use super::fp8::{E4m3, E5m2, Fp8};
use super::{binary, lanes, unary};
use crate::decode::{Decoded, Decoder};
use crate::host;
use crate::nan::canonical_bits;
use crate::registers::{AnyReg, Reg, Row, map_row, row_of};
use half::{bf16, f16};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("cvt.") else {
        return Ok(None);
    };
    match modifiers {
        "rn.f16x2.f32" => pair(d, f16_row),
        "rn.bf16x2.f32" => pair(d, bf16_row),
        "rn.relu.f16x2.f32" => pair(d, |row| f16_row(&map_row(row, relu))),
        "rn.relu.bf16x2.f32" => pair(d, |row| bf16_row(&map_row(row, relu))),
        "rn.f16.f32" => unary(d, |a: u32| f16_bits(f32::from_bits(a))),
        "rn.bf16.f32" => unary(d, |a: u32| bf16_bits(f32::from_bits(a))),
        "f32.f16" => unary(d, |a: u16| canonical_bits(f16::from_bits(a).to_f32())),
        "f32.bf16" => unary(d, |a: u16| canonical_bits(bf16::from_bits(a).to_f32())),
        "f64.f32" => unary(d, |a: u32| f64::from(f32::from_bits(a)).to_bits()),
        "rn.f32.f64" => unary(d, |a: u64| (f64::from_bits(a) as f32).to_bits()),
        "rn.f32.u32" => unary(d, |a: u32| (a as f32).to_bits()),
        "rn.f32.s32" => unary(d, |a: u32| (a as i32 as f32).to_bits()),
        "rn.f32.u64" => unary(d, |a: u64| (a as f32).to_bits()),
        "rn.f32.s64" => unary(d, |a: u64| (a as i64 as f32).to_bits()),
        "rzi.u32.f32" => unary(d, |a: u32| f32::from_bits(a) as u32),
        "rzi.s32.f32" => unary(d, |a: u32| f32::from_bits(a) as i32 as u32),
        "rni.s32.f32" => unary(d, |a: u32| {
            f32::from_bits(a).round_ties_even() as i32 as u32
        }),
        "rmi.s32.f32" => unary(d, |a: u32| f32::from_bits(a).floor() as i32 as u32),
        "rpi.s32.f32" => unary(d, |a: u32| f32::from_bits(a).ceil() as i32 as u32),
        _ if modifiers.contains("e4m3x2") => fp8_pair::<E4m3>(d, modifiers, "e4m3x2"),
        _ if modifiers.contains("e5m2x2") => fp8_pair::<E5m2>(d, modifiers, "e5m2x2"),
        _ => integers(d, modifiers),
    }
}

/// Whether a text has a prefix, and what follows it.
fn after<'a>(text: &'a str, prefix: &str) -> (bool, &'a str) {
    match text.strip_prefix(prefix) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

/// Pairs of FP8 from f32 and f16, and to f16. There is a NaN of each type.
fn fp8_pair<E: Fp8>(d: &mut Decoder, modifiers: &str, name: &str) -> Decoded {
    d.require_target(89)?;
    let Some(rest) = modifiers.strip_prefix("rn.") else {
        return Ok(None);
    };
    let (saturates, rest) = after(rest, "satfinite.");
    let (is_clamped, types) = after(rest, "relu.");
    let limit = if is_clamped { 0.0 } else { f32::NEG_INFINITY };
    let clamped = move |x: f32| if x < limit { limit } else { x };
    let round = move |x: f32| u16::from(E::round(clamped(x)));
    match (saturates, types.replace(name, "fp8x2").as_str()) {
        (true, "fp8x2.f32") => binary(d, move |high: u32, low: u32| {
            round(f32::from_bits(high)) << 8 | round(f32::from_bits(low))
        }),
        (true, "fp8x2.f16x2") => unary(d, move |pair: u32| {
            round(from_f16(pair >> 16)) << 8 | round(from_f16(pair & 0xffff))
        }),
        (false, "f16x2.fp8x2") => unary(d, move |pair: u16| {
            let widen = |bits: u16| u32::from(f16_bits(clamped(E::widen(u32::from(bits)))));
            widen(pair >> 8) << 16 | widen(pair & 0xff)
        }),
        _ => Ok(None),
    }
}

/// Rounded to f16; there is one NaN, as in hardware.
pub(super) fn f16_bits(x: f32) -> u16 {
    if x.is_nan() {
        0x7fff
    } else {
        f16::from_f32(x).to_bits()
    }
}

/// The bits of f32 rounded to f16, each as [`f16_bits`] does it.
pub(super) fn f16_row(row: &Row<u32>) -> Row<u16> {
    if !host::is_wide() {
        return row.map(|bits| f16_bits(f32::from_bits(bits)));
    }
    // SAFETY: the host was asked.
    let mut rounded = unsafe { host::round_to_f16(row) };
    for rounded in &mut rounded {
        if *rounded & 0x7fff > 0x7c00 {
            *rounded = 0x7fff;
        }
    }
    rounded
}

/// Rounded to bf16; there is one NaN.
#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    if x.is_nan() {
        0x7fff
    } else {
        bf16::from_f32(x).to_bits()
    }
}

/// The bits of f32 rounded to bf16, each as [`bf16_bits`] does it.
#[inline(always)]
pub(super) fn bf16_row(row: &Row<u32>) -> Row<u16> {
    map_row(row, |x| bf16_bits(f32::from_bits(x)))
}

/// The bits of `max(x, 0)`; NaN stays.
#[inline(always)]
fn relu(x: u32) -> u32 {
    if f32::from_bits(x) < 0.0 { 0 } else { x }
}

/// Two f32 rounded and packed; the first operand goes to the high half.
fn pair(d: &mut Decoder, round: impl Fn(&Row<u32>) -> Row<u16> + Send + Sync + 'static) -> Decoded {
    let [to, high, low] = d.operands()?;
    let to: Reg<u32> = d.destination(to)?;
    let (high, low): (Reg<u32>, Reg<u32>) = (d.source(high)?, d.source(low)?);
    lanes!(move |c| {
        let (high, low) = (round(c.row(high)?), round(c.row(low)?));
        let packed = row_of(|i| u32::from(high[i]) << 16 | u32::from(low[i]));
        c.write(to, packed);
        Ok(())
    })
}

/// `cvt.to.from` of integers: extended by `from`'s sign, then cut to `to`'s width. Registers may be
/// wider than the types.
fn integers(d: &mut Decoder, modifiers: &str) -> Decoded {
    let Some((Some((to_bits, to_signed)), Some((from_bits, from_signed)))) = modifiers
        .split_once('.')
        .map(|(to, from)| (integer(to), integer(from)))
    else {
        return Ok(None);
    };
    let [to, from] = d.operands()?;
    let (to, from) = (d.any_destination(to)?, d.any(from)?);
    if to.bits() < to_bits || from.bits() < from_bits {
        return Err("a register is narrower than its type".to_owned());
    }
    lanes!(move |c| {
        let value: Row<u64> = match from {
            AnyReg::B16(from) => map_row(c.row(from)?, u64::from),
            AnyReg::B32(from) => map_row(c.row(from)?, u64::from),
            AnyReg::B64(from) => c.read(from)?,
        };
        let value = map_row(&value, |v| {
            extend(extend(v, from_bits, from_signed), to_bits, to_signed)
        });
        match to {
            AnyReg::B16(to) => c.write(to, map_row(&value, |v| v as u16)),
            AnyReg::B32(to) => c.write(to, map_row(&value, |v| v as u32)),
            AnyReg::B64(to) => c.write(to, value),
        }
        Ok(())
    })
}

/// Bits and signedness of an integer type.
fn integer(name: &str) -> Option<(u32, bool)> {
    let signed = match name.as_bytes().first()? {
        b's' => true,
        b'u' => false,
        _ => return None,
    };
    let bits = name[1..].parse().ok()?;
    matches!(bits, 8 | 16 | 32 | 64).then_some((bits, signed))
}

/// The low `bits` bits, extended to 64 by their sign or by zeros.
#[inline(always)]
pub(super) fn extend(value: u64, bits: u32, signed: bool) -> u64 {
    let unused = 64 - bits;
    let top = value << unused;
    if signed {
        (top as i64 >> unused) as u64
    } else {
        top >> unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_as_their_elements_do() {
        // Every f16, what lies halfway to the next one, and its neighbours; and numbers that no f16 is near.
        let near = (0..=u16::MAX).flat_map(|bits| {
            let value = f16::from_bits(bits).to_f32().to_bits();
            [0, 1, 0xfff, 0x1000, 0x1001].map(|step| value.wrapping_add(step))
        });
        let far = (0..=u16::MAX).map(|bits| u32::from(bits) << 16 | 0x5555);
        let all: Vec<u32> = near.chain(far).collect();
        for row in all.as_chunks().0 {
            let expected = row.map(|bits| f16_bits(f32::from_bits(bits)));
            assert_eq!(f16_row(row), expected, "{row:x?}");
        }
    }
}
