//! The instructions, one file for each family, as in the PTX manual's chapters.
//!
//! Each family's `decode` looks at an opcode. For an opcode of the family it takes the operands and
//! returns the closure that executes the instruction.

mod accumulators;
mod atomic;
mod barrier;
mod bulk;
mod cluster;
mod control;
mod convert;
mod cp_async;
mod elements;
mod fence;
mod float;
mod fp8;
mod integer;
mod matrices;
mod mbarrier;
mod memory;
mod mma;
mod movement;
mod pairs;
mod setmaxnreg;
mod shuffle;
mod tensor_copy;
mod tiles;
mod truncation;
mod wgmma;

use crate::context::Context;
use crate::decode::{Action, Decoded, Decoder, lanes, warpgroup};
use crate::error::Violation;
use crate::registers::{Pred, Reg, Row, Value, map_row, row_of};

/// Every family, the most frequent ones first.
const FAMILIES: &[fn(&mut Decoder) -> Decoded] = &[
    integer::decode,
    float::decode,
    pairs::decode,
    movement::decode,
    control::decode,
    mma::decode,
    memory::decode,
    matrices::decode,
    convert::decode,
    cp_async::decode,
    shuffle::decode,
    barrier::decode,
    mbarrier::decode,
    bulk::decode,
    fence::decode,
    wgmma::decode,
    tensor_copy::decode,
    setmaxnreg::decode,
    atomic::decode,
    cluster::decode,
];

/// Turns a statement into an action.
pub(crate) fn decode(d: &mut Decoder) -> Result<Action, String> {
    for family in FAMILIES {
        d.accesses.clear();
        if let Some(action) = family(d)? {
            return Ok(action);
        }
    }
    Err("unknown instruction".to_owned())
}

/// `opcode d, a;` with `d = f(a)` in every lane.
fn unary<A: Value, D: Value>(
    d: &mut Decoder,
    f: impl Fn(A) -> D + Send + Sync + 'static,
) -> Decoded {
    let [to, a] = d.operands()?;
    let (to, a): (Reg<D>, Reg<A>) = (d.destination(to)?, d.source(a)?);
    lanes!(move |c| {
        let a = c.row(a)?;
        let result = row_of(|i| f(a[i]));
        c.write(to, result);
        Ok(())
    })
}

/// `opcode d, a, b;` with `d = f(a, b)` in every lane.
fn binary<A: Value, B: Value, D: Value>(
    d: &mut Decoder,
    f: impl Fn(A, B) -> D + Send + Sync + 'static,
) -> Decoded {
    let [to, a, b] = d.operands()?;
    let (to, a, b): (Reg<D>, Reg<A>, Reg<B>) = (d.destination(to)?, d.source(a)?, d.source(b)?);
    lanes!(move |c| {
        let (a, b) = (c.row(a)?, c.row(b)?);
        let result = row_of(|i| f(a[i], b[i]));
        c.write(to, result);
        Ok(())
    })
}

/// `opcode d, a, b, e;` with `d = f(a, b, e)` in every lane.
fn ternary<A: Value, B: Value, E: Value, D: Value>(
    d: &mut Decoder,
    f: impl Fn(A, B, E) -> D + Send + Sync + 'static,
) -> Decoded {
    let [to, a, b, e] = d.operands()?;
    let to: Reg<D> = d.destination(to)?;
    let (a, b, e): (Reg<A>, Reg<B>, Reg<E>) = (d.source(a)?, d.source(b)?, d.source(e)?);
    lanes!(move |c| {
        let (a, b, e) = (c.row(a)?, c.row(b)?, c.row(e)?);
        let result = row_of(|i| f(a[i], b[i], e[i]));
        c.write(to, result);
        Ok(())
    })
}

/// `setp p, a, b;` with `p = f(a, b)` in every lane.
fn compare<T: Value>(d: &mut Decoder, f: impl Fn(T, T) -> bool + Send + Sync + 'static) -> Decoded {
    let [to, a, b] = d.operands()?;
    let (to, a, b): (Pred, Reg<T>, Reg<T>) = (d.predicate(to)?, d.source(a)?, d.source(b)?);
    lanes!(move |c| {
        let (a, b) = (c.row(a)?, c.row(b)?);
        let mask = (0..32).fold(0, |mask, i| mask | u32::from(f(a[i], b[i])) << i);
        c.warp.registers.write_predicate(to, c.active, mask);
        Ok(())
    })
}

/// Applies `f` to the active lanes until one fails.
#[inline(always)]
fn for_each_lane(
    active: u32,
    mut f: impl FnMut(usize) -> Result<(), Box<Violation>>,
) -> Result<(), Box<Violation>> {
    let mut rest = active;
    while rest != 0 {
        f(rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
    }
    Ok(())
}

/// An address operand: `[register+offset]` or `[variable+offset]`.
#[derive(Clone, Copy)]
enum Address {
    Long(Reg<u64>, i64),
    Word(Reg<u32>, i64),
    Fixed(u64),
}

impl Address {
    /// The address in every lane.
    fn read(self, c: &Context) -> Result<Row<u64>, Box<Violation>> {
        Ok(match self {
            Address::Long(base, offset) => {
                map_row(c.row(base)?, |base| base.wrapping_add_signed(offset))
            }
            // Shared addresses wrap around at 32 bits.
            Address::Word(base, offset) => map_row(c.row(base)?, |base| {
                u64::from(base.wrapping_add(offset as u32))
            }),
            Address::Fixed(address) => [address; 32],
        })
    }
}

/// A shared address in 32 bits. An address that does not fit lies outside any block's memory.
fn shared_address(address: u64) -> u32 {
    u32::try_from(address).unwrap_or(u32::MAX)
}
