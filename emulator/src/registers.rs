//! The registers of a warp: a row of 32 lanes for each, and which lanes were written.
//!
//! Registers whose lives do not meet share a row: see [`crate::slots`]. Which lanes were written is known by register, not
//! by row, and only where no [analysis](crate::liveness) proves that every read comes after a write.

use crate::cfg::Graph;
use crate::error::{Rule, Violation};
use crate::liveness::{Access, Effect, lives};
use crate::slots;
use std::marker::PhantomData;
use std::sync::Arc;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A value for every lane.
pub(crate) type Row<T> = [T; LANES];

/// The row of `f(lane)`, or a shorter array. Compilers make vector instructions of such a loop, and calls of `from_fn` and
/// `map` of arrays.
#[inline(always)]
pub(crate) fn row_of<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut row = [T::default(); N];
    for (lane, value) in row.iter_mut().enumerate() {
        *value = f(lane);
    }
    row
}

/// The row of `f` of each value, or a shorter array.
#[inline(always)]
pub(crate) fn map_row<A: Copy, T: Copy + Default, const N: usize>(
    row: &[A; N],
    f: impl Fn(A) -> T,
) -> [T; N] {
    row_of(|lane| f(row[lane]))
}

/// The lanes of a mask, ascending.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(lane)
    })
}

