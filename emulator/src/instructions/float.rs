//! Floating-point arithmetic and comparison in f32 and f64.

use super::{binary, compare, ternary, unary};
use crate::decode::{Decoded, Decoder};
use crate::host;
use crate::nan::{canonical_bits, canonical_bits_64};
use std::cmp::Ordering;

/// The sign bit of an f32.
const SIGN: u32 = 1 << 31;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some((name, kind)) = d.opcode().rsplit_once('.') else {
        return Ok(None);
    };
    match kind {
        "f32" => single(d, name),
        "f64" => double(d, name),
        _ => Ok(None),
    }
}

/// Subnormals become zeros of their sign.
#[inline(always)]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0_f32.copysign(x)
    } else {
        x
    }
}

/// How an instruction treats its operands and result.
#[derive(Clone, Copy)]
struct Modes {
    /// `.ftz`: subnormal operands and results count as zeros.
    ftz: bool,
    /// `.sat`: results are clamped to 0..1, NaN to 0.
    sat: bool,
}

impl Modes {
    #[inline(always)]
    fn operand(self, bits: u32) -> f32 {
        let x = f32::from_bits(bits);
        if self.ftz { flush(x) } else { x }
    }

    #[inline(always)]
    fn result(self, x: f32) -> u32 {
        let x = if self.ftz { flush(x) } else { x };
        match self.sat {
            true if x > 0.0 => x.min(1.0).to_bits(),
            true => 0,
            false => canonical_bits(x),
        }
    }
}

fn single(d: &mut Decoder, name: &str) -> Decoded {
    let (base, suffixes) = name.split_once('.').unwrap_or((name, ""));
    if base == "setp" {
        return comparison(d, suffixes);
    }
    let mut modes = Modes {
        ftz: false,
        sat: false,
    };
    let mut variant = Vec::new();
    for suffix in suffixes.split('.').filter(|s| !s.is_empty()) {
        match suffix {
            "ftz" => modes.ftz = true,
            "sat" => modes.sat = true,
            other => variant.push(other),
        }
    }
    match (base, &variant[..]) {
        ("add", [] | ["rn"]) => f32_binary(d, modes, |a, b| a + b),
        ("sub", [] | ["rn"]) => f32_binary(d, modes, |a, b| a - b),
        ("mul", [] | ["rn"]) => f32_binary(d, modes, |a, b| a * b),
        ("mul", ["rz"]) => {
            // To add -0 changes no product.
            f32_binary(d, modes, |a, b| {
                towards_zero(multiply_add_to_odd(a, b, -0.0))
            })
        }
        ("div", ["rn"]) => f32_binary(d, modes, |a, b| a / b),
        ("div", ["full"]) => f32_binary(d, modes, |a, b| (f64::from(a) / f64::from(b)) as f32),
        ("fma" | "mad", ["rn"]) => {
            fn by(
                modes: Modes,
                fused: impl Fn(f32, f32, f32) -> f32,
            ) -> impl Fn(u32, u32, u32) -> u32 {
                move |a, b, c| {
                    let [a, b, c] = [a, b, c].map(|x| modes.operand(x));
                    modes.result(fused(a, b, c))
                }
            }
            // The host's own instruction, where it has one; elsewhere `mul_add` is a slow call.
            match host::is_wide() {
                true => ternary(d, by(modes, f32::mul_add)),
                false => ternary(d, by(modes, fused_multiply_add)),
            }
        }
        ("fma", ["rz"]) => ternary(d, move |a, b, c| {
            let [a, b, c] = [a, b, c].map(|x| modes.operand(x));
            modes.result(towards_zero(multiply_add_to_odd(a, b, c)))
        }),
        ("min", []) => f32_binary(d, modes, minimum),
        ("max", []) => f32_binary(d, modes, maximum),
        ("min", ["NaN"]) => f32_binary(d, modes, |a, b| nan_or(a, b, minimum)),
        ("max", ["NaN"]) => f32_binary(d, modes, |a, b| nan_or(a, b, maximum)),
        // On bits, a change of sign keeps the payload of a NaN.
        ("neg", []) => unary(d, move |a| modes.operand(a).to_bits() ^ SIGN),
        ("abs", []) => unary(d, move |a| modes.operand(a).to_bits() & !SIGN),
        ("copysign", []) => binary(d, |sign: u32, a: u32| sign & SIGN | a & !SIGN),
        ("rcp", ["rn" | "approx"]) => f32_unary(d, modes, |a| 1.0 / a),
        ("sqrt", ["rn" | "approx"]) => f32_unary(d, modes, f32::sqrt),
        ("rsqrt", ["approx"]) => f32_approximation(d, modes, |a| 1.0 / a.sqrt()),
        ("ex2", ["approx"]) => f32_approximation(d, modes, f64::exp2),
        ("lg2", ["approx"]) => f32_approximation(d, modes, f64::log2),
        ("tanh", ["approx"]) => f32_approximation(d, modes, f64::tanh),
        _ => Ok(None),
    }
}

