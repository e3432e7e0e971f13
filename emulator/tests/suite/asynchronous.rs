//! Mbarriers and bulk copies: what they do, and every rule that a kernel can break with them.

use crate::tiny::{module, run_module, schedule};
use emulator::{Access, Error, Rule};

/// Two threads of two warps: `$0` is the producer's way, `$1` the consumer's; `%r10` is the address
/// of an mbarrier for one arrival, `%r11` and `%r12` are buffers.
pub const SETUP: &str = "
    add.s32 %r10, %smem, 512;
    add.s32 %r11, %smem, 0;
    add.s32 %r12, %smem, 256;
    setp.ne.b32 %p1, %tid, 0;
    @%p1 bra $ready;
    mbarrier.init.shared::cta.b64 [%r10], 1;
    fence.mbarrier_init.release.cluster;
$ready:
    bar.sync 0;";

const EXPECT: &str = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;";
const LOAD: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \
                    [%r11], [%in], 64, [%r10];";
const STORE: &str = "cp.async.bulk.global.shared::cta.bulk_group [%out], [%r11], 32;";

/// A wait for a phase's parity, in a loop.
fn wait(parity: u32) -> String {
    format!(
        "{{ .reg .pred done;
        again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r10], {parity};
        @!done bra again; }}"
    )
}

/// Runs a body under several schedules, which all must end well or all break a rule; what the first
/// came to.
fn run(body: &str, threads: u32) -> Result<Vec<u32>, Error> {
    let text = module(body).replace("sm_80", "sm_90a");
    let input: Vec<u32> = (100..164).collect();
    let results = (0..10).map(|seed| {
        run_module(&text, threads, &input, &schedule(seed)).map(|words| words.concat())
    });
    let mut results: Vec<_> = results.collect();
    assert!(
        results.iter().all(|r| r.is_ok() == results[0].is_ok()),
        "{results:?}"
    );
    results.swap_remove(0)
}

#[track_caller]
pub fn broken(body: &str, threads: u32) -> Rule {
    match run(&format!("{SETUP} {body}"), threads) {
        Err(Error::Fault(fault)) => fault.rule,
        other => panic!("no rule was broken: {other:?}"),
    }
}

#[track_caller]
pub fn clean(body: &str, threads: u32) -> Vec<u32> {
    run(&format!("{SETUP} {body}"), threads).unwrap_or_else(|error| panic!("{error}"))
}

/// `first` by thread 0 of warp 0, `second` by thread 0 of warp 1.
fn two(first: &str, second: &str) -> String {
    format!(
        "setp.ne.b32 %p1, %lane, 0;
        @%p1 bra $end;
        setp.ne.b32 %p1, %warp, 0;
        @%p1 bra $second;
        {first}
        bra.uni $end;
    $second:
        {second}
    $end:"
    )
}

#[test]
fn a_load_is_there_when_its_phase_is_complete() {
    let read = "ld.shared.b32 %r0, [smem+60]; st.global.b32 [%out], %r0;";
    let body = two(&format!("{EXPECT} {LOAD}"), &format!("{} {read}", wait(0)));
    assert_eq!(clean(&body, 64)[32 * 8], 115);
    // The copy may be issued before the bytes are expected.
    let body = two(&format!("{LOAD} {EXPECT}"), &format!("{} {read}", wait(0)));
    assert_eq!(clean(&body, 64)[32 * 8], 115);
    let cta = body.replace("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta");
    assert_eq!(clean(&cta, 64)[32 * 8], 115);
    // A token in place of a parity, and bytes expected apart from the arrival.
    let body = format!(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 64; {LOAD}
        mbarrier.arrive.shared::cta.b64 %d0, [%r10];
        $again: mbarrier.test_wait.shared::cta.b64 %p0, [%r10], %d0;
        @!%p0 bra $again; {read}"
    );
    assert_eq!(clean(&body, 1)[0], 115);
}

