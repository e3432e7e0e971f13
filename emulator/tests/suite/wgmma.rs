//! Products of warpgroups: all layouts against plain arithmetic, and every rule that a kernel can break
//! with them.

use crate::tiny::module_for;
use emulator::{Argument, Counters, Error, Memory, Module, Options, launch};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Bytes of shared memory that [`module`] fills.
pub const BYTES: usize = 100 << 10;

/// A kernel of `threads` threads around a body. Its threads copy the input to shared memory at `smem`;
/// `%out` is the address of the thread's `words` words of output, `%d0` to `%d127` are accumulators.
pub fn module(threads: u32, words: usize, body: &str) -> String {
    let body = format!(
        ".reg .pred %p<8>;
        .reg .b32 %r<32>, %a<8>, %d<128>;
        .reg .b64 %rd<8>;
        shl.b32 %r0, %tid, 4;
        $fill:
        cvt.u64.u32 %rd0, %r0;
        add.s64 %rd0, %rd0, %in;
        ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd0];
        add.s32 %r5, %r0, %smem;
        st.shared.v4.b32 [%r5], {{%r1, %r2, %r3, %r4}};
        add.s32 %r0, %r0, {};
        setp.lt.u32 %p0, %r0, {BYTES};
        @%p0 bra $fill;
        fence.proxy.async.shared::cta;
        bar.sync 0;
        {body}",
        16 * threads
    );
    module_for("sm_90a", words, &body)
}

/// Runs a module over an image of shared memory; the words of all threads, and what it counted.
pub fn launched(
    text: &str,
    threads: u32,
    words: usize,
    image: &[u8],
    options: &Options,
) -> Result<(Vec<u32>, Counters), Error> {
    let module = Module::parse(text, "tiny.ptx")?;
    let memory = Memory::new();
    let mut image = image.to_vec();
    image.resize(BYTES, 0);
    let mut found = vec![u32::MAX; threads as usize * words];
    let out = memory.allocate(4 * found.len());
    let arguments = [Argument::U64(out), Argument::U64(memory.upload(&image))];
    let (grid, block) = ([1, 1, 1], [threads, 1, 1]);
    let kernel = module.entry("tiny")?;
    let bytes = BYTES as u32;
    let counters = launch(&memory, kernel, grid, block, bytes, &arguments, options)?;
    memory
        .read(out, bytemuck::cast_slice_mut(&mut found))
        .unwrap();
    Ok((found, counters))
}

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

