//! `mov`, `selp`, `ld.param`, `cvta`: values that only change place. The address of a parameter is its
//! offset, as a generic address from [`PARAMETERS`] on.

use super::{lanes, unary};
use crate::decode::{Decoded, Decoder, Name};
use crate::memory::PARAMETERS;
use crate::registers::{AnyReg, Reg, Value, map_row, row_of};
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some((name, kind)) = d.opcode().rsplit_once('.') else {
        return Ok(None);
    };
    match (name, kind) {
        ("mov", "pred") => move_predicate(d),
        ("mov", "b16" | "u16" | "s16") => mov::<u16>(d),
        ("mov", "b32" | "u32" | "s32" | "f32") => mov::<u32>(d),
        ("mov", "b64" | "u64" | "s64" | "f64") => mov::<u64>(d),
        ("selp", "b16" | "u16" | "s16") => select::<u16>(d),
        ("selp", "b32" | "u32" | "s32" | "f32") => select::<u32>(d),
        ("selp", "b64" | "u64" | "s64" | "f64") => select::<u64>(d),
        ("cvta.to.global" | "cvta.global", "u64") => unary(d, |a: u64| a),
        ("cvta.param", "u64") => unary(d, |a: u64| a.wrapping_add(PARAMETERS)),
        ("ld.param", _) => load_parameter(d, kind),
        _ => Ok(None),
    }
}

fn mov<T: Value>(d: &mut Decoder) -> Decoded {
    match d.operands()? {
        [Operand::Vector(to), from] => unpack::<T>(d, to, from),
        [to, Operand::Vector(from)] => pack::<T>(d, to, from),
        [to, Operand::Name(name)] if name.starts_with('%') && d.scope.find(name).is_none() => {
            special::<T>(d, to, name)
        }
        [to, Operand::Name(name)] => match d.scope.find(name) {
            Some(Name::Shared(address) | Name::Parameter(address, _)) => {
                let to: Reg<T> = d.destination(to)?;
                lanes!(move |c| {
                    c.write(to, [T::truncate(u64::from(address)); 32]);
                    Ok(())
                })
            }
            _ => unary(d, |a: T| a),
        },
        _ => unary(d, |a: T| a),
    }
}

/// A special register. Only `%tid` and `%laneid` differ between the lanes.
fn special<T: Value>(d: &mut Decoder, to: &Operand, name: &str) -> Decoded {
    let to: Reg<T> = d.destination(to)?;
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, axis)) => (base, ["x", "y", "z"].iter().position(|a| *a == axis)),
        None => (name, None),
    };
    let wrong_width = T::BITS != 32;
    match (base, axis) {
        _ if wrong_width => Err(format!("{name} has 32 bits")),
        ("%tid", Some(axis)) => lanes!(move |c| {
            let [x, y, _] = c.launch.block;
            let (first, divisor) = (32 * c.warp.index as u32, [1, x, x * y][axis]);
            let size = c.launch.block[axis];
            c.write(
                to,
                row_of(|lane| T::truncate(u64::from((first + lane as u32) / divisor % size))),
            );
            Ok(())
        }),
        ("%ntid", Some(axis)) => lanes!(move |c| {
            c.write(to, [T::truncate(u64::from(c.launch.block[axis])); 32]);
            Ok(())
        }),
        ("%ctaid", Some(axis)) => lanes!(move |c| {
            c.write(to, [T::truncate(u64::from(c.block[axis])); 32]);
            Ok(())
        }),
        ("%nctaid", Some(axis)) => lanes!(move |c| {
            c.write(to, [T::truncate(u64::from(c.launch.grid[axis])); 32]);
            Ok(())
        }),
        ("%clusterid", Some(axis)) => lanes!(move |c| {
            c.write(
                to,
                [T::truncate(u64::from(c.launch.cluster_of(c.block)[axis])); 32],
            );
            Ok(())
        }),
        ("%nclusterid", Some(axis)) => lanes!(move |c| {
            c.write(to, [T::truncate(u64::from(c.launch.clusters()[axis])); 32]);
            Ok(())
        }),
        ("%cluster_ctarank", None) => lanes!(move |c| {
            let rank = c.block[0] % c.launch.options.cluster;
            c.write(to, [T::truncate(u64::from(rank)); 32]);
            Ok(())
        }),
        ("%cluster_nctarank", None) => lanes!(move |c| {
            c.write(to, [T::truncate(u64::from(c.launch.options.cluster)); 32]);
            Ok(())
        }),
        // A warp's own time: it goes on by one with each instruction.
        ("%clock", None) => lanes!(move |c| {
            c.write(to, [T::truncate(c.warp.executed); 32]);
            Ok(())
        }),
        ("%laneid", None) => lanes!(move |c| {
            c.write(to, row_of(|lane| T::truncate(lane as u64)));
            Ok(())
        }),
        _ => Err(format!(
            "{name} is neither declared nor a special register that is known"
        )),
    }
}