#[test]
fn a_load_is_not_touched_before_its_phase_is_complete() {
    for early in [
        "ld.shared.b32 %r0, [smem];".to_owned(),
        "st.shared.b32 [smem], %tid;".to_owned(),
        LOAD.to_owned(),
        // A wait that gives false is no wait.
        "mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r10], 0; ld.shared.b32 %r0, [smem];"
            .to_owned(),
        // The phase before the first is complete.
        format!("{} ld.shared.b32 %r0, [smem];", wait(1)),
    ] {
        let rule = broken(&format!("{EXPECT} {LOAD} {early}"), 1);
        assert!(
            matches!(rule, Rule::PendingBulkCopy { .. }),
            "{early}: {rule}"
        );
    }
    // Another thread that waited must tell the reader.
    let body = |between: &str| {
        format!(
            "setp.ne.b32 %p1, %tid, 0; @%p1 bra $reader;
            {EXPECT} {LOAD} {}
        $reader: {between} ld.shared.b32 %r0, [smem];",
            wait(0)
        )
    };
    let rule = broken(&body(""), 32);
    assert!(matches!(rule, Rule::PendingBulkCopy { .. }), "{rule}");
    clean(&body("bar.warp.sync 0xffffffff;"), 32);
}

#[test]
fn what_threads_wrote_needs_a_proxy_fence() {
    let write = "st.shared.v4.b32 [smem], {%tid, %tid, %tid, %tid};
        st.shared.v4.b32 [smem+16], {%tid, %tid, %tid, %tid};";
    let store = format!("{STORE} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;");
    let fence = "fence.proxy.async.shared::cta;";
    let alone = broken(&format!("{write} {store}"), 1);
    assert!(matches!(alone, Rule::MissingProxyFence { .. }), "{alone}");
    // A fence before the write does nothing for it.
    let early = broken(&format!("{fence} {write} {store}"), 1);
    assert!(matches!(early, Rule::MissingProxyFence { .. }), "{early}");
    assert_eq!(clean(&format!("{write} {fence} {store}"), 1)[..8], [0; 8]);
    // A copy over what threads wrote.
    let over = broken(&format!("{write} {EXPECT} {LOAD}"), 1);
    assert!(matches!(over, Rule::MissingProxyFence { .. }), "{over}");
    clean(&format!("{write} {fence} {EXPECT} {LOAD} {}", wait(0)), 1);
    // Another thread's write: a fence on either side of the barrier, and never only a barrier.
    let both = |before: &str, after: &str| {
        format!(
            "setp.ne.b32 %p2, %tid, 32; @%p2 bra $written; {write} {before} $written:
            bar.sync 1; setp.ne.b32 %p2, %tid, 0; @%p2 bra $end; {after} {store} $end:"
        )
    };
    let barrier = broken(&both("", ""), 64);
    assert!(
        matches!(barrier, Rule::MissingProxyFence { .. }),
        "{barrier}"
    );
    assert_eq!(clean(&both(fence, ""), 64)[..8], [32; 8]);
    assert_eq!(clean(&both("", fence), 64)[..8], [32; 8]);
    let race = both("", fence).replace("bar.sync 1;", "");
    let rule = broken(&race, 64);
    let caught = matches!(rule, Rule::SharedRace { .. } | Rule::SharedUninitialised);
    assert!(caught, "{rule}");
}

#[test]
fn the_source_of_a_store_stays_until_it_was_read() {
    let begin = format!("{EXPECT} {LOAD} {} {STORE}", wait(0));
    let (commit, write) = (
        "cp.async.bulk.commit_group;",
        "st.shared.b32 [smem+28], %tid;",
    );
    for wait in [
        "",
        "cp.async.bulk.wait_group.read 0;",
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 1;",
    ] {
        let rule = broken(&format!("{begin} {wait} {write}"), 1);
        assert!(
            matches!(rule, Rule::BulkCopySource { .. }),
            "{wait}: {rule}"
        );
    }
    let read = format!("{begin} {commit} cp.async.bulk.wait_group.read 0;");
    let words = clean(&format!("{read} {write}"), 1);
    assert_eq!(words[..8], [100, 101, 102, 103, 104, 105, 106, 107]);
    // Reading it as well does no harm.
    clean(
        &format!("{begin} {commit} ld.shared.b32 %r0, [smem]; cp.async.bulk.wait_group 0;"),
        1,
    );
    // Another thread's write must come after the wait.
    let other = |between: &str| {
        format!(
            "setp.ne.b32 %p2, %tid, 0; @%p2 bra $other; {read} $other: {between}
            setp.ne.b32 %p2, %tid, 1; @%p2 bra $end; {write} $end:"
        )
    };
    clean(&other("bar.warp.sync 0xffffffff;"), 32);
    let rule = broken(&other(""), 32);
    let caught = matches!(rule, Rule::SharedRace { .. } | Rule::PendingBulkCopy { .. });
    assert!(caught, "{rule}");
}

