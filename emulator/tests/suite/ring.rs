//! A ring of two buffers that bulk copies fill and empty: a producer, a consumer, and what can go
//! wrong between them.

use crate::mutants::{self, Mutant};
use crate::tiny::{module, run_module, schedule};

/// Tiles of 256 bytes, `WORDS` of 4 bytes for all threads of the two warps together.
const BODY: &str = "
    setp.ne.b32 %p0, %tid, 0;
    @%p0 bra $begin;
    mbarrier.init.shared::cta.b64 [smem+512], 1;  // full, of buffer 0
    mbarrier.init.shared::cta.b64 [smem+520], 1;  // empty
    mbarrier.init.shared::cta.b64 [smem+528], 1;  // full, of buffer 1
    mbarrier.init.shared::cta.b64 [smem+536], 1;  // empty
    fence.mbarrier_init.release.cluster;
$begin:
    bar.sync 0;
    ld.param.u64 %d0, [out];
    mov.b32 %r0, 0;
$tile:
    and.b32 %r1, %r0, 1;
    shl.b32 %r2, %r1, 8;
    add.s32 %r2, %r2, %smem;   // the buffer
    shl.b32 %r3, %r1, 4;
    add.s32 %r3, %r3, %smem;
    add.s32 %r4, %r3, 520;     // empty
    add.s32 %r3, %r3, 512;     // full
    shr.u32 %r5, %r0, 1;
    and.b32 %r5, %r5, 1;       // parity of full
    xor.b32 %r6, %r5, 1;       // parity of empty
    mul.wide.u32 %d1, %r0, 256;
    setp.ne.b32 %p0, %warp, 0;
    @%p0 bra $consume;
    setp.ne.b32 %p0, %lane, 0;
    @%p0 bra $next;
    { .reg .pred done;
    again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r4], %r6;
    @!done bra again; }
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    add.s64 %d2, %in, %d1;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d2], 256, [%r3];
    bra.uni $next;
$consume:
    { .reg .pred done;
    again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r3], %r5;
    @!done bra again; }
    shl.b32 %r7, %lane, 3;
    add.s32 %r7, %r7, %r2;
    ld.shared.v2.b32 {%r8, %r9}, [%r7];
    not.b32 %r8, %r8;
    not.b32 %r9, %r9;
    st.shared.v2.b32 [%r7], {%r8, %r9};
    fence.proxy.async.shared::cta;
    bar.warp.sync 0xffffffff;
    setp.ne.b32 %p0, %lane, 0;
    @%p0 bra $next;
    add.s64 %d2, %d0, %d1;
    cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    mbarrier.arrive.shared::cta.b64 _, [%r4];
$next:
    add.s32 %r0, %r0, 1;
    setp.lt.u32 %p0, %r0, 8;
    @%p0 bra $tile;
    cp.async.bulk.wait_group 0;";

