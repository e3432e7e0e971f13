//! `ldmatrix`: 8x8 matrices of 16-bit elements from shared memory into a warp's registers.
//!
//! Lane `l` gives the address of row `l % 8` of matrix `l / 8`. Register `r` receives two elements of
//! matrix `r`: with `g = lane / 4` and `t = lane % 4`, elements `2t` and `2t + 1` of row `g`, or with
//! `.trans` element `g` of rows `2t` and `2t + 1`.

use super::memory::address;
use super::{lanes, shared_address};
use crate::clocks::ALL_LANES;
use crate::decode::{Decoded, Decoder};
use crate::registers::Reg;
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(modifiers) = d.opcode().strip_prefix("ldmatrix.sync.aligned.m8n8.") else {
        return Ok(None);
    };
    let (count, rest) = modifiers.split_once('.').unwrap_or((modifiers, ""));
    let transposed = match rest {
        "shared.b16" | "shared::cta.b16" => false,
        "trans.shared.b16" | "trans.shared::cta.b16" => true,
        _ => return Ok(None),
    };
    match count {
        "x1" => load::<1>(d, transposed),
        "x2" => load::<2>(d, transposed),
        "x4" => load::<4>(d, transposed),
        _ => Ok(None),
    }
}

fn load<const MATRICES: usize>(d: &mut Decoder, transposed: bool) -> Decoded {
    let [to, from] = d.operands()?;
    let address = address(d, from, true)?;
    let to: [Reg<u32>; MATRICES] = match to {
        Operand::Vector(_) => d.vector(to)?,
        // One matrix needs no braces.
        scalar => {
            let register = d.register(scalar)?;
            [register; MATRICES]
        }
    };
    if MATRICES > 1 && !matches!(&d.statement.operands[0], Operand::Vector(_)) {
        return Err(format!("expected a vector of {MATRICES} registers"));
    }
    lanes(move |c| {
        c.require(u32::MAX)?;
        let addresses = address.read(c)?;
        let giving = u32::MAX >> (32 - 8 * MATRICES);
        if c.launch.options.counters {
            c.tally.count_shared(giving, &addresses, 16);
        }
        for (matrix, register) in to.iter().enumerate() {
            let mut rows = [[0_u8; 16]; 8];
            for (row, bytes) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + row;
                // The whole warp reads, but a fault names the lane that gave the address.
                let (shared, who) = c.shared_as(ALL_LANES);
                shared
                    .read(who, shared_address(addresses[lane]), bytes)
                    .map_err(|mut violation| {
                        violation.lane = Some(lane as u32);
                        violation
                    })?;
            }
            let element = |row: usize, column: usize| {
                u32::from(u16::from_le_bytes([
                    rows[row][2 * column],
                    rows[row][2 * column + 1],
                ]))
            };
            c.write(
                *register,
                std::array::from_fn(|lane| {
                    let (g, t) = (lane / 4, lane % 4);
                    let (low, high) = if transposed {
                        (element(2 * t, g), element(2 * t + 1, g))
                    } else {
                        (element(g, 2 * t), element(g, 2 * t + 1))
                    };
                    high << 16 | low
                }),
            );
        }
        Ok(())
    })
}