#[test]
fn a_store_is_there_after_its_wait() {
    let body = |wait: &str| {
        format!(
            "{EXPECT} {LOAD} {} {STORE} cp.async.bulk.commit_group; {wait}
            ld.global.b32 %r0, [%out+4]; st.global.b32 [%out], %r0;",
            self::wait(0)
        )
    };
    assert_eq!(
        clean(&body("cp.async.bulk.wait_group 0;"), 1)[..2],
        [101, 101]
    );
    let rule = broken(&body("cp.async.bulk.wait_group.read 0;"), 1);
    assert_eq!(rule, Rule::GlobalUninitialised);
}

#[test]
fn blocks_end_with_no_copy_under_way() {
    assert_eq!(
        broken(&format!("{EXPECT} {LOAD}"), 1),
        Rule::UnfinishedBulkCopy
    );
    let stored = format!("{EXPECT} {LOAD} {} {STORE}", wait(0));
    assert_eq!(broken(&stored, 1), Rule::UnfinishedBulkCopy);
    // Destinations may be written after the end.
    let read = format!("{stored} cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;");
    assert_eq!(clean(&read, 1)[0], 100);
}

#[test]
fn a_wrong_transaction_count_never_completes() {
    for (bytes, says) in [(48, "-16 bytes"), (80, "16 bytes")] {
        let expect = EXPECT.replace("64;", &format!("{bytes};"));
        // Two arrivals, so that no phase is complete before the copy lands.
        let body = format!(
            "mbarrier.inval.shared::cta.b64 [%r10]; mbarrier.init.shared::cta.b64 [%r10], 2;
            fence.proxy.async; {expect} {LOAD} mbarrier.arrive.shared::cta.b64 _, [%r10]; {}",
            wait(0)
        );
        match broken(&body, 1) {
            Rule::Deadlock { waiting } => {
                assert!(waiting.contains(says), "{waiting}");
                let begins = "warp 0 waits for phase 0 of the mbarrier at 0x600, which lacks ";
                assert!(waiting.starts_with(begins), "{waiting}");
            }
            other => panic!("{bytes}: {other}"),
        }
    }
    // Nothing expected: the phase is complete at once, and the copy is not.
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r10];";
    let body = format!("{arrive} {LOAD} {} ld.shared.b32 %r0, [smem];", wait(0));
    let rule = broken(&body, 1);
    assert!(matches!(rule, Rule::PendingBulkCopy { .. }), "{rule}");
}

#[test]
fn a_deadlock_names_what_every_warp_waits_for() {
    let body = format!("{} bar.sync 3;", two(&wait(0), ""));
    let Rule::Deadlock { waiting } = broken(&body, 96) else {
        panic!("no deadlock");
    };
    let mut places = waiting.split(", warp ");
    let first = "warp 0 waits for phase 0 of the mbarrier at 0x600, which lacks 1 of 1 arrivals and \
                 0 bytes (line ";
    assert!(
        places.next().is_some_and(|place| place.starts_with(first)),
        "{waiting}"
    );
    for (place, warp) in places.zip(1..) {
        let barrier = format!("{warp} waits at barrier 3, which has 64 of 96 threads (line ");
        assert!(place.starts_with(&barrier), "{waiting}");
    }
}

