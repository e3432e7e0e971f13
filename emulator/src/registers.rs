//! The registers of a warp: a row of 32 lanes for each register, and which lanes were written.

use crate::error::{Rule, Violation};
use std::marker::PhantomData;
use std::sync::Arc;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A value for every lane.
pub(crate) type Row<T> = [T; LANES];

/// The lanes of a mask, ascending.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// A register's content: bits of one of the three widths.
pub(crate) trait Value: Copy + Default + Send + Sync + 'static {
    /// Bits of a value.
    const BITS: u32;
    fn bank(registers: &Registers) -> &Bank<Row<Self>>;
    fn bank_mut(registers: &mut Registers) -> &mut Bank<Row<Self>>;
    /// The low bits.
    fn truncate(bits: u64) -> Self;
    /// Zero-extended.
    fn widen(self) -> u64;
    fn any(register: Reg<Self>) -> AnyReg;
    /// The register, if it is of this width.
    fn of(register: AnyReg) -> Option<Reg<Self>>;
}

macro_rules! value {
    ($type:ty, $bank:ident, $kind:ident) => {
        impl Value for $type {
            const BITS: u32 = <$type>::BITS;
            fn bank(registers: &Registers) -> &Bank<Row<Self>> {
                &registers.$bank
            }
            fn bank_mut(registers: &mut Registers) -> &mut Bank<Row<Self>> {
                &mut registers.$bank
            }
            fn truncate(bits: u64) -> Self {
                bits as $type
            }
            fn widen(self) -> u64 {
                u64::from(self)
            }
            fn any(register: Reg<Self>) -> AnyReg {
                AnyReg::$kind(register)
            }
            fn of(register: AnyReg) -> Option<Reg<Self>> {
                match register {
                    AnyReg::$kind(register) => Some(register),
                    _ => None,
                }
            }
        }
    };
}

value!(u16, b16, B16);
value!(u32, b32, B32);
value!(u64, b64, B64);

/// A register that holds `T`, by its index in the bank.
pub(crate) struct Reg<T>(u32, PhantomData<T>);

impl<T> Clone for Reg<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Reg<T> {}

impl<T> Reg<T> {
    /// Its number among the registers of its width.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A predicate register.
#[derive(Clone, Copy)]
pub(crate) struct Pred(u32);

/// A register of any width.
#[derive(Clone, Copy)]
pub(crate) enum AnyReg {
    B16(Reg<u16>),
    B32(Reg<u32>),
    B64(Reg<u64>),
}

impl AnyReg {
    pub fn bits(self) -> u32 {
        match self {
            AnyReg::B16(_) => 16,
            AnyReg::B32(_) => 32,
            AnyReg::B64(_) => 64,
        }
    }
}

/// The registers of one kind; `R` holds the values of all lanes.
#[derive(Clone, Default)]
pub(crate) struct Bank<R> {
    rows: Vec<R>,
    /// Lanes of each row that were written.
    defined: Vec<u32>,
    /// Names for reports, shared by the warps.
    names: Arc<Vec<String>>,
}

impl<R> Bank<R> {
    fn declare(&mut self, name: &str, row: R, defined: u32) -> u32 {
        self.rows.push(row);
        self.defined.push(defined);
        Arc::make_mut(&mut self.names).push(name.to_owned());
        self.rows.len() as u32 - 1
    }

    fn check(&self, index: u32, active: u32) -> Result<(), Box<Violation>> {
        let undefined = active & !self.defined[index as usize];
        if undefined == 0 {
            return Ok(());
        }
        let name = self.names[index as usize].clone();
        Err(Violation::of_lanes(
            Rule::UninitialisedRegister { name },
            undefined,
        ))
    }
}

/// All registers of a warp. Immediate operands are registers too, written from the start.
#[derive(Clone, Default)]
pub(crate) struct Registers {
    b16: Bank<Row<u16>>,
    b32: Bank<Row<u32>>,
    b64: Bank<Row<u64>>,
    /// A predicate is a mask of lanes.
    predicates: Bank<u32>,
}

impl Registers {
    /// Registers of all kinds, immediates included.
    pub fn len(&self) -> usize {
        self.b16.rows.len() + self.b32.rows.len() + self.b64.rows.len() + self.predicates.rows.len()
    }

    /// Registers of 32 bits, immediates included.
    pub fn words(&self) -> usize {
        self.b32.rows.len()
    }

    /// The name of a register of 32 bits, by its number.
    pub fn word_name(&self, index: usize) -> String {
        self.b32.names[index].clone()
    }

    pub fn declare<T: Value>(&mut self, name: &str) -> Reg<T> {
        let index = T::bank_mut(self).declare(name, [T::default(); LANES], 0);
        Reg(index, PhantomData)
    }

    pub fn declare_predicate(&mut self, name: &str) -> Pred {
        Pred(self.predicates.declare(name, 0, 0))
    }

    /// A register that holds `value` in all lanes.
    pub fn constant<T: Value>(&mut self, value: T) -> Reg<T> {
        let index = T::bank_mut(self).declare("", [value; LANES], u32::MAX);
        Reg(index, PhantomData)
    }

    pub fn constant_predicate(&mut self, value: bool) -> Pred {
        let mask = if value { u32::MAX } else { 0 };
        Pred(self.predicates.declare("", mask, u32::MAX))
    }

    /// Reads a register in the `active` lanes; other lanes' values mean nothing.
    #[inline(always)]
    pub fn read<T: Value>(&self, reg: Reg<T>, active: u32) -> Result<Row<T>, Box<Violation>> {
        let bank = T::bank(self);
        bank.check(reg.0, active)?;
        Ok(bank.rows[reg.0 as usize])
    }

    #[inline(always)]
    pub fn write<T: Value>(&mut self, reg: Reg<T>, active: u32, value: Row<T>) {
        let bank = T::bank_mut(self);
        let row = &mut bank.rows[reg.0 as usize];
        if active == u32::MAX {
            *row = value;
        } else {
            for lane in lanes(active) {
                row[lane] = value[lane];
            }
        }
        bank.defined[reg.0 as usize] |= active;
    }

    pub fn read_predicate(&self, pred: Pred, active: u32) -> Result<u32, Box<Violation>> {
        self.predicates.check(pred.0, active)?;
        Ok(self.predicates.rows[pred.0 as usize])
    }

    pub fn write_predicate(&mut self, pred: Pred, active: u32, value: u32) {
        let mask = &mut self.predicates.rows[pred.0 as usize];
        *mask = *mask & !active | value & active;
        self.predicates.defined[pred.0 as usize] |= active;
    }
}
