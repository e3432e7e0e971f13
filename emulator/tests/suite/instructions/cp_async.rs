//! `cp.async` and its groups.

use crate::tiny::warp;

#[test]
fn copies_land_with_zeros_behind_the_source() {
    let out = warp(
        "shl.b32 %r0, %lane, 4;
         add.s32 %r0, %r0, %smem;
         and.b32 %r1, %lane, 15;
         cp.async.cg.shared.global [%r0], [%in], 16, %r1;
         cp.async.commit_group;
         cp.async.wait_group 0;
         ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%r0];
         st.global.v4.b32 [%out], {%r2, %r3, %r4, %r5};",
        &[0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d],
    );
    for (lane, words) in out.iter().enumerate() {
        let bytes: &[u8] = bytemuck::cast_slice(&words[..4]);
        let expected = (1..=16).map(|i| if i <= lane % 16 { i as u8 } else { 0 });
        assert!(bytes.iter().copied().eq(expected), "lane {lane}: {bytes:?}");
    }
}

#[test]
fn older_groups_land_while_younger_ones_may_wait() {
    let out = warp(
        "shl.b32 %r0, %lane, 4;
         add.s32 %r0, %r0, %smem;
         cp.async.ca.shared.global [%r0], [%in], 4;
         cp.async.commit_group;
         cp.async.ca.shared.global [%r0+4], [%in+4], 4;
         cp.async.commit_group;
         cp.async.ca.shared.global [%r0+8], [%in+8], 4;
         cp.async.wait_group 1;
         ld.shared.b32 %r1, [%r0];
         cp.async.wait_group 0;
         ld.shared.b32 %r2, [%r0+4];
         cp.async.wait_all;
         ld.shared.b32 %r3, [%r0+8];
         st.global.v4.b32 [%out], {%r1, %r2, %r3, %r3};",
        &[10, 20, 30],
    );
    assert_eq!(out[7][..3], [10, 20, 30]);
}
