//! `wgmma`: `D = A * B + D` on the tensor cores by a warpgroup, of operands of 16 or 8 bits, beside the
//! computation.
//!
//! A is 64xK, B KxN and D 64xN; K is 16, of 8-bit elements 32. Warp `w` has rows `16w..16w + 16` of D, and of A where A
//! lies in registers, in the layouts of `mma`: accumulators `4j..4j + 4` hold columns `8j..8j + 8`, pairs of f16 `2j..2j + 2`.
//!
//! # Operands in shared memory
//! A descriptor of 64 bits gives the address (bits 0 to 13), the leading offset (16 to 29), the stride
//! offset (32 to 45), all in units of 16 bytes, and the swizzle (62 and 63). A row of the swizzle has
//! `W` bytes: 16 without a swizzle, else 32, 64 or 128. A chunk is 16 bytes: 8 elements, or 16 of 8 bits,
//! which are always K-major. In an operand of M (or N) by K elements, a chunk begins at an offset from the address:
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

use super::accumulators::{Accumulator, Half, Single};
use super::elements::{Bf16, Element, F16, FusedF16};
use super::fp8::{E4m3, E5m2};
use super::tiles::{self, Tile};
use super::{lanes, truncation, warpgroup};
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::host;
use crate::products::Operands;
use crate::registers::{Pred, Reg, map_row, row_of};
use crate::syntax::Operand;
use crate::warpgroup::Warpgroup;

/// Bytes of a row of an operand, in K.
const ROW_BYTES: usize = 32;
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

/// An instruction of the types and depth that `modifiers` give.
fn multiply(d: &mut Decoder, modifiers: &str) -> Decoded {
    let Some((columns, kind)) = modifiers.split_once('k') else {
        return Ok(None);
    };
    match (kind, host::is_wide()) {
        ("16.f32.f16.f16", true) => product::<FusedF16, FusedF16, Single, 16>(d, columns),
        ("16.f32.f16.f16", false) => product::<F16, F16, Single, 16>(d, columns),
        ("16.f32.bf16.bf16", _) => product::<Bf16, Bf16, Single, 16>(d, columns),
        ("16.f16.f16.f16", _) => product::<F16, F16, Half, 16>(d, columns),
        ("32.f32.e4m3.e4m3", _) => product::<E4m3, E4m3, Single, 32>(d, columns),
        ("32.f32.e4m3.e5m2", _) => product::<E4m3, E5m2, Single, 32>(d, columns),
        ("32.f32.e5m2.e4m3", _) => product::<E5m2, E4m3, Single, 32>(d, columns),
        ("32.f32.e5m2.e5m2", _) => product::<E5m2, E5m2, Single, 32>(d, columns),
        ("32.f16.e4m3.e4m3", _) => product::<E4m3, E4m3, Half, 32>(d, columns),
        ("32.f16.e4m3.e5m2", _) => product::<E4m3, E5m2, Half, 32>(d, columns),
        ("32.f16.e5m2.e4m3", _) => product::<E5m2, E4m3, Half, 32>(d, columns),
        ("32.f16.e5m2.e5m2", _) => product::<E5m2, E5m2, Half, 32>(d, columns),
        _ => Ok(None),
    }
}

/// A product of `L` and `R` with sums of `S`.
fn product<L: Element, R: Element, S: Accumulator, const DEPTH: usize>(
    d: &mut Decoder,
    columns: &str,
) -> Decoded {
    let (product, columns) = operands(d, columns, L::BYTES == 2, S::REGISTERS)?;
    warpgroup!(move |g| product.execute::<L, R, S, DEPTH>(g, columns))
}

