//! Branches, loops and exits of lanes that diverge.

use crate::tiny::warp;

#[test]
fn lanes_diverge_and_meet_again() {
    let out = warp(
        "mov.b32 %r0, 0;
         setp.lt.u32 %p0, %lane, 20;
         @%p0 bra $low;
         mov.b32 %r1, 100;
         bra.uni $join;
       $low:
         and.b32 %r2, %lane, 1;
         setp.eq.b32 %p1, %r2, 0;
         mov.b32 %r1, 7;
         @!%p1 bra $join;
         mov.b32 %r1, 8;
       $join:
         shfl.sync.bfly.b32 %r3, %r1, 16, 0x1f, 0xffffffff;
         @%p0 add.s32 %r0, %r0, 5;
         st.global.v4.b32 [%out], {%r0, %r1, %r3, %r3};",
        &[],
    );
    let value = |lane: usize| match lane {
        20.. => 100,
        _ => 8 - lane as u32 % 2,
    };
    for (lane, words) in out.iter().enumerate() {
        let sum = if lane < 20 { 5 } else { 0 };
        assert_eq!(
            words[..3],
            [sum, value(lane), value(lane ^ 16)],
            "lane {lane}"
        );
    }
}

#[test]
fn a_loop_runs_as_long_as_each_lane_wants() {
    let out = warp(
        "mov.b32 %r0, 0;
       $top:
         setp.eq.b32 %p0, %r0, %lane;
         @%p0 bra $done;
         add.s32 %r0, %r0, 1;
         bra.uni $top;
       $done:
         redux.sync.add.s32 %r1, %r0, 0xffffffff;
         st.global.v2.b32 [%out], {%r0, %r1};",
        &[],
    );
    for (lane, words) in out.iter().enumerate() {
        assert_eq!(words[..2], [lane as u32, 31 * 32 / 2]);
    }
}

#[test]
fn lanes_that_exit_leave_the_others() {
    let out = warp(
        "setp.lt.u32 %p0, %lane, 4;
         @%p0 exit;
         st.global.b32 [%out], %lane;",
        &[],
    );
    for (lane, words) in out.iter().enumerate() {
        assert_eq!(words[0], if lane < 4 { u32::MAX } else { lane as u32 });
    }
}
