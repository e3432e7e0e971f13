//! `wgmma`: `D = A * B + D` on the tensor cores by a warpgroup, of 16-bit operands, beside the
//! computation.
//!
//! A is 64x16, B 16xN and D 64xN. Warp `w` has rows `16w..16w + 16` of D, and of A where A lies in
//! registers, in the layouts of `mma`: accumulators `4j..4j + 4` hold columns `8j..8j + 8`.
//!
//! # Operands in shared memory
//! A descriptor of 64 bits gives the address (bits 0 to 13), the leading offset (16 to 29), the stride
//! offset (32 to 45), all in units of 16 bytes, and the swizzle (62 and 63). A row of the swizzle has
//! `W` bytes: 16 without a swizzle, else 32, 64 or 128. A chunk is 16 bytes of 8 elements. In an
//! operand of M (or N) by K elements, a chunk begins at an offset from the address:
//!
//! ```text
//! chunk of elements     offset
//! K-major: row i, k 8c..8c + 8      i % 8 * W + i / 8 * stride + c * 16   (c * leading if W is 16)
//! MN-major: rows 8c..8c + 8, k      k % 8 * W + k / 8 * stride + c % (W / 16) * 16 + c / (W / 16) * leading
//!                      if W is 16   k % 8 * 16 + k / 8 * leading + c * stride
//! ```
//!
//! The swizzle then XORs bits 4 to 6 of the address with bits 7 to 9, as many of them as W has chunks.
//! (PTX manual, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"; CUTLASS,
//! `mma_traits_sm90_gmma.hpp`.)

use super::elements::{Bf16, Element, F16, FusedF16};
use super::tiles::{self, Tile};
use super::{lanes, warpgroup};
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::host;
use crate::products::Operands;
use crate::registers::{Pred, Reg, map_row, row_of};
use crate::syntax::Operand;
use crate::warpgroup::Warpgroup;

/// Depth of a product.
const DEPTH: usize = 16;
/// Rows of a product.
const ROWS: usize = 64;
/// The most columns of a product.
const MOST_COLUMNS: usize = 256;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    let Some(rest) = d.opcode().strip_prefix("wgmma.") else {
        return Ok(None);
    };
    d.require_target(90)?;
    match rest {
        "fence.sync.aligned" => {
            d.operands::<0>()?;
            lanes!(|c| {
                c.require(u32::MAX)?;
                c.warp.products.fence(c.warp.executed);
                Ok(())
            })
        }
        "commit_group.sync.aligned" => {
            d.operands::<0>()?;
            lanes!(|c| {
                c.require(u32::MAX)?;
                c.warp.products.commit();
                Ok(())
            })
        }
        "wait_group.sync.aligned" => wait(d),
        _ => match rest.strip_prefix("mma_async.sync.aligned.m64n") {
            Some(rest) => multiply(d, rest),
            None => Ok(None),
        },
    }
}

fn wait(d: &mut Decoder) -> Decoded {
    let [Operand::Immediate(pending)] = d.operands()? else {
        return Err("expected a number of groups".to_owned());
    };
    let pending = u32::try_from(*pending).map_err(|_| "too many groups")?;
    lanes!(move |c| {
        c.require(u32::MAX)?;
        if let Some(last) = c.warp.products.wait(pending) {
            c.warp.complete_products(last);
        }
        Ok(())
    })
}

/// A matrix in shared memory.
#[derive(Clone, Copy)]
struct Matrix {
    descriptor: Reg<u64>,
    is_mn_major: bool,
}

/// A product, as decoded.
struct Product {
    operands: Operands,
    /// The left operand, if it lies in shared memory.
    left: Option<Matrix>,
    right: Matrix,
    /// Whether to add to the accumulators, or to overwrite them.
    adds: Pred,
    /// The factor of A times B: 1 or -1.
    sign: f32,
}

