//! `setmaxnreg`: a warpgroup gives registers back to its block, or waits for some; see
//! [`crate::pool`].

use super::warpgroup;
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::pool::{MOST, STEP};
use crate::syntax::Operand;
use crate::warp::State;

/// The least that a thread can have.
const LEAST: u32 = 24;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let takes = match d.opcode() {
        "setmaxnreg.inc.sync.aligned.u32" => true,
        "setmaxnreg.dec.sync.aligned.u32" => false,
        _ => return Ok(None),
    };
    d.require_target(90)?;
    let count = match d.operands()? {
        [Operand::Immediate(count)] => u32::try_from(*count).unwrap_or(u32::MAX),
        _ => return Err("expected a number of registers".to_owned()),
    };
    if !count.is_multiple_of(STEP) || !(LEAST..=MOST).contains(&count) {
        return Err(format!(
            "the number of registers is a multiple of {STEP} from {LEAST} to {MOST}"
        ));
    }
    warpgroup!(move |group| {
        let misused = |what| Violation::of_warp(Rule::RegistersMisused { what });
        let Some(pool) = &mut group.pool else {
            return Err(misused("setmaxnreg in a kernel without launch bounds"));
        };
        for warp in &mut *group.warps {
            let owned = pool.owned[warp.index];
            if takes && count < owned || !takes && count > owned {
                let what = "setmaxnreg.dec to more registers than there are, or inc to fewer";
                return Err(misused(what).by(warp.index));
            }
            if !pool.resize(warp.index, count) {
                warp.state = State::AwaitingRegisters(count);
            }
        }
        Ok(())
    })
}
