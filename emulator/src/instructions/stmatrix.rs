//! `stmatrix`: 8x8 matrices of 16-bit elements from a warp's registers to shared memory, in the layout
//! of [`ldmatrix`](super::ldmatrix).

use super::memory::address;
use super::{lanes, shared_address};
use crate::clocks::ALL_LANES;
use crate::decode::{Decoded, Decoder};
use crate::registers::Reg;
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("stmatrix.sync.aligned.m8n8.") else {
        return Ok(None);
    };
    let (count, rest) = modifiers.split_once('.').unwrap_or((modifiers, ""));
    let transposed = match rest {
        "shared.b16" | "shared::cta.b16" => false,
        "trans.shared.b16" | "trans.shared::cta.b16" => true,
        _ => return Ok(None),
    };
    let matrices = match count {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        _ => return Ok(None),
    };
    d.require_target(90)?;
    let [to, from] = d.operands()?;
    let address = address(d, to, true)?;
    // One matrix needs no braces.
    let elements = match from {
        Operand::Vector(elements) => elements.as_slice(),
        scalar => std::slice::from_ref(scalar),
    };
    if elements.len() != matrices {
        return Err(format!("expected {matrices} registers"));
    }
    let from: Result<Vec<Reg<u32>>, _> = elements.iter().map(|r| d.register(r)).collect();
    let from = from?;
    lanes(move |c| {
        c.require(u32::MAX)?;
        let addresses = address.read(c)?;
        if c.launch.options.counters {
            let giving = u32::MAX >> (32 - 8 * matrices);
            c.tally.count_shared(giving, &addresses, 16);
        }
        for (matrix, register) in from.iter().enumerate() {
            let values = c.read(*register)?;
            let mut rows = [[0_u16; 8]; 8];
            for (lane, value) in values.into_iter().enumerate() {
                let (g, t) = (lane / 4, lane % 4);
                for (i, element) in [value as u16, (value >> 16) as u16].into_iter().enumerate() {
                    match transposed {
                        false => rows[g][2 * t + i] = element,
                        true => rows[2 * t + i][g] = element,
                    }
                }
            }
            for (row, elements) in rows.into_iter().enumerate() {
                let lane = 8 * matrix + row;
                let mut bytes = [0; 16];
                for (to, element) in bytes.chunks_exact_mut(2).zip(elements) {
                    to.copy_from_slice(&element.to_le_bytes());
                }
                // The whole warp writes, but a fault names the lane that gave the address.
                let (shared, who) = c.shared_as(ALL_LANES);
                shared
                    .write(who, shared_address(addresses[lane]), &bytes)
                    .map_err(|mut violation| {
                        violation.lane = Some(lane as u32);
                        violation
                    })?;
            }
        }
        Ok(())
    })
}