/// The accumulators of 8 columns: two tiles for each warp.
type Columns = [Tile<f32>; ROWS / 8];

/// `d, a, b, scale-d, imm-scale-a, imm-scale-b{, imm-trans-a}, imm-trans-b`, where `imm-trans-a`
/// belongs to an A in shared memory.
fn multiply(d: &mut Decoder, modifiers: &str) -> Decoded {
    let Some((columns, kind)) = modifiers.split_once("k16.") else {
        return Ok(None);
    };
    if !matches!(kind, "f32.f16.f16" | "f32.bf16.bf16") {
        return Ok(None);
    }
    let columns: usize = columns.parse().map_err(|_| "N is not a number")?;
    if !columns.is_multiple_of(8) || !(8..=MOST_COLUMNS).contains(&columns) {
        return Err("N is a multiple of 8, from 8 to 256".to_owned());
    }
    let [to, a, b, adds, options @ ..] = d.statement.operands.as_slice() else {
        return Err("expected accumulators, two operands and scale-d".to_owned());
    };
    let Operand::Vector(accumulators) = to else {
        return Err("expected a vector of accumulators".to_owned());
    };
    if accumulators.len() != columns / 2 {
        let (expected, found) = (columns / 2, accumulators.len());
        return Err(format!("expected {expected} accumulators, found {found}"));
    }
    let accumulators: Result<_, _> = accumulators.iter().map(|r| d.register(r)).collect();
    let registers = match a {
        Operand::Vector(_) => Some(d.vector(a)?),
        _ => None,
    };
    let mut flags = Vec::new();
    for option in options {
        match option {
            Operand::Immediate(value) => flags.push(*value as i64),
            _ => return Err("scales and transpositions are immediates".to_owned()),
        }
    }
    let (scales, transposed) = match (registers, flags.as_slice()) {
        (Some(_), [a, b, right]) => ([*a, *b], [0, *right]),
        (None, [a, b, left, right]) => ([*a, *b], [*left, *right]),
        _ => return Err("expected two scales and the transpositions".to_owned()),
    };
    if scales.iter().any(|scale| scale.abs() != 1) || transposed.iter().any(|t| !(0..2).contains(t))
    {
        return Err("a scale is 1 or -1, a transposition 0 or 1".to_owned());
    }
    let mut matrix = |operand, transposed| -> Result<_, String> {
        Ok(Matrix {
            descriptor: d.register(operand)?,
            is_mn_major: transposed == 1,
        })
    };
    let left = match registers {
        None => Some(matrix(a, transposed[0])?),
        Some(_) => None,
    };
    let right = matrix(b, transposed[1])?;
    let adds = match adds {
        Operand::Immediate(value) => d.scope.registers.constant_predicate(*value != 0),
        predicate => d.predicate(predicate)?,
    };
    let product = Product {
        operands: Operands {
            accumulators: accumulators?,
            left: registers,
        },
        left,
        right,
        adds,
        sign: (scales[0] * scales[1]) as f32,
    };
    match (kind, host::is_wide()) {
        ("f32.f16.f16", true) => warpgroup!(move |g| product.execute::<FusedF16>(g, columns)),
        ("f32.f16.f16", false) => warpgroup!(move |g| product.execute::<F16>(g, columns)),
        _ => warpgroup!(move |g| product.execute::<Bf16>(g, columns)),
    }
}

