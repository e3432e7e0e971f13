//! Products of all types and layouts, against plain arithmetic.

use super::{BYTES, bits, launched, module, stores, vector};
use emulator::Options;
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How a matrix of 16 columns (K) lies in shared memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of a row of the swizzle; 16 without one.
    width: usize,
    mn_major: bool,
    leading: usize,
    stride: usize,
    /// Where the matrix begins, from its aligned base.
    start: usize,
}

impl Layout {
    /// A random layout of a matrix of `rows` rows.
    fn random(random: &mut StdRng, rows: usize) -> Self {
        let width = [16, 32, 64, 128][random.random_range(0..4)];
        let mn_major = random.random_bool(0.5);
        let atom = 8 * width;
        let gap = random.random_range(0..2) * atom;
        let (leading, stride, start) = match (width, mn_major) {
            // Chunks of 16 bytes: 8 of them, 128 bytes, are together.
            (16, false) => (rows * 16 + gap, 128, 0),
            (16, true) => (128, 256 + gap, 0),
            (_, false) => (0, atom + gap, 32 * random.random_range(0..width / 32)),
            (_, true) => (2 * atom + gap, atom, random.random_range(0..2) * atom),
        };
        Layout {
            width,
            mn_major,
            leading,
            stride,
            start,
        }
    }

    /// Where an element lies, from the aligned base.
    fn place(self, row: usize, k: usize) -> usize {
        let Layout {
            width,
            leading,
            stride,
            ..
        } = self;
        if width == 16 {
            // Matrices of 8 by 8, each 128 bytes.
            return match self.mn_major {
                false => k / 8 * leading + row / 8 * stride + row % 8 * 16 + 2 * (k % 8),
                true => row / 8 * stride + k / 8 * leading + k % 8 * 16 + 2 * (row % 8),
            };
        }
        let elements = width / 2;
        // Rows of the swizzle, by number and by the number of the 8 that they belong to.
        let (panel, line, column) = match self.mn_major {
            false => (0, row, k + self.start / 2),
            true => (row / elements, k, row % elements),
        };
        let key = match width {
            128 => line % 8,
            64 => line / 2 % 4,
            _ => line / 4 % 2,
        };
        let chunk = (column / 8) ^ key;
        let inside = line % 8 * width + chunk * 16 + 2 * (column % 8);
        let start = if self.mn_major { self.start } else { 0 };
        start + panel * leading + line / 8 * stride + inside
    }

    /// The descriptor of a matrix whose aligned base has a shared address.
    fn descriptor(self, base: usize) -> u64 {
        let swizzle = match self.width {
            16 => 0,
            128 => 1,
            64 => 2,
            _ => 3,
        };
        let fields = [base + self.start, self.leading, self.stride];
        let [address, leading, stride] = fields.map(|bytes| bytes as u64 / 16);
        swizzle << 62 | stride << 32 | leading << 16 | address
    }
}

/// The types of a product.
#[derive(Clone, Copy, Debug)]
struct Types {
    sums: &'static str,
    operands: [&'static str; 2],
}

impl Types {
    const ALL: [Types; 11] = [
        Types::new("f32", "f16", "f16"),
        Types::new("f32", "bf16", "bf16"),
        Types::new("f16", "f16", "f16"),
        Types::new("f32", "e4m3", "e4m3"),
        Types::new("f32", "e4m3", "e5m2"),
        Types::new("f32", "e5m2", "e4m3"),
        Types::new("f32", "e5m2", "e5m2"),
        Types::new("f16", "e4m3", "e4m3"),
        Types::new("f16", "e4m3", "e5m2"),
        Types::new("f16", "e5m2", "e4m3"),
        Types::new("f16", "e5m2", "e5m2"),
    ];

    const fn new(sums: &'static str, left: &'static str, right: &'static str) -> Self {
        let operands = [left, right];
        Types { sums, operands }
    }

