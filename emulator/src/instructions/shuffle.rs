//! `shfl.sync`, `redux.sync`, `vote.sync` and `elect.sync`: values between the lanes of a warp.

use super::lanes;
use crate::context::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::registers::{LANES, Reg, Row, lanes as lanes_of};
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    match d.opcode() {
        "shfl.sync.up.b32" => shuffle(d, |lane, b| lane.checked_sub(b), Bound::Least),
        "shfl.sync.down.b32" => shuffle(d, |lane, b| Some(lane + b), Bound::Most),
        "shfl.sync.bfly.b32" => shuffle(d, |lane, b| Some(lane ^ b), Bound::Most),
        "shfl.sync.idx.b32" => shuffle(d, |lane, b| Some(lane & !31 | b), Bound::Index),
        "redux.sync.add.u32" | "redux.sync.add.s32" => reduce(d, u32::wrapping_add),
        "redux.sync.min.u32" => reduce(d, u32::min),
        "redux.sync.max.u32" => reduce(d, u32::max),
        "redux.sync.min.s32" => reduce(d, |a, b| (a as i32).min(b as i32) as u32),
        "redux.sync.max.s32" => reduce(d, |a, b| (a as i32).max(b as i32) as u32),
        "redux.sync.and.b32" => reduce(d, |a, b| a & b),
        "redux.sync.or.b32" => reduce(d, |a, b| a | b),
        "redux.sync.xor.b32" => reduce(d, |a, b| a ^ b),
        "vote.sync.all.pred" => vote(d, |set, members| set == members),
        "vote.sync.any.pred" => vote(d, |set, _| set != 0),
        "vote.sync.uni.pred" => vote(d, |set, members| set == 0 || set == members),
        "vote.sync.ballot.b32" => ballot(d),
        "elect.sync" => elect(d),
        _ => Ok(None),
    }
}

/// The member mask of a collective: the same in all lanes, and all members execute the instruction
/// together with no other lane.
pub(super) fn members(c: &Context, mask: Reg<u32>) -> Result<u32, Box<Violation>> {
    let members = c.read_uniform(mask, "the member mask")?;
    if c.active & !members != 0 {
        return Err(Violation::of_lanes(
            Rule::NotAMember { members },
            c.active & !members,
        ));
    }
    c.require(members)?;
    Ok(members)
}

/// How the clamp bounds the source lane.
#[derive(Clone, Copy)]
enum Bound {
    /// Sources must not be below it.
    Least,
    /// Sources must not be above it.
    Most,
    /// Sources, counted from the segment's start, must not be above it.
    Index,
}

/// `shfl.sync d[|p], a, b, c, members`: `a` of the lane that `source(lane, b)` names. `c` holds the
/// clamp in its low bits and the segment mask above. A lane whose source lies outside its segment
/// keeps its own value, and `p` is false there.
fn shuffle(
    d: &mut Decoder,
    source: impl Fn(u32, u32) -> Option<u32> + Send + Sync + 'static,
    bound: Bound,
) -> Decoded {
    let [to, a, b, clamp, mask] = d.operands()?;
    let (to, in_range): (Reg<u32>, _) = match to {
        Operand::Pair(to, in_range) => (
            d.destination(&Operand::Name(to))?,
            Some(d.named_predicate(in_range)?),
        ),
        register => (d.destination(register)?, None),
    };
    let (a, b): (Reg<u32>, Reg<u32>) = (d.source(a)?, d.source(b)?);
    let (clamp, mask): (Reg<u32>, Reg<u32>) = (d.source(clamp)?, d.source(mask)?);
    lanes!(move |c| {
        let members = members(c, mask)?;
        let (values, b, clamp) = (c.read(a)?, c.read(b)?, c.read(clamp)?);
        let mut found = 0;
        let mut result: Row<u32> = values;
        for lane in lanes_of(c.active) {
            let (own, b) = (lane as u32, b[lane] & 31);
            let (segment, clamp) = (clamp[lane] >> 8 & 31, clamp[lane] & 31);
            let limit = own & segment | clamp & !segment;
            let from = match bound {
                Bound::Index => Some(own & segment | b & !segment),
                _ => source(own, b),
            };
            let inside = |from: &u32| match bound {
                Bound::Least => *from >= limit,
                Bound::Most | Bound::Index => *from <= limit,
            };
            if let Some(from) = from.filter(inside) {
                if members >> from & 1 == 0 {
                    return Err(Violation::of_lanes(Rule::NotAMember { members }, 1 << from));
                }
                result[lane] = values[from as usize];
                found |= 1 << lane;
            }
        }
        c.write(to, result);
        if let Some(in_range) = in_range {
            c.warp.registers.write_predicate(in_range, c.active, found);
        }
        Ok(())
    })
}

/// `redux.sync d, a, members`: all members receive the combination of their values.
fn reduce(d: &mut Decoder, f: fn(u32, u32) -> u32) -> Decoded {
    let [to, a, mask] = d.operands()?;
    let (to, a, mask): (Reg<u32>, Reg<u32>, Reg<u32>) =
        (d.destination(to)?, d.source(a)?, d.source(mask)?);
    lanes!(move |c| {
        members(c, mask)?;
        let values = c.read(a)?;
        let all = lanes_of(c.active).map(|lane| values[lane]).reduce(f);
        c.write(to, [all.expect("some lane is active"); LANES]);
        Ok(())
    })
}

/// `vote.sync d, a, members` into a predicate: `f(lanes with a set, members)`.
fn vote(d: &mut Decoder, f: fn(u32, u32) -> bool) -> Decoded {
    let [to, a, mask] = d.operands()?;
    let (to, a, mask) = (d.predicate(to)?, d.predicate(a)?, d.source(mask)?);
    lanes!(move |c| {
        let members = members(c, mask)?;
        let set = c.warp.registers.read_predicate(a, c.active)? & members;
        let all = if f(set, members) { u32::MAX } else { 0 };
        c.warp.registers.write_predicate(to, c.active, all);
        Ok(())
    })
}

/// `vote.sync.ballot.b32 d, a, members`: the mask of members with `a` set.
fn ballot(d: &mut Decoder) -> Decoded {
    let [to, a, mask] = d.operands()?;
    let (to, a, mask): (Reg<u32>, _, _) = (d.destination(to)?, d.predicate(a)?, d.source(mask)?);
    lanes!(move |c| {
        let members = members(c, mask)?;
        let set = c.warp.registers.read_predicate(a, c.active)? & members;
        c.write(to, [set; LANES]);
        Ok(())
    })
}

/// `elect.sync d|p, members`: one member, the same one for equal members, which the seed chooses. Its
/// lane in `d`, and `p` true there alone.
fn elect(d: &mut Decoder) -> Decoded {
    let [Operand::Pair(to, is_elected), mask] = d.operands()? else {
        return Err("expected a register or _, a predicate and the members".to_owned());
    };
    d.require_target(90)?;
    let to: Option<Reg<u32>> = match *to {
        "_" => None,
        to => Some(d.destination(&Operand::Name(to))?),
    };
    let (is_elected, mask) = (d.named_predicate(is_elected)?, d.source(mask)?);
    lanes!(move |c| {
        let members = members(c, mask)?;
        let number = c.launch.options.seed % u64::from(members.count_ones().max(1));
        let elected = lanes_of(members).nth(number as usize).unwrap_or(0) as u32;
        if let Some(to) = to {
            c.write(to, [elected; LANES]);
        }
        let registers = &mut c.warp.registers;
        registers.write_predicate(is_elected, c.active, 1 << elected);
        Ok(())
    })
}
