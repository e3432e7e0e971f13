//! `bra`, `ret`, `exit`, `trap`, `nanosleep` and `griddepcontrol.wait`.

use super::lanes;
use crate::decode::{Action, Decoded, Decoder};
use crate::registers::Reg;
use crate::syntax::Operand;
use crate::warp::State;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    match d.opcode() {
        "bra" | "bra.uni" => {
            let [Operand::Name(label)] = d.operands()? else {
                return Err("expected a label".to_owned());
            };
            let target = d.scope.reference(label);
            let uniform = d.opcode() == "bra.uni";
            Ok(Some(Action::Branch { target, uniform }))
        }
        "ret" | "exit" | "ret.uni" => {
            d.operands::<0>()?;
            Ok(Some(Action::Exit))
        }
        "trap" => {
            d.operands::<0>()?;
            Ok(Some(Action::Trap))
        }
        // Launches come one after another: they have ended.
        "griddepcontrol.wait" => {
            d.operands::<0>()?;
            lanes!(|c| {
                *c.has_waited = true;
                Ok(())
            })
        }
        // A loop that waits for other blocks has one, so that the warps of this block go on.
        "nanosleep.u32" => {
            let [time] = d.operands()?;
            let _: Reg<u32> = d.source(time)?;
            lanes!(|c| {
                c.warp.state = State::Sleeping;
                Ok(())
            })
        }
        _ => Ok(None),
    }
}