#[test]
fn arrivals_release_and_waits_acquire() {
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r10];";
    let read = "ld.shared.b32 %r0, [smem]; st.global.b32 [%out], %r0;";
    let write = "mov.b32 %r1, 7; st.shared.b32 [smem], %r1;";
    let body = two(&format!("{write} {arrive}"), &format!("{} {read}", wait(0)));
    assert_eq!(clean(&body, 64)[32 * 8], 7);
    for (from, to) in [
        ("arrive.shared", "arrive.relaxed.cta.shared"),
        ("parity.shared", "parity.relaxed.cta.shared"),
    ] {
        let rule = broken(&body.replace(from, to), 64);
        let write = Access::Write;
        let caught = matches!(&rule, Rule::SharedRace { earlier, .. } if *earlier == write);
        assert!(caught, "{to}: {rule}");
    }
    // Accesses of a thread after it arrived are not released.
    let late = two(&format!("{arrive} {write}"), &format!("{} {read}", wait(0)));
    let rule = match run(&format!("{SETUP} {late}"), 64) {
        Err(Error::Fault(fault)) => fault.rule,
        other => panic!("{other:?}"),
    };
    let caught = matches!(rule, Rule::SharedRace { .. } | Rule::SharedUninitialised);
    assert!(caught, "{rule}");
    // An arrival releases what its own lane did, and no other.
    let body = |between: &str| {
        format!(
            "setp.ne.b32 %p2, %warp, 0; @%p2 bra $second;
            setp.ne.b32 %p2, %lane, 1; @%p2 bra $written; {write} $written: {between}
            setp.ne.b32 %p2, %lane, 0; @%p2 bra $end; {arrive} bra.uni $end;
        $second: {} {read} $end:",
            wait(0)
        )
    };
    let rule = broken(&body(""), 64);
    assert!(matches!(rule, Rule::SharedRace { .. }), "{rule}");
    clean(&body("bar.warp.sync 0xffffffff;"), 64);
}

#[test]
fn phases_alternate_and_each_is_observed() {
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r10];";
    let (even, odd) = (wait(0), wait(1));
    clean(
        &format!("{arrive} {even} {arrive} {odd} {arrive} {even}"),
        1,
    );
    let rule = broken(&format!("{arrive} {arrive}"), 1);
    assert_eq!(rule, Rule::MbarrierUnobserved { phase: 0 });
    // A parity that is not flipped: the wait is for a phase that is over, or for one too late.
    let rule = broken(&format!("{arrive} {even} {arrive} {even} {arrive}"), 1);
    assert!(matches!(rule, Rule::Deadlock { .. }), "{rule}");
    // A token of two phases before.
    let body = format!(
        "mbarrier.arrive.shared::cta.b64 %d0, [%r10]; {even} {arrive} {odd}
        mbarrier.test_wait.shared::cta.b64 %p0, [%r10], %d0;"
    );
    let rule = broken(&body, 1);
    assert!(matches!(rule, Rule::MbarrierMisused { .. }), "{rule}");
}

#[test]
fn counts_stay_in_range() {
    let init = |count: &str| {
        format!(
            "mbarrier.inval.shared::cta.b64 [%r10]; mbarrier.init.shared::cta.b64 [%r10], {count};"
        )
    };
    for count in ["0", "1048576"] {
        let rule = broken(&init(count), 1);
        assert!(
            matches!(rule, Rule::MbarrierMisused { .. }),
            "{count}: {rule}"
        );
    }
    let rule = broken("mbarrier.arrive.shared::cta.b64 _, [%r10], 2;", 1);
    let arrivals = Rule::MbarrierArrivals {
        count: 2,
        pending: 1,
        expected: 1,
    };
    assert_eq!(rule, arrivals);
    // All have arrived, and bytes are missing: one more is too many.
    let rule = broken(&format!("{EXPECT} {EXPECT}"), 1);
    assert!(
        matches!(rule, Rule::MbarrierArrivals { pending: 0, .. }),
        "{rule}"
    );
    let much = EXPECT.replace("64;", "1048576;");
    assert_eq!(broken(&much, 1), Rule::MbarrierBytes { bytes: 1 << 20 });
}

