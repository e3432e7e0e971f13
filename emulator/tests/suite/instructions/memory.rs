//! `ld` and `st` of each width.

use crate::tiny::{broken, run, warp};
use emulator::Rule;

/// Memory under a prefetch need not be written yet.
#[test]
fn a_prefetch_needs_memory() {
    run(
        "prefetch.global.L2 [%in+12]; prefetch.global.L2 [%out+3];",
        1,
        &[0; 4],
    )
    .unwrap();
    let outside = broken("prefetch.global.L2 [%in+16];", 1, &[0; 4]);
    assert_eq!(outside, Rule::GlobalOutOfBounds { bytes: 1 });
}

#[test]
fn narrow_and_wide_memory_accesses() {
    let out = warp(
        "st.global.b8 [%out], 0x81;
         st.global.b8 [%out+1], 2;
         st.global.u16 [%out+2], 0x8003;
         ld.global.s8 %r0, [%out];
         ld.global.u8 %h0, [%out+1];
         cvt.u32.u16 %r1, %h0;
         ld.global.s16 %r2, [%out+2];
         ld.global.u32 %r3, [%out];
",
        &[],
    );
    assert_eq!(out[0][0], 0x8003_0281);
    let out = warp(
        "ld.global.s8 %r0, [%in];
         ld.global.u8 %h0, [%in+1];
         cvt.u32.u16 %r1, %h0;
         ld.global.s16 %r2, [%in+2];
         ld.global.v2.b64 {%d0, %d1}, [%in+16];
         cvt.u32.u64 %r3, %d1;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};",
        &[0x8003_0281, 0, 0, 0, 1, 2, 3, 4],
    );
    assert_eq!(out[0][..4], [0xffff_ff81, 2, 0xffff_8003, 3]);
}