/// `mov.b64 {lo, hi}, a`: the parts of a register; `_` drops one.
fn unpack<T: Value>(d: &mut Decoder, to: &[Operand], from: &Operand) -> Decoded {
    let from: Reg<T> = d.register(from)?;
    let part_bits = T::BITS / to.len() as u32;
    let mut parts = Vec::new();
    for (i, operand) in to.iter().enumerate() {
        if *operand != Operand::Name("_") {
            let part = d.any_destination(operand)?;
            check_part(part, part_bits)?;
            parts.push((part, part_bits * i as u32));
        }
    }
    lanes!(move |c| {
        let value = c.read(from)?;
        for (part, shift) in &parts {
            match part {
                AnyReg::B16(r) => c.write(*r, map_row(&value, |v| (v.widen() >> shift) as u16)),
                AnyReg::B32(r) => c.write(*r, map_row(&value, |v| (v.widen() >> shift) as u32)),
                AnyReg::B64(_) => unreachable!("no part has 64 bits"),
            }
        }
        Ok(())
    })
}

/// `mov.b64 a, {lo, hi}`.
fn pack<T: Value>(d: &mut Decoder, to: &Operand, from: &[Operand]) -> Decoded {
    let to: Reg<T> = d.destination(to)?;
    let part_bits = T::BITS / from.len() as u32;
    let mut parts = Vec::new();
    for operand in from {
        let part = d.any(operand)?;
        check_part(part, part_bits)?;
        parts.push(part);
    }
    lanes!(move |c| {
        let mut value = [0_u64; 32];
        for (i, part) in parts.iter().enumerate() {
            let bits = match part {
                AnyReg::B16(r) => map_row(c.row(*r)?, u64::from),
                AnyReg::B32(r) => map_row(c.row(*r)?, u64::from),
                AnyReg::B64(_) => unreachable!("no part has 64 bits"),
            };
            for (value, bits) in value.iter_mut().zip(bits) {
                *value |= bits << (part_bits * i as u32);
            }
        }
        c.write(to, map_row(&value, T::truncate));
        Ok(())
    })
}

fn check_part(part: AnyReg, bits: u32) -> Result<(), String> {
    if part.bits() == bits && bits < 64 {
        return Ok(());
    }
    Err(format!(
        "a part of {bits} bits is not a register of {}",
        part.bits()
    ))
}

fn move_predicate(d: &mut Decoder) -> Decoded {
    let [to, from] = d.operands()?;
    let to = d.predicate(to)?;
    let from = match from {
        Operand::Immediate(value) => d.scope.registers.constant_predicate(*value != 0),
        register => d.predicate(register)?,
    };
    lanes!(move |c| {
        let value = c.warp.registers.read_predicate(from, c.active)?;
        c.warp.registers.write_predicate(to, c.active, value);
        Ok(())
    })
}

/// `selp d, a, b, p`. An operand may be undefined in the lanes that do not choose it.
fn select<T: Value>(d: &mut Decoder) -> Decoded {
    let [to, a, b, p] = d.operands()?;
    let to: Reg<T> = d.destination(to)?;
    let (a, b): (Reg<T>, Reg<T>) = (d.source(a)?, d.source(b)?);
    let p = d.predicate(p)?;
    lanes!(move |c| {
        let chosen = c.warp.registers.read_predicate(p, c.active)?;
        let registers = &c.warp.registers;
        let a = registers.read(a, c.active & chosen)?;
        let b = registers.read(b, c.active & !chosen)?;
        let result = row_of(|i| if chosen >> i & 1 != 0 { a[i] } else { b[i] });
        c.write(to, result);
        Ok(())
    })
}

fn load_parameter(d: &mut Decoder, kind: &str) -> Decoded {
    let [to, Operand::Address(name, offset)] = d.operands()? else {
        return Err("expected the address of a parameter".to_owned());
    };
    let Some(Name::Parameter(start, size)) = d.scope.find(name) else {
        return Err(format!("{name} is not a parameter"));
    };
    let bits: u32 = match kind {
        "b16" | "u16" | "s16" => 16,
        "b32" | "u32" | "s32" | "f32" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => return Ok(None),
    };
    let bytes = i64::from(bits / 8);
    if *offset < 0 || *offset > i64::from(size) - bytes || offset % bytes != 0 {
        return Err(format!(
            "{offset} is outside the parameter, of {size} bytes, or misaligned"
        ));
    }
    // An integer is extended to a wider register, by its sign or by zeros.
    let to = d.any_destination(to)?;
    if to.bits() < bits || kind.starts_with('f') && to.bits() != bits {
        return Err(format!(
            "expected a register of {bits} bits, found one of {}",
            to.bits()
        ));
    }
    let range = (start as usize + *offset as usize)..(start as usize + (*offset + bytes) as usize);
    let (signed, unused) = (kind.starts_with('s'), 64 - bits);
    lanes!(move |c| {
        let mut value = [0; 8];
        value[..range.len()].copy_from_slice(&c.launch.parameters[range.clone()]);
        let mut value = u64::from_le_bytes(value);
        if signed {
            value = ((value << unused).cast_signed() >> unused).cast_unsigned();
        }
        match to {
            AnyReg::B16(to) => c.write(to, [value as u16; 32]),
            AnyReg::B32(to) => c.write(to, [value as u32; 32]),
            AnyReg::B64(to) => c.write(to, [value; 32]),
        }
        Ok(())
    })
}