/// `d, a, b, scale-d, imm-scale-a, imm-scale-b{, imm-trans-a}{, imm-trans-b}`, and the number of columns. `imm-trans-a`
/// belongs to an A in shared memory, and types without `transposes` have neither.
fn operands(
    d: &mut Decoder,
    columns: &str,
    transposes: bool,
    registers_of_tile: usize,
) -> Result<(Product, usize), String> {
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
    let (expected, found) = (columns / 4 * registers_of_tile, accumulators.len());
    if found != expected {
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
        (_, [a, b]) if !transposes => ([*a, *b], [0, 0]),
        (Some(_), [a, b, right]) if transposes => ([*a, *b], [0, *right]),
        (None, [a, b, left, right]) if transposes => ([*a, *b], [*left, *right]),
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
    Ok((product, columns))
}

impl Product {
    /// Computes the product. Its registers and its operands in shared memory are in use until it was
    /// waited for, so that nobody can tell that the result is there earlier.
    #[inline(always)]
    fn execute<L: Element, R: Element, S: Accumulator, const DEPTH: usize>(
        &self,
        group: &mut Warpgroup,
        columns: usize,
    ) -> Result<(), Box<Violation>> {
        const { assert!(DEPTH * L::BYTES == ROW_BYTES && L::BYTES == R::BYTES) };
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
        self.load_left::<L, DEPTH>(group, number, &mut left)?;
        let mut right = vec![[[0.0; 8]; DEPTH]; columns / 8];
        let is_mn_major = self.right.is_mn_major;
        self.right.load::<R>(
            group,
            number,
            columns,
            #[inline(always)]
            |column, k, chunk| {
                let (right, chunk) = (&mut right[column / 8], map_row(&chunk, R::widen));
                match is_mn_major {
                    true => right[k] = chunk,
                    false => (0..8).for_each(|i| right[k + i][column % 8] = chunk[i]),
                }
            },
        )?;
        group.tally.flops += 2 * (ROWS * columns * DEPTH) as u64;
        let truncates = L::BYTES == 1 && group.truncates_sums;
        let accumulators = self.operands.accumulators.chunks_exact(2 * S::REGISTERS);
        for (right, registers) in right.iter().zip(accumulators) {
            let mut sums = Columns::default();
            if adds {
                read_accumulators::<S>(group, registers, &mut sums)?;
            }
            match truncates {
                true => truncation::add_products(&mut sums, &left, right),
                false => tiles::add_products::<L, DEPTH>(&mut sums, &left, right),
            }
            write_accumulators::<S>(group, registers, &sums);
        }
        Ok(())
    }

    /// Loads A, with its sign.
    #[inline(always)]
    fn load_left<E: Element, const DEPTH: usize>(
        &self,
        group: &mut Warpgroup,
        number: u32,
        left: &mut [[f32; DEPTH]; ROWS],
    ) -> Result<(), Box<Violation>> {
        let widen = |element| self.sign * E::widen(element);
        if let Some(matrix) = self.left {
            matrix.load::<E>(
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
                let row = row.map_err(|violation| violation.by(warp.index))?;
                let parts = 2 / E::BYTES;
                for part in 0..parts {
                    let tile = tiles::from_register::<E>(row, part);
                    for (left, elements) in left[8 * (i % 2)..].iter_mut().zip(&tile) {
                        let k = 8 * (parts * (i / 2) + part);
                        left[k..][..8].copy_from_slice(&map_row(elements, widen));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Matrix {
    /// Loads `rows` rows (columns of B) of 32 bytes, as `put(row, k, eight)`: eight elements of a row from `k` on, or if
    /// it is MN-major those of the rows from `row` on.
    #[inline(always)]
    fn load<E: Element>(
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
            group.tally.count_bulk((rows * ROW_BYTES) as u32);
        }
        let (number, mut settled) = (group.number, None);
        let (shared, warps) = group.shared_as();
        let elements = 16 / E::BYTES;
        let (outer, inner) = match self.is_mn_major {
            true => (rows / 8, ROW_BYTES / E::BYTES),
            false => (rows, ROW_BYTES / 16),
        };
        for i in 0..outer {
            for j in 0..inner {
                let (row, k, offset) = match self.is_mn_major {
                    true => (8 * i, j, descriptor.mn_major(i as u32, j as u32)),
                    false => (i, elements * j, descriptor.k_major(i as u32, j as u32)),
                };
                let address = descriptor.swizzled(descriptor.address.wrapping_add(offset));
                let bytes =
                    shared.read_operand(&warps, (number, product), address, &mut settled)?;
                for first in (0..elements).step_by(8) {
                    put(row, k + first, row_of(|i| E::bits(&bytes, first + i)));
                }
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

/// Reads the registers of eight columns.
#[inline(always)]
fn read_accumulators<S: Accumulator>(
    group: &Warpgroup,
    registers: &[Reg<u32>],
    sums: &mut Columns,
) -> Result<(), Box<Violation>> {
    for (warp, sums) in group.warps.iter().zip(sums.as_chunks_mut::<2>().0) {
        for (sums, registers) in sums.iter_mut().zip(registers.chunks_exact(S::REGISTERS)) {
            let tile = S::read(|i| warp.registers.read(registers[i], u32::MAX));
            *sums = tile.map_err(|violation| violation.by(warp.index))?;
        }
    }
    Ok(())
}

#[inline(always)]
fn write_accumulators<S: Accumulator>(
    group: &mut Warpgroup,
    registers: &[Reg<u32>],
    sums: &Columns,
) {
    for (warp, sums) in group.warps.iter_mut().zip(sums.as_chunks::<2>().0) {
        for (sums, registers) in sums.iter().zip(registers.chunks_exact(S::REGISTERS)) {
            S::write(sums, |i, row| {
                warp.registers.write(registers[i], u32::MAX, row)
            });
        }
    }
}
