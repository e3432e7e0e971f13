//! Integer arithmetic, logic and comparison.
//!
//! Division by zero, which PTX leaves open, gives all ones.

use super::{binary, compare, ternary, unary};
use crate::decode::{Decoded, Decoder, lanes};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some((name, kind)) = d.opcode().rsplit_once('.') else {
        return Ok(None);
    };
    match kind {
        "s16" => of_16::arithmetic(d, name, true),
        "u16" => of_16::arithmetic(d, name, false),
        "s32" => of_32::arithmetic(d, name, true),
        "u32" => of_32::arithmetic(d, name, false),
        "s64" => of_64::arithmetic(d, name, true),
        "u64" => of_64::arithmetic(d, name, false),
        "b16" => of_16::logic(d, name),
        "b32" if name == "prmt" => ternary(d, permute),
        "b32" if name.starts_with("shf.") => funnel(d, name),
        "b32" => of_32::logic(d, name),
        "b64" => of_64::logic(d, name),
        "pred" => predicates(d, name),
        _ => Ok(None),
    }
}

macro_rules! width {
    ($module:ident, $U:ty, $S:ty, $Wide:ty, $WideS:ty) => {
        mod $module {
            use super::*;

            pub fn arithmetic(d: &mut Decoder, name: &str, signed: bool) -> Decoded {
                const BITS: u32 = <$U>::BITS;
                // The high half of a product, from arithmetic of twice the width.
                let high = |a: $U, b: $U| (u128::from(a) * u128::from(b) >> BITS) as $U;
                let high_signed =
                    |a: $U, b: $U| (i128::from(a as $S) * i128::from(b as $S) >> BITS) as $U;
                let divide = |a: $U, b: $U| a.checked_div(b).unwrap_or(<$U>::MAX);
                let divide_signed = |a: $U, b: $U| match b {
                    0 => <$U>::MAX,
                    _ => (a as $S).wrapping_div(b as $S) as $U,
                };
                let wide = |a: $U| a as $Wide;
                let wide_signed = |a: $U| a as $S as $WideS as $Wide;
                match (name, signed) {
                    ("add", _) => binary(d, <$U>::wrapping_add),
                    ("sub", _) => binary(d, <$U>::wrapping_sub),
                    ("mul.lo", _) => binary(d, <$U>::wrapping_mul),
                    ("mul.hi", false) => binary(d, high),
                    ("mul.hi", true) => binary(d, high_signed),
                    ("mul.wide", false) if BITS < 64 => {
                        binary(d, move |a, b| wide(a).wrapping_mul(wide(b)))
                    }
                    ("mul.wide", true) if BITS < 64 => {
                        binary(d, move |a, b| wide_signed(a).wrapping_mul(wide_signed(b)))
                    }
                    ("mad.lo", _) => {
                        ternary(d, |a: $U, b: $U, c: $U| a.wrapping_mul(b).wrapping_add(c))
                    }
                    ("mad.hi", false) => ternary(d, move |a, b, c: $U| high(a, b).wrapping_add(c)),
                    ("mad.hi", true) => {
                        ternary(d, move |a, b, c: $U| high_signed(a, b).wrapping_add(c))
                    }
                    ("mad.wide", false) if BITS < 64 => ternary(d, move |a, b, c: $Wide| {
                        wide(a).wrapping_mul(wide(b)).wrapping_add(c)
                    }),
                    ("mad.wide", true) if BITS < 64 => ternary(d, move |a, b, c: $Wide| {
                        wide_signed(a).wrapping_mul(wide_signed(b)).wrapping_add(c)
                    }),
                    ("div", false) => binary(d, divide),
                    ("div", true) => binary(d, divide_signed),
                    ("rem", false) => {
                        binary(d, |a: $U, b: $U| a.checked_rem(b).unwrap_or(<$U>::MAX))
                    }
                    ("rem", true) => binary(d, |a: $U, b: $U| match b {
                        0 => <$U>::MAX,
                        _ => (a as $S).wrapping_rem(b as $S) as $U,
                    }),
                    ("min", false) => binary(d, <$U>::min),
                    ("min", true) => binary(d, |a: $U, b: $U| (a as $S).min(b as $S) as $U),
                    ("max", false) => binary(d, <$U>::max),
                    ("max", true) => binary(d, |a: $U, b: $U| (a as $S).max(b as $S) as $U),
                    ("min.relu", true) if BITS == 32 => {
                        d.require_target(90)?;
                        binary(d, |a: $U, b: $U| (a as $S).min(b as $S).max(0) as $U)
                    }
                    ("max.relu", true) if BITS == 32 => {
                        d.require_target(90)?;
                        binary(d, |a: $U, b: $U| (a as $S).max(b as $S).max(0) as $U)
                    }
                    ("abs", true) => unary(d, |a: $U| (a as $S).wrapping_abs() as $U),
                    ("neg", true) => unary(d, <$U>::wrapping_neg),
                    ("shr", false) => binary(d, |a: $U, b: u32| a.checked_shr(b).unwrap_or(0)),
                    ("shr", true) => {
                        binary(d, |a: $U, b: u32| ((a as $S) >> b.min(BITS - 1)) as $U)
                    }
                    ("bfe", _) if BITS >= 32 => {
                        ternary(d, move |a: $U, start: u32, length: u32| {
                            extract(a, start, length, signed)
                        })
                    }
                    _ => match name.strip_prefix("setp.") {
                        Some(relation) => comparison(d, relation, signed),
                        None => Ok(None),
                    },
                }
            }

            /// `bfe`: `length` bits of `a` from `start` on; bits past the end are copies of the sign
            /// or zeros.
            fn extract(a: $U, start: u32, length: u32, signed: bool) -> $U {
                let (start, length) = (start & 0xff, length & 0xff);
                let value = if signed {
                    i128::from(a as $S)
                } else {
                    i128::from(a)
                };
                if length == 0 {
                    return 0;
                }
                let shifted = value >> start.min(127);
                let unused = 128 - length.min(128);
                let field = shifted << unused;
                if signed {
                    (field >> unused) as $U
                } else {
                    ((field as u128) >> unused) as $U
                }
            }

            fn comparison(d: &mut Decoder, relation: &str, signed: bool) -> Decoded {
                match (relation, signed) {
                    ("eq", _) => compare(d, |a: $U, b| a == b),
                    ("ne", _) => compare(d, |a: $U, b| a != b),
                    ("lt", true) => compare(d, |a: $U, b| (a as $S) < b as $S),
                    ("le", true) => compare(d, |a: $U, b| a as $S <= b as $S),
                    ("gt", true) => compare(d, |a: $U, b| a as $S > b as $S),
                    ("ge", true) => compare(d, |a: $U, b| a as $S >= b as $S),
                    ("lt" | "lo", false) => compare(d, |a: $U, b| a < b),
                    ("le" | "ls", false) => compare(d, |a: $U, b| a <= b),
                    ("gt" | "hi", false) => compare(d, |a: $U, b| a > b),
                    ("ge" | "hs", false) => compare(d, |a: $U, b| a >= b),
                    _ => Ok(None),
                }
            }

            pub fn logic(d: &mut Decoder, name: &str) -> Decoded {
                const BITS: u32 = <$U>::BITS;
                match name {
                    "and" => binary(d, |a: $U, b: $U| a & b),
                    "or" => binary(d, |a: $U, b: $U| a | b),
                    "xor" => binary(d, |a: $U, b: $U| a ^ b),
                    "not" => unary(d, |a: $U| !a),
                    "cnot" => unary(d, |a: $U| <$U>::from(a == 0)),
                    "shl" => binary(d, |a: $U, b: u32| a.checked_shl(b).unwrap_or(0)),
                    "popc" if BITS >= 32 => unary(d, |a: $U| a.count_ones()),
                    "clz" if BITS >= 32 => unary(d, |a: $U| a.leading_zeros()),
                    "brev" if BITS >= 32 => unary(d, <$U>::reverse_bits),
                    "setp.eq" => compare(d, |a: $U, b| a == b),
                    "setp.ne" => compare(d, |a: $U, b| a != b),
                    _ => Ok(None),
                }
            }
        }
    };
}

