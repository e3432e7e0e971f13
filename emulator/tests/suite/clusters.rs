//! Clusters: who a block is in its own, and their barrier.

use crate::tiny::{WORDS, module_with_registers, schedule};
use emulator::{Argument, Error, Memory, Module, Options, Rule, launch};

/// The barrier, whole.
const MEET: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

/// Runs blocks of `threads` threads in clusters of these sizes; the words that each thread stored at `%out`. Blocks number their
/// threads on: `%out` of a thread is behind those of the blocks before.
fn run(
    body: &str,
    [blocks, cluster, threads]: [u32; 3],
    seed: u64,
) -> Result<Vec<[u32; WORDS]>, Error> {
    let body = format!(
        "mov.u32 %r60, %ctaid.x; mov.u32 %r61, %ntid.x; mul.lo.u32 %r60, %r60, %r61;
        mad.wide.u32 %out, %r60, {}, %out; {body}",
        4 * WORDS
    );
    let text = module_with_registers("sm_90", &body);
    let module = Module::parse(&text, "clusters.ptx")?;
    let memory = Memory::new();
    let mut words = vec![[u32::MAX; WORDS]; (blocks * threads) as usize];
    let out = memory.allocate(size_of_val(&words[..]));
    let written = memory.write(out, bytemuck::cast_slice(&words));
    written.expect("words of this memory");
    let arguments = [Argument::U64(out), Argument::U64(out)];
    let options = Options {
        cluster,
        ..schedule(seed)
    };
    let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
    let kernel = module.entry("tiny")?;
    launch(&memory, kernel, grid, block, 1024, &arguments, &options)?;
    memory
        .read(out, bytemuck::cast_slice_mut(&mut words))
        .expect("words of this memory");
    Ok(words)
}

/// The rule that blocks in clusters of two break, whatever their order.
#[track_caller]
fn broken(body: &str, threads: u32) -> Rule {
    let rules = (0..10).map(|seed| match run(body, [4, 2, threads], seed) {
        Err(Error::Fault(fault)) => fault.rule,
        other => panic!("seed {seed}: no rule was broken: {other:?}"),
    });
    let rules: Vec<_> = rules.collect();
    rules.into_iter().next().expect("some seeds")
}

#[test]
fn a_block_knows_its_place() {
    let body = "mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, %cluster_nctarank;
        mov.u32 %r2, %clusterid.x; mov.u32 %r3, %nclusterid.x;
        st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};";
    for cluster in [1, 3, 12] {
        let words = run(body, [12, cluster, 32], 0).expect("no rule is broken");
        for (block, words) in words.iter().step_by(32).enumerate() {
            let block = block as u32;
            let expected = [block % cluster, cluster, block / cluster, 12 / cluster];
            assert_eq!(words[..4], expected);
        }
    }
}

/// What each block wrote before the barrier, all blocks of the cluster read behind it, however blocks take turns; three times.
#[test]
fn blocks_of_a_cluster_wait_for_each_other() {
    let round = format!(
        "add.u32 %r2, %r2, %r3; st.global.b32 [%out], %r2; {MEET}
        ld.global.b32 %r2, [%d1]; {MEET}"
    );
    // Each thread writes the sum of its number and what it read, and reads the same thread's of the next block of its cluster.
    let body = format!(
        "mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, 0;
        add.u32 %r3, %r60, %tid; add.u32 %r4, %r0, 1; rem.u32 %r4, %r4, %r1;
        sub.s32 %r4, %r4, %r0; mul.lo.s32 %r4, %r4, %r61; mul.wide.s32 %d1, %r4, {};
        add.s64 %d1, %d1, %out; {round} {round} {round}
        st.global.b32 [%out+4], %r2;",
        4 * WORDS
    );
    for (cluster, threads) in [(1, 32), (2, 64), (5, 96), (10, 32)] {
        for seed in 0..20 {
            let words = run(&body, [10, cluster, threads], seed).expect("no rule is broken");
            let number = |block: u32, thread: u32| block * threads + thread;
            for (i, words) in (0..).zip(&words) {
                let (block, thread) = (i / threads, i % threads);
                let (first, rank) = (block / cluster * cluster, block % cluster);
                let read = (1..=3).map(|n| number(first + (rank + n) % cluster, thread));
                assert_eq!(words[1], read.sum(), "{cluster} {seed} {i}");
            }
        }
    }
}

