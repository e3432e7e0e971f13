//! `mma.sync` beside a plain product.

use crate::tiny::{hopper_warp, warp};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Runs an mma with random operands, given by rows and columns, and returns `A * B + C` by rows,
/// from the emulator and from a plain product.
fn product(
    types: &str,
    depth: usize,
    round: fn(f32) -> u16,
    widen: fn(u16) -> f32,
) -> (Vec<f32>, Vec<f32>) {
    let mut random = StdRng::seed_from_u64(7);
    let mut matrix = |n: usize| {
        (0..n)
            .map(|_| round(random.random_range(-2.0..2.0)))
            .collect::<Vec<u16>>()
    };
    let (a, b, c) = (matrix(16 * depth), matrix(depth * 8), matrix(16 * 8));
    let half_sums = types.ends_with("f16.f16.f16.f16");
    let (g, t) = (|lane: usize| lane / 4, |lane: usize| lane % 4);
    let pair = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
    let mut input = Vec::new();
    for lane in 0..32 {
        for i in 0..depth / 4 {
            let (row, k) = (g(lane) + 8 * (i % 2), 2 * t(lane) + 8 * (i / 2));
            input.push(pair(a[row * depth + k], a[row * depth + k + 1]));
        }
        for i in 0..depth / 8 {
            let (k, n) = (2 * t(lane) + 8 * i, g(lane));
            input.push(pair(b[k * 8 + n], b[(k + 1) * 8 + n]));
        }
        for i in 0..2 {
            let at = (g(lane) + 8 * i) * 8 + 2 * t(lane);
            if half_sums {
                input.push(pair(c[at], c[at + 1]));
            } else {
                input.extend([widen(c[at]).to_bits(), widen(c[at + 1]).to_bits()]);
            }
        }
    }
    let words = input.len() / 32;
    let (of_a, of_b) = (depth / 4, depth / 8);
    let list = |range: std::ops::Range<usize>| {
        range
            .map(|i| format!("%r{i}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut body = format!("mad.wide.u32 %d0, %lane, {}, %in;", 4 * words);
    for word in 0..words {
        body += &format!("ld.global.b32 %r{word}, [%d0+{}];", 4 * word);
    }
    let sums = list(of_a + of_b..words);
    body += &format!(
        "mma.sync.aligned.m16n8k{depth}.row.col.{types} {{{sums}}}, {{{}}}, {{{}}}, {{{sums}}};",
        list(0..of_a),
        list(of_a..of_a + of_b),
    );
    for (i, word) in (of_a + of_b..words).enumerate() {
        body += &format!("st.global.b32 [%out+{}], %r{word};", 4 * i);
    }
    let out = warp(&body, &input);
    let mut found = vec![0.0; 128];
    for (lane, words) in out.iter().enumerate() {
        for i in 0..4 {
            let at = (g(lane) + 8 * (i / 2)) * 8 + 2 * t(lane) + i % 2;
            found[at] = if half_sums {
                widen((words[i / 2] >> (16 * (i % 2))) as u16)
            } else {
                f32::from_bits(words[i])
            };
        }
    }
    let expected = (0..128).map(|at| {
        let (row, n) = (at / 8, at % 8);
        (0..depth).fold(widen(c[at]), |sum, k| {
            sum + widen(a[row * depth + k]) * widen(b[k * 8 + n])
        })
    });
    (found, expected.collect())
}

#[test]
fn mma_multiplies_matrices() {
    let of_f16 = |x: f32| f16::from_f32(x).to_bits();
    let of_bf16 = |x: f32| bf16::from_f32(x).to_bits();
    for depth in [8, 16] {
        let (found, expected) = product("f32.f16.f16.f32", depth, of_f16, |x| {
            f16::from_bits(x).to_f32()
        });
        assert_eq!(found, expected);
        let (found, expected) = product("f32.bf16.bf16.f32", depth, of_bf16, |x| {
            bf16::from_bits(x).to_f32()
        });
        assert_eq!(found, expected);
        let (found, expected) = product("f16.f16.f16.f16", depth, of_f16, |x| {
            f16::from_bits(x).to_f32()
        });
        let expected: Vec<f32> = expected
            .iter()
            .map(|x| f16::from_f32(*x).to_f32())
            .collect();
        assert_eq!(found, expected);
    }
}

/// The bits of e4m3 or, with 2 bits of fraction, e5m2 of a whole number from -4 to 4.
fn byte(number: i32, fraction_bits: u32) -> u32 {
    let bias = if fraction_bits == 3 { 7 } else { 15 };
    if number == 0 {
        return 0;
    }
    let bits = (number.unsigned_abs() as f32).to_bits() >> (23 - fraction_bits);
    (bits - ((127 - bias) << fraction_bits)) | u32::from(number < 0) << 7
}

#[test]
fn mma_multiplies_matrices_of_fp8() {
    let mut random = StdRng::seed_from_u64(8);
    for (types, fractions) in [
        ("e4m3.e4m3", [3, 3]),
        ("e4m3.e5m2", [3, 2]),
        ("e5m2.e4m3", [2, 3]),
        ("e5m2.e5m2", [2, 2]),
    ] {
        let mut matrix = |rows: usize| -> Vec<[i32; 32]> {
            let mut row = || std::array::from_fn(|_| random.random_range(-4..5));
            (0..rows).map(|_| row()).collect()
        };
        // B by columns.
        let (a, b) = (matrix(16), matrix(8));
        let word = |row: &[i32; 32], k: usize, fraction_bits| {
            let bytes = (0..4).map(|i| byte(row[k + i], fraction_bits) << (8 * i));
            bytes.sum::<u32>()
        };
        let mut input = Vec::new();
        for lane in 0..32 {
            let (g, k) = (lane / 4, 4 * (lane % 4));
            for (row, k) in [(g, k), (g + 8, k), (g, k + 16), (g + 8, k + 16)] {
                input.push(word(&a[row], k, fractions[0]));
            }
            input.extend([k, k + 16].map(|k| word(&b[g], k, fractions[1])));
        }
        let body = format!(
            "mad.wide.u32 %d0, %lane, 24, %in;
            ld.global.b32 %r0, [%d0]; ld.global.b32 %r1, [%d0+4]; ld.global.b32 %r2, [%d0+8];
            ld.global.b32 %r3, [%d0+12]; ld.global.b32 %r4, [%d0+16]; ld.global.b32 %r5, [%d0+20];
            mov.b32 %r6, 0f3f800000;
            mma.sync.aligned.m16n8k32.row.col.f32.{types}.f32
                {{%r10, %r11, %r12, %r13}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{%r6, %r6, %r6, %r6}};
            st.global.v4.b32 [%out], {{%r10, %r11, %r12, %r13}};"
        );
        for (lane, words) in hopper_warp(&body, &input).iter().enumerate() {
            for (i, word) in words[..4].iter().enumerate() {
                let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                let product: i32 = a[row].iter().zip(&b[column]).map(|(a, b)| a * b).sum();
                assert_eq!(
                    f32::from_bits(*word),
                    (1 + product) as f32,
                    "{types}: {row}, {column}"
                );
            }
        }
    }
}
