//! Floats: arithmetic, special values, comparison.

use super::{eval, eval_f32};

#[test]
fn float_arithmetic() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let tiny = f32::from_bits(1);
    for (instruction, operands, expected) in [
        (
            "add.rn.f32 %r0, %r1, %r2",
            [16_777_216.0, 1.0],
            16_777_216.0,
        ),
        ("mul.rn.f32 %r0, %r1, %r2", [tiny, 2.0], f32::from_bits(2)),
        ("mul.rn.ftz.f32 %r0, %r1, %r2", [tiny, 1e30], 0.0),
        (
            "fma.rn.f32 %r0, %r1, %r1, %r2",
            [1.0 + f32::EPSILON, -1.0],
            2.0 * f32::EPSILON + f32::EPSILON * f32::EPSILON,
        ),
        ("max.f32 %r0, %r1, %r2", [nan, 1.0], 1.0),
        ("min.f32 %r0, %r1, %r2", [-infinity, nan], -infinity),
        ("sub.sat.f32 %r0, %r1, %r2", [5.0, 1.0], 1.0),
        ("div.rn.f32 %r0, %r1, %r2", [1.0, 3.0], 1.0 / 3.0),
        (
            "rcp.approx.ftz.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [4.0, 0.0],
            0.25,
        ),
        (
            "ex2.approx.ftz.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [3.0, 0.0],
            8.0,
        ),
        (
            "ex2.approx.ftz.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [-infinity, 0.0],
            0.0,
        ),
        (
            "ex2.approx.ftz.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [infinity, 0.0],
            infinity,
        ),
        (
            "ex2.approx.ftz.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [-127.0, 0.0],
            0.0,
        ),
        (
            "ex2.approx.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [-127.0, 0.0],
            f32::MIN_POSITIVE / 2.0,
        ),
        (
            "lg2.approx.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [0.0, 0.0],
            -infinity,
        ),
        (
            "lg2.approx.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [8.0, 0.0],
            3.0,
        ),
        (
            "tanh.approx.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [-infinity, 0.0],
            -1.0,
        ),
        (
            "tanh.approx.f32 %r0, %r1; add.rn.f32 %r0, %r0, %r2",
            [0.5, 0.0],
            0.462_117_16,
        ),
        ("abs.f32 %r0, %r1; max.f32 %r0, %r0, %r2", [-2.0, 0.0], 2.0),
    ] {
        assert_eq!(
            eval_f32(instruction, &operands).to_bits(),
            expected.to_bits(),
            "{instruction}"
        );
    }
    let invalid = eval("sub.rn.f32 %r0, %r1, %r1", &[infinity.to_bits()]);
    assert_eq!(invalid, 0x7fff_ffff);
    assert!(eval_f32("ex2.approx.ftz.f32 %r0, %r1", &[nan]).is_nan());
}

#[test]
fn comparisons_with_nan() {
    let holds = |relation: &str, a: f32, b: f32| {
        let select = format!("setp.{relation}.f32 %p0, %r1, %r2; selp.b32 %r0, 1, 0, %p0");
        eval(&select, &[a.to_bits(), b.to_bits()]) == 1
    };
    let nan = f32::NAN;
    for (relation, less, equal, unordered) in [
        ("eq", false, true, false),
        ("ne", true, false, false),
        ("lt", true, false, false),
        ("ge", false, true, false),
        ("equ", false, true, true),
        ("neu", true, false, true),
        ("ltu", true, false, true),
        ("geu", false, true, true),
        ("num", true, true, false),
        ("nan", false, false, true),
    ] {
        let found = (
            holds(relation, 1.0, 2.0),
            holds(relation, 2.0, 2.0),
            holds(relation, nan, 2.0),
        );
        assert_eq!(found, (less, equal, unordered), "{relation}");
    }
}
