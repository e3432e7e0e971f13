//! Reductions by the copy engine: their sums, the orders that the rules allow, and blocks that take turns.

use crate::asynchronous::{SETUP, broken, clean};
use crate::tiny::{module, run_module, schedule};
use emulator::{Argument, Memory, Module, Options, Rule, launch};

const REDUCE: &str = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32";

/// One thread: `smem` and `smem+16` hold four times `a` and `b`, and four words of `%out` the f32 `to`.
fn sums(to: f32, a: f32, b: f32, body: &str) -> String {
    let [to, a, b] = [to, a, b].map(|x| format!("0f{:08x}", x.to_bits()));
    let four = |register: &str| [register; 4].join(", ");
    format!(
        "mov.b32 %r0, {to}; st.global.v4.b32 [%out], {{{}}};
        mov.b32 %r1, {a}; st.shared.v4.b32 [smem], {{{}}};
        mov.b32 %r2, {b}; st.shared.v4.b32 [smem+16], {{{}}};
        {body}",
        four("%r0"),
        four("%r1"),
        four("%r2")
    )
}

#[test]
fn a_reduction_adds() {
    let body = format!(
        "fence.proxy.async.shared::cta; {REDUCE} [%out], [%r11], 16;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        ld.global.b32 %r3, [%out]; st.global.b32 [%out+16], %r3;"
    );
    let words = clean(&sums(1.5, 2.0, 0.0, &body), 1);
    assert_eq!(words[..5], [3.5_f32.to_bits(); 5]);
    // NaN and opposite infinities give the NaN of arithmetic.
    for (to, a) in [(1.0, f32::NAN), (f32::INFINITY, f32::NEG_INFINITY)] {
        assert_eq!(clean(&sums(to, a, 0.0, &body), 1)[0], 0x7fff_ffff);
    }
}

#[test]
fn reductions_add_in_any_order() {
    // 2^24 + 1 - 2^24 is 0 or 1 in f32.
    let body = |between: &str| {
        sums(
            16_777_216.0,
            1.0,
            -16_777_216.0,
            &format!(
                "fence.proxy.async.shared::cta; {REDUCE} [%out], [%r11], 16; {between}
                add.s32 %r12, %r11, 16; {REDUCE} [%out], [%r12], 16;
                cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
            ),
        )
    };
    let results = |between: &str| -> Vec<f32> {
        let text = module(&format!("{SETUP} {}", body(between))).replace("sm_80", "sm_90a");
        let words = (0..30).map(|seed| run_module(&text, 1, &[0], &schedule(seed)).unwrap()[0][0]);
        words.map(f32::from_bits).collect()
    };
    let wait_read = "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;";
    for unordered in ["", "cp.async.bulk.commit_group;", wait_read] {
        let found = results(unordered);
        assert!(
            found.contains(&0.0) && found.contains(&1.0),
            "{unordered}: {found:?}"
        );
    }
    let ordered = results("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;");
    assert_eq!(ordered, [0.0; 30]);
}

/// Values written over a source after it was read are not added.
#[test]
fn a_reduction_adds_what_it_read() {
    let text = format!(
        "fence.proxy.async.shared::cta; {REDUCE} [%out], [%r11], 16;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
        st.shared.v4.b32 [smem], {{%r2, %r2, %r2, %r2}};
        fence.proxy.async.shared::cta; {REDUCE} [%out], [%r11], 16;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
    );
    let text = module(&format!("{SETUP} {}", sums(1.0, 2.0, 4.0, &text)));
    let text = text.replace("sm_80", "sm_90a");
    for seed in 0..30 {
        let words = run_module(&text, 1, &[0], &schedule(seed)).unwrap();
        assert_eq!(f32::from_bits(words[0][0]), 7.0);
    }
}

