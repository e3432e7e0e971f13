//! Each instruction family by hand-written kernels, against what the PTX manual says.

use crate::tiny::{run, warp};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Evaluates one instruction `op %r0, ...` of 32-bit operands in one thread.
#[track_caller]
fn eval(instruction: &str, operands: &[u32]) -> u32 {
    let mut body = String::new();
    for (i, operand) in operands.iter().enumerate() {
        body += &format!("mov.b32 %r{}, {operand};", i + 1);
    }
    body += &format!("{instruction}; st.global.b32 [%out], %r0;");
    warp(&body, &[])[0][0]
}

#[track_caller]
fn eval_f32(instruction: &str, operands: &[f32]) -> f32 {
    let bits: Vec<u32> = operands.iter().map(|x| x.to_bits()).collect();
    f32::from_bits(eval(instruction, &bits))
}

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

/// A value is extended by zeros or by its sign.
#[test]
fn parameters_are_extended_to_wider_registers() {
    let [low, unsigned, zeros, signed, signs, ..] = warp(
        "ld.param.b32 %r0, [input];
         ld.param.b32 %d0, [input];
         ld.param.s32 %d1, [input];
         mov.b64 {%r1, %r2}, %d0;
         mov.b64 {%r3, %r4}, %d1;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};
         st.global.b32 [%out+16], %r4;",
        &[],
    )[0];
    assert_eq!([unsigned, zeros], [low, 0]);
    assert_eq!(
        [signed, signs],
        [low, (low.cast_signed() >> 31).cast_unsigned()]
    );
}

#[test]
fn special_registers_count_threads() {
    let out = run(
        "mov.u32 %r0, %ntid.x; st.global.v2.b32 [%out], {%tid, %r0};",
        70,
        &[],
    )
    .unwrap();
    for (thread, words) in out.iter().enumerate() {
        assert_eq!(words[..2], [thread as u32, 70]);
    }
}

#[test]
fn lanes_diverge_and_meet_again() {
    let out = warp(
        "mov.b32 %r0, 0;
         setp.lt.u32 %p0, %lane, 20;
         @%p0 bra $low;
         mov.b32 %r1, 100;
         bra.uni $join;
       $low:
         and.b32 %r2, %lane, 1;
         setp.eq.b32 %p1, %r2, 0;
         mov.b32 %r1, 7;
         @!%p1 bra $join;
         mov.b32 %r1, 8;
       $join:
         shfl.sync.bfly.b32 %r3, %r1, 16, 0x1f, 0xffffffff;
         @%p0 add.s32 %r0, %r0, 5;
         st.global.v4.b32 [%out], {%r0, %r1, %r3, %r3};",
        &[],
    );
    let value = |lane: usize| match lane {
        20.. => 100,
        _ => 8 - lane as u32 % 2,
    };
    for (lane, words) in out.iter().enumerate() {
        let sum = if lane < 20 { 5 } else { 0 };
        assert_eq!(
            words[..3],
            [sum, value(lane), value(lane ^ 16)],
            "lane {lane}"
        );
    }
}

#[test]
fn a_loop_runs_as_long_as_each_lane_wants() {
    let out = warp(
        "mov.b32 %r0, 0;
       $top:
         setp.eq.b32 %p0, %r0, %lane;
         @%p0 bra $done;
         add.s32 %r0, %r0, 1;
         bra.uni $top;
       $done:
         redux.sync.add.s32 %r1, %r0, 0xffffffff;
         st.global.v2.b32 [%out], {%r0, %r1};",
        &[],
    );
    for (lane, words) in out.iter().enumerate() {
        assert_eq!(words[..2], [lane as u32, 31 * 32 / 2]);
    }
}

#[test]
fn lanes_that_exit_leave_the_others() {
    let out = warp(
        "setp.lt.u32 %p0, %lane, 4;
         @%p0 exit;
         st.global.b32 [%out], %lane;",
        &[],
    );
    for (lane, words) in out.iter().enumerate() {
        assert_eq!(words[0], if lane < 4 { u32::MAX } else { lane as u32 });
    }
}

