//! `ld.param` and special registers.

use crate::tiny::{run, warp};

/// A value is extended by zeros or by its sign.
#[test]
fn parameters_are_extended_to_wider_registers() {
    let [low, unsigned, zeros, signed, signs, ..] = warp(
        "ld.param.b32 %r0, [input];
         ld.param.b32 %d0, [input];
         ld.param.s32 %d1, [input];
         mov.b64 {%r1, %r2}, %d0;
         mov.b64 {%r3, %r4}, %d1;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};
         st.global.b32 [%out+16], %r4;",
        &[],
    )[0];
    assert_eq!([unsigned, zeros], [low, 0]);
    assert_eq!(
        [signed, signs],
        [low, (low.cast_signed() >> 31).cast_unsigned()]
    );
}

#[test]
fn special_registers_count_threads() {
    let out = run(
        "mov.u32 %r0, %ntid.x; st.global.v2.b32 [%out], {%tid, %r0};",
        70,
        &[],
    )
    .unwrap();
    for (thread, words) in out.iter().enumerate() {
        assert_eq!(words[..2], [thread as u32, 70]);
    }
}
