//! `ld` and `st` of global and shared memory.

use super::convert::extend;
use super::{Address, for_each_lane, lanes, shared_address};
use crate::block::Context;
use crate::decode::{Decoded, Decoder, Name};
use crate::registers::{AnyReg, Row, map_row};
use crate::syntax::Operand;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Global,
    Shared,
}

/// What an access moves: `count` values of `bits` bits.
#[derive(Clone, Copy)]
struct Shape {
    space: Space,
    count: usize,
    bits: u32,
    signed: bool,
}

impl Shape {
    fn bytes(self) -> usize {
        self.count * self.bits as usize / 8
    }

    /// Counts the transactions of an access.
    fn count(self, c: &mut Context, addresses: &Row<u64>, writes: bool) {
        let bytes = self.bytes() as u32;
        match self.space {
            _ if !c.launch.options.counters => {}
            Space::Global => c.tally.count_global(c.active, addresses, bytes, writes),
            Space::Shared => c.tally.count_shared(c.active, addresses, bytes),
        }
    }

    /// Reads the part of an opcode after `ld.` or `st.`; hints about caches have no effect.
    fn parse(modifiers: &str) -> Option<Self> {
        let (modifiers, kind) = modifiers.rsplit_once('.')?;
        let signed = kind.starts_with('s');
        let bits = match kind {
            "b8" | "u8" | "s8" => 8,
            "b16" | "u16" | "s16" => 16,
            "b32" | "u32" | "s32" | "f32" => 32,
            "b64" | "u64" | "s64" | "f64" => 64,
            _ => return None,
        };
        let (mut space, mut count, mut ordered) = (None, 1, false);
        for modifier in modifiers.split('.') {
            match modifier {
                "global" => space = Some(Space::Global),
                "shared" | "shared::cta" => space = Some(Space::Shared),
                "v2" => count = 2,
                "v4" => count = 4,
                // The order of accesses to global memory is not modelled.
                "acquire" | "release" | "relaxed" | "gpu" => ordered = true,
                "volatile" | "weak" | "nc" | "ca" | "cg" | "cs" | "wb" | "L2::128B"
                | "L2::256B" | "L1::no_allocate" | "L1::evict_last" | "L1::evict_first" => {}
                _ => return None,
            }
        }
        let shape = Shape {
            space: space?,
            count,
            bits,
            signed,
        };
        let known = !ordered || shape.space == Space::Global;
        (known && shape.bytes() <= 16).then_some(shape)
    }
}

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let shape = |prefix| d.opcode().strip_prefix(prefix).and_then(Shape::parse);
    if d.opcode() == "prefetch.global.L2" {
        return prefetch(d);
    }
    if let Some(shape) = shape("ld.") {
        return load(d, shape);
    }
    match shape("st.") {
        Some(shape) => store(d, shape),
        None => Ok(None),
    }
}

/// An address operand. Addresses have 64 bits, or for `shared` memory 32 bits.
pub(super) fn address(d: &mut Decoder, operand: &Operand, shared: bool) -> Result<Address, String> {
    let Operand::Address(base, offset) = operand else {
        return Err("expected an address".to_owned());
    };
    base_address(d, base, *offset, shared)
}

/// The address at an offset from a register or variable.
pub(super) fn base_address(
    d: &mut Decoder,
    base: &str,
    offset: i64,
    shared: bool,
) -> Result<Address, String> {
    match d.find(base) {
        Some(Name::Register(AnyReg::B64(base))) => Ok(Address::Long(base, offset)),
        Some(Name::Register(AnyReg::B32(base))) if shared => Ok(Address::Word(base, offset)),
        Some(Name::Shared(base)) if shared => {
            Ok(Address::Fixed(u64::from(base).wrapping_add_signed(offset)))
        }
        Some(_) => Err(format!("{base} is no address in this memory")),
        None => Err(format!("{base} is not declared")),
    }
}

