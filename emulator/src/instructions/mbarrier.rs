//! `mbarrier`: arrivals and waits at barriers in shared memory; see [`crate::mbarrier`].

use super::memory::address;
use super::{for_each_lane, lanes, shared_address};
use crate::decode::{Decoded, Decoder};
use crate::mbarrier::Awaited;
use crate::registers::Reg;
use crate::syntax::Operand;
use crate::warp::State;

/// The modifiers of an opcode that change what it does.
#[derive(Clone, Copy, Default)]
struct Modifiers {
    expects_bytes: bool,
    parity: bool,
    /// Orders no other accesses.
    relaxed: bool,
}

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(rest) = d.opcode().strip_prefix("mbarrier.") else {
        return Ok(None);
    };
    let Some((name, modifiers)) = rest.split_once('.') else {
        return Ok(None);
    };
    let Some(modifiers) = Modifiers::parse(modifiers) else {
        return Ok(None);
    };
    let plain = !modifiers.expects_bytes && !modifiers.parity;
    let operation = match name {
        "init" if plain => initialise(d),
        "inval" if plain => invalidate(d),
        "expect_tx" if plain => expect(d),
        "arrive" if !modifiers.parity => arrive(d, modifiers),
        "test_wait" | "try_wait" if !modifiers.expects_bytes => wait(d, modifiers),
        _ => return Ok(None),
    };
    d.require_target(90)?;
    operation
}

impl Modifiers {
    fn parse(text: &str) -> Option<Self> {
        let mut modifiers = Modifiers::default();
        let mut is_shared = false;
        let text = text.strip_suffix(".b64")?;
        for modifier in text.split('.') {
            match modifier {
                "expect_tx" => modifiers.expects_bytes = true,
                "parity" => modifiers.parity = true,
                "relaxed" => modifiers.relaxed = true,
                "shared" | "shared::cta" | "shared::cluster" => is_shared = true,
                "release" | "acquire" | "cta" | "cluster" => {}
                _ => return None,
            }
        }
        is_shared.then_some(modifiers)
    }
}

/// `[at], count`
fn initialise(d: &mut Decoder) -> Decoded {
    let [at, count] = d.operands()?;
    let at = address(d, at, true)?;
    let count: Reg<u32> = d.source(count)?;
    lanes!(move |c| {
        let (at, count) = (at.read(c)?, c.read(count)?);
        for_each_lane(c.active, |lane| {
            let who = c.warp.accessor(lane as u32, c.line);
            let at = shared_address(at[lane]);
            c.mbarriers.initialise(c.shared, who, at, count[lane])
        })
    })
}

/// `[at]`
fn invalidate(d: &mut Decoder) -> Decoded {
    let [at] = d.operands()?;
    let at = address(d, at, true)?;
    lanes!(move |c| {
        let at = at.read(c)?;
        for_each_lane(c.active, |lane| {
            let who = c.warp.accessor(lane as u32, c.line);
            let at = shared_address(at[lane]);
            let loads = &c.bulk.loads;
            let in_use = |number| loads.iter().any(|load| load.mbarrier == number);
            c.mbarriers.invalidate(c.shared, who, at, in_use)
        })
    })
}

/// `[at], bytes`
fn expect(d: &mut Decoder) -> Decoded {
    let [at, bytes] = d.operands()?;
    let at = address(d, at, true)?;
    let bytes: Reg<u32> = d.source(bytes)?;
    lanes!(move |c| {
        let (at, bytes) = (at.read(c)?, c.read(bytes)?);
        for_each_lane(c.active, |lane| {
            let who = c.warp.accessor(lane as u32, c.line);
            let number = c.mbarriers.find(c.shared, who, shared_address(at[lane]))?;
            c.mbarriers.expect(who, number, bytes[lane])
        })
    })
}

/// `token, [at]{, count}`, or with `expect_tx` `token, [at], bytes`; the token may be `_`.
fn arrive(d: &mut Decoder, modifiers: Modifiers) -> Decoded {
    let (token, at, number) = match d.statement.operands.as_slice() {
        [token, at] if !modifiers.expects_bytes => (token, at, &Operand::Immediate(1)),
        [token, at, number] => (token, at, number),
        _ => return Err("expected a token, an address and a number".to_owned()),
    };
    let token: Option<Reg<u64>> = match token {
        Operand::Name("_") => None,
        token => Some(d.destination(token)?),
    };
    let at = address(d, at, true)?;
    let number: Reg<u32> = d.source(number)?;
    lanes!(move |c| {
        let (at, number) = (at.read(c)?, c.read(number)?);
        let mut tokens = [0; 32];
        for_each_lane(c.active, |lane| {
            let who = c.warp.accessor(lane as u32, c.line);
            let mbarrier = c.mbarriers.find(c.shared, who, shared_address(at[lane]))?;
            let mut count = number[lane];
            if modifiers.expects_bytes {
                c.mbarriers.expect(who, mbarrier, number[lane])?;
                count = 1;
            }
            let released = (!modifiers.relaxed).then(|| c.warp.release(lane as u32));
            tokens[lane] = c
                .mbarriers
                .arrive(who, mbarrier, count, released.as_ref())?;
            Ok(())
        })?;
        c.warp.tick();
        if let Some(token) = token {
            c.write(token, tokens);
        }
        Ok(())
    })
}

/// `done, [at], token{, time}`, or with `parity` `done, [at], parity{, time}`.
fn wait(d: &mut Decoder, modifiers: Modifiers) -> Decoded {
    let (done, at, awaited) = match d.statement.operands.as_slice() {
        [done, at, awaited] => (done, at, awaited),
        [done, at, awaited, _] if d.opcode().starts_with("mbarrier.try_wait") => {
            (done, at, awaited)
        }
        _ => return Err("expected a predicate, an address and a phase".to_owned()),
    };
    let (done, at) = (d.predicate(done)?, address(d, at, true)?);
    let parity: Option<Reg<u32>> = match modifiers.parity {
        true => Some(d.source(awaited)?),
        false => None,
    };
    let token: Option<Reg<u64>> = match modifiers.parity {
        true => None,
        false => Some(d.source(awaited)?),
    };
    lanes!(move |c| {
        let at = at.read(c)?;
        let parity = parity.map(|parity| c.read(parity)).transpose()?;
        let token = token.map(|token| c.read(token)).transpose()?;
        let awaited = |lane: usize| match (parity, token) {
            (Some(parity), _) => Awaited::Parity(parity[lane]),
            (None, token) => Awaited::Token(token.expect("one of the two")[lane]),
        };
        // Mbarriers whose phase is complete, with the lanes that waited there.
        let mut complete: Vec<(usize, u32)> = Vec::new();
        for_each_lane(c.active, |lane| {
            let who = c.warp.accessor(lane as u32, c.line);
            let mbarrier = c.mbarriers.find(c.shared, who, shared_address(at[lane]))?;
            if !c.mbarriers.test(who, mbarrier, awaited(lane))? {
                let phase = c.mbarriers.phase(mbarrier);
                c.warp.state = State::Polling { mbarrier, phase };
                return Ok(());
            }
            match complete.iter_mut().find(|(number, _)| *number == mbarrier) {
                Some((_, lanes)) => *lanes |= 1 << lane,
                None => complete.push((mbarrier, 1 << lane)),
            }
            Ok(())
        })?;
        let mut all = 0;
        for (mbarrier, lanes) in complete {
            all |= lanes;
            if !modifiers.relaxed {
                c.warp.learn(lanes, c.mbarriers.completed(mbarrier));
            }
        }
        c.warp.registers.write_predicate(done, c.active, all);
        Ok(())
    })
}