const MUTANTS: &[Mutant] = &[
    (
        "a transaction count too small",
        "[%r3], 256;\n    add",
        "[%r3], 240;\n    add",
        "lacks 0 of 1 arrivals and -16 bytes",
    ),
    (
        "a transaction count too large",
        "[%r3], 256;\n    add",
        "[%r3], 272;\n    add",
        "lacks 0 of 1 arrivals and 16 bytes",
    ),
    (
        "no bytes expected",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;",
        "mbarrier.arrive.shared::cta.b64 _, [%r3];",
        "before a wait for its mbarrier's phase",
    ),
    (
        "the phase of full not flipped",
        "[%r3], %r5;",
        "[%r3], 0;",
        "before a wait for its mbarrier's phase",
    ),
    (
        "the phase of empty not flipped",
        "[%r4], %r6;",
        "[%r4], 1;",
        "whose phase lacks 0 of 1",
    ),
    (
        "a wait for empty with the phase of full",
        "[%r4], %r6;",
        "[%r4], %r5;",
        "no warp can go on",
    ),
    (
        "a wait whose result is ignored",
        "done, [%r3], %r5;\n    @!done bra again; }",
        "done, [%r3], %r5; }",
        "before a wait for its mbarrier's phase",
    ),
    (
        "no wait for empty",
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r4], %r6;\n    @!done bra again; }",
        "}",
        "",
    ),
    (
        "a wait for full of the other buffer",
        "done, [%r3], %r5;",
        "done, [smem+528], %r5;",
        "before a wait for its mbarrier's phase",
    ),
    (
        "an arrival at empty of the other buffer",
        "_, [%r4];",
        "_, [smem+520];",
        "before a wait saw",
    ),
    (
        "no arrival at empty",
        "mbarrier.arrive.shared::cta.b64 _, [%r4];",
        "",
        "no warp can go on",
    ),
    (
        "an arrival at empty by every lane",
        "    setp.ne.b32 %p0, %lane, 0;\n    @%p0 bra $next;\n    add.s64 %d2, %d0, %d1;",
        "    mbarrier.arrive.shared::cta.b64 _, [%r4];\n    setp.ne.b32 %p0, %lane, 0;\n    \
         @%p0 bra $next;\n    add.s64 %d2, %d0, %d1;",
        "",
    ),
    (
        "empty initialised for two arrivals",
        "[smem+520], 1;",
        "[smem+520], 2;",
        "lacks 1 of 2 arrivals",
    ),
    (
        "an mbarrier not initialised",
        "mbarrier.init.shared::cta.b64 [smem+536], 1;",
        "",
        "no mbarrier.init",
    ),
    (
        "mbarriers not fenced for bulk copies",
        "fence.mbarrier_init.release.cluster;",
        "",
        "with no fence.mbarrier_init",
    ),
    ("no barrier after the initialisation", "bar.sync 0;", "", ""),
    (
        "no proxy fence before the store",
        "fence.proxy.async.shared::cta;",
        "",
        "with no fence.proxy.async between",
    ),
    (
        "the proxy fence before the writes",
        "    st.shared.v2.b32 [%r7], {%r8, %r9};\n    fence.proxy.async.shared::cta;",
        "    fence.proxy.async.shared::cta;\n    st.shared.v2.b32 [%r7], {%r8, %r9};",
        "with no fence.proxy.async between",
    ),
    (
        "no warp barrier before the store",
        "bar.warp.sync 0xffffffff;",
        "",
        "races with the write",
    ),
    (
        "the source of a store given back before it was read",
        "cp.async.bulk.wait_group.read 0;",
        "cp.async.bulk.wait_group.read 1;",
        "the source of a bulk copy",
    ),
    (
        "a store in no group",
        "    cp.async.bulk.commit_group;\n",
        "",
        "the source of a bulk copy",
    ),
    (
        "a load into the other buffer",
        "[%r2], [%d2], 256, [%r3];",
        "[smem], [%d2], 256, [%r3];",
        "",
    ),
    (
        "a load on the other buffer's mbarrier",
        "[%r2], [%d2], 256, [%r3];",
        "[%r2], [%d2], 256, [smem+512];",
        "",
    ),
    (
        "a load by every lane",
        "    setp.ne.b32 %p0, %lane, 0;\n    @%p0 bra $next;\n    { .reg",
        "    { .reg",
        "arrival",
    ),
    (
        "a load of half a tile",
        "[%r2], [%d2], 256, [%r3];",
        "[%r2], [%d2], 128, [%r3];",
        "128 bytes",
    ),
    (
        "a store of half a tile",
        "[%d2], [%r2], 256;",
        "[%d2], [%r2], 128;",
        "wrong result",
    ),
    (
        "a misaligned load",
        "add.s64 %d2, %in, %d1;",
        "add.s64 %d2, %in, %d1; add.s64 %d2, %d2, 8;",
        "not a multiple of 16",
    ),
];

/// The ring's module.
pub fn text() -> String {
    around(BODY)
}

/// The module around a ring's body.
fn around(body: &str) -> String {
    module(body).replace("sm_80", "sm_90a")
}

/// Runs a ring's body; what is wrong, if anything.
fn fault(body: &str, seed: u64) -> Option<String> {
    let input: Vec<u32> = (0..512).map(|n| n * 40503).collect();
    let expected: Vec<u32> = input.iter().map(|word| !word).collect();
    let outcome = run_module(&around(body), 64, &input, &schedule(seed));
    mutants::fault(outcome.map(|words| words.concat() == expected))
}

#[test]
fn the_ring_is_clean_under_every_schedule() {
    for seed in 0..100 {
        assert_eq!(fault(BODY, seed), None, "seed {seed}");
    }
}

#[test]
fn every_mutant_of_the_ring_is_caught() {
    mutants::assert_caught("ring", BODY, MUTANTS, 0..20, fault);
}
