//! `atom` and `red`, and blocks that add to the same numbers.

use crate::tiny::{broken, module, run_module, schedule, warp};
use emulator::{Argument, Error, Memory, Module, Options, Rule, launch};
use std::collections::BTreeSet;

#[test]
fn atomics_give_what_was_there() {
    let body = |instruction: &str| {
        format!(
            "ld.param.u64 %d0, [out];
            mov.b32 %r0, 0; mov.b32 %r1, 0;
            setp.eq.u32 %p0, %tid, 0; @%p0 st.global.v2.b32 [%d0+8], {{%r0, %r1}};
            bar.warp.sync 0xffffffff;
            {instruction}
            st.global.b32 [%out], %r2;"
        )
    };
    let out = warp(
        &body("atom.relaxed.gpu.global.add.u32 %r2, [%d0+8], 3;"),
        &[],
    );
    let found: Vec<u32> = out.iter().map(|words| words[0]).collect();
    let expected: Vec<u32> = (0..32).map(|lane| 3 * lane).collect();
    assert_eq!((found, out[0][2]), (expected, 96));
    let out = warp(&body("atom.global.inc.u32 %r2, [%d0+8], 4;"), &[]);
    let found: Vec<u32> = out.iter().map(|words| words[0]).collect();
    let expected: Vec<u32> = (0..32).map(|lane| lane % 5).collect();
    assert_eq!((found, out[0][2]), (expected, 32 % 5));
    let out = warp(&body("atom.global.add.f32 %r2, [%d0+8], 0f3f000000;"), &[]);
    assert_eq!(f32::from_bits(out[0][2]), 16.0);
    let out = warp(
        &body("atom.global.add.u64 %d1, [%d0+8], -1; cvt.u32.u64 %r2, %d1;"),
        &[],
    );
    assert_eq!(out[0][2..4], [-32_i32 as u32, u32::MAX]);
}

#[test]
fn reductions_change_memory_alone() {
    let body = |instruction: &str| {
        format!(
            "ld.param.u64 %d0, [out]; mov.b32 %r0, 0; mov.b32 %r2, 7;
            setp.eq.u32 %p0, %tid, 0; @%p0 st.global.b32 [%d0+8], %r0;
            bar.warp.sync 0xffffffff;
            {instruction}
            st.global.b32 [%out], %r2;"
        )
    };
    let out = warp(&body("red.release.gpu.global.add.u32 [%d0+8], 3;"), &[]);
    assert_eq!((out[5][0], out[0][2]), (7, 96));
    let out = warp(&body("red.global.max.u32 [%d0+8], %tid;"), &[]);
    assert_eq!((out[5][0], out[0][2]), (7, 31));
    let out = warp(&body("red.global.add.f32 [%d0+8], 0f3f000000;"), &[]);
    assert_eq!(f32::from_bits(out[0][2]), 16.0);
    // The sum with a NaN is the canonical one, whatever its payload.
    let out = warp(&body("red.global.add.f32 [%d0+8], 0f7fc12345;"), &[]);
    assert_eq!(out[0][2], 0x7fff_ffff);
}

/// `1, 2, 3, 4` in memory; then a reduction at an address.
fn add_vector(target: &str, address: &str) -> Result<[u32; 4], Error> {
    let text = module(&format!(
        "mov.b32 %r0, 0f3f800000; mov.b32 %r1, 0f40000000; mov.b32 %r2, 0f40400000; mov.b32 %r3, 0f40800000;
        st.global.v4.b32 [%out], {{%r0, %r1, %r2, %r3}};
        red.global.add.v4.f32 [{address}], {{%r3, %r1, %r0, %r0}};"
    ));
    let text = text.replace("sm_80", target);
    let words = run_module(&text, 1, &[0; 4], &Options::default())?[0];
    Ok([words[0], words[1], words[2], words[3]])
}

#[test]
fn a_reduction_of_a_vector_adds_each_number() {
    let sums = add_vector("sm_90a", "%out").unwrap().map(f32::from_bits);
    assert_eq!(sums, [5.0, 4.0, 4.0, 5.0]);
}

#[test]
fn a_reduction_of_a_vector_keeps_the_rules_of_global_memory() {
    let rule = |address: &str| match add_vector("sm_90a", address) {
        Err(Error::Fault(fault)) => fault.rule,
        other => panic!("no rule was broken: {other:?}"),
    };
    assert_eq!(rule("%out+4"), Rule::GlobalMisaligned { bytes: 16 });
    assert_eq!(rule("%out+16"), Rule::GlobalUninitialised);
    assert_eq!(rule("%in"), Rule::GlobalReadOnly);
    assert!(add_vector("sm_80", "%out").is_err());
}