#[test]
fn a_reduction_has_the_rules_of_a_store() {
    let end = "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;";
    let body = |text: &str| sums(0.0, 1.0, 2.0, text);
    let fence = "fence.proxy.async.shared::cta;";
    let reduce = format!("{REDUCE} [%out], [%r11], 16;");
    let unfenced = broken(&body(&format!("{reduce} {end}")), 1);
    assert!(
        matches!(unfenced, Rule::MissingProxyFence { .. }),
        "{unfenced}"
    );
    let write = "st.shared.b32 [smem], %r2;";
    for early in [
        "",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 1;",
    ] {
        let rule = broken(&body(&format!("{fence} {reduce} {early} {write} {end}")), 1);
        assert!(
            matches!(rule, Rule::BulkCopySource { .. }),
            "{early}: {rule}"
        );
    }
    clean(&body(&format!("{fence} {reduce} {end} {write}")), 1);
    let unread = broken(
        &body(&format!("{fence} {reduce} cp.async.bulk.commit_group;")),
        1,
    );
    assert!(matches!(unread, Rule::UnfinishedBulkCopy), "{unread}");
    let to = |place: &str, bytes: u32| {
        broken(
            &body(&format!(
                "{fence} {REDUCE} [{place}], [%r11], {bytes}; {end}"
            )),
            1,
        )
    };
    assert_eq!(to("%out", 8), Rule::BulkCopySize { bytes: 8 });
    assert_eq!(to("%in", 16), Rule::GlobalReadOnly);
    assert_eq!(to("%out+16", 16), Rule::GlobalUninitialised);
    assert_eq!(to("%out+4", 16), Rule::GlobalMisaligned { bytes: 16 });
}

/// Two blocks, of which the second adds after the first has: each waits for its turn.
#[test]
fn blocks_that_take_turns_add_in_order() {
    let text = |wait: &str| {
        let body = format!(
            "setp.ne.b32 %p0, %tid, 0; @%p0 bra $end;
            ld.param.u64 %out, [out]; mov.u32 %r5, %ctaid.x;
            setp.eq.u32 %p1, %r5, 0; selp.b32 %r1, 0f3f800000, 0fcb800000, %p1;
            st.shared.v4.b32 [smem], {{%r1, %r1, %r1, %r1}};
            fence.proxy.async.shared::cta;
        $turn:
            ld.acquire.gpu.global.b32 %r6, [%out+16]; setp.eq.u32 %p2, %r6, %r5; @%p2 bra $mine;
            nanosleep.u32 20; bra.uni $turn;
        $mine:
            {REDUCE} [%out], [%r11], 16; cp.async.bulk.commit_group; {wait}
            add.u32 %r6, %r6, 1; st.release.gpu.global.b32 [%out+16], %r6;
            cp.async.bulk.wait_group 0;
        $end:"
        );
        module(&format!("add.s32 %r11, %smem, 0; {body}")).replace("sm_80", "sm_90a")
    };
    let total = |wait: &str, seed: u64| {
        let module = Module::parse(&text(wait), "turns.ptx").unwrap();
        let memory = Memory::new();
        let out = memory.allocate(32);
        let start = [16_777_216.0_f32.to_bits(), 0, 0, 0, 0, 0, 0, 0];
        memory.write(out, bytemuck::cast_slice(&start)).unwrap();
        let arguments = [Argument::U64(out), Argument::U64(out)];
        let kernel = module.entry("tiny").unwrap();
        let options = Options {
            seed,
            ..Options::default()
        };
        launch(
            &memory,
            kernel,
            [2, 1, 1],
            [32, 1, 1],
            1024,
            &arguments,
            &options,
        )
        .unwrap();
        let mut words = [0_u32; 8];
        memory
            .read(out, bytemuck::cast_slice_mut(&mut words))
            .unwrap();
        f32::from_bits(words[0])
    };
    for seed in 0..10 {
        assert_eq!(total("cp.async.bulk.wait_group 0;", seed), 0.0);
    }
}
