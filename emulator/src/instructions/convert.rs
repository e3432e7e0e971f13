//! `cvt`: between integer widths, between integers and floats, and between float widths.

use super::float::canonical_bits;
use super::{binary, lanes, unary};
use crate::decode::{Decoded, Decoder};
use crate::registers::{AnyReg, Row};
use half::{bf16, f16};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("cvt.") else {
        return Ok(None);
    };
    match modifiers {
        "rn.f16x2.f32" => pair(d, f16_bits),
        "rn.bf16x2.f32" => pair(d, bf16_bits),
        "rn.relu.f16x2.f32" => pair(d, |x| f16_bits(relu(x))),
        "rn.relu.bf16x2.f32" => pair(d, |x| bf16_bits(relu(x))),
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
        _ => integers(d, modifiers),
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

/// Rounded to bf16; there is one NaN.
pub(super) fn bf16_bits(x: f32) -> u16 {
    if x.is_nan() {
        0x7fff
    } else {
        bf16::from_f32(x).to_bits()
    }
}

/// `max(x, 0)`; NaN stays.
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Two f32 rounded and packed; the first operand goes to the high half.
fn pair(d: &mut Decoder, round: impl Fn(f32) -> u16 + Send + Sync + 'static) -> Decoded {
    let half = move |bits: u32| u32::from(round(f32::from_bits(bits)));
    binary(d, move |hi: u32, lo: u32| half(hi) << 16 | half(lo))
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
    let (to, from) = (d.any(to)?, d.any(from)?);
    if to.bits() < to_bits || from.bits() < from_bits {
        return Err("a register is narrower than its type".to_owned());
    }
    lanes(move |c| {
        let value: Row<u64> = match from {
            AnyReg::B16(from) => c.read(from)?.map(u64::from),
            AnyReg::B32(from) => c.read(from)?.map(u64::from),
            AnyReg::B64(from) => c.read(from)?,
        };
        let value = value.map(|v| extend(extend(v, from_bits, from_signed), to_bits, to_signed));
        match to {
            AnyReg::B16(to) => c.write(to, value.map(|v| v as u16)),
            AnyReg::B32(to) => c.write(to, value.map(|v| v as u32)),
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