/// A register's content: bits of one of the three widths.
pub(crate) trait Value: Copy + Default + Send + Sync + 'static {
    /// Bits of a value.
    const BITS: u32;
    fn bank(registers: &Registers) -> &Bank<Row<Self>>;
    fn bank_mut(registers: &mut Registers) -> &mut Bank<Row<Self>>;
    fn declared(declarations: &mut Declarations) -> &mut Declared<Row<Self>>;
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
            #[inline(always)]
            fn bank(registers: &Registers) -> &Bank<Row<Self>> {
                &registers.$bank
            }
            #[inline(always)]
            fn bank_mut(registers: &mut Registers) -> &mut Bank<Row<Self>> {
                &mut registers.$bank
            }
            fn declared(declarations: &mut Declarations) -> &mut Declared<Row<Self>> {
                &mut declarations.$bank
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

/// A register that holds `T`, by its number among the registers of its width.
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

/// Where a register lies.
#[derive(Clone, Copy)]
struct Place {
    /// Its row in a warp's file, or with [`CONSTANT`] among the constants.
    row: u32,
    /// Which of a warp's masks says what lanes were written; [`ALWAYS`] if all that read it find it written.
    mask: u32,
}

/// The bit that marks the row of a constant.
const CONSTANT: u32 = 1 << 31;

/// The mask of registers that need none: all lanes, whatever is written.
const ALWAYS: u32 = 0;

/// The registers of one width that a kernel declares, immediate operands among them; `R` holds the values of all lanes.
pub(crate) struct Declared<R> {
    names: Vec<String>,
    places: Vec<Place>,
    constants: Vec<R>,
    /// Until the registers are laid out: what instructions do with them.
    accesses: Vec<Access>,
    /// Rows and masks that a warp has.
    rows: usize,
    masks: usize,
}

impl<R> Default for Declared<R> {
    fn default() -> Self {
        Declared {
            names: Vec::new(),
            places: Vec::new(),
            constants: Vec::new(),
            accesses: Vec::new(),
            rows: 0,
            masks: 1,
        }
    }
}

impl<R> Declared<R> {
    fn declare(&mut self, name: &str, row: u32) -> u32 {
        self.names.push(name.to_owned());
        self.places.push(Place { row, mask: ALWAYS });
        self.places.len() as u32 - 1
    }

    fn constant(&mut self, row: R) -> u32 {
        self.constants.push(row);
        let row = self.constants.len() as u32 - 1;
        self.declare("", CONSTANT | row)
    }

    /// Gives the registers their rows and masks.
    fn lay_out(&mut self, graph: &Graph) {
        let lives = lives(graph, &self.accesses, self.places.len());
        self.accesses = Vec::new();
        let (rows, count) = slots::assign(&lives);
        self.rows = count;
        for ((place, life), row) in self.places.iter_mut().zip(&lives).zip(rows) {
            let Some(life) = life else { continue };
            place.row = row;
            if !life.is_written_first {
                place.mask = self.masks as u32;
                self.masks += 1;
            }
        }
    }
}

/// The registers that a kernel declares.
#[derive(Default)]
pub(crate) struct Declarations {
    b16: Declared<Row<u16>>,
    b32: Declared<Row<u32>>,
    b64: Declared<Row<u64>>,
    predicates: Predicates,
}

impl Declarations {
    /// Registers of all kinds, immediates included.
    pub fn len(&self) -> usize {
        let places = self.b16.places.len() + self.b32.places.len() + self.b64.places.len();
        places + self.predicates.values.len()
    }

    /// Registers of 32 bits, immediates included.
    pub fn words(&self) -> usize {
        self.b32.places.len()
    }

    pub fn declare<T: Value>(&mut self, name: &str) -> Reg<T> {
        Reg(T::declared(self).declare(name, 0), PhantomData)
    }

    pub fn declare_predicate(&mut self, name: &str) -> Pred {
        self.predicates.declare(name, 0, 0)
    }

    /// A register that holds `value` in all lanes.
    pub fn constant<T: Value>(&mut self, value: T) -> Reg<T> {
        Reg(T::declared(self).constant([value; LANES]), PhantomData)
    }

    pub fn constant_predicate(&mut self, value: bool) -> Pred {
        let mask = if value { u32::MAX } else { 0 };
        self.predicates.declare("", mask, u32::MAX)
    }

    /// Takes note of what an instruction does with a register; reads of an instruction come before its writes.
    pub fn note(&mut self, pc: usize, register: AnyReg, effect: Effect) {
        let (accesses, register) = match register {
            AnyReg::B16(register) => (&mut self.b16.accesses, register.index()),
            AnyReg::B32(register) => (&mut self.b32.accesses, register.index()),
            AnyReg::B64(register) => (&mut self.b64.accesses, register.index()),
        };
        accesses.push(Access {
            pc,
            register,
            effect,
        });
    }

    /// The registers of a warp at its start, once all accesses were noted.
    pub fn lay_out(mut self, graph: &Graph) -> Registers {
        self.b16.lay_out(graph);
        self.b32.lay_out(graph);
        self.b64.lay_out(graph);
        Registers {
            b16: Bank::new(self.b16),
            b32: Bank::new(self.b32),
            b64: Bank::new(self.b64),
            predicates: self.predicates,
        }
    }
}

/// The registers of one width; `R` holds the values of all lanes.
#[derive(Clone)]
pub(crate) struct Bank<R> {
    rows: Vec<R>,
    /// Lanes that were written, by the number of a mask.
    written: Vec<u32>,
    /// Shared by the warps.
    declared: Arc<Declared<R>>,
}

impl<R: Clone + Default> Bank<R> {
    fn new(declared: Declared<R>) -> Self {
        let mut written = vec![0; declared.masks];
        written[ALWAYS as usize] = u32::MAX;
        Bank {
            rows: vec![R::default(); declared.rows],
            written,
            declared: Arc::new(declared),
        }
    }
}

impl<R> Bank<R> {
    #[inline(always)]
    fn read(&self, index: u32, active: u32) -> Result<&R, Box<Violation>> {
        let place = self.declared.places[index as usize];
        let undefined = active & !self.written[place.mask as usize];
        if undefined != 0 {
            return Err(unwritten(&self.declared.names[index as usize], undefined));
        }
        Ok(match place.row & CONSTANT {
            0 => &self.rows[place.row as usize],
            _ => &self.declared.constants[(place.row ^ CONSTANT) as usize],
        })
    }

    /// A register's row, to be written in the `active` lanes.
    #[inline(always)]
    fn row_mut(&mut self, index: u32, active: u32) -> &mut R {
        let place = self.declared.places[index as usize];
        self.written[place.mask as usize] |= active;
        &mut self.rows[place.row as usize]
    }
}

/// The violation of reading a register that some lanes never wrote.
#[cold]
fn unwritten(name: &str, lanes: u32) -> Box<Violation> {
    let name = name.to_owned();
    Violation::of_lanes(Rule::UninitialisedRegister { name }, lanes)
}

/// The predicates of a warp: each a mask of lanes.
#[derive(Clone, Default)]
struct Predicates {
    values: Vec<u32>,
    written: Vec<u32>,
    /// Shared by the warps.
    names: Arc<Vec<String>>,
}

impl Predicates {
    fn declare(&mut self, name: &str, value: u32, written: u32) -> Pred {
        self.values.push(value);
        self.written.push(written);
        Arc::make_mut(&mut self.names).push(name.to_owned());
        Pred(self.values.len() as u32 - 1)
    }
}

/// All registers of a warp. Immediate operands are registers too, written from the start.
#[derive(Clone)]
pub(crate) struct Registers {
    b16: Bank<Row<u16>>,
    b32: Bank<Row<u32>>,
    b64: Bank<Row<u64>>,
    predicates: Predicates,
}

impl Registers {
    /// The name of a register of 32 bits.
    pub fn word_name(&self, register: Reg<u32>) -> String {
        self.b32.declared.names[register.index()].clone()
    }

    /// Reads a register in the `active` lanes; other lanes' values mean nothing.
    #[inline(always)]
    pub fn read<T: Value>(&self, reg: Reg<T>, active: u32) -> Result<&Row<T>, Box<Violation>> {
        T::bank(self).read(reg.0, active)
    }

    #[inline(always)]
    pub fn write<T: Value>(&mut self, reg: Reg<T>, active: u32, value: Row<T>) {
        let row = T::bank_mut(self).row_mut(reg.0, active);
        if active == u32::MAX {
            *row = value;
        } else {
            for lane in lanes(active) {
                row[lane] = value[lane];
            }
        }
    }

    pub fn read_predicate(&self, pred: Pred, active: u32) -> Result<u32, Box<Violation>> {
        let index = pred.0 as usize;
        let undefined = active & !self.predicates.written[index];
        match undefined {
            0 => Ok(self.predicates.values[index]),
            _ => Err(unwritten(&self.predicates.names[index], undefined)),
        }
    }

    pub fn write_predicate(&mut self, pred: Pred, active: u32, value: u32) {
        let mask = &mut self.predicates.values[pred.0 as usize];
        *mask = *mask & !active | value & active;
        self.predicates.written[pred.0 as usize] |= active;
    }
}
