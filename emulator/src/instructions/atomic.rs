//! `atom` and `red`: read and change of global memory that no other atomic comes between.

use super::memory::address;
use super::{for_each_lane, lanes};
use crate::decode::{Decoded, Decoder};
use crate::nan::canonical_bits;
use crate::registers::{Reg, Value};
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    // A reduction gives nothing back.
    let opcode = d.opcode();
    let (modifiers, gives) = match (opcode.strip_prefix("atom."), opcode.strip_prefix("red.")) {
        (Some(modifiers), _) => (modifiers, true),
        (_, Some(modifiers)) => (modifiers, false),
        _ => return Ok(None),
    };
    // The order of other accesses to global memory is not modelled.
    let orders = [
        "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys",
    ];
    let mut rest: Vec<_> = modifiers.split('.').collect();
    rest.retain(|modifier| !orders.contains(modifier));
    match rest.as_slice() {
        ["global", "add", "u32" | "s32"] => update(d, gives, u32::wrapping_add),
        ["global", "max", "u32"] => update(d, gives, u32::max),
        ["global", "add", "u64"] => update(d, gives, u64::wrapping_add),
        ["global", "add", "v4", "f32"] if !gives => add_vector(d),
        ["global", "add", "f32"] => update(d, gives, |a, b| {
            canonical_bits(f32::from_bits(a) + f32::from_bits(b))
        }),
        // Counts up to the operand, then from 0 again.
        ["global", "inc", "u32"] => update(d, gives, |a: u32, b| if a >= b { 0 } else { a + 1 }),
        _ => Ok(None),
    }
}

/// `[at], {b0, b1, b2, b3}`: adds f32 values to the values at an address, each at once.
fn add_vector(d: &mut Decoder) -> Decoded {
    let [at, b] = d.operands()?;
    d.require_target(90)?;
    let at = address(d, at, false)?;
    let Operand::Vector(elements) = b else {
        return Err("expected a vector".to_owned());
    };
    let b: Vec<Reg<u32>> = elements
        .iter()
        .map(|b| d.source(b))
        .collect::<Result<_, _>>()?;
    let b: [Reg<u32>; 4] = b.try_into().map_err(|_| "expected 4 values".to_owned())?;
    lanes!(move |c| {
        let at = at.read(c)?;
        let [b0, b1, b2, b3] = b.map(|b| c.read(b));
        let b = [b0?, b1?, b2?, b3?];
        if c.launch.options.counters {
            c.tally.count_global(c.active, &at, 16, true);
        }
        for_each_lane(c.active, |lane| {
            let values: Vec<u8> = b.iter().flat_map(|b| b[lane].to_le_bytes()).collect();
            c.launch.global.add_f32(lane as u32, at[lane], &values)
        })
    })
}

/// `d, [at], b`, or `[at], b` where it gives nothing: the value at an address, which becomes `f(value, b)`.
fn update<T: Value>(
    d: &mut Decoder,
    gives: bool,
    f: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> Decoded {
    let (to, at, b) = if gives {
        let [to, at, b] = d.operands()?;
        (Some(d.destination(to)?), at, b)
    } else {
        let [at, b] = d.operands()?;
        (None, at, b)
    };
    let at = address(d, at, false)?;
    let b: Reg<T> = d.source(b)?;
    lanes!(move |c| {
        let (at, b) = (at.read(c)?, c.read(b)?);
        let bytes = T::BITS / 8;
        if c.launch.options.counters {
            c.tally.count_global(c.active, &at, bytes, true);
        }
        let mut before = [T::default(); 32];
        for_each_lane(
            c.active,
            #[inline(always)]
            |lane| {
                let change = |value| f(T::truncate(value), b[lane]).widen();
                let global = &c.launch.global;
                let value = global.update(lane as u32, at[lane], bytes, change)?;
                before[lane] = T::truncate(value);
                Ok(())
            },
        )?;
        if let Some(to) = to {
            c.write(to, before);
        }
        Ok(())
    })
}