fn f32_unary(
    d: &mut Decoder,
    modes: Modes,
    f: impl Fn(f32) -> f32 + Send + Sync + 'static,
) -> Decoded {
    unary(d, move |a| modes.result(f(modes.operand(a))))
}

fn f32_binary(
    d: &mut Decoder,
    modes: Modes,
    f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static,
) -> Decoded {
    binary(d, move |a, b| {
        modes.result(f(modes.operand(a), modes.operand(b)))
    })
}

/// A function that hardware approximates, computed in f64 and rounded once.
fn f32_approximation(
    d: &mut Decoder,
    modes: Modes,
    f: impl Fn(f64) -> f64 + Send + Sync + 'static,
) -> Decoded {
    f32_unary(d, modes, move |a| f(f64::from(a)) as f32)
}

/// `a * b + c`, rounded once, on a host that lacks the instruction: without the call that `mul_add` is there.
#[inline(always)]
fn fused_multiply_add(a: f32, b: f32, c: f32) -> f32 {
    multiply_add_to_odd(a, b, c) as f32
}

/// `a * b + c` in f64. The product is exact, and the sum is rounded to odd: inexact sums end in a 1, so
/// that a second rounding, to a shorter type, is correct.
#[inline(always)]
pub(super) fn multiply_add_to_odd(a: f32, b: f32, c: f32) -> f64 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // The rounding error of the sum (Knuth's two-sum).
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let inexact_and_even = error != 0.0 && error.is_finite() && sum.to_bits() & 1 == 0;
    let towards = if (error > 0.0) == (sum > 0.0) {
        1_i64
    } else {
        -1
    };
    let step = if inexact_and_even { towards } else { 0 };
    f64::from_bits(sum.to_bits().wrapping_add_signed(step))
}

/// Rounded to f32, towards 0: only an infinity becomes one.
#[inline(always)]
fn towards_zero(x: f64) -> f32 {
    let nearest = x as f32;
    let away = f64::from(nearest).abs() > x.abs();
    f32::from_bits(nearest.to_bits() - u32::from(away))
}

/// Rounded to f32, to odd.
#[inline(always)]
pub(super) fn rounded_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let is_exact = f64::from(nearest) == x || !nearest.is_finite();
    let away = f64::from(nearest).abs() > x.abs();
    let odd = nearest.to_bits().wrapping_sub(u32::from(away)) | 1;
    f32::from_bits(if is_exact { nearest.to_bits() } else { odd })
}

/// The smaller operand, or the one that is a number; -0 is less than 0.
#[inline(always)]
pub(super) fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b < a {
        b
    } else if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else {
        a
    }
}

/// The larger operand, or the one that is a number; 0 is more than -0.
#[inline(always)]
pub(super) fn maximum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b > a {
        b
    } else if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else {
        a
    }
}

pub(super) fn nan_or(a: f32, b: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else {
        f(a, b)
    }
}

fn comparison(d: &mut Decoder, relation: &str) -> Decoded {
    let (relation, ftz) = match relation.strip_suffix(".ftz") {
        Some(relation) => (relation, true),
        None => (relation, false),
    };
    let modes = Modes { ftz, sat: false };
    match Relation::parse(relation) {
        Some(r) => compare(d, move |a, b| r.holds(modes.operand(a), modes.operand(b))),
        None => Ok(None),
    }
}

/// The relation that a `setp` names.
#[derive(Clone, Copy)]
pub(super) struct Relation {
    between_numbers: fn(Ordering) -> bool,
    /// Whether it holds for a NaN: the names with a `u` at the end do.
    with_nan: bool,
}

