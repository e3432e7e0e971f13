//! `cvt`: rounding, overflow, NaN.

use super::eval;

#[test]
fn conversions_round_to_nearest_even() {
    // Ties of f16 near 1 and 2048, overflow, underflow to a subnormal's tie.
    let values = [
        1.0 + 2_f32.powi(-11),
        1.0 + 3.0 * 2_f32.powi(-11),
        65520.0,
        65519.0,
        2_f32.powi(-25),
        -0.0,
    ];
    let expected = [0x3c00, 0x3c02, 0x7c00, 0x7bff, 0, 0x8000];
    for (x, bits) in values.into_iter().zip(expected) {
        assert_eq!(
            eval("cvt.rn.f16x2.f32 %r0, 0f40000000, %r1", &[x.to_bits()]),
            0x4000 << 16 | bits
        );
    }
    let values = [
        1.0 + 2_f32.powi(-8),
        1.0 + 3.0 * 2_f32.powi(-8),
        f32::MAX,
        1e-45,
    ];
    let expected = [0x3f80, 0x3f82, 0x7f80, 0];
    for (x, bits) in values.into_iter().zip(expected) {
        assert_eq!(
            eval("cvt.rn.bf16x2.f32 %r0, %r1, 0f00000000", &[x.to_bits()]) >> 16,
            bits
        );
    }
    let nan = eval("cvt.rn.f16x2.f32 %r0, %r1, %r1", &[f32::NAN.to_bits()]);
    assert_eq!(nan, 0x7fff_7fff);
    assert_eq!(
        eval("cvt.rn.f32.s32 %r0, %r1", &[-3_i32 as u32]),
        (-3_f32).to_bits()
    );
    assert_eq!(
        eval("cvt.rzi.s32.f32 %r0, %r1", &[(-2.7_f32).to_bits()]),
        -2_i32 as u32
    );
    assert_eq!(eval("cvt.rni.s32.f32 %r0, %r1", &[2.5_f32.to_bits()]), 2);
}
