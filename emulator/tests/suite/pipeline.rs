//! A pipeline of Hopper's instructions: a producer loads tiles by tensor copies, two warpgroups multiply
//! them, and the result leaves by `stmatrix` and a tensor copy. The mutants go wrong between them.

use crate::mutants::{self, Mutant};
use crate::tiny::schedule;
use emulator::{Argument, Counters, Error, Memory, Module, Options, Swizzle, TensorMap, launch};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Tiles that the sum goes over, of 64 columns each.
const STEPS: usize = 5;
const ROWS: usize = 128;
const COLUMNS: usize = 64;
const DEPTH: usize = 64 * STEPS;

/// `C = A * B^T` of f16, A with 128 rows and B with 64. A stage has 128 rows of A and 64 of B in 24 KB.
/// Behind the two stages lie the mbarriers, full and empty of each, and C at 50176.
const BODY: &str = "
    mov.u32 %smem, smem;
    mov.u32 %tid, %tid.x;
    and.b32 %lane, %tid, 31;
    shr.u32 %group, %tid, 7;
    and.b32 %thread, %tid, 127;
    setp.ne.b32 %p0, %tid, 0;
    @%p0 bra $begin;
    mbarrier.init.shared::cta.b64 [smem+49152], 1;  // full, of stage 0
    mbarrier.init.shared::cta.b64 [smem+49160], 2;  // empty
    mbarrier.init.shared::cta.b64 [smem+49168], 1;  // full, of stage 1
    mbarrier.init.shared::cta.b64 [smem+49176], 2;  // empty
    fence.mbarrier_init.release.cluster;
$begin:
    bar.sync 0;
    mov.b32 %step, 0;
    mov.b32 %add, 0;
    setp.lt.u32 %p0, %group, 2;
    @%p0 bra $consume;

    setmaxnreg.dec.sync.aligned.u32 24;
    setp.ne.b32 %p0, %thread, 0;
    @%p0 bra $end;
$produce:
    STAGE
    add.s32 %empty, %full, 8;
    xor.b32 %parity, %parity, 1;
    { .reg .pred done;
    again: mbarrier.try_wait.parity.shared::cta.b64 done, [%empty], %parity;
    @done bra out; bra again; out: }
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], 24576;
    shl.b32 %column, %step, 6;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%tile], [%a, {%column, 0}], [%full];
    add.s32 %tile, %tile, 16384;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%tile], [%b, {%column, 0}], [%full];
    add.s32 %step, %step, 1;
    setp.lt.u32 %p0, %step, STEPS;
    @%p0 bra $produce;
    bra $end;

$consume:
    setmaxnreg.inc.sync.aligned.u32 240;
$multiply:
    STAGE
    { .reg .pred done;
    again: mbarrier.try_wait.parity.shared::cta.b64 done, [%full], %parity;
    @!done bra again; }
    shl.b32 %r0, %group, 13;
    add.s32 %r0, %r0, %tile;
    shr.u32 %left, %r0, 4;
    add.s32 %r0, %tile, 16384;
    shr.u32 %right, %r0, 4;
    mov.b32 %high, 0x40000040;  // 128-byte swizzle, stride 1024
    wgmma.fence.sync.aligned;
    PRODUCTS
    wgmma.commit_group.sync.aligned;
    setp.eq.b32 %p0, %step, 0;
    @%p0 bra $first;
    wgmma.wait_group.sync.aligned 1;
    // The other stage is free.
    xor.b32 %r0, %stage, 1;
    shl.b32 %r0, %r0, 4;
    add.s32 %r0, %r0, %smem;
    add.s32 %empty, %r0, 49160;
    setp.eq.b32 %p1, %thread, 0;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%empty];
$first:
    add.s32 %step, %step, 1;
    setp.lt.u32 %p0, %step, STEPS;
    @%p0 bra $multiply;
    wgmma.wait_group.sync.aligned 0;

    shl.b32 %tile, %group, 13;
    add.s32 %tile, %tile, %smem;
    add.s32 %tile, %tile, 50176;
    shr.u32 %r0, %thread, 5;     // rows of the warp
    shl.b32 %r0, %r0, 4;
    and.b32 %r1, %lane, 15;      // the lane's row among them
    add.s32 %r0, %r0, %r1;
    shl.b32 %r0, %r0, 7;
    add.s32 %r0, %r0, %tile;
    and.b32 %r1, %lane, 7;       // the swizzle
    shr.u32 %r2, %lane, 4;       // the lane's chunk of two
    STORES
    fence.proxy.async.shared::cta;
    add.s32 %r3, %group, 1;
    bar.sync %r3, 128;
    setp.ne.b32 %p0, %thread, 0;
    @%p0 bra $end;
    shl.b32 %r3, %group, 6;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%c, {0, %r3}], [%tile];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