/// Runs four blocks in a schedule; the words that they leave. Before, the first word is 2^24 as f32, the others are 0.
fn four_blocks(body: &str, seed: u64) -> Result<[u32; 16], Error> {
    let text = module(&format!(
        "ld.param.u64 %out, [out]; mov.u32 %r5, %ctaid.x; {body}"
    ));
    let module = Module::parse(&text, "four.ptx")?;
    let memory = Memory::new();
    let out = memory.allocate(64);
    let mut words = [0; 16];
    words[0] = 16_777_216.0_f32.to_bits();
    memory.write(out, bytemuck::cast_slice(&words)).unwrap();
    let arguments = [Argument::U64(out), Argument::U64(out)];
    let (kernel, options) = (module.entry("tiny")?, schedule(seed));
    let (grid, block) = ([4, 1, 1], [1, 1, 1]);
    launch(&memory, kernel, grid, block, 1024, &arguments, &options)?;
    let bytes = bytemuck::cast_slice_mut(&mut words);
    memory.read(out, bytes).unwrap();
    Ok(words)
}

/// The first word that four blocks leave.
fn sum(body: &str, seed: u64) -> Result<f32, Error> {
    four_blocks(body, seed).map(|words| f32::from_bits(words[0]))
}

/// A loop of 900 instructions, in which turns of a block end.
const BUSY: &str =
    "mov.b32 %r7, 0; $more: add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 300; @%p3 bra $more;";

/// The first block takes 2^24 away, each other one adds 1: a 1 that comes before is lost.
const ADD: &str = "setp.eq.u32 %p1, %r5, 0; selp.b32 %r1, 0fcb800000, 0f3f800000, %p1;
    red.global.add.f32 [%out], %r1;";

#[test]
fn blocks_add_in_any_order() {
    let sums: Vec<_> = (0..40)
        .map(|seed| sum(&format!("{BUSY} {ADD}"), seed).unwrap())
        .collect();
    assert!(
        sums.contains(&3.0) && sums.iter().any(|&sum| sum < 3.0),
        "{sums:?}"
    );
}

#[test]
fn the_seed_decides_which_block_takes_what() {
    // Blocks take numbers below 8; each number's word names the block that took it.
    let body = format!(
        "$take: {BUSY} atom.global.add.u32 %r6, [%out+4], 1;
        setp.ge.u32 %p1, %r6, 8; @%p1 bra $end;
        mul.wide.u32 %d1, %r6, 4; add.s64 %d1, %out, %d1; st.global.b32 [%d1+8], %r5; bra.uni $take;
        $end:"
    );
    let takers = |seed| four_blocks(&body, seed).unwrap()[2..10].to_vec();
    let schedules: Vec<_> = (0..20).map(takers).collect();
    assert_eq!(schedules, (0..20).map(takers).collect::<Vec<_>>());
    let most = schedules.iter().map(|takers| {
        let count = |block| takers.iter().filter(|&&taker| taker == block).count();
        (0..4).map(count).max().expect("four blocks")
    });
    // A block that is resident alone takes all numbers; several share them.
    let most: BTreeSet<_> = most.collect();
    assert!(most.contains(&8) && most.len() > 3, "{most:?}");
}

/// Waits until the count of blocks that have added is a register, and then adds.
fn add_in_turn(turn: &str) -> String {
    format!(
        "$turn: ld.acquire.gpu.global.b32 %r6, [%out+16];
        setp.eq.u32 %p2, %r6, {turn}; @%p2 bra $mine;
        nanosleep.u32 20; bra.uni $turn;
        $mine: {ADD} red.release.gpu.global.add.u32 [%out+16], 1;"
    )
}

#[test]
fn blocks_that_take_turns_add_in_order_whatever_runs_at_once() {
    for seed in 0..20 {
        assert_eq!(sum(&add_in_turn("%r5"), seed).unwrap(), 3.0);
    }
}

#[test]
fn a_block_that_waits_for_a_later_one_may_wait_for_ever() {
    let body = format!("sub.u32 %r8, 3, %r5; {}", add_in_turn("%r8"));
    let results = (0..20).map(|seed| sum(&body, seed));
    let errors: Vec<_> = results.filter_map(Result::err).collect();
    let is_deadlock = |error: &Error| matches!(error, Error::Fault(fault) if matches!(fault.rule, Rule::Deadlock { .. }));
    // Where fewer blocks run at once than wait.
    assert!(
        !errors.is_empty() && errors.iter().all(is_deadlock),
        "{errors:?}"
    );
    assert!(
        errors[0].to_string().contains("for the end of its sleep"),
        "{}",
        errors[0]
    );
}

#[test]
fn atomics_keep_the_rules_of_global_memory() {
    let add = |address: &str| format!("atom.global.add.u32 %r0, [{address}], 1;");
    assert_eq!(broken(&add("%in"), 1, &[0]), Rule::GlobalReadOnly);
    assert_eq!(broken(&add("%out"), 1, &[0]), Rule::GlobalUninitialised);
    let misaligned = Rule::GlobalMisaligned { bytes: 4 };
    assert_eq!(broken(&add("%out+2"), 1, &[0]), misaligned);
}
