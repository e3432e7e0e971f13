//! `cp.async.bulk` and `cp.reduce.async.bulk`: copies of many bytes by one thread, which run beside the
//! computation.
//!
//! A copy to shared memory is complete when a phase of its mbarrier is. A copy to global memory
//! belongs to a group of its thread, as `cp.async` does, and there are two things to wait for: that
//! its source was read (`.read`), and that its destination was written. A reduction adds to its destination; in which
//! order reductions add is open.

use super::memory::address;
use super::{for_each_lane, lanes, shared_address};
use crate::bulk::{Load, Place, Store, check_destination, fetch};
use crate::context::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::registers::Reg;
use crate::shared::BULK_ALIGNMENT;
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    if d.opcode() == "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32" {
        d.require_target(90)?;
        return store(d, true);
    }
    let Some(rest) = d.opcode().strip_prefix("cp.async.bulk.") else {
        return Ok(None);
    };
    let operation = match rest {
        "shared::cluster.global.mbarrier::complete_tx::bytes"
        | "shared::cta.global.mbarrier::complete_tx::bytes" => load(d),
        "global.shared::cta.bulk_group" => store(d, false),
        "commit_group" => commit(d),
        "wait_group" => wait(d, false),
        "wait_group.read" => wait(d, true),
        _ => return Ok(None),
    };
    d.require_target(90)?;
    operation
}

/// `[to], [from], bytes, [mbarrier]`
fn load(d: &mut Decoder) -> Decoded {
    let [to, from, bytes, mbarrier] = d.operands()?;
    let (to, from) = (address(d, to, true)?, address(d, from, false)?);
    let bytes: Reg<u32> = d.source(bytes)?;
    let mbarrier = address(d, mbarrier, true)?;
    lanes!(move |c| {
        let (to, from, bytes) = (to.read(c)?, from.read(c)?, c.read(bytes)?);
        let mbarrier = mbarrier.read(c)?;
        for_each_lane(c.active, |lane| {
            check_size(lane, bytes[lane])?;
            let from = Place::Bytes(from[lane]);
            start_load(
                c,
                lane,
                to[lane],
                from,
                bytes[lane],
                BULK_ALIGNMENT,
                mbarrier[lane],
            )
        })
    })
}

/// Starts a lane's copy to shared memory.
pub(super) fn start_load(
    c: &mut Context,
    lane: usize,
    to: u64,
    from: Place,
    bytes: u32,
    alignment: u32,
    mbarrier: u64,
) -> Result<(), Box<Violation>> {
    let who = c.warp.accessor(lane as u32, c.line);
    let mbarrier = shared_address(mbarrier);
    let load = Load {
        mbarrier: c.mbarriers.find_fenced(c.shared, who, mbarrier)?,
        to: shared_address(to),
        from,
        bytes,
        thread: (c.warp.index, lane as u32),
        line: c.line,
    };
    c.shared.start_bulk_load(who, load.to, bytes, alignment)?;
    // Read once now, so that a fault names this instruction.
    fetch(&c.launch.global, &load)?;
    if c.launch.options.counters {
        load.from.count(bytes, false, c.tally);
    }
    c.bulk.loads.push(load);
    Ok(())
}

/// `[to], [from], bytes`
fn store(d: &mut Decoder, adds: bool) -> Decoded {
    let [to, from, bytes] = d.operands()?;
    let (to, from) = (address(d, to, false)?, address(d, from, true)?);
    let bytes: Reg<u32> = d.source(bytes)?;
    lanes!(move |c| {
        let (to, from, bytes) = (to.read(c)?, from.read(c)?, c.read(bytes)?);
        for_each_lane(c.active, |lane| {
            check_size(lane, bytes[lane])?;
            let to = Place::Bytes(to[lane]);
            start_store(c, lane, to, from[lane], bytes[lane], BULK_ALIGNMENT, adds)
        })
    })
}

/// Starts a lane's copy to global memory.
pub(super) fn start_store(
    c: &mut Context,
    lane: usize,
    to: Place,
    from: u64,
    bytes: u32,
    alignment: u32,
    adds: bool,
) -> Result<(), Box<Violation>> {
    let store = Store {
        thread: (c.warp.index, lane as u32),
        group: c.warp.bulk_groups[lane],
        from: shared_address(from),
        to,
        bytes,
        line: c.line,
        adds,
        added: false,
        read: None,
    };
    let who = c.warp.accessor(lane as u32, c.line);
    c.shared
        .start_bulk_store(who, store.from, bytes, alignment)?;
    check_destination(&c.launch.global, &store)?;
    if c.launch.options.counters {
        store.to.count(bytes, true, c.tally);
    }
    c.bulk.stores.push(store);
    let drifted = c.bulk.drift(&c.launch.global, c.shared);
    drifted.map_err(|(warp, _, violation)| violation.by(warp))
}

fn commit(d: &mut Decoder) -> Decoded {
    d.operands::<0>()?;
    lanes!(|c| {
        for_each_lane(c.active, |lane| {
            c.warp.bulk_groups[lane] += 1;
            Ok(())
        })
    })
}

fn wait(d: &mut Decoder, reads_only: bool) -> Decoded {
    let [Operand::Immediate(groups)] = d.operands()? else {
        return Err("expected a number of groups".to_owned());
    };
    let groups = u32::try_from(*groups).map_err(|_| "too many groups")?;
    lanes!(move |c| {
        for_each_lane(c.active, |lane| {
            // The `groups` youngest closed ones may still be under way.
            let due = c.warp.bulk_groups[lane].saturating_sub(groups);
            let who = c.warp.accessor(lane as u32, c.line);
            let global = &c.launch.global;
            c.bulk.wait(who, due, reads_only, global, c.shared)
        })
    })
}

fn check_size(lane: usize, bytes: u32) -> Result<(), Box<Violation>> {
    match bytes.is_multiple_of(BULK_ALIGNMENT) {
        true => Ok(()),
        false => Err(Violation::of_lanes(Rule::BulkCopySize { bytes }, 1 << lane)),
    }
}