$end:";

/// The step's stage: its tile, its mbarrier `%full` and the parity of the phase.
const STAGE: &str = "and.b32 %stage, %step, 1;
    mad.lo.s32 %tile, %stage, 24576, %smem;
    shl.b32 %full, %stage, 4;
    add.s32 %full, %full, %smem;
    add.s32 %full, %full, 49152;
    shr.u32 %parity, %step, 1;
    and.b32 %parity, %parity, 1;";

/// The kernel's module.
pub fn text() -> String {
    let accumulators: Vec<_> = (0..32).map(|i| format!("%d{i}")).collect();
    let product = |k: u32| {
        format!(
            "{{ .reg .pred add; .reg .b32 la, lb; .reg .b64 da, db;
            add.s32 la, %left, {k}; add.s32 lb, %right, {k};
            mov.b64 da, {{la, %high}}; mov.b64 db, {{lb, %high}};
            setp.ne.b32 add, %add, 0;
            wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{}}}, da, db, add, 1, 1, 0, 0; }}
            mov.b32 %add, 1;\n",
            accumulators.join(", ")
        )
    };
    let store = |j: usize| {
        let pair = |i: usize| {
            let (low, high) = (8 * j + 2 * i, 8 * j + 2 * i + 1);
            format!("cvt.rn.f16x2.f32 %h{i}, %d{high}, %d{low};")
        };
        let pairs: String = (0..4).map(pair).collect();
        format!(
            "{pairs}
            add.s32 %r3, %r2, {};
            xor.b32 %r3, %r3, %r1;
            shl.b32 %r3, %r3, 4;
            add.s32 %r3, %r3, %r0;
            stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r3], {{%h0, %h1, %h2, %h3}};\n",
            2 * j
        )
    };
    let products: String = [0, 2, 4, 6].into_iter().map(product).collect();
    let stores: String = (0..4).map(store).collect();
    let body = BODY
        .replace("STAGE", STAGE)
        .replace("PRODUCTS", &products)
        .replace("STORES", &stores)
        .replace("STEPS", &STEPS.to_string());
    format!(
        "
        .version 8.0
        .target sm_90a
        .address_size 64
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry gemm(.param .u64 a, .param .u64 b, .param .u64 c)
        .maxntid 384
        .minnctapersm 1
        {{
            .reg .pred %p<2>;
            .reg .b32 %r<4>, %h<4>, %d<32>, %smem, %tid, %lane, %group, %thread, %step, %stage, %tile;
            .reg .b32 %full, %empty, %parity, %column, %left, %right, %high, %add;
            .reg .b64 %a, %b, %c;
            ld.param.u64 %a, [a];
            ld.param.u64 %b, [b];
            ld.param.u64 %c, [c];
            {body}
            ret;
        }}"
    )
}

