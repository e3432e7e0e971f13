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

use super::float::canonical_bits;
use super::mma::{accumulator, from_bf16, from_f16};
use super::{lanes, warpgroup};
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::products::Operands;
use crate::registers::{Pred, Reg, row_of};
use crate::syntax::Operand;
use crate::warp::Warp;
use crate::warpgroup::Warpgroup;

/// Depth of a product.
const DEPTH: usize = 16;
/// Rows of a product.
const ROWS: usize = 64;

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
    /// What multiplies A times B: 1 or -1.
    sign: f32,
}

/// The accumulators of 8 columns.
type Columns = [[f32; 8]; ROWS];

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
    if !columns.is_multiple_of(8) || !(8..=256).contains(&columns) {
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
    match kind {
        "f32.f16.f16" => warpgroup!(move |group| product.execute(group, columns, from_f16)),
        _ => warpgroup!(move |group| product.execute(group, columns, from_bf16)),
    }
}

impl Product {
    /// Computes the product. Its registers and its operands in shared memory are in use until it was
    /// waited for, so that nobody can tell that the result is there earlier.
    #[inline(always)]
    fn execute(
        &self,
        group: &mut Warpgroup,
        columns: usize,
        widen: impl Fn(u32) -> f32,
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
        match (self.left, self.operands.left) {
            (Some(matrix), _) => matrix.load(group, number, ROWS, |row, k, bits| {
                left[row][k] = self.sign * widen(u32::from(bits));
            })?,
            (None, Some(registers)) => {
                for (warp, left) in group.warps.iter().zip(left.chunks_exact_mut(16)) {
                    self.load_left(warp, registers, left, &widen)
                        .map_err(|violation| violation.by(warp.index))?;
                }
            }
            (None, None) => unreachable!("A lies in registers or in shared memory"),
        }
        let mut right = vec![[[0.0_f32; 8]; DEPTH]; columns / 8];
        self.right.load(group, number, columns, |column, k, bits| {
            right[column / 8][k][column % 8] = widen(u32::from(bits));
        })?;
        group.tally.flops += 2 * (ROWS * columns * DEPTH) as u64;
        for (right, registers) in right.iter().zip(self.operands.accumulators.chunks_exact(4)) {
            let mut sums: Columns = [[0.0; 8]; ROWS];
            if adds {
                read_accumulators(group, registers, &mut sums)?;
            }
            multiply_add(&mut sums, &left, right);
            write_accumulators(group, registers, &sums);
        }
        Ok(())
    }

    /// A warp's 16 rows of A in registers.
    #[inline(always)]
    fn load_left(
        &self,
        warp: &Warp,
        registers: [Reg<u32>; 4],
        to: &mut [[f32; DEPTH]],
        widen: impl Fn(u32) -> f32,
    ) -> Result<(), Box<Violation>> {
        for (i, register) in registers.into_iter().enumerate() {
            for (lane, pair) in warp.registers.read(register, u32::MAX)?.iter().enumerate() {
                let (row, k) = (lane / 4 + 8 * (i % 2), 2 * (lane % 4) + 8 * (i / 2));
                to[row][k] = self.sign * widen(pair & 0xffff);
                to[row][k + 1] = self.sign * widen(pair >> 16);
            }
        }
        Ok(())
    }
}

impl Matrix {
    /// Loads `rows` rows (columns of B) of 16 elements, as `put(row, k, bits)`.
    #[inline(always)]
    fn load(
        self,
        group: &mut Warpgroup,
        product: u32,
        rows: usize,
        mut put: impl FnMut(usize, usize, u16),
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
        let mut chunk = |offset: u32| {
            let address = descriptor.swizzled(descriptor.address.wrapping_add(offset));
            let bytes = shared.read_operand(&warps, (number, product), address, &mut settled)?;
            Ok::<[u16; 8], Box<Violation>>(std::array::from_fn(|i| {
                u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
            }))
        };
        if self.is_mn_major {
            for c in 0..rows / 8 {
                for k in 0..DEPTH {
                    let elements = chunk(descriptor.mn_major(c as u32, k as u32))?;
                    for (i, element) in elements.into_iter().enumerate() {
                        put(8 * c + i, k, element);
                    }
                }
            }
        } else {
            for row in 0..rows {
                for c in 0..2 {
                    let elements = chunk(descriptor.k_major(row as u32, c as u32))?;
                    for (i, element) in elements.into_iter().enumerate() {
                        put(row, 8 * c + i, element);
                    }
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

#[inline(always)]
fn read_accumulators(
    group: &Warpgroup,
    registers: &[Reg<u32>],
    sums: &mut Columns,
) -> Result<(), Box<Violation>> {
    for (warp, sums) in group.warps.iter().zip(sums.chunks_exact_mut(16)) {
        for (i, register) in registers.iter().enumerate() {
            let values = warp.registers.read(*register, u32::MAX);
            let values = values.map_err(|violation| violation.by(warp.index))?;
            for (lane, value) in values.iter().enumerate() {
                let (row, column) = accumulator(lane, i);
                sums[row][column] = f32::from_bits(*value);
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn write_accumulators(group: &mut Warpgroup, registers: &[Reg<u32>], sums: &Columns) {
    for (warp, sums) in group.warps.iter_mut().zip(sums.chunks_exact(16)) {
        for (i, register) in registers.iter().enumerate() {
            let values = row_of(|lane| {
                let (row, column) = accumulator(lane, i);
                canonical_bits(sums[row][column])
            });
            warp.registers.write(*register, u32::MAX, values);
        }
    }
}

/// `sums += left * right`, in order of `k`, four rows at a time so that their sums stay in the host's
/// registers.
#[inline(always)]
fn multiply_add(sums: &mut Columns, left: &[[f32; DEPTH]; ROWS], right: &[[f32; 8]; DEPTH]) {
    for (sums, left) in sums.chunks_exact_mut(4).zip(left.chunks_exact(4)) {
        let mut four: [[f32; 8]; 4] = sums.try_into().expect("four rows");
        for (k, right) in right.iter().enumerate() {
            for (sums, left) in four.iter_mut().zip(left) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += left[k] * right;
                }
            }
        }
        sums.copy_from_slice(&four);
    }
}