width!(of_16, u16, i16, u32, i32);
width!(of_32, u32, i32, u64, i64);
width!(of_64, u64, i64, u64, i64);

/// `shf`: the low word `a` and the high word `b` shifted together, by up to 32 bits.
fn funnel(d: &mut Decoder, name: &str) -> Decoded {
    let both = |a: u32, b: u32| u64::from(b) << 32 | u64::from(a);
    match name {
        "shf.l.wrap" => ternary(d, move |a, b, n: u32| (both(a, b) << (n % 32) >> 32) as u32),
        "shf.l.clamp" => ternary(d, move |a, b, n: u32| {
            (both(a, b) << n.min(32) >> 32) as u32
        }),
        "shf.r.wrap" => ternary(d, move |a, b, n: u32| (both(a, b) >> (n % 32)) as u32),
        "shf.r.clamp" => ternary(d, move |a, b, n: u32| (both(a, b) >> n.min(32)) as u32),
        _ => Ok(None),
    }
}

/// `prmt`: four bytes chosen among the eight of `a` and `b`, or their signs.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let chosen = [0, 4, 8, 12].map(|shift| {
        let byte = bytes[(selector >> shift & 7) as usize];
        let sign = selector >> shift & 8 != 0;
        if sign {
            ((byte as i8) >> 7) as u8
        } else {
            byte
        }
    });
    u32::from_le_bytes(chosen)
}

/// Logic on predicates, 32 lanes a mask.
fn predicates(d: &mut Decoder, name: &str) -> Decoded {
    if name == "not" {
        let [to, a] = d.operands()?;
        let (to, a) = (d.predicate(to)?, d.predicate(a)?);
        return lanes!(move |c| {
            let value = !c.warp.registers.read_predicate(a, c.active)?;
            c.warp.registers.write_predicate(to, c.active, value);
            Ok(())
        });
    }
    let f: fn(u32, u32) -> u32 = match name {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        _ => return Ok(None),
    };
    let [to, a, b] = d.operands()?;
    let (to, a, b) = (d.predicate(to)?, d.predicate(a)?, d.predicate(b)?);
    lanes!(move |c| {
        let registers = &mut c.warp.registers;
        let value = f(
            registers.read_predicate(a, c.active)?,
            registers.read_predicate(b, c.active)?,
        );
        registers.write_predicate(to, c.active, value);
        Ok(())
    })
}