const MUTANTS: &[Mutant] = &[
    (
        "a transaction count too small",
        "[%full], 24576;",
        "[%full], 24560;",
        "-16 bytes",
    ),
    (
        "bytes of one copy expected",
        "[%full], 24576;",
        "[%full], 16384;",
        "",
    ),
    (
        "a tensor map for the other",
        "[%b, {%column",
        "[%a, {%column",
        "",
    ),
    (
        "a box outside the tensor",
        "[%b, {%column, 0}]",
        "[%b, {%column, 64}]",
        "wrong result",
    ),
    (
        "coordinates exchanged",
        "{0, %r3}",
        "{%r3, 0}",
        "wrong result",
    ),
    (
        "the phase of full not flipped",
        "[%full], %parity;",
        "[%full], 0;",
        "",
    ),
    (
        "the phase of empty not flipped",
        "[%empty], %parity;",
        "[%empty], 1;",
        "",
    ),
    (
        "a wait for empty with the phase of full",
        "xor.b32 %parity, %parity, 1;",
        "",
        "no warp can go on",
    ),
    (
        "no wait for empty",
        "@done bra out; bra again; out: }",
        "}",
        "",
    ),
    (
        "no wait for full",
        "done, [%full], %parity;\n    @!done bra again; }",
        "done, [%full], %parity; }",
        "before a wait for its mbarrier's phase",
    ),
    (
        "empty expects three",
        "[smem+49160], 2;",
        "[smem+49160], 3;",
        "lacks 1 of 3 arrivals",
    ),
    (
        "all threads arrive at empty",
        "@%p1 mbarrier.arrive",
        "mbarrier.arrive",
        "arrival",
    ),
    (
        "a stage released while it is read",
        "xor.b32 %r0, %stage, 1;",
        "mov.b32 %r0, %stage;",
        "",
    ),
    (
        "a stage released before the wait",
        "    wgmma.wait_group.sync.aligned 1;\n",
        "",
        "a wgmma (line ",
    ),
    (
        "mbarriers not fenced",
        "fence.mbarrier_init.release.cluster;",
        "",
        "with no fence.mbarrier_init",
    ),
    ("no barrier after the initialisation", "bar.sync 0;", "", ""),
    (
        "no fence before the products",
        "    wgmma.fence.sync.aligned;\n",
        "",
        "needs a wgmma.fence",
    ),
    ("no group", "    wgmma.commit_group.sync.aligned;\n", "", ""),
    (
        "a wait one group short",
        "wgmma.wait_group.sync.aligned 0;",
        "wgmma.wait_group.sync.aligned 1;",
        "access to register",
    ),
    (
        "an accumulator read early",
        "    setp.eq.b32 %p0, %step, 0;\n",
        "    mov.b32 %r0, %d5; setp.eq.b32 %p0, %step, 0;\n",
        "access to register %d5",
    ),
    (
        "an accumulator cleared early",
        "    setp.eq.b32 %p0, %step, 0;\n",
        "    mov.b32 %d7, 0; setp.eq.b32 %p0, %step, 0;\n",
        "access to register %d7",
    ),
    (
        "accumulators not cleared",
        "mov.b32 %add, 0;",
        "mov.b32 %add, 1;",
        "never written",
    ),
    (
        "accumulators cleared by each product",
        "mov.b32 %add, 1;",
        "",
        "wrong result",
    ),
    (
        "the next mode of the swizzle",
        "0x40000040",
        "0x80000040",
        "",
    ),
    ("no swizzle", "0x40000040", "0x00000040", ""),
    (
        "half the stride",
        "0x40000040",
        "0x40000020",
        "wrong result",
    ),
    (
        "a step of half the columns",
        "add.s32 la, %left, 2;",
        "add.s32 la, %left, 1;",
        "wrong result",
    ),
    (
        "the other warpgroup's rows",
        "shl.b32 %r0, %group, 13;",
        "mov.b32 %r0, 0;",
        "wrong result",
    ),
    (
        "B of the other stage",
        "add.s32 %r0, %tile, 16384;",
        "add.s32 %r0, %smem, 16384;",
        "",
    ),
    (
        "a warp that does not multiply",
        "$multiply:\n",
        "$multiply: setp.eq.b32 %p0, %tid, 100; @%p0 bra $end;\n",
        "collective instruction",
    ),
    (
        "more registers than given",
        "u32 240;",
        "u32 248;",
        "waits for 248 registers",
    ),
    (
        "no registers given",
        "    setmaxnreg.dec.sync.aligned.u32 24;\n",
        "",
        "waits for 240 registers",
    ),
    (
        "a warp takes no registers",
        "setmaxnreg.inc",
        "setp.lt.u32 %p0, %thread, 96; @%p0 setmaxnreg.inc",
        "its warpgroup",
    ),
    (
        "no proxy fence before the store",
        "fence.proxy.async.shared::cta;",
        "",
        "no fence.proxy.async",
    ),
    (
        "no barrier before the store",
        "bar.sync %r3, 128;",
        "",
        "races with the write",
    ),
    (
        "a barrier of too many",
        "bar.sync %r3, 128;",
        "bar.sync %r3, 160;",
        "",
    ),
    (
        "C not swizzled",
        "xor.b32 %r3, %r3, %r1;",
        "",
        "wrong result",
    ),
    (
        "C transposed by tiles",
        "m8n8.x4.shared",
        "m8n8.x4.trans.shared",
        "wrong result",
    ),
    (
        "C misplaced",
        "add.s32 %tile, %tile, 50176;",
        "add.s32 %tile, %tile, 50240;",
        "",
    ),
    (
        "C over a stage that is read",
        "add.s32 %tile, %tile, 50176;",
        "add.s32 %tile, %tile, 16384;",
        "a wgmma (line ",
    ),
    (
        "a store in no group",
        "    cp.async.bulk.commit_group;\n",
        "",
        "under way",
    ),
    (
        "a store not waited for",
        "    cp.async.bulk.wait_group.read 0;\n",
        "",
        "under way",
    ),
];