    /// Bytes of an element.
    fn bytes(self) -> usize {
        if self.operands[0].ends_with("16") {
            2
        } else {
            1
        }
    }

    fn depth(self) -> usize {
        32 / self.bytes()
    }

    /// Registers of accumulators.
    fn registers(self, columns: usize) -> usize {
        if self.sums == "f32" {
            columns / 2
        } else {
            columns / 4
        }
    }

    /// The accumulators of a thread, by row and column.
    fn sums(self, thread: usize, words: &[u32]) -> Vec<(usize, usize, f32)> {
        let (warp, lane) = (thread / 32, thread % 32);
        let halves =
            |word: &u32| [*word as u16, (word >> 16) as u16].map(|h| f16::from_bits(h).to_f32());
        let numbers: Vec<f32> = match self.sums {
            "f32" => words.iter().map(|word| f32::from_bits(*word)).collect(),
            _ => words.iter().flat_map(halves).collect(),
        };
        let placed = numbers.into_iter().enumerate().map(|(i, number)| {
            let row = 16 * warp + lane / 4 + i % 4 / 2 * 8;
            (row, i / 4 * 8 + lane % 4 * 2 + i % 2, number)
        });
        placed.collect()
    }
}

/// The bytes of a small whole number of a type, so that sums are exact.
fn element(number: i32, kind: &str) -> Vec<u8> {
    let x = number as f32;
    match kind {
        "bf16" => bf16::from_f32(x).to_bits().to_le_bytes().to_vec(),
        "f16" => bits(number).to_le_bytes().to_vec(),
        "e5m2" => vec![(bits(number) >> 8) as u8],
        _ if number == 0 => vec![0],
        // The exponent's bias is 7 in place of 127.
        _ => vec![((x.abs().to_bits() >> 20) - (120 << 3)) as u8 | u8::from(number < 0) << 7],
    }
}

/// The statements of a product of matrices in memory, of which A may come through registers.
struct Statements {
    types: Types,
    columns: usize,
    layouts: [Layout; 2],
    in_registers: bool,
    adds: bool,
    signs: [i32; 2],
}

/// Where the matrices lie in shared memory.
const BASES: [usize; 2] = [0, 24 << 10];
/// Where the rows of A lie that come through registers.
const ROWS: usize = 96 << 10;

impl Statements {
    fn random(random: &mut StdRng, types: Types) -> Self {
        let columns = 8 * random.random_range(1..33);
        let mut layouts = [64, columns].map(|rows| Layout::random(random, rows));
        while types.bytes() == 1 && layouts.iter().any(|layout| layout.mn_major) {
            layouts = [64, columns].map(|rows| Layout::random(random, rows));
        }
        Statements {
            types,
            columns,
            layouts,
            in_registers: random.random_bool(0.3),
            adds: random.random_bool(0.5),
            signs: std::array::from_fn(|_| [1, -1][random.random_range(0..2)]),
        }
    }

    /// The image of shared memory with matrices of 64 and N rows.
    fn image(&self, matrices: [&[Vec<i32>]; 2]) -> Vec<u8> {
        let mut image = vec![0_u8; BYTES];
        let bytes = self.types.bytes();
        let mut put = |place: usize, number: i32, kind: &str| {
            image[place..place + bytes].copy_from_slice(&element(number, kind));
        };
        for (i, matrix) in matrices.into_iter().enumerate() {
            let kind = self.types.operands[i];
            for (row, elements) in matrix.iter().enumerate() {
                for (k, number) in elements.iter().enumerate() {
                    // Two elements of 8 bits lie where one of 16 would.
                    let place = self.layouts[i].place(row, k * bytes / 2) + k * bytes % 2;
                    put(BASES[i] + place, *number, kind);
                    if i == 0 {
                        put(ROWS + 32 * row + k * bytes, *number, kind);
                    }
                }
            }
        }
        image
    }

