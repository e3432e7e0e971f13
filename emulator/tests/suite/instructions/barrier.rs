//! `bar.sync` and `bar.arrive`.

use crate::tiny::run;

#[test]
fn barriers_hand_data_from_warp_to_warp() {
    // Warps 0 and 1 produce, 2 and 3 consume, through barrier 1; all meet at barrier 0.
    let out = run(
        "shl.b32 %r0, %tid, 2;
         add.s32 %r0, %r0, %smem;
         mov.b32 %r1, 0;
         setp.lt.u32 %p0, %warp, 2;
         @!%p0 bra $consume;
         st.shared.b32 [%r0], %tid;
         bar.arrive 1, 128;
         bra.uni $end;
       $consume:
         bar.sync 1, 128;
         ld.shared.b32 %r1, [%r0+-256];
       $end:
         bar.sync 0;
         st.global.b32 [%out], %r1;",
        128,
        &[],
    );
    for (thread, words) in out.unwrap().iter().enumerate() {
        assert_eq!(words[0], (thread as u32).saturating_sub(64));
    }
}
