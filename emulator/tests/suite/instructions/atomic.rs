//! `atom`.

use crate::tiny::{broken, warp};
use emulator::Rule;

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
fn atomics_keep_the_rules_of_global_memory() {
    let add = |address: &str| format!("atom.global.add.u32 %r0, [{address}], 1;");
    assert_eq!(broken(&add("%in"), 1, &[0]), Rule::GlobalReadOnly);
    assert_eq!(broken(&add("%out"), 1, &[0]), Rule::GlobalUninitialised);
    let misaligned = Rule::GlobalMisaligned { bytes: 4 };
    assert_eq!(broken(&add("%out+2"), 1, &[0]), misaligned);
}
