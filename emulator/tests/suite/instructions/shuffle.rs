//! `shfl.sync`, `redux.sync`, `vote.sync` and `elect.sync`.

use crate::tiny::{module, run_module, warp};
use emulator::Options;

#[test]
fn shuffles() {
    let shuffled = |instruction: &str| {
        let body = format!(
            "{instruction}; selp.b32 %r1, 1, 0, %p0; st.global.v2.b32 [%out], {{%r0, %r1}};"
        );
        warp(&body, &[])
            .iter()
            .map(|w| (w[0], w[1] == 1))
            .collect::<Vec<_>>()
    };
    let expect = |instruction: &str, f: &dyn Fn(u32) -> (u32, bool)| {
        let expected: Vec<_> = (0..32).map(f).collect();
        assert_eq!(shuffled(instruction), expected, "{instruction}");
    };
    expect("shfl.sync.bfly.b32 %r0|%p0, %lane, 5, 0x1f, -1", &|l| {
        (l ^ 5, true)
    });
    expect("shfl.sync.idx.b32 %r0|%p0, %lane, 9, 0x1f, -1", &|_| {
        (9, true)
    });
    expect("shfl.sync.up.b32 %r0|%p0, %lane, 3, 0, -1", &|l| {
        if l < 3 { (l, false) } else { (l - 3, true) }
    });
    expect("shfl.sync.down.b32 %r0|%p0, %lane, 3, 0x1f, -1", &|l| {
        if l > 28 { (l, false) } else { (l + 3, true) }
    });
    // Segments of 8 lanes.
    expect("shfl.sync.idx.b32 %r0|%p0, %lane, 2, 0x181f, -1", &|l| {
        (l / 8 * 8 + 2, true)
    });
    expect("shfl.sync.down.b32 %r0|%p0, %lane, 7, 0x181f, -1", &|l| {
        if l % 8 == 0 {
            (l + 7, true)
        } else {
            (l, false)
        }
    });
}

#[test]
fn reductions_and_votes() {
    let out = warp(
        "redux.sync.or.b32 %r0, %lane, 0xffffffff;
         redux.sync.max.u32 %r1, %lane, 0xffffffff;
         setp.gt.u32 %p0, %lane, 29;
         vote.sync.ballot.b32 %r2, %p0, 0xffffffff;
         vote.sync.any.pred %p1, %p0, 0xffffffff;
         vote.sync.all.pred %p2, %p0, 0xffffffff;
         selp.b32 %r3, 1, 0, %p1;
         selp.b32 %r4, 1, 0, %p2;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};
         st.global.b32 [%out+16], %r4;",
        &[],
    );
    assert!(
        out.iter()
            .all(|words| words[..5] == [31, 31, 0xc000_0000, 1, 0])
    );
}

#[test]
fn one_lane_is_elected() {
    let body = "elect.sync %r0|%p0, 0xffffffff; elect.sync _|%p1, 0xffffffff;
        selp.b32 %r1, 1, 0, %p0; selp.b32 %r2, 1, 0, %p1;
        st.global.b32 [%out], %r0; st.global.b32 [%out+4], %r1; st.global.b32 [%out+8], %r2;";
    let text = module(body).replace("sm_80", "sm_90");
    for seed in [0, 7, 40] {
        let options = Options {
            seed,
            ..Options::default()
        };
        let out = run_module(&text, 32, &[0], &options).unwrap();
        for (lane, words) in out.iter().enumerate() {
            let elected = u32::from(lane as u64 == seed % 32);
            assert_eq!(words[..3], [(seed % 32) as u32, elected, elected]);
        }
    }
}