/// The registers of a scalar or vector operand, which may be wider than the access's type.
fn registers(
    d: &mut Decoder,
    operand: &Operand,
    shape: Shape,
    source: bool,
) -> Result<Vec<AnyReg>, String> {
    let elements = match operand {
        Operand::Vector(elements) => elements.as_slice(),
        scalar => std::slice::from_ref(scalar),
    };
    if elements.len() != shape.count || (shape.count > 1) != matches!(operand, Operand::Vector(_)) {
        return Err(format!("expected {} values", shape.count));
    }
    let mut registers = Vec::new();
    for element in elements {
        let register = match element {
            Operand::Immediate(_) if source => AnyReg::B64(d.source(element)?),
            register if source => d.any(register)?,
            register => d.any_destination(register)?,
        };
        if register.bits() < shape.bits {
            return Err("a register is narrower than its type".to_owned());
        }
        registers.push(register);
    }
    Ok(registers)
}

/// `[a]`: brings the line of an address, which exists, to a cache.
fn prefetch(d: &mut Decoder) -> Decoded {
    let [at] = d.operands()?;
    let at = address(d, at, false)?;
    lanes!(move |c| {
        let at = at.read(c)?;
        for_each_lane(c.active, |lane| c.launch.global.find(lane as u32, at[lane]))
    })
}

fn load(d: &mut Decoder, shape: Shape) -> Decoded {
    let [to, from] = d.operands()?;
    let address = address(d, from, shape.space == Space::Shared)?;
    let to = registers(d, to, shape, false)?;
    lanes!(move |c| {
        let addresses = address.read(c)?;
        let bytes = shape.bytes();
        shape.count(c, &addresses, false);
        let mut loaded = [0_u128; 32];
        for_each_lane(
            c.active,
            #[inline(always)]
            |lane| {
                let mut all = [0; 16];
                let (id, to) = (lane as u32, &mut all[..bytes]);
                match shape.space {
                    Space::Global => c.launch.global.read(id, addresses[lane], bytes as u32, to),
                    Space::Shared => {
                        let (shared, who) = c.shared_as(id);
                        shared.read(who, shared_address(addresses[lane]), to, &mut None)
                    }
                }?;
                loaded[lane] = u128::from_le_bytes(all);
                Ok(())
            },
        )?;
        for (i, register) in to.iter().enumerate() {
            let start = i as u32 * shape.bits;
            let value: Row<u64> = map_row(&loaded, |all| {
                extend((all >> start) as u64, shape.bits, shape.signed)
            });
            match register {
                AnyReg::B16(r) => c.write(*r, map_row(&value, |v| v as u16)),
                AnyReg::B32(r) => c.write(*r, map_row(&value, |v| v as u32)),
                AnyReg::B64(r) => c.write(*r, value),
            }
        }
        Ok(())
    })
}

fn store(d: &mut Decoder, shape: Shape) -> Decoded {
    let [to, from] = d.operands()?;
    let address = address(d, to, shape.space == Space::Shared)?;
    let from = registers(d, from, shape, true)?;
    lanes!(move |c| {
        let addresses = address.read(c)?;
        let bytes = shape.bytes();
        shape.count(c, &addresses, true);
        let mut stored = [0_u128; 32];
        for (i, register) in from.iter().enumerate() {
            let value = match register {
                AnyReg::B16(r) => map_row(c.row(*r)?, u64::from),
                AnyReg::B32(r) => map_row(c.row(*r)?, u64::from),
                AnyReg::B64(r) => c.read(*r)?,
            };
            let start = i as u32 * shape.bits;
            for (stored, value) in stored.iter_mut().zip(value) {
                *stored |= u128::from(extend(value, shape.bits, false)) << start;
            }
        }
        for_each_lane(
            c.active,
            #[inline(always)]
            |lane| {
                let (id, from) = (lane as u32, &stored[lane].to_le_bytes()[..bytes]);
                match shape.space {
                    Space::Global => c
                        .launch
                        .global
                        .write(id, addresses[lane], bytes as u32, from),
                    Space::Shared => {
                        let (shared, who) = c.shared_as(id);
                        shared.write(who, shared_address(addresses[lane]), from)
                    }
                }
            },
        )
    })
}
