//! `ldmatrix` and `stmatrix`: 8x8 matrices of 16-bit elements between shared memory and registers.
//!
//! Lane `l` gives the address of row `l % 8` of matrix `l / 8`. Register `r` has two elements of
//! matrix `r`: with `g = lane / 4` and `t = lane % 4`, elements `2t` and `2t + 1` of row `g`, or with
//! `.trans` element `g` of rows `2t` and `2t + 1`.

use super::memory::address;
use super::{Address, lanes, shared_address};
use crate::clocks::ALL_LANES;
use crate::context::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::Violation;
use crate::registers::{Reg, Row, row_of};
use crate::shared::{Accessor, Shared};
use crate::syntax::Operand;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let opcode = d.opcode();
    let Some((direction, modifiers)) = opcode.split_once(".sync.aligned.m8n8.") else {
        return Ok(None);
    };
    let (count, rest) = modifiers.split_once('.').unwrap_or((modifiers, ""));
    let transposed = match rest {
        "shared.b16" | "shared::cta.b16" => false,
        "trans.shared.b16" | "trans.shared::cta.b16" => true,
        _ => return Ok(None),
    };
    let count = match count {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        _ => return Ok(None),
    };
    match direction {
        "ldmatrix" => {
            let [to, from] = d.operands()?;
            load(Matrices::of(d, count, transposed, to, from, true)?)
        }
        "stmatrix" => {
            d.require_target(90)?;
            let [to, from] = d.operands()?;
            store(Matrices::of(d, count, transposed, from, to, false)?)
        }
        _ => Ok(None),
    }
}

/// The matrices that an instruction moves.
struct Matrices {
    /// One for each matrix.
    registers: Vec<Reg<u32>>,
    /// Where the rows lie in shared memory.
    rows: Address,
    transposed: bool,
}

impl Matrices {
    fn of(
        d: &mut Decoder,
        count: usize,
        transposed: bool,
        registers: &Operand,
        rows: &Operand,
        loads: bool,
    ) -> Result<Self, String> {
        let rows = address(d, rows, true)?;
        // One matrix needs no braces.
        let registers = match registers {
            Operand::Vector(elements) => elements.as_slice(),
            scalar => std::slice::from_ref(scalar),
        };
        if registers.len() != count {
            let found = registers.len();
            return Err(format!("expected {count} registers, found {found}"));
        }
        let register = |operand| match loads {
            true => d.destination(operand),
            false => d.register(operand),
        };
        let registers: Result<_, _> = registers.iter().map(register).collect();
        Ok(Matrices {
            registers: registers?,
            rows,
            transposed,
        })
    }

    /// The addresses of all rows, by lane.
    #[inline(always)]
    fn addresses(&self, c: &mut Context) -> Result<Row<u64>, Box<Violation>> {
        c.require(u32::MAX)?;
        let addresses = self.rows.read(c)?;
        let giving = u32::MAX >> (32 - 8 * self.registers.len());
        c.shared.prefetch(&addresses, giving);
        if c.launch.options.counters {
            c.tally.count_shared(giving, &addresses, 16);
        }
        Ok(addresses)
    }
}

/// Row and column of the low (`half` 0) or high element of a lane's register.
#[inline(always)]
fn place(transposed: bool, lane: usize, half: usize) -> (usize, usize) {
    let (along, across) = (2 * (lane % 4) + half, lane / 4);
    match transposed {
        false => (across, along),
        true => (along, across),
    }
}

/// Calls `access` for the 8 rows of a matrix, given the row's address and number.
#[inline(always)]
fn each_row(
    c: &mut Context,
    matrix: usize,
    addresses: &Row<u64>,
    mut access: impl FnMut(&mut Shared, Accessor, u32, usize) -> Result<(), Box<Violation>>,
) -> Result<(), Box<Violation>> {
    // The whole warp accesses it, but a fault names the lane that gave the address.
    let (shared, who) = c.shared_as(ALL_LANES);
    for row in 0..8 {
        let lane = 8 * matrix + row;
        access(&mut *shared, who, shared_address(addresses[lane]), row).map_err(
            |mut violation| {
                violation.lane = Some(lane as u32);
                violation
            },
        )?;
    }
    Ok(())
}

fn load(matrices: Matrices) -> Decoded {
    lanes!(move |c| {
        let addresses = matrices.addresses(c)?;
        let mut settled = None;
        for (matrix, register) in matrices.registers.iter().enumerate() {
            let mut rows = [[0_u8; 16]; 8];
            each_row(
                c,
                matrix,
                &addresses,
                #[inline(always)]
                |shared, who, address, row| shared.read(who, address, &mut rows[row], &mut settled),
            )?;
            let pairs = |transposed| {
                row_of(|lane| {
                    let [low, high] = [0, 1].map(|half| {
                        let (row, column) = place(transposed, lane, half);
                        u16::from_le_bytes([rows[row][2 * column], rows[row][2 * column + 1]])
                    });
                    u32::from(high) << 16 | u32::from(low)
                })
            };
            // Two loops: each with places that are known when it is compiled.
            let pairs = match matrices.transposed {
                false => pairs(false),
                true => pairs(true),
            };
            c.write(*register, pairs);
        }
        Ok(())
    })
}

fn store(matrices: Matrices) -> Decoded {
    lanes!(move |c| {
        let addresses = matrices.addresses(c)?;
        for (matrix, register) in matrices.registers.iter().enumerate() {
            let mut rows = [[0_u8; 16]; 8];
            for (lane, pair) in c.read(*register)?.into_iter().enumerate() {
                for (half, element) in [pair as u16, (pair >> 16) as u16].into_iter().enumerate() {
                    let (row, column) = place(matrices.transposed, lane, half);
                    rows[row][2 * column..][..2].copy_from_slice(&element.to_le_bytes());
                }
            }
            each_row(
                c,
                matrix,
                &addresses,
                #[inline(always)]
                |shared, who, address, row| shared.write(who, address, &rows[row]),
            )?;
        }
        Ok(())
    })
}
