//! Floats of 16 bits, single ones and pairs: arithmetic, special values, comparison.

use super::eval;
use crate::tiny::{hopper_warp, module};
use emulator::Module;
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A pair of f16, the first one in the low half.
fn pair(elements: [f32; 2]) -> u32 {
    let [low, high] = elements.map(|x| u32::from(f16::from_f32(x).to_bits()));
    high << 16 | low
}

#[test]
fn pairs_of_f16() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let tiny = f16::from_bits(1).to_f32();
    for (operation, a, b, expected) in [
        // A tie, and a sum that leaves the range.
        (
            "add.rn",
            [2048.0, 65504.0],
            [1.0, 65504.0],
            [2048.0, infinity],
        ),
        ("add", [-0.0, tiny], [-0.0, tiny], [-0.0, 2.0 * tiny]),
        ("sub", [1.0, 0.0], [1.0, -0.0], [0.0, 0.0]),
        ("sub", [3.0, -infinity], [5.0, 1.0], [-2.0, -infinity]),
        ("mul", [3.0, 65504.0], [-5.0, 2.0], [-15.0, infinity]),
        ("max", [nan, -0.0], [1.0, 0.0], [1.0, 0.0]),
        ("min", [-infinity, -0.0], [nan, 0.0], [-infinity, -0.0]),
        ("max", [2.0, -1.0], [3.0, -2.0], [3.0, -1.0]),
        ("min.NaN", [2.0, -1.0], [3.0, -2.0], [2.0, -2.0]),
        ("max.NaN", [2.0, -1.0], [3.0, -2.0], [3.0, -1.0]),
    ] {
        let (a, b, expected) = (pair(a), pair(b), pair(expected));
        let found = eval(&format!("{operation}.f16x2 %r0, %r1, %r2"), &[a, b]);
        assert_eq!(found, expected, "{operation} {a:#x} {b:#x}: {found:#x}");
        let single = format!(
            "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; {operation}.f16 %h0, %h1, %h2; cvt.u32.u16 %r0, %h0"
        );
        assert_eq!(eval(&single, &[a, b]), expected & 0xffff, "{operation}");
    }
    for (operation, a, expected) in [
        ("ex2.approx", [3.0, -infinity], [8.0, 0.0]),
        ("ex2.approx", [-24.0, 16.0], [tiny, infinity]),
        ("tanh.approx", [infinity, -0.0], [1.0, -0.0]),
        ("neg", [1.0, -0.0], [-1.0, 0.0]),
        ("abs", [-1.0, -infinity], [1.0, infinity]),
    ] {
        let found = eval(&format!("{operation}.f16x2 %r0, %r1"), &[pair(a)]);
        assert_eq!(found, pair(expected), "{operation} {a:?}: {found:#x}");
    }
    let single = "cvt.u16.u32 %h1, %r1; ex2.approx.f16 %h0, %h1; cvt.u32.u16 %r0, %h0";
    assert_eq!(eval(single, &[pair([-1.0, 0.0])]), 0x3800);
    let clamped = "fma.rn.relu.f16x2 %r0, %r1, %r2, %r2";
    let found = eval(clamped, &[pair([2.0, -3.0]), pair([1.5, 1.0])]);
    assert_eq!(found, pair([4.5, 0.0]));
    let found = eval(clamped, &[pair([-1.0, -infinity]), pair([1.5, 1.0])]);
    assert_eq!(found, 0, "a zero is positive");
    let fused = "cvt.u16.u32 %h1, %r1; fma.rn.f16 %h0, %h1, %h1, %h1; cvt.u32.u16 %r0, %h0";
    assert_eq!(eval(fused, &[pair([2.0, 0.0])]), pair([6.0, 0.0]));
}

#[test]
fn there_is_one_nan_of_results() {
    let nan = 0xfe01_7e01;
    for operation in [
        "add.f16x2 %r0, %r1, %r2",
        "max.f16x2 %r0, %r1, %r1",
        "max.NaN.f16x2 %r0, %r1, %r2",
        "min.NaN.f16x2 %r0, %r2, %r1",
        "ex2.approx.f16x2 %r0, %r1",
        "tanh.approx.f16x2 %r0, %r1",
        "fma.rn.relu.f16x2 %r0, %r1, %r2, %r2",
    ] {
        assert_eq!(
            eval(operation, &[nan, pair([1.0, 1.0])]),
            0x7fff_7fff,
            "{operation}"
        );
    }
    let infinity = pair([f32::INFINITY; 2]);
    assert_eq!(eval("sub.f16x2 %r0, %r1, %r1", &[infinity]), 0x7fff_7fff);
}

#[test]
fn pairs_of_bf16_add_on_hopper() {
    let sum = "add.bf16x2 %r0, %r1, %r1;";
    let error = Module::parse(&module(sum), "tiny.ptx").unwrap_err();
    assert!(error.to_string().contains("sm_90"), "{error}");
    let body = format!("mov.b32 %r1, 0x3f80c000; {sum} st.global.b32 [%out], %r0;");
    assert_eq!(hopper_warp(&body, &[])[0][0], 0x4000_c080);
}

#[test]
fn f16_compare() {
    let holds = |relation: &str, a: f32, b: f32| {
        let select = format!(
            "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; setp.{relation}.f16 %p0, %h1, %h2; selp.b32 %r0, 1, 0, %p0"
        );
        eval(&select, &[pair([a, 9.0]), pair([b, -9.0])]) == 1
    };
    assert!(holds("lt", -1.0, 2.0) && !holds("lt", 2.0, -1.0) && !holds("ge", f32::NAN, 1.0));
    assert!(holds("eq", 0.0, -0.0) && holds("geu", f32::NAN, 1.0));
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
