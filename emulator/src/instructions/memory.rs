//! `ld` and `st` of global and shared memory.

use super::convert::extend;
use super::{Address, for_each_lane, lanes, shared_address};
use crate::context::Context;
use crate::decode::{Decoded, Decoder, Name};
use crate::registers::{AnyReg, LANES, Row, map_row, row_of};
use crate::syntax::Operand;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Global,
    Shared,
}

/// The shape of an access: `count` values of `bits` bits.
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

    /// Counts the transactions of an access, whose states are brought to the host's cache.
    #[inline(always)]
    fn prepare(self, c: &mut Context, addresses: &Row<u64>, writes: bool) {
        let bytes = self.bytes() as u32;
        if self.space == Space::Shared {
            c.shared.prefetch(addresses, c.active);
        }
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
    // The loops over lanes are compiled for each size.
    match (shape("ld."), shape("st.")) {
        (Some(shape), _) => match shape.bytes() {
            1 => load::<1>(d, shape),
            2 => load::<2>(d, shape),
            4 => load::<4>(d, shape),
            8 => load::<8>(d, shape),
            _ => load::<16>(d, shape),
        },
        (None, Some(shape)) => match shape.bytes() {
            1 => store::<1>(d, shape),
            2 => store::<2>(d, shape),
            4 => store::<4>(d, shape),
            8 => store::<8>(d, shape),
            _ => store::<16>(d, shape),
        },
        (None, None) => Ok(None),
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

/// Loads `BYTES` bytes, the shape's.
fn load<const BYTES: usize>(d: &mut Decoder, shape: Shape) -> Decoded {
    let [to, from] = d.operands()?;
    let address = address(d, from, shape.space == Space::Shared)?;
    let to = registers(d, to, shape, false)?;
    lanes!(move |c| {
        let addresses = address.read(c)?;
        shape.prepare(c, &addresses, false);
        let mut loaded = [[0; BYTES]; LANES];
        for_each_lane(
            c.active,
            #[inline(always)]
            |lane| {
                let (id, to) = (lane as u32, &mut loaded[lane]);
                match shape.space {
                    Space::Global => c.launch.global.read(id, addresses[lane], BYTES as u32, to),
                    Space::Shared => {
                        let (shared, who) = c.shared_as(id);
                        shared.read(who, shared_address(addresses[lane]), to, &mut None)
                    }
                }
            },
        )?;
        for (i, register) in to.iter().enumerate() {
            let value = elements(&loaded, i, shape.bits);
            let value = map_row(&value, |v| extend(v, shape.bits, shape.signed));
            match register {
                AnyReg::B16(r) => c.write(*r, map_row(&value, |v| v as u16)),
                AnyReg::B32(r) => c.write(*r, map_row(&value, |v| v as u32)),
                AnyReg::B64(r) => c.write(*r, value),
            }
        }
        Ok(())
    })
}

/// Stores `BYTES` bytes, the shape's.
fn store<const BYTES: usize>(d: &mut Decoder, shape: Shape) -> Decoded {
    let [to, from] = d.operands()?;
    let address = address(d, to, shape.space == Space::Shared)?;
    let from = registers(d, from, shape, true)?;
    lanes!(move |c| {
        let addresses = address.read(c)?;
        shape.prepare(c, &addresses, true);
        let mut stored = [[0; BYTES]; LANES];
        for (i, register) in from.iter().enumerate() {
            let value = match register {
                AnyReg::B16(r) => map_row(c.row(*r)?, u64::from),
                AnyReg::B32(r) => map_row(c.row(*r)?, u64::from),
                AnyReg::B64(r) => c.read(*r)?,
            };
            put_elements(&mut stored, i, shape.bits, &value);
        }
        for_each_lane(
            c.active,
            #[inline(always)]
            |lane| {
                let (id, from) = (lane as u32, &stored[lane]);
                match shape.space {
                    Space::Global => c
                        .launch
                        .global
                        .write(id, addresses[lane], BYTES as u32, from),
                    Space::Shared => {
                        let (shared, who) = c.shared_as(id);
                        shared.write(who, shared_address(addresses[lane]), from)
                    }
                }
            },
        )
    })
}

/// Element `i`, of so many bits, of what each lane has.
#[inline(always)]
fn elements<const BYTES: usize>(lanes: &Row<[u8; BYTES]>, i: usize, bits: u32) -> Row<u64> {
    fn part<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
        bytes[N * i..][..N].try_into().expect("as many bytes")
    }
    match bits {
        8 => row_of(|lane| u64::from(lanes[lane][i])),
        16 => row_of(|lane| u64::from(u16::from_le_bytes(part(&lanes[lane], i)))),
        32 => row_of(|lane| u64::from(u32::from_le_bytes(part(&lanes[lane], i)))),
        _ => row_of(|lane| u64::from_le_bytes(part(&lanes[lane], i))),
    }
}

/// Sets element `i`, of so many bits, of what each lane has.
#[inline(always)]
fn put_elements<const BYTES: usize>(
    lanes: &mut Row<[u8; BYTES]>,
    i: usize,
    bits: u32,
    values: &Row<u64>,
) {
    fn put<const N: usize>(bytes: &mut [u8], i: usize, value: u64) {
        bytes[N * i..][..N].copy_from_slice(&value.to_le_bytes()[..N]);
    }
    let each = lanes.iter_mut().zip(values);
    match bits {
        8 => each.for_each(|(bytes, value)| put::<1>(bytes, i, *value)),
        16 => each.for_each(|(bytes, value)| put::<2>(bytes, i, *value)),
        32 => each.for_each(|(bytes, value)| put::<4>(bytes, i, *value)),
        _ => each.for_each(|(bytes, value)| put::<8>(bytes, i, *value)),
    }
}