#[test]
fn shuffles() {
    let shuffled = |instruction: &str| {
        let body = format!(
            "{instruction}; selp.b32 %r1, 1, 0, %p0; st.global.v2.b32 [%out], {{%r0, %r1}};"
        );
        warp(&body, &[])
            .iter()
            .map(|w| (w[0], w[1] == 1))
            .collect::<Vec<_>>()
    };
    let expect = |instruction: &str, f: &dyn Fn(u32) -> (u32, bool)| {
        let expected: Vec<_> = (0..32).map(f).collect();
        assert_eq!(shuffled(instruction), expected, "{instruction}");
    };
    expect("shfl.sync.bfly.b32 %r0|%p0, %lane, 5, 0x1f, -1", &|l| {
        (l ^ 5, true)
    });
    expect("shfl.sync.idx.b32 %r0|%p0, %lane, 9, 0x1f, -1", &|_| {
        (9, true)
    });
    expect("shfl.sync.up.b32 %r0|%p0, %lane, 3, 0, -1", &|l| {
        if l < 3 { (l, false) } else { (l - 3, true) }
    });
    expect("shfl.sync.down.b32 %r0|%p0, %lane, 3, 0x1f, -1", &|l| {
        if l > 28 { (l, false) } else { (l + 3, true) }
    });
    // Segments of 8 lanes.
    expect("shfl.sync.idx.b32 %r0|%p0, %lane, 2, 0x181f, -1", &|l| {
        (l / 8 * 8 + 2, true)
    });
    expect("shfl.sync.down.b32 %r0|%p0, %lane, 7, 0x181f, -1", &|l| {
        if l % 8 == 0 {
            (l + 7, true)
        } else {
            (l, false)
        }
    });
}

#[test]
fn reductions_and_votes() {
    let out = warp(
        "redux.sync.or.b32 %r0, %lane, 0xffffffff;
         redux.sync.max.u32 %r1, %lane, 0xffffffff;
         setp.gt.u32 %p0, %lane, 29;
         vote.sync.ballot.b32 %r2, %p0, 0xffffffff;
         vote.sync.any.pred %p1, %p0, 0xffffffff;
         vote.sync.all.pred %p2, %p0, 0xffffffff;
         selp.b32 %r3, 1, 0, %p1;
         selp.b32 %r4, 1, 0, %p2;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};
         st.global.b32 [%out+16], %r4;",
        &[],
    );
    assert!(
        out.iter()
            .all(|words| words[..5] == [31, 31, 0xc000_0000, 1, 0])
    );
}

/// Fills shared memory with 16-bit elements that count from 0, four matrices of 8x8, and loads them.
fn matrices(instruction: &str) -> Vec<[u32; crate::tiny::WORDS]> {
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

#[test]
fn narrow_and_wide_memory_accesses() {
    let out = warp(
        "st.global.b8 [%out], 0x81;
         st.global.b8 [%out+1], 2;
         st.global.u16 [%out+2], 0x8003;
         ld.global.s8 %r0, [%out];
         ld.global.u8 %h0, [%out+1];
         cvt.u32.u16 %r1, %h0;
         ld.global.s16 %r2, [%out+2];
         ld.global.u32 %r3, [%out];
",
        &[],
    );
    assert_eq!(out[0][0], 0x8003_0281);
    let out = warp(
        "ld.global.s8 %r0, [%in];
         ld.global.u8 %h0, [%in+1];
         cvt.u32.u16 %r1, %h0;
         ld.global.s16 %r2, [%in+2];
         ld.global.v2.b64 {%d0, %d1}, [%in+16];
         cvt.u32.u64 %r3, %d1;
         st.global.v4.b32 [%out], {%r0, %r1, %r2, %r3};",
        &[0x8003_0281, 0, 0, 0, 1, 2, 3, 4],
    );
    assert_eq!(out[0][..4], [0xffff_ff81, 2, 0xffff_8003, 3]);
}

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

#[test]
fn barriers_hand_data_from_warp_to_warp() {
    // Warps 0 and 1 produce, 2 and 3 consume, through barrier 1; all meet at barrier 0.
    let out = run(
        "shl.b32 %r0, %tid, 2;
         add.s32 %r0, %r0, %smem;
         mov.b32 %r1, 0;
         setp.lt.u32 %p0, %warp, 2;
         @!%p0 bra $consume;
         st.shared.b32 [%r0], %tid;
         bar.arrive 1, 128;
         bra.uni $end;
       $consume:
         bar.sync 1, 128;
         ld.shared.b32 %r1, [%r0+-256];
       $end:
         bar.sync 0;
         st.global.b32 [%out], %r1;",
        128,
        &[],
    );
    for (thread, words) in out.unwrap().iter().enumerate() {
        assert_eq!(words[0], (thread as u32).saturating_sub(64));
    }
}