/// The bits of a small whole number of f16, so that sums are exact.
fn bits(number: i32) -> u16 {
    f16::from_f32(number as f32).to_bits()
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

/// `{%prefix0, %prefix1, ...}`
pub fn vector(prefix: &str, count: usize) -> String {
    let names: Vec<_> = (0..count).map(|i| format!("%{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Statements that store the accumulators.
pub fn stores(registers: usize) -> String {
    let store = |i| format!("st.global.b32 [%out+{}], %d{i};", 4 * i);
    (0..registers).map(store).collect()
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

/// Two chained products of K-major operands under the 128-byte swizzle: rows of 128 bytes at 0, 64 of
/// them, times themselves.
const CHAIN: &str = "
    mov.b64 %rd0, 4611686293305360448; // 1 << 62 | 64 << 32 | 1 << 16 | 1024 / 16
    add.s64 %rd1, %rd0, 2;
    mov.b32 %r9, 0;
    wgmma.fence.sync.aligned;
    { .reg .pred add; setp.ne.b32 add, %r9, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd0, %rd0, add, 1, 1, 0, 0; }
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    /* under way */
    wgmma.wait_group.sync.aligned 0;
    /* complete */
    st.global.b32 [%out], %d0; st.global.b32 [%out+4], %d1;
    st.global.b32 [%out+8], %d2; st.global.b32 [%out+12], %d3;";

/// The report of a body: nothing, or the rule that it breaks under each schedule.
fn report(body: &str, threads: u32) -> Option<String> {
    let text = module(threads, 4, body);
    let image: Vec<u8> = (0..BYTES / 2)
        .flat_map(|i| bits(i as i32 % 5).to_le_bytes())
        .collect();
    let mut reports = (0..10).map(|seed| {
        let options = Options {
            seed,
            instruction_budget: 20_000,
            ..Options::default()
        };
        match launched(&text, threads, 4, &image, &options) {
            Ok(_) => None,
            Err(Error::Fault(fault)) => Some(fault.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
    let first = reports.next().expect("some seeds");
    for other in reports {
        assert_eq!(other.is_some(), first.is_some(), "{first:?}, {other:?}");
    }
    first
}

#[track_caller]
fn clean(body: &str, threads: u32) {
    assert_eq!(report(body, threads), None, "{body}");
}

#[track_caller]
fn broken(body: &str, threads: u32, says: &str) {
    let found = report(body, threads).unwrap_or_else(|| panic!("no rule was broken: {body}"));
    assert!(found.contains(says), "{found}");
}

/// [`CHAIN`] with a part replaced.
fn changed(from: &str, to: &str) -> String {
    assert!(CHAIN.contains(from), "{from}");
    CHAIN.replace(from, to)
}

const UNDER_WAY: &str = "/* under way */";
const COMPLETE: &str = "/* complete */";
/// A warpgroup's loop of two products that stay under way while others are issued.
const OTHER: &str = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 \
                     {%d4, %d5, %d6, %d7}, %rd0, %rd0, 0, 1, 1, 0, 0; wgmma.commit_group.sync.aligned;";

/// Thread 0 alone executes a statement.
fn by_first(statement: &str) -> String {
    format!("setp.eq.b32 %p1, %tid, 0; @%p1 {statement}")
}

#[test]
fn products_that_keep_the_rules() {
    clean(CHAIN, 128);
    let other = changed(UNDER_WAY, OTHER).replace("aligned 0;", "aligned 1;");
    let end = format!("{COMPLETE} wgmma.wait_group.sync.aligned 0;");
    clean(&other.replace(COMPLETE, &end), 128);
    // Operands of the products may be written after the wait, and before them with a fence.
    let write = by_first("st.shared.b32 [smem], %tid;");
    clean(&changed(COMPLETE, &write), 128);
    clean(
        &format!("{write} fence.proxy.async; bar.sync 0; {CHAIN}"),
        128,
    );
    // Reading it does no harm.
    clean(&changed(UNDER_WAY, "ld.shared.b32 %r1, [smem];"), 128);
    // Two products may read the same registers.
    clean(&format!("{FROM_REGISTERS} {WAIT}"), 128);
    // Another warp writes after a barrier. It is not of this warpgroup, nor is any warpgroup whole.
    let body = |between: &str| {
        format!(
            "setp.ge.u32 %p1, %tid, 128; @%p1 bra $other; {} bra.uni $end;
            $other: {between} {} $end:",
            changed(COMPLETE, "bar.arrive 1, 160;"),
            "setp.eq.b32 %p1, %lane, 0; @%p1 st.shared.b32 [smem], %tid;"
        )
    };
    clean(&body("bar.sync 1, 160;"), 160);
    broken(&body(""), 160, "");
}

/// Two products whose A lies in registers.
const FROM_REGISTERS: &str = "
    mov.b64 %rd0, 4611686293305360448;
    mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, %rd0, 0, 1, 1, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {%d4, %d5, %d6, %d7}, {%a0, %a1, %a2, %a3}, %rd0, 0, 1, 1, 0;
    wgmma.commit_group.sync.aligned;";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";

#[test]
fn registers_of_products_are_left_alone() {
    let fence = "wgmma.fence.sync.aligned;";
    broken(&changed(fence, ""), 128, "needs a wgmma.fence");
    for access in ["mov.b32 %d0, 0;", "mov.b32 %d0, 0; mov.b32 %r1, %d0;"] {
        let body = changed(fence, &format!("{fence} {access}"));
        broken(&body, 128, "wgmma on register %d0");
        clean(&changed(fence, &format!("{access} {fence}")), 128);
    }
    let pending = "of a wgmma (line ";
    for access in [
        "st.global.b32 [%out], %d0;",
        "mov.b32 %d1, 0;",
        // Another shape, and the same with other registers.
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7},
            %rd0, %rd0, 0, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d1, %d0, %d2, %d3},
            %rd0, %rd0, 0, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d4, %d5, %d6, %d7},
            {%d0, %d1, %d2, %d3}, %rd0, 0, 1, 1, 0;",
    ] {
        broken(&changed(UNDER_WAY, access), 128, pending);
    }
    broken(&changed(WAIT, ""), 128, pending);
    broken(
        &changed(WAIT, "wgmma.wait_group.sync.aligned 1;"),
        128,
        pending,
    );
    broken(
        &changed("wgmma.commit_group.sync.aligned;", ""),
        128,
        pending,
    );
    for access in ["mov.b32 %a1, 0;", "mov.b32 %r1, %a1;"] {
        let body = format!("{FROM_REGISTERS} {access} {WAIT}");
        broken(&body, 128, "access to register %a1");
        let body = FROM_REGISTERS.replace(fence, &format!("{fence} {access}"));
        broken(&body, 128, "wgmma on register %a1");
    }
    broken(
        FROM_REGISTERS,
        128,
        "the warp ends with no wgmma.wait_group",
    );
    let body = changed("%rd0, %rd0, add", "%rd0, %rd0, 1");
    broken(&body, 128, "read of register %d0");
}

#[test]
fn operands_of_products_are_visible_and_stay() {
    let write = by_first("st.shared.b32 [smem], %tid;");
    broken(&changed(UNDER_WAY, &write), 128, "a wgmma (line 3");
    broken(
        &format!("{write} bar.sync 0; {CHAIN}"),
        128,
        "no fence.proxy.async",
    );
    broken(
        &format!("fence.proxy.async; {write} bar.sync 0; {CHAIN}"),
        128,
        "no fence.proxy.async",
    );
    broken(
        &format!("{write} fence.proxy.async; {CHAIN}"),
        128,
        "races with the write",
    );
    let copy = by_first("cp.async.cg.shared.global [smem], [%in], 16;");
    broken(&changed(UNDER_WAY, &copy), 128, "a wgmma (line 3");
    broken(&format!("{copy} bar.sync 0; {CHAIN}"), 128, "a cp.async");
    for (add, says) in [
        ((1_u64 << 14) - 128, "outside the block's shared memory"),
        (5, "amid a row of its swizzle"),
        (1 << 15, "reserved bits"),
        (1 << 49, "base offset"),
    ] {
        let body = changed(
            "mov.b32 %r9, 0;",
            &format!("add.s64 %rd1, %rd1, {add}; mov.b32 %r9, 0;"),
        );
        broken(&body, 128, says);
    }
}

#[test]
fn warpgroups_execute_products_together() {
    for register in ["%rd1", "%rd0"] {
        let each = format!(
            "cvt.u64.u32 %rd2, %warp; add.s64 {register}, {register}, %rd2; mov.b32 %r9, 0;"
        );
        broken(
            &changed("mov.b32 %r9, 0;", &each),
            128,
            "a matrix descriptor differs",
        );
    }
    broken(
        &changed("mov.b32 %r9, 0;", "mov.b32 %r9, %tid;"),
        128,
        "scale-d differs",
    );
    let skip = |lanes: &str| format!("{lanes} @%p1 bra $end; {CHAIN} $end:");
    broken(
        &skip("setp.ge.u32 %p1, %lane, 16;"),
        128,
        "collective instruction",
    );
    let says = "warp 0 waits for the other warps of its warpgroup (line ";
    broken(&skip("setp.eq.b32 %p1, %warp, 3;"), 128, says);
    broken(CHAIN, 96, "before the fourth warp");
    // One warp waits at a barrier, the others in the product.
    let body = format!("setp.ne.b32 %p1, %warp, 3; @%p1 bra $others; bar.sync 1; $others: {CHAIN}");
    broken(
        &body,
        128,
        "warp 3 waits at barrier 1, which has 32 of 128 threads",
    );
}

#[test]
fn what_is_no_product_does_not_load() {
    let product = "{%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 1, 1, 0, 0;";
    for (from, to, says) in [
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n12k16.f32.f16.f16 {%d0}, %rd1",
            "multiple of 8",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n16k16.f32.f16.f16 {%d0}, %rd1",
            "expected 8",
        ),
        (
            product,
            "{%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 1, 1, 0;",
            "transpositions",
        ),
        (
            product,
            "{%d0, %d1, %d2, %d3}, %rd1, %rd1, 1, 2, 1, 0, 0;",
            "a scale is",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n8k32.f32.e4m3.e4m3 {%d0, %d1, %d2, %d3}, %rd1",
            "transpositions",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "m64n8k16.f16.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "expected 2",
        ),
        (
            "m64n8k16.f32.f16.f16 {%d0",
            "m64n8k16.f32.e4m3.e4m3 {%d0",
            "unknown",
        ),
        (
            "f32.f16.f16 {%d0, %d1, %d2, %d3}, %rd1",
            "f32.f16.bf16 {%d0, %d1, %d2, %d3}, %rd1",
            "unknown",
        ),
    ] {
        let error = Module::parse(&module(128, 4, &changed(from, to)), "tiny.ptx").unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
