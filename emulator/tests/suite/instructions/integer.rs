//! Integers: arithmetic, shifts, fields of bits, and widths of 16 and 64 bits.

use super::eval;
use crate::tiny::warp;

#[test]
fn integer_arithmetic() {
    let minus = |n: i32| -n as u32;
    for (instruction, operands, expected) in [
        ("add.s32 %r0, %r1, %r2", [u32::MAX, 3], 2),
        ("sub.s32 %r0, %r1, %r2", [1, 3], minus(2)),
        ("mul.lo.s32 %r0, %r1, %r2", [minus(3), 5], minus(15)),
        ("mul.hi.u32 %r0, %r1, %r2", [1 << 31, 6], 3),
        ("mul.hi.s32 %r0, %r1, %r2", [minus(1), 6], u32::MAX),
        ("mad.lo.s32 %r0, %r1, 10, %r2", [4, 2], 42),
        ("div.u32 %r0, %r1, %r2", [minus(6), 2], (u32::MAX - 5) / 2),
        ("div.s32 %r0, %r1, %r2", [minus(7), 2], minus(3)),
        ("div.u32 %r0, %r1, %r2", [7, 0], u32::MAX),
        ("rem.s32 %r0, %r1, %r2", [minus(7), 2], minus(1)),
        ("min.s32 %r0, %r1, %r2", [minus(1), 1], minus(1)),
        ("min.u32 %r0, %r1, %r2", [minus(1), 1], 1),
        ("max.s32 %r0, %r1, %r2", [minus(1), 1], 1),
        ("shl.b32 %r0, %r1, %r2", [1, 31], 1 << 31),
        ("shl.b32 %r0, %r1, %r2", [1, 32], 0),
        ("shr.u32 %r0, %r1, %r2", [1 << 31, 31], 1),
        ("shr.u32 %r0, %r1, %r2", [1 << 31, 33], 0),
        ("shr.s32 %r0, %r1, %r2", [1 << 31, 99], u32::MAX),
        ("bfe.u32 %r0, %r1, 4, %r2", [0xabcd, 8], 0xbc),
        ("bfe.s32 %r0, %r1, 4, %r2", [0xabcd, 8], 0xffff_ffbc),
        ("bfe.u32 %r0, %r1, 28, %r2", [0xf000_0000, 8], 0xf),
        ("xor.b32 %r0, %r1, %r2", [0b1100, 0b1010], 0b0110),
        (
            "prmt.b32 %r0, %r1, %r2, 0x5410",
            [0x1111_2222, 0x3333_4444],
            0x4444_2222,
        ),
        (
            "shf.l.wrap.b32 %r0, %r1, %r2, 36",
            [0xabcd_0000, 0x1234],
            0x0001_234a,
        ),
        (
            "shf.r.wrap.b32 %r0, %r1, %r2, 36",
            [0xabcd_0000, 0x1234],
            0x4abc_d000,
        ),
        (
            "shf.l.clamp.b32 %r0, %r1, %r2, 36",
            [0xabcd_0000, 0x1234],
            0xabcd_0000,
        ),
        (
            "shf.r.clamp.b32 %r0, %r1, %r2, 36",
            [0xabcd_0000, 0x1234],
            0x1234,
        ),
        ("prmt.b32 %r0, %r1, %r2, 0x000b", [0x8000_0000, 0], 0xff),
        ("popc.b32 %r0, %r1; add.s32 %r0, %r0, %r2", [0xff, 0], 8),
        ("clz.b32 %r0, %r1; add.s32 %r0, %r0, %r2", [1, 0], 31),
    ] {
        assert_eq!(eval(instruction, &operands), expected, "{instruction}");
    }
}

#[test]
fn long_and_short_integers() {
    let out = warp(
        "mul.wide.u32 %d0, -1, 16;
         mov.b64 {%r0, %r1}, %d0;
         mul.wide.s32 %d1, -2, 3;
         cvt.u32.u64 %r2, %d1;
         shr.s64 %d2, %d1, 32;
         cvt.u32.u64 %r3, %d2;
         mad.lo.s64 %d3, %d1, %d1, 6;
         cvt.u32.u64 %r4, %d3;
         mov.b64 %d4, {%r2, %r4};
         shr.u64 %d5, %d4, 32;
         cvt.u32.u64 %r5, %d5;
         mov.b16 %h0, -1;
         cvt.s32.s16 %r6, %h0;
         cvt.u32.u16 %r7, %h0;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};
         st.global.v4.b32 [%out+16], {%r4, %r5, %r6, %r7};",
        &[],
    );
    let minus = |n: i32| -n as u32;
    assert_eq!(
        out[0],
        [
            0xffff_fff0,
            15,
            minus(6),
            minus(1),
            42,
            42,
            u32::MAX,
            0xffff
        ]
    );
}
