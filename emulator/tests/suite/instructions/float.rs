//! Floats: arithmetic, special values, comparison.

use super::{eval, eval_f32};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

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

/// Against f64, where products and most sums of 16-bit numbers are exact.
#[test]
fn pairs_of_16_bits() {
    let random = &mut StdRng::seed_from_u64(3);
    for _ in 0..200 {
        let [a, b, c]: [u32; 3] = std::array::from_fn(|_| random.random());
        let found = [
            eval("mul.rn.f16x2 %r0, %r1, %r2", &[a, b]),
            eval("fma.rn.f16x2 %r0, %r1, %r2, %r3", &[a, b, c]),
            eval("mul.rn.bf16x2 %r0, %r1, %r2", &[a, b]),
            eval("fma.rn.bf16x2 %r0, %r1, %r2, %r3", &[a, b, c]),
        ];
        for shift in [0, 16] {
            let element = |bits: u32| (bits >> shift) as u16;
            let [x, y, z] = [a, b, c].map(|bits| f16::from_bits(element(bits)).to_f64());
            for (found, exact) in [(found[0], x * y), (found[1], x.mul_add(y, z))] {
                let nearest = nearest(element(found), exact, |bits| f16::from_bits(bits).to_f64());
                assert!(nearest, "{x} {y} {z}: {found:#x}");
            }
            let [x, y, z] = [a, b, c].map(|bits| bf16::from_bits(element(bits)).to_f64());
            for (found, exact) in [(found[2], x * y), (found[3], x.mul_add(y, z))] {
                let nearest = nearest(element(found), exact, |bits| bf16::from_bits(bits).to_f64());
                assert!(nearest, "{x} {y} {z}: {found:#x}");
            }
        }
    }
    // 3 * 683 / 2048 lies amid 1 and the next number; what is added decides, though f32 would lose it.
    for (added, expected) in [(0, 0x3c00), (0x0001, 0x3c01), (0x8001, 0x3c00)] {
        let found = eval("fma.rn.f16x2 %r0, %r1, %r2, %r3", &[0x4200, 0x3556, added]);
        assert_eq!(found, expected, "{added:#x}");
    }
}

/// Whether no neighbour of a 16-bit number is nearer to an exact one.
fn nearest(bits: u16, exact: f64, widen: impl Fn(u16) -> f64) -> bool {
    let found = widen(bits);
    if found.is_nan() || exact.is_nan() {
        return found.is_nan() && exact.is_nan();
    }
    if found.is_infinite() || exact.is_infinite() {
        return found.signum() == exact.signum() && exact.abs() >= widen((bits & 0x7fff) - 1);
    }
    let distance = |bits: u16| (widen(bits) - exact).abs();
    let neighbours = [bits.wrapping_add(1), bits.wrapping_sub(1)];
    neighbours
        .iter()
        .filter(|n| widen(**n).is_finite())
        .all(|n| distance(bits) <= distance(*n))
}