impl Product {
    /// Computes the product. Its registers and its operands in shared memory are in use until it was
    /// waited for, so that nobody can tell that the result is there earlier.
    #[inline(always)]
    fn execute<E: Element>(
        &self,
        group: &mut Warpgroup,
        columns: usize,
    ) -> Result<(), Box<Violation>> {
        let number = group.shared.start_product(group.number, group.line);
        for warp in &mut *group.warps {
            let (index, line) = (warp.index, group.line);
            let issued = warp
                .products
                .issue(&self.operands, number, line, &warp.registers);
            issued.map_err(|violation| violation.by(index))?;
        }
        let adds = group.read_uniform_predicate(self.adds, "scale-d")?;
        let mut left = [[0.0; DEPTH]; ROWS];
        self.load_left::<E>(group, number, &mut left)?;
        let mut right = vec![[[0.0; 8]; DEPTH]; columns / 8];
        let is_mn_major = self.right.is_mn_major;
        self.right.load(
            group,
            number,
            columns,
            #[inline(always)]
            |column, k, chunk| {
                let (right, chunk) = (&mut right[column / 8], map_row(&chunk, E::widen));
                match is_mn_major {
                    true => right[k] = chunk,
                    false => (0..8).for_each(|i| right[k + i][column % 8] = chunk[i]),
                }
            },
        )?;
        group.tally.flops += 2 * (ROWS * columns * DEPTH) as u64;
        for (right, registers) in right.iter().zip(self.operands.accumulators.as_chunks().0) {
            let mut sums = Columns::default();
            if adds {
                read_accumulators(group, registers, &mut sums)?;
            }
            tiles::add_products::<E>(&mut sums, &left, right);
            write_accumulators(group, registers, &sums);
        }
        Ok(())
    }

    /// Loads A, with its sign.
    #[inline(always)]
    fn load_left<E: Element>(
        &self,
        group: &mut Warpgroup,
        number: u32,
        left: &mut [[f32; DEPTH]; ROWS],
    ) -> Result<(), Box<Violation>> {
        let widen = |element| self.sign * E::widen(element);
        if let Some(matrix) = self.left {
            matrix.load(
                group,
                number,
                ROWS,
                #[inline(always)]
                |row, k, chunk| {
                    let chunk = map_row(&chunk, widen);
                    match matrix.is_mn_major {
                        true => (0..8).for_each(|i| left[row + i][k] = chunk[i]),
                        false => left[row][k..][..8].copy_from_slice(&chunk),
                    }
                },
            )?;
        }
        for (warp, left) in group.warps.iter().zip(left.chunks_exact_mut(16)) {
            let registers = self.operands.left.iter().flatten();
            for (i, register) in registers.enumerate() {
                let row = warp.registers.read(*register, u32::MAX);
                let tile = tiles::from_pairs(row.map_err(|violation| violation.by(warp.index))?);
                for (left, elements) in left[8 * (i % 2)..].iter_mut().zip(&tile) {
                    left[8 * (i / 2)..][..8].copy_from_slice(&map_row(elements, widen));
                }
            }
        }
        Ok(())
    }
}

impl Matrix {
    /// Loads `rows` rows (columns of B) of 16 elements, as `put(row, k, chunk)`: the elements of a row from `k` on, or if
    /// it is MN-major those of the rows from `row` on.
    #[inline(always)]
    fn load(
        self,
        group: &mut Warpgroup,
        product: u32,
        rows: usize,
        mut put: impl FnMut(usize, usize, [u32; 8]),
    ) -> Result<(), Box<Violation>> {
        let bits = group.read_uniform(self.descriptor, "a matrix descriptor")?;
        let descriptor = Descriptor::new(bits)?;
        let used = match self.is_mn_major {
            true => rows / 8,
            false => 2,
        };
        descriptor.check_start(used as u32)?;
        if group.counters {
            group.tally.count_bulk((rows * DEPTH * 2) as u32);
        }
        let (number, mut settled) = (group.number, None);
        let (shared, warps) = group.shared_as();
        let (outer, inner) = match self.is_mn_major {
            true => (rows / 8, DEPTH),
            false => (rows, DEPTH / 8),
        };
        for i in 0..outer {
            for j in 0..inner {
                let (row, k, offset) = match self.is_mn_major {
                    true => (8 * i, j, descriptor.mn_major(i as u32, j as u32)),
                    false => (i, 8 * j, descriptor.k_major(i as u32, j as u32)),
                };
                let address = descriptor.swizzled(descriptor.address.wrapping_add(offset));
                let bytes =
                    shared.read_operand(&warps, (number, product), address, &mut settled)?;
                let element = |i| u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
                put(row, k, row_of(element));
            }
        }
        Ok(())
    }
}