/// The barrier of a cluster is one of each block, too: what its warps wrote to shared memory is seen behind it, and not before.
#[test]
fn the_barrier_orders_shared_memory() {
    let body = |meet: &str, again: &str| {
        format!(
            "shl.b32 %r1, %tid, 2; add.u32 %r1, %r1, %smem; st.shared.b32 [%r1], %tid; {meet}
            xor.b32 %r2, %tid, 32; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %smem;
            ld.shared.b32 %r3, [%r2]; st.global.b32 [%out], %r3; {again} st.shared.b32 [%r1], %r3;"
        )
    };
    for seed in 0..20 {
        let words = run(&body(MEET, MEET), [4, 2, 64], seed).expect("no rule is broken");
        for (i, words) in words.iter().enumerate() {
            assert_eq!(words[0] as usize, (i % 64) ^ 32);
        }
    }
    for wrong in [
        body("", MEET),
        body(MEET, ""),
        body("barrier.cluster.arrive.aligned;", ""),
    ] {
        let rule = broken(&wrong, 64);
        assert!(!matches!(rule, Rule::Deadlock { .. }), "{rule}");
    }
}

/// Warps that exit are waited for no longer.
#[test]
fn warps_that_exit_do_not_arrive() {
    let body = format!(
        "mov.b32 %r5, 7; setp.lt.u32 %p0, %tid, 32; @%p0 bra $end; {MEET}
        st.global.b32 [%out], %r5; $end:"
    );
    for seed in 0..20 {
        let words = run(&body, [4, 4, 64], seed).expect("no rule is broken");
        assert!(words.iter().skip(32).step_by(64).all(|words| words[0] == 7));
    }
}

#[test]
fn a_barrier_of_a_cluster_is_used_in_pairs() {
    let misused = |body: &str| match broken(body, 32) {
        Rule::BarrierMisused { what } => what,
        rule => panic!("{rule}"),
    };
    let arrive = "barrier.cluster.arrive.release.aligned;";
    assert!(misused("barrier.cluster.wait.acquire.aligned;").contains("has not arrived"));
    assert!(misused(&format!("{arrive} {arrive}")).contains("arrives twice"));
    assert!(misused(arrive).contains("has not waited"));
    // Half a warp.
    let half = format!("setp.lt.u32 %p0, %lane, 16; @%p0 {arrive}");
    let rule = broken(&half, 32);
    assert!(!matches!(rule, Rule::Deadlock { .. }), "{rule}");
}

/// A block never arrives that waits for what another one is to write, or whose warps are at two barriers.
#[test]
fn a_cluster_that_waits_forever_is_a_deadlock() {
    let sleeps = format!(
        "mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %p0, %r0, 0; @%p0 bra $wait; {MEET} bra.uni $end;
        $wait: nanosleep.u32 20; ld.acquire.gpu.global.b32 %r1, [%in]; bra.uni $wait; $end:"
    );
    let apart = format!(
        "setp.lt.u32 %p0, %tid, 32; @%p0 bra $other; {MEET} bra.uni $end; $other: bar.sync 1, 64; $end:"
    );
    for (body, threads) in [(sleeps, 32), (apart, 64)] {
        let rule = broken(&body, threads);
        assert!(matches!(rule, Rule::Deadlock { .. }), "{rule}");
    }
}

#[test]
fn a_grid_has_whole_clusters() {
    for (blocks, cluster) in [(4, 3), (4, 0), (34, 17), (1, 2)] {
        let found = run("", [blocks, cluster, 32], 0);
        let is_size = matches!(
            found,
            Err(Error::LaunchSize {
                what: "the cluster",
                ..
            })
        );
        assert!(is_size, "{found:?}");
    }
}
