//! Arithmetic of 16-bit floats, of one in a register (`.f16`) or of two (`.f16x2`). Results are rounded once, to nearest even.

use super::convert::{bf16_row, f16_row};
use super::elements::{Bf16, Element, F16};
use super::float::{Relation, maximum, minimum, multiply_add_to_odd, nan_or, rounded_to_odd};
use super::{compare, lanes, unary};
use crate::decode::{Decoded, Decoder};
use crate::registers::{LANES, Reg, Row, Value, map_row, row_of};

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some((name, kind)) = d.opcode().rsplit_once('.') else {
        return Ok(None);
    };
    match kind {
        "f16" => match name.strip_prefix("setp.").and_then(Relation::parse) {
            Some(r) => compare(d, move |a: u16, b: u16| {
                r.holds(F16::widen(u32::from(a)), F16::widen(u32::from(b)))
            }),
            None => operation::<F16, u16>(d, name, f16_row),
        },
        "f16x2" => operation::<F16, u32>(d, name, f16_row),
        "bf16" => operation::<Bf16, u16>(d, name, bf16_row),
        "bf16x2" => operation::<Bf16, u32>(d, name, bf16_row),
        _ => Ok(None),
    }
}

/// An operation on the elements of registers of type `V`.
fn operation<E: Element, V: Value>(
    d: &mut Decoder,
    name: &str,
    round: impl Fn(&Row<u32>) -> Row<u16> + Copy + Send + Sync + 'static,
) -> Decoded {
    const SIGNS: u64 = 0x8000_8000;
    let is_bf16 = d.opcode().contains(".bf16");
    if is_bf16 && matches!(name, "add" | "add.rn" | "sub" | "sub.rn" | "tanh.approx") {
        d.require_target(90)?;
    }
    match name {
        "add" | "add.rn" => by::<E, V, 2>(d, round, |[a, b]| multiply_add(a, 1.0, b)),
        "sub" | "sub.rn" => by::<E, V, 2>(d, round, |[a, b]| multiply_add(b, -1.0, a)),
        // To add -0 changes no product.
        "mul" | "mul.rn" => by::<E, V, 2>(d, round, |[a, b]| multiply_add(a, b, -0.0)),
        "fma.rn" => by::<E, V, 3>(d, round, |[a, b, c]| multiply_add(a, b, c)),
        "fma.rn.relu" => by::<E, V, 3>(d, round, |[a, b, c]| match multiply_add(a, b, c) {
            negative if negative <= 0.0 => 0.0,
            other => other,
        }),
        "min" => by::<E, V, 2>(d, round, |[a, b]| minimum(a, b)),
        "max" => by::<E, V, 2>(d, round, |[a, b]| maximum(a, b)),
        "min.NaN" => by::<E, V, 2>(d, round, |[a, b]| nan_or(a, b, minimum)),
        "max.NaN" => by::<E, V, 2>(d, round, |[a, b]| nan_or(a, b, maximum)),
        // On bits, a change of sign keeps the payload of a NaN.
        "neg" => unary(d, |a: V| V::truncate(a.widen() ^ SIGNS)),
        "abs" => unary(d, |a: V| V::truncate(a.widen() & !SIGNS)),
        "tanh.approx" => by::<E, V, 1>(d, round, |[a]| rounded_to_odd(f64::from(a).tanh())),
        // That of bf16 has another name, and flushes subnormals.
        "ex2.approx" if !is_bf16 => {
            by::<E, V, 1>(d, round, |[a]| rounded_to_odd(f64::from(a).exp2()))
        }
        _ => Ok(None),
    }
}

/// `a * b + c`, rounded to odd: a second rounding, to 16 bits, is correct.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    rounded_to_odd(multiply_add_to_odd(a, b, c))
}

/// `opcode d, a, ...;` with `d = f([a, ...])` rounded, in every element.
fn by<E: Element, V: Value, const N: usize>(
    d: &mut Decoder,
    round: impl Fn(&Row<u32>) -> Row<u16> + Copy + Send + Sync + 'static,
    f: impl Fn([f32; N]) -> f32 + Send + Sync + 'static,
) -> Decoded {
    let [to, from @ ..] = d.statement.operands.as_slice() else {
        return Err("expected operands".to_owned());
    };
    if from.len() != N {
        return Err(format!(
            "expected {} operands, found {}",
            N + 1,
            from.len() + 1
        ));
    }
    let to: Reg<V> = d.destination(to)?;
    let mut operands = [to; N];
    for (operand, from) in operands.iter_mut().zip(from) {
        *operand = d.source(from)?;
    }
    lanes!(move |context| {
        let mut rows = [context.row(operands[0])?; N];
        for (row, operand) in rows.iter_mut().zip(operands).skip(1) {
            *row = context.row(operand)?;
        }
        let mut results = [0; LANES];
        for shift in (0..V::BITS).step_by(16) {
            let values = row_of(|lane| {
                let elements = map_row(&rows, |row| {
                    E::widen(row[lane].widen() as u32 >> shift & 0xffff)
                });
                f(elements).to_bits()
            });
            for (result, element) in results.iter_mut().zip(round(&values)) {
                *result |= u32::from(element) << shift;
            }
        }
        context.write(to, map_row(&results, |bits| V::truncate(u64::from(bits))));
        Ok(())
    })
}