/// A tensor of rows that are adjacent.
fn map(
    memory: &Memory,
    address: u64,
    rows: usize,
    columns: usize,
    box_rows: u32,
) -> Argument<'static> {
    let map = TensorMap {
        address,
        element_bytes: 2,
        rank: 2,
        sizes: [columns as u64, rows as u64, 0, 0, 0],
        strides: [2 * columns as u64, 0, 0, 0],
        box_sizes: [64, box_rows, 0, 0, 0],
        swizzle: Swizzle::B128,
    };
    Argument::U64(memory.upload(&map.encode()))
}

/// Runs a module; whether C is right, and what it counted.
pub fn run(text: &str, options: &Options) -> Result<(bool, Counters), Error> {
    let random = &mut StdRng::seed_from_u64(9);
    let mut numbers = |rows: usize| -> Vec<i32> {
        (0..rows * DEPTH)
            .map(|_| random.random_range(-2..3))
            .collect()
    };
    let (a, b) = (numbers(ROWS), numbers(COLUMNS));
    let memory = Memory::new();
    let upload = |numbers: &[i32]| {
        let bytes = numbers
            .iter()
            .flat_map(|n| f16::from_f32(*n as f32).to_le_bytes());
        memory.upload(&bytes.collect::<Vec<_>>())
    };
    let c = memory.allocate(2 * ROWS * COLUMNS);
    let arguments = [
        map(&memory, upload(&a), ROWS, DEPTH, 128),
        map(&memory, upload(&b), COLUMNS, DEPTH, 64),
        map(&memory, c, ROWS, COLUMNS, 64),
    ];
    let module = Module::parse(text, "gemm.ptx")?;
    let kernel = module.entry("gemm")?;
    let (grid, block) = ([1, 1, 1], [384, 1, 1]);
    let counters = launch(&memory, kernel, grid, block, 65 << 10, &arguments, options)?;
    let mut found = vec![0; 2 * ROWS * COLUMNS];
    memory.read(c, &mut found).unwrap();
    let row = |matrix: &[i32], row: usize| matrix[row * DEPTH..][..DEPTH].to_vec();
    let is_right = found.chunks_exact(2).enumerate().all(|(i, found)| {
        let (a, b) = (row(&a, i / COLUMNS), row(&b, i % COLUMNS));
        let sum: i32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        f16::from_le_bytes([found[0], found[1]]).to_f32() == sum as f32
    });
    Ok((is_right, counters))
}

/// The fault of a module, if it has one.
fn fault(text: &str, seed: u64) -> Option<String> {
    let outcome = run(text, &schedule(seed));
    mutants::fault(outcome.map(|(is_right, _)| is_right))
}

#[test]
fn the_pipeline_is_clean_under_every_schedule() {
    for seed in 0..30 {
        assert_eq!(fault(&text(), seed), None, "seed {seed}");
    }
}

#[test]
fn work_of_the_pipeline_is_counted() {
    let options = Options {
        counters: true,
        ..Options::default()
    };
    let (_, counters) = run(&text(), &options).unwrap();
    let products = counters.total_of("wgmma.mma_async");
    assert_eq!(products.flops, (2 * ROWS * COLUMNS * DEPTH) as u64);
    // 4 instructions a step, for each warp of two warpgroups; 4 KB of operands for each warpgroup.
    assert_eq!(products.executed, 4 * STEPS as u64 * 8);
    assert_eq!(products.wavefronts, 4 * STEPS as u64 * 2 * 32);
    let loads = counters.total_of("cp.async.bulk.tensor.2d.shared");
    assert_eq!(loads.bytes_read, (2 * (ROWS + COLUMNS) * DEPTH) as u64);
    assert_eq!(loads.sectors, loads.bytes_read / 32);
    let stores = counters.total_of("cp.async.bulk.tensor.2d.global");
    assert_eq!(stores.bytes_written, (2 * ROWS * COLUMNS) as u64);
    assert_eq!(counters.total_of("stmatrix").bank_conflicts(), 0);
}

#[test]
fn every_mutant_of_the_pipeline_is_caught() {
    mutants::assert_caught("pipeline", &text(), MUTANTS, 0..5, fault);
}