#[test]
fn mbarriers_are_initialised_and_visible() {
    let at = |address: &str| format!("mbarrier.arrive.shared::cta.b64 _, [{address}];");
    assert_eq!(broken(&at("%r12"), 1), Rule::MbarrierNotInitialised);
    assert_eq!(
        broken(&at("smem+516"), 1),
        Rule::SharedMisaligned { bytes: 8 }
    );
    let again = "mbarrier.init.shared::cta.b64 [%r10], 1;";
    let rule = broken(again, 1);
    assert!(matches!(rule, Rule::MbarrierMisused { .. }), "{rule}");
    clean(
        &format!("mbarrier.inval.shared::cta.b64 [%r10]; {again}"),
        1,
    );
    for access in [
        "ld.shared.b32 %r0, [smem+512];",
        "st.shared.b32 [smem+516], %tid;",
    ] {
        let rule = broken(access, 1);
        assert!(
            matches!(rule, Rule::MbarrierAccessed { .. }),
            "{access}: {rule}"
        );
    }
    let reused = "mbarrier.inval.shared::cta.b64 [%r10]; st.shared.b32 [smem+512], %tid;";
    clean(reused, 1);
    assert_eq!(
        broken(&format!("{reused} {}", at("%r10")), 1),
        Rule::MbarrierNotInitialised
    );
    let busy = format!("{EXPECT} {LOAD} mbarrier.inval.shared::cta.b64 [%r10];");
    let rule = broken(&busy, 1);
    assert!(matches!(rule, Rule::MbarrierMisused { .. }), "{rule}");
    // Threads need a barrier after the initialisation, bulk copies a fence.
    let setup = SETUP.replace("bar.sync 0;", "");
    match run(&format!("{setup} {}", two("", &at("%r10"))), 64) {
        Err(Error::Fault(fault)) => {
            let rule = fault.rule;
            let caught = matches!(rule, Rule::SharedRace { .. } | Rule::MbarrierNotInitialised);
            assert!(caught, "{rule}");
        }
        other => panic!("{other:?}"),
    }
    let load = format!("{EXPECT} {LOAD} {}", wait(0));
    for (fence, rule) in [
        ("", Some(Rule::MbarrierNotFenced)),
        ("fence.proxy.async;", None),
    ] {
        let setup = SETUP.replace("fence.mbarrier_init.release.cluster;", fence);
        match (run(&format!("{setup} {load}"), 1), rule) {
            (Ok(_), None) => {}
            (Err(Error::Fault(fault)), Some(rule)) => assert_eq!(fault.rule, rule),
            (other, _) => panic!("{fence}: {other:?}"),
        }
    }
}

#[test]
fn bulk_copies_are_aligned_and_in_bounds() {
    for (from, to, rule) in [
        ("64, [%r10]", "72, [%r10]", Rule::BulkCopySize { bytes: 72 }),
        ("[%r11]", "[%r11+8]", Rule::SharedMisaligned { bytes: 16 }),
        ("[%in]", "[%in+8]", Rule::GlobalMisaligned { bytes: 16 }),
        ("[%in]", "[%in+208]", Rule::GlobalOutOfBounds { bytes: 64 }),
        (
            "[%r11]",
            "[%r11+992]",
            Rule::SharedOutOfBounds { bytes: 64 },
        ),
        ("[%in], 64", "[%out], 32", Rule::GlobalUninitialised),
    ] {
        let body = format!("{EXPECT} {}", LOAD.replace(from, to));
        assert_eq!(broken(&body, 1), rule, "{to}");
    }
    let loaded = format!("{EXPECT} {LOAD} {}", wait(0));
    for (from, to, rule) in [
        ("32;", "8;", Rule::BulkCopySize { bytes: 8 }),
        ("[%r11]", "[%r11+4]", Rule::SharedMisaligned { bytes: 16 }),
        ("[%r11]", "[%r11+48]", Rule::SharedUninitialised),
        ("[%out]", "[%out+4]", Rule::GlobalMisaligned { bytes: 16 }),
        ("[%out]", "[%in]", Rule::GlobalReadOnly),
    ] {
        let body = format!("{loaded} {}", STORE.replace(from, to));
        assert_eq!(broken(&body, 1), rule, "{to}");
    }
}

#[test]
fn older_targets_refuse() {
    for statement in [
        "mbarrier.init.shared::cta.b64 [%smem], 1;",
        "fence.proxy.async;",
        "fence.mbarrier_init.release.cluster;",
        LOAD,
        "cp.async.bulk.commit_group;",
    ] {
        let error = emulator::Module::parse(&module(statement), "tiny.ptx").unwrap_err();
        let says = "needs target sm_90 or later; the module's is sm_80";
        assert!(error.to_string().contains(says), "{statement}: {error}");
    }
    let unknown = module("").replace("sm_80", "gfx90a");
    let error = emulator::Module::parse(&unknown, "tiny.ptx").unwrap_err();
    assert!(error.to_string().contains("gfx90a is not a target"));
}

/// Labels belong to their braces.
#[test]
fn labels_repeat_in_braces() {
    let once = "{ again: add.s32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, %r1; @%p0 bra again; }";
    let body = format!(
        "mov.b32 %r0, 0; mov.b32 %r1, 3; {once} mov.b32 %r1, 9; {once} {{ bra.uni $out; }} trap;
        $out: st.global.b32 [%out], %r0;"
    );
    assert_eq!(run(&body, 1).unwrap()[0], 9);
}