impl Relation {
    pub fn parse(name: &str) -> Option<Self> {
        let (between_numbers, with_nan): (fn(Ordering) -> bool, _) = match name {
            "num" => (|_| true, false),
            "nan" => (|_| false, true),
            _ => {
                let unordered = name.strip_suffix('u');
                let relation: fn(Ordering) -> bool = match unordered.unwrap_or(name) {
                    "eq" => Ordering::is_eq,
                    "ne" => Ordering::is_ne,
                    "lt" => Ordering::is_lt,
                    "le" => Ordering::is_le,
                    "gt" => Ordering::is_gt,
                    "ge" => Ordering::is_ge,
                    _ => return None,
                };
                (relation, unordered.is_some())
            }
        };
        Some(Relation {
            between_numbers,
            with_nan,
        })
    }

    pub fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        a.partial_cmp(&b)
            .map_or(self.with_nan, self.between_numbers)
    }
}

fn double(d: &mut Decoder, name: &str) -> Decoded {
    fn with(d: &mut Decoder, f: impl Fn(f64, f64) -> f64 + Send + Sync + 'static) -> Decoded {
        binary(d, move |a, b| {
            canonical_bits_64(f(f64::from_bits(a), f64::from_bits(b)))
        })
    }
    match name {
        "add" | "add.rn" => with(d, |a, b| a + b),
        "sub" | "sub.rn" => with(d, |a, b| a - b),
        "mul" | "mul.rn" => with(d, |a, b| a * b),
        "div.rn" => with(d, |a, b| a / b),
        "fma.rn" => ternary(d, |a, b, c| {
            canonical_bits_64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)))
        }),
        "neg" => unary(d, |a| canonical_bits_64(-f64::from_bits(a))),
        "abs" => unary(d, |a| canonical_bits_64(f64::from_bits(a).abs())),
        "sqrt.rn" => unary(d, |a| canonical_bits_64(f64::from_bits(a).sqrt())),
        _ => match name.strip_prefix("setp.").and_then(Relation::parse) {
            Some(r) => compare(d, move |a, b| r.holds(f64::from_bits(a), f64::from_bits(b))),
            None => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_towards_zero_keeps_what_is_finite() {
        let of = |a, b, c| towards_zero(multiply_add_to_odd(a, b, c));
        let ulp = f32::EPSILON;
        assert_eq!(of(1.0, 1.0, -ulp / 4.0), 1.0 - ulp / 2.0);
        assert_eq!(of(1.0, 1.0, ulp / 1.5), 1.0);
        assert_eq!(of(-1.0, 1.0, -ulp / 1.5), -1.0);
        assert_eq!(of(f32::MIN, 1.5, 7.0), f32::MIN);
        assert_eq!(of(f32::MAX, f32::MAX, f32::MAX), f32::MAX);
        assert_eq!(of(f32::NEG_INFINITY, 1.5, f32::MAX), f32::NEG_INFINITY);
        assert_eq!(of(f32::MIN_POSITIVE, f32::MIN_POSITIVE, 0.0), 0.0);
        assert_eq!(of(-0.0, 1.0, -0.0).to_bits(), 1 << 31);
        assert!(of(f32::INFINITY, 1.0, f32::NEG_INFINITY).is_nan());
    }

    #[test]
    fn fused_multiply_add_rounds_once() {
        let mut state = 1_u64;
        for _ in 0..200_000 {
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                f32::from_bits((state >> 32) as u32)
            };
            let (a, b, c) = (next(), next(), next());
            for c in [c, -a * b, 1.0, f32::MIN_POSITIVE] {
                let (found, expected) = (fused_multiply_add(a, b, c), a.mul_add(b, c));
                let same =
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{a:e} * {b:e} + {c:e}: {found:e}, not {expected:e}");
            }
        }
    }

    #[test]
    fn zeros_are_ordered_and_nan_yields() {
        assert_eq!(maximum(-0.0, 0.0).to_bits(), 0);
        assert_eq!(minimum(0.0, -0.0).to_bits(), (-0.0_f32).to_bits());
        assert_eq!(maximum(f32::NAN, 1.0), 1.0);
        assert_eq!(minimum(1.0, f32::NAN), 1.0);
    }
}
