//! `cp.async`: copies from global to shared memory that run beside the computation.
//!
//! A copy lands when its thread waits for its group, and reads its source then. Other threads may
//! touch its destination after a barrier that follows the wait.

use super::memory::address;
use super::{for_each_lane, lanes, shared_address};
use crate::context::Context;
use crate::copies::Copy;
use crate::decode::{Decoded, Decoder};
use crate::error::Violation;
use crate::registers::{Reg, map_row};
use crate::syntax::Operand;
use std::mem::take;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    match d.opcode() {
        "cp.async.commit_group" => {
            d.operands::<0>()?;
            lanes!(|c| {
                for_each_lane(c.active, |lane| {
                    c.warp.copies.closed[lane] += 1;
                    Ok(())
                })
            })
        }
        "cp.async.wait_group" => {
            let [Operand::Immediate(groups)] = d.operands()? else {
                return Err("expected a number of groups".to_owned());
            };
            let groups = u32::try_from(*groups).map_err(|_| "too many groups")?;
            // The `groups` youngest closed ones may still be under way.
            lanes!(move |c| land(c, |copy, closed| copy.group < closed.saturating_sub(groups)))
        }
        "cp.async.wait_all" => {
            d.operands::<0>()?;
            lanes!(|c| land(c, |_, _| true))
        }
        opcode => {
            let opcode = opcode
                .trim_end_matches(".L2::128B")
                .trim_end_matches(".L2::256B");
            let opcode = opcode.replace(".shared::cta.", ".shared.");
            match opcode.as_str() {
                "cp.async.cg.shared.global" => start(d, &[16]),
                "cp.async.ca.shared.global" => start(d, &[4, 8, 16]),
                _ => Ok(None),
            }
        }
    }
}

fn start(d: &mut Decoder, sizes: &[u64]) -> Decoded {
    let (to, from, bytes, source_bytes) = match d.statement.operands.as_slice() {
        [to, from, Operand::Immediate(bytes)] => (to, from, *bytes, Operand::Immediate(*bytes)),
        [to, from, Operand::Immediate(bytes), source] => (to, from, *bytes, source.clone()),
        _ => return Err("expected two addresses and a size".to_owned()),
    };
    if !sizes.contains(&bytes) {
        return Err(format!("the size must be one of {sizes:?}"));
    }
    let (to, from) = (address(d, to, true)?, address(d, from, false)?);
    let source_bytes: Reg<u32> = d.source(&source_bytes)?;
    let bytes = bytes as u32;
    lanes!(move |c| {
        let (to, from) = (to.read(c)?, from.read(c)?);
        c.shared.prefetch(&to, c.active);
        // A source size beyond the size of the copy counts as the size of the copy.
        let source_bytes = map_row(c.row(source_bytes)?, |source| source.min(bytes));
        if c.launch.options.counters {
            let read = (0..32).fold(0, |mask, i| mask | u32::from(source_bytes[i] > 0) << i);
            c.tally.count_global(c.active & read, &from, bytes, false);
            c.tally.count_shared(c.active, &to, bytes);
        }
        for_each_lane(
            c.active,
            #[inline(always)]
            |lane| {
                let copy = Copy {
                    lane: lane as u32,
                    group: c.warp.copies.closed[lane],
                    to: shared_address(to[lane]),
                    from: from[lane],
                    bytes,
                    source_bytes: source_bytes[lane],
                    line: c.line,
                };
                // Checked now, so that a fault names this instruction.
                if copy.source_bytes > 0 {
                    let source_bytes = copy.source_bytes as usize;
                    let global = &c.launch.global;
                    global.check_readable(copy.lane, copy.from, bytes, source_bytes)?;
                }
                let (shared, who) = c.shared_as(copy.lane);
                shared.start_copy(who, copy.to, copy.bytes as usize)?;
                c.warp.copies.pending.push(copy);
                Ok(())
            },
        )
    })
}

/// The bytes that a copy moves.
#[inline(always)]
fn fetch(c: &Context, copy: &Copy) -> Result<[u8; 16], Box<Violation>> {
    let mut bytes = [0; 16];
    if copy.source_bytes > 0 {
        let to = &mut bytes[..copy.source_bytes as usize];
        c.launch.global.read(copy.lane, copy.from, copy.bytes, to)?;
    }
    Ok(bytes)
}

/// Lands the active lanes' copies that `is_due`, given the groups their lane has closed.
#[inline(always)]
fn land(c: &mut Context, is_due: impl Fn(&Copy, u32) -> bool) -> Result<(), Box<Violation>> {
    let (active, closed) = (c.active, c.warp.copies.closed);
    let lands =
        |copy: &Copy| active >> copy.lane & 1 != 0 && is_due(copy, closed[copy.lane as usize]);
    let mut pending = take(&mut c.warp.copies.pending);
    let mut landed = Ok(());
    pending.retain(|copy| {
        let stays = landed.is_err() || !lands(copy);
        if !stays {
            landed = fetch(c, copy).map(|bytes| {
                let (shared, mut who) = c.shared_as(copy.lane);
                who.line = copy.line;
                shared.land_copy(who, copy.to, &bytes[..copy.bytes as usize]);
            });
        }
        stays
    });
    c.warp.copies.pending = pending;
    landed
}
