//! Registers whose values follow from constants.

use super::statement::{Kind, Statement, operands, statements, words};
use std::collections::HashMap;

/// Instructions between a constant and the register asked for, at most.
const DEPTH: u32 = 16;

/// The statement that writes a register, where only one does.
pub struct Known<'a>(HashMap<&'a str, Option<Statement<'a>>>);

impl<'a> Known<'a> {
    /// The registers that these statements write.
    ///
    /// An instruction writes its first operand, or nothing. A block is taken to write whatever it names.
    pub fn of(statements: impl Iterator<Item = Statement<'a>>) -> Self {
        let mut writers = HashMap::new();
        for statement in statements {
            let written = match statement.kind {
                Kind::Block(text) => text,
                Kind::Instruction(_, _, text) => operands(text).next().unwrap_or_default(),
                _ => continue,
            };
            for register in words(written) {
                let entry = writers.entry(register);
                entry
                    .and_modify(|writer| *writer = None)
                    .or_insert(Some(statement));
            }
        }
        Known(writers)
    }

    /// The value of a register or a constant; 1 for a true predicate.
    pub fn value(&self, operand: &str) -> Option<u32> {
        self.value_within(operand, DEPTH)
    }

    fn value_within(&self, operand: &str, depth: u32) -> Option<u32> {
        if let Some(value) = constant(operand) {
            return Some(value);
        }
        let (writer, depth) = ((*self.0.get(operand)?)?, depth.checked_sub(1)?);
        let (opcode, operands) = match writer.kind {
            Kind::Block(text) => {
                return Known::of(statements(text)).value_within(operand, depth);
            }
            Kind::Instruction(false, opcode, text) => (opcode, operands(text).collect::<Vec<_>>()),
            _ => return None,
        };
        let value = |place: usize| self.value_within(operands.get(place)?, depth);
        let is_true = |place| value(place).map(|value| value != 0);
        let of = |predicate: bool| Some(u32::from(predicate));
        match opcode {
            "mov.b32" | "mov.u32" => value(1),
            "mov.pred" => of(is_true(1)?),
            "not.pred" => of(!is_true(1)?),
            "and.pred" | "or.pred" => {
                // One operand of this value decides.
                let deciding = opcode == "or.pred";
                match (is_true(1), is_true(2)) {
                    (Some(p), _) | (_, Some(p)) if p == deciding => of(deciding),
                    (Some(_), Some(_)) => of(!deciding),
                    _ => None,
                }
            }
            "xor.pred" => of(is_true(1)? != is_true(2)?),
            "setp.eq.b32" => of(value(1)? == value(2)?),
            "setp.ne.b32" => of(value(1)? != value(2)?),
            "selp.b32" => value(if is_true(3)? { 1 } else { 2 }),
            _ => None,
        }
    }
}

/// A constant of 32 bits, or a predicate's.
fn constant(operand: &str) -> Option<u32> {
    match operand.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => operand.parse::<i64>().ok().map(|value| value as u32),
    }
}
