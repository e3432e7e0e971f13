//! `bar.sync`, `bar.red`, `bar.arrive` and `bar.warp.sync`: barriers of the block and of the warp.
//!
//! A barrier orders what arriving threads did to shared memory before what waiting threads do after
//! it.

use super::lanes;
use super::shuffle::members;
use crate::barrier::{BarrierUse, Vote};
use crate::decode::{Action, Decoded, Decoder};
use crate::registers::Reg;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    match d.opcode() {
        "bar.sync"
        | "bar.cta.sync"
        | "barrier.sync"
        | "barrier.sync.aligned"
        | "barrier.cta.sync"
        | "barrier.cta.sync.aligned" => of_block(d, true),
        "bar.arrive"
        | "bar.cta.arrive"
        | "barrier.arrive"
        | "barrier.arrive.aligned"
        | "barrier.cta.arrive"
        | "barrier.cta.arrive.aligned" => of_block(d, false),
        "bar.red.or.pred" | "bar.cta.red.or.pred" => voting(d, Vote::Or),
        "bar.red.and.pred" | "bar.cta.red.and.pred" => voting(d, Vote::And),
        "bar.warp.sync" => of_warp(d),
        _ => Ok(None),
    }
}

fn of_block(d: &mut Decoder, waits: bool) -> Decoded {
    let (barrier, threads) = match d.statement.operands.as_slice() {
        [barrier] if waits => (barrier, None),
        [barrier, threads] => (barrier, Some(threads)),
        _ => return Err("expected a barrier and a thread count".to_owned()),
    };
    let threads = threads.map(|threads| d.source(threads)).transpose()?;
    Ok(Some(Action::Barrier(BarrierUse {
        barrier: d.source(barrier)?,
        threads,
        waits,
        vote: None,
    })))
}

/// `bar.red.op.pred d, barrier{, threads}, a`.
fn voting(d: &mut Decoder, vote: Vote) -> Decoded {
    let (to, barrier, threads, from) = match d.statement.operands.as_slice() {
        [to, barrier, from] => (to, barrier, None, from),
        [to, barrier, threads, from] => (to, barrier, Some(threads), from),
        _ => return Err("expected a predicate, a barrier and a predicate".to_owned()),
    };
    let threads = threads.map(|threads| d.source(threads)).transpose()?;
    Ok(Some(Action::Barrier(BarrierUse {
        barrier: d.source(barrier)?,
        threads,
        waits: true,
        vote: Some((d.predicate(to)?, d.predicate(from)?, vote)),
    })))
}

fn of_warp(d: &mut Decoder) -> Decoded {
    let [mask] = d.operands()?;
    let mask: Reg<u32> = d.source(mask)?;
    lanes!(move |c| {
        let members = members(c, mask)? & c.warp.threads;
        c.warp.synchronise(members);
        Ok(())
    })
}