/// A matrix descriptor, in bytes.
#[derive(Clone, Copy)]
struct Descriptor {
    address: u32,
    leading: u32,
    stride: u32,
    /// Bytes of a row of the swizzle.
    width: u32,
}

impl Descriptor {
    fn new(bits: u64) -> Result<Self, Box<Violation>> {
        const RESERVED: u64 = 3 << 14 | 3 << 30 | 7 << 46 | 0x3ff << 52;
        const BASE_OFFSET: u64 = 7 << 49;
        if bits & RESERVED != 0 {
            return Err(misused("a matrix descriptor with reserved bits set"));
        }
        if bits & BASE_OFFSET != 0 {
            return Err(misused("a matrix descriptor with a base offset"));
        }
        let field = |shift: u32| (bits >> shift) as u32 % (1 << 14) * 16;
        Ok(Descriptor {
            address: field(0),
            leading: field(16),
            stride: field(32),
            width: [16, 128, 64, 32][(bits >> 62) as usize],
        })
    }

    /// Checks that the chunks that the matrix has in a row of the swizzle, if it has `chunks` in all,
    /// do not leave the row.
    fn check_start(self, chunks: u32) -> Result<(), Box<Violation>> {
        let in_row = chunks.min(self.width / 16);
        match self.address % self.width + 16 * in_row <= self.width {
            true => Ok(()),
            false => Err(misused(
                "a matrix begins amid a row of its swizzle, and leaves it",
            )),
        }
    }

    /// Offset of the chunk of columns `8c..8c + 8`.
    fn k_major(self, row: u32, c: u32) -> u32 {
        let apart = if self.width == 16 { self.leading } else { 16 };
        row % 8 * self.width + row / 8 * self.stride + c * apart
    }

    /// Offset of the chunk of rows `8c..8c + 8`.
    fn mn_major(self, c: u32, k: u32) -> u32 {
        let in_row = self.width / 16;
        let (next_rows, next_columns) = match in_row {
            1 => (self.stride, self.leading),
            _ => (self.leading, self.stride),
        };
        k % 8 * self.width + k / 8 * next_columns + c % in_row * 16 + c / in_row * next_rows
    }

    /// Where the swizzle puts an address.
    fn swizzled(self, address: u32) -> u32 {
        address ^ (address >> 7 & (self.width / 16 - 1)) << 4
    }
}

fn misused(what: &'static str) -> Box<Violation> {
    Violation::of_warp(Rule::ProductMisused { what })
}

/// Reads the four registers of eight columns.
#[inline(always)]
fn read_accumulators(
    group: &Warpgroup,
    registers: &[Reg<u32>; 4],
    sums: &mut Columns,
) -> Result<(), Box<Violation>> {
    for (warp, sums) in group.warps.iter().zip(sums.as_chunks_mut::<2>().0) {
        let read = |register: Reg<u32>| {
            let row = warp.registers.read(register, u32::MAX);
            row.map_err(|violation| violation.by(warp.index))
        };
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = tiles::from_words(read(registers[2 * i])?, read(registers[2 * i + 1])?);
        }
    }
    Ok(())
}

#[inline(always)]
fn write_accumulators(group: &mut Warpgroup, registers: &[Reg<u32>; 4], sums: &Columns) {
    for (warp, sums) in group.warps.iter_mut().zip(sums.as_chunks::<2>().0) {
        for (i, sums) in sums.iter().enumerate() {
            let [even, odd] = tiles::to_words(sums);
            warp.registers.write(registers[2 * i], u32::MAX, even);
            warp.registers.write(registers[2 * i + 1], u32::MAX, odd);
        }
    }
}
