//! `ldmatrix`, plain and transposed.

use crate::tiny::{WORDS, warp};

/// Fills shared memory with 16-bit elements that count from 0, four matrices of 8x8, and loads them.
fn matrices(instruction: &str) -> Vec<[u32; WORDS]> {
    let input: Vec<u32> = (0..128).map(|i| ((2 * i + 1) << 16) | (2 * i)).collect();
    warp(
        &format!(
            "mad.wide.u32 %d0, %lane, 16, %in;
             ld.global.nc.v4.b32 {{%r0, %r1, %r2, %r3}}, [%d0];
             shl.b32 %r4, %lane, 4;
             add.s32 %r4, %r4, %smem;
             st.shared.v4.b32 [%r4], {{%r0, %r1, %r2, %r3}};
             bar.warp.sync 0xffffffff;
             {instruction}
             st.global.v4.b32 [%out], {{%r10, %r11, %r12, %r13}};"
        ),
        &input,
    )
}

#[test]
fn ldmatrix_hands_out_rows() {
    let out = matrices("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r4];");
    for (lane, words) in out.iter().enumerate() {
        for (matrix, word) in words[..4].iter().enumerate() {
            let first = (64 * matrix + 8 * (lane / 4) + 2 * (lane % 4)) as u32;
            assert_eq!(
                *word,
                (first + 1) << 16 | first,
                "lane {lane}, matrix {matrix}"
            );
        }
    }
}

#[test]
fn ldmatrix_trans_hands_out_columns() {
    let out =
        matrices("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r10, %r11, %r12, %r13}, [%r4];");
    for (lane, words) in out.iter().enumerate() {
        for (matrix, word) in words[..4].iter().enumerate() {
            let low = (64 * matrix + 8 * (2 * (lane % 4)) + lane / 4) as u32;
            assert_eq!(*word, (low + 8) << 16 | low, "lane {lane}, matrix {matrix}");
        }
    }
}

#[test]
fn ldmatrix_of_two_takes_sixteen_addresses() {
    let out = matrices(
        "setp.lt.u32 %p0, %lane, 16;
         selp.b32 %r4, %r4, 0, %p0;
         mov.b32 %r12, 0; mov.b32 %r13, 0;
         ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r4];",
    );
    assert_eq!(out[5][..2], [(11 << 16) | 10, (75 << 16) | 74]);
}
