//! `stmatrix`, by what `ldmatrix` reads back.

use crate::tiny::{module, run_module};
use emulator::Options;

/// Stores four matrices and loads them; the four words of each lane.
fn round_trip(store: &str, load: &str) -> Vec<[u32; 4]> {
    let body = format!(
        "shl.b32 %r4, %lane, 4; add.s32 %r4, %r4, %smem;
        add.s32 %r0, %lane, 0; add.s32 %r1, %lane, 0x10040; add.s32 %r2, %lane, 0x20080;
        add.s32 %r3, %lane, 0x300c0;
        stmatrix.sync.aligned.m8n8.x4{store}.shared.b16 [%r4], {{%r0, %r1, %r2, %r3}};
        bar.warp.sync 0xffffffff;
        ldmatrix.sync.aligned.m8n8.x4{load}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r4];
        st.global.v4.b32 [%out], {{%r10, %r11, %r12, %r13}};"
    );
    let text = module(&body).replace("sm_80", "sm_90");
    let words = run_module(&text, 32, &[0], &Options::default());
    let words = words.unwrap_or_else(|error| panic!("{error}"));
    words.iter().map(|w| [w[0], w[1], w[2], w[3]]).collect()
}

#[test]
fn matrices_come_back() {
    let expected: Vec<[u32; 4]> = (0..32)
        .map(|lane| [0, 0x10040, 0x20080, 0x300c0].map(|word| word + lane))
        .collect();
    assert_eq!(round_trip("", ""), expected);
    assert_eq!(round_trip(".trans", ".trans"), expected);
    let transposed = round_trip(".trans", "");
    assert_ne!(transposed, expected);
    assert_eq!(round_trip("", ".trans"), transposed);
}

#[test]
fn other_lanes_see_it_after_a_barrier() {
    let body = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], %lane; ld.shared.b32 %r0, [smem];";
    let body = format!("shl.b32 %r4, %lane, 4; add.s32 %r4, %r4, %smem; {body}");
    let text = module(&body).replace("sm_80", "sm_90");
    let error = run_module(&text, 32, &[0], &Options::default()).unwrap_err();
    assert!(
        error.to_string().contains("races with the write"),
        "{error}"
    );
}
