//! `bra`, `ret`, `exit` and `trap`.

use crate::decode::{Action, Decoded, Decoder};
use crate::syntax::Operand;

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
        _ => Ok(None),
    }
}