    fn body(&self) -> String {
        let Types { sums, operands } = self.types;
        let ([left, right], [first, second]) = (self.layouts, operands);
        let (columns, depth) = (self.columns, self.types.depth());
        let registers = self.types.registers(columns);
        let load = |i: usize, row: usize, byte: usize| {
            format!("ld.shared.b32 %a{i}, [%r1+{}];", ROWS + 32 * row + byte)
        };
        let [of_left, of_right] = [0, 1].map(|i| self.layouts[i].descriptor(1024 + BASES[i]));
        let majors = match (self.types.bytes(), self.in_registers) {
            (1, _) => String::new(),
            (_, true) => format!(", {}", u32::from(right.mn_major)),
            _ => format!(
                ", {}, {}",
                u32::from(left.mn_major),
                u32::from(right.mn_major)
            ),
        };
        let operand = match self.in_registers {
            true => vector("a", 4),
            false => "%rd0".to_owned(),
        };
        let one = if sums == "f32" {
            "0f3f800000"
        } else {
            "0x3c003c00"
        };
        let ones: String = (0..registers)
            .map(|i| format!("mov.b32 %d{i}, {one};"))
            .collect();
        format!(
            "{ones}
            shl.b32 %r1, %warp, 9;        // 16 rows of 32 bytes
            shr.u32 %r2, %lane, 2;
            shl.b32 %r2, %r2, 5;
            add.s32 %r1, %r1, %r2;
            and.b32 %r2, %lane, 3;
            shl.b32 %r2, %r2, 2;
            add.s32 %r1, %r1, %r2;
            add.s32 %r1, %r1, %smem;
            {} {} {} {}
            mov.b64 %rd0, {of_left};
            mov.b64 %rd1, {of_right};
            wgmma.fence.sync.aligned;
            {{ .reg .pred add;
            setp.ne.b32 add, {}, 0;
            wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{sums}.{first}.{second}
                {}, {operand}, %rd1, add, {}, {}{majors}; }}
            wgmma.commit_group.sync.aligned;
            wgmma.wait_group.sync.aligned 0;
            {}",
            load(0, 0, 0),
            load(1, 8, 0),
            load(2, 0, 16),
            load(3, 8, 16),
            u32::from(self.adds),
            vector("d", registers),
            self.signs[0],
            self.signs[1],
            stores(registers),
        )
    }
}

#[test]
fn products_of_all_types_and_layouts() {
    let random = &mut StdRng::seed_from_u64(12);
    for case in 0..30 * Types::ALL.len() {
        let types = Types::ALL[case % Types::ALL.len()];
        let (depth, statements) = (types.depth(), Statements::random(random, types));
        let Statements {
            columns,
            adds,
            signs,
            ..
        } = statements;
        let mut matrix = |rows: usize| -> Vec<Vec<i32>> {
            let mut row = || (0..depth).map(|_| random.random_range(-8..9)).collect();
            (0..rows).map(|_| row()).collect()
        };
        let (a, b) = (matrix(64), matrix(columns));
        let image = statements.image([&a, &b]);
        let what = format!(
            "case {case}: {types:?}, {columns} columns, {:?}, {}",
            statements.layouts, statements.in_registers
        );
        let words = types.registers(columns);
        let text = module(128, words, &statements.body());
        let options = Options {
            seed: case as u64,
            ..Options::default()
        };
        let found = launched(&text, 128, words, &image, &options);
        let (found, counters) = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        for (thread, words) in found.chunks_exact(words).enumerate() {
            for (row, column, sum) in types.sums(thread, words) {
                let product: i32 = (0..depth).map(|k| a[row][k] * b[column][k]).sum();
                let expected = i32::from(adds) + signs[0] * signs[1] * product;
                assert_eq!(sum, expected as f32, "{what}: {row}, {column}");
            }
        }
        assert_eq!(
            counters.total_of("wgmma.mma").flops,
            2 * 64 * (depth * columns) as u64
        );
    }
}
