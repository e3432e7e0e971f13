//! What a check lets pass, and what it does not.

use super::Problem;
use super::{Element, Forward, Report, all_rows, check, sample_rows};
use crate::forward::cpu;
use crate::gemm::Accumulation;
use crate::options::{HostOptions, Window};
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

const PROBLEM: Problem = Problem {
    batch: 2,
    heads: 2,
    kv_heads: 1,
    seqlen_q: 70,
    seqlen_kv: 65,
    dim: 8,
    dim_v: 8,
    causal: true,
    scale: 0.5,
    window: Window::NONE,
    softcap: None,
};
/// `[1, 1, 60]`, in the middle of a tile.
const ROW: usize = 3 * 70 + 60;

/// Checks all rows of a right result after `spoil` changed its o and lse.
fn spoilt<T: Element>(spoil: impl Fn(&mut [T], &mut [f32])) -> Report {
    spoilt_with(|_| (), spoil)
}

/// Checks all rows of a right result in which `prepare` changed V, after `spoil` changed its o and lse.
fn spoilt_with<T: Element>(
    prepare: impl Fn(&mut [T]),
    spoil: impl Fn(&mut [T], &mut [f32]),
) -> Report {
    let mut rng = StdRng::seed_from_u64(1);
    let mut random = |len| -> Vec<T> {
        (0..len)
            .map(|_| T::from_f32(rng.sample(StandardNormal)))
            .collect()
    };
    let (q, k, mut v) = (random(4 * 70 * 8), random(2 * 65 * 8), random(2 * 65 * 8));
    prepare(&mut v);
    let view = |data, shape| ArrayView4::from_shape(shape, data).expect("row-major");
    let (q_shape, kv_shape) = (PROBLEM.q_shape(), PROBLEM.k_shape());
    let mut o = Array4::from_elem(q_shape, T::from_f32(f32::NAN));
    let mut lse = vec![f32::NAN; 4 * 70];
    let [k_view, v_view] = [&k, &v].map(|data| view(data, kv_shape));
    cpu::forward(
        &PROBLEM,
        &HostOptions::default(),
        view(&q, q_shape),
        k_view,
        v_view,
        o.view_mut(),
        &mut lse,
    );
    let mut o = o.into_raw_vec_and_offset().0;
    spoil(&mut o, &mut lse);
    check(
        &Forward {
            problem: &PROBLEM,
            options: HostOptions::default(),
            q: &q,
            k: &k,
            v: &v,
            o: &o,
            lse: &lse,
            acc: Accumulation::Single,
        },
        &all_rows(&PROBLEM),
    )
}

#[test]
fn a_right_result_passes() {
    let report = spoilt::<f16>(|_, _| ());
    assert!(report.passed(), "{report}");
    assert_eq!(report.rows, 280);
    assert!(
        report.o.max_abs_err > 0.0 && report.o.tolerance < 5e-3,
        "{report}"
    );
    assert!(report.lse.tolerance < 2e-5, "{report}");
}

#[test]
fn one_wrong_element_fails_and_is_named() {
    let report = spoilt::<f16>(|o, _| o[ROW * 8 + 3] += f16::from_f32(0.01));
    assert!(!report.o.passed() && report.lse.passed(), "{report}");
    assert_eq!(report.o.worst, [1, 1, 60, 3]);
}

/// Probabilities in bf16 do not add up to their sum in f32, so o may fall next to V's row.
#[test]
fn equal_rows_of_v_leave_room_for_one_unit() {
    let equal = |v: &mut [bf16]| v.fill(bf16::from_f32(2.015625));
    let below = |units: u16| {
        let lower = move |o: &mut [bf16], _: &mut [f32]| {
            o[ROW * 8] = bf16::from_bits(o[ROW * 8].to_bits() - units);
        };
        spoilt_with(equal, lower)
    };
    let [right, one, four] = [0, 1, 4].map(below);
    assert_eq!(right.o.max_abs_err.max(1e-12), 1e-12, "{right}");
    assert!(one.passed() && !four.passed(), "{one}, {four}");
}

#[test]
fn one_wrong_lse_fails_and_is_named() {
    let report = spoilt::<f16>(|_, lse| lse[ROW] += 1e-4);
    assert!(report.o.passed() && !report.lse.passed(), "{report}");
    assert_eq!(report.lse.worst, [1, 1, 60, 0]);
}

#[test]
fn finite_and_not_finite_are_told_apart() {
    let report = spoilt::<f16>(|o, _| o[ROW * 8] = f16::NAN);
    assert_eq!(
        (report.passed(), report.o.max_abs_err),
        (false, f64::INFINITY)
    );
    // Rows 0 to 4 see no key: an lse of -inf and nothing else.
    for wrong in [f32::NAN, f32::INFINITY, -1e30] {
        let report = spoilt::<f16>(|_, lse| lse[3] = wrong);
        assert!(
            !report.passed() && report.lse.worst == [0, 0, 3, 0],
            "{report}"
        );
    }
    let report = spoilt::<f16>(|_, lse| lse[ROW] = f32::NEG_INFINITY);
    assert!(!report.passed(), "{report}");
}

#[test]
fn tolerances_of_f32_are_tight() {
    let report = spoilt::<f32>(|_, _| ());
    assert!(report.passed(), "{report}");
    assert!(report.o.tolerance < 20.0 * report.o.max_abs_err, "{report}");
    let rounded = |o: &mut [f32], _: &mut [f32]| {
        o.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
    };
    assert!(!spoilt(rounded).o.passed());
    assert!(!spoilt::<f32>(|o, _| o[ROW * 8 + 3] += 1e-4).o.passed());
}

/// Sums in f16 as a device has them, which rounds after every `width` products, but with the products of
/// 16 elements of a row and a key times `factor(row, key, slice)`.
fn in_half(p: &Problem, width: usize, factor: impl Fn(usize, usize, usize) -> f64) -> Report {
    let mut rng = StdRng::seed_from_u64(1);
    let mut random = |shape: [usize; 4]| -> Vec<f16> {
        (0..shape.iter().product())
            .map(|_| f16::from_f32(rng.sample(StandardNormal)))
            .collect()
    };
    let half = |x: f64| f64::from(f16::from_f32(x as f32));
    let (q, k, v) = (
        random(p.q_shape()),
        random(p.k_shape()),
        random(p.v_shape()),
    );
    let (mut o, mut lse) = (vec![f16::NAN; q.len()], vec![f32::NAN; p.seqlen_q]);
    let row_of = |data: &[f16], row: usize| -> Vec<f64> {
        data[row * p.dim..][..p.dim]
            .iter()
            .map(|x| x.to_f64())
            .collect()
    };
    let scale = half(f64::from(p.scale) * std::f64::consts::LOG2_E);
    for i in 0..p.seqlen_q {
        let q: Vec<f64> = row_of(&q, i).iter().map(|x| half(x * scale)).collect();
        let score = |j: usize| {
            let k = row_of(&k, j);
            (0..p.dim).step_by(width).fold(0.0, |sum, first| {
                let columns = first..p.dim.min(first + width);
                let products: f64 = columns.map(|d| q[d] * k[d]).sum();
                half(sum + factor(i, j, first / 16) * products)
            })
        };
        let scores: Vec<f64> = p.keys(i).map(score).collect();
        let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - m).exp2()).collect();
        let l: f64 = weights.iter().sum();
        let keys: Vec<usize> = (0..scores.len()).collect();
        for d in 0..p.dim {
            let step = |keys: &[usize]| {
                keys.chunks(width).fold(0.0, |sum, keys| {
                    let product = |&j: &usize| half(weights[j]) * v[j * p.dim + d].to_f64();
                    half(sum + keys.iter().map(product).sum::<f64>())
                })
            };
            let sum: f64 = keys.chunks(64).map(step).sum();
            o[i * p.dim + d] = f16::from_f64(sum / l);
        }
        lse[i] = ((m + l.log2()) * std::f64::consts::LN_2) as f32;
    }
    let forward = Forward {
        problem: p,
        options: HostOptions::default(),
        q: &q,
        k: &k,
        v: &v,
        o: &o,
        lse: &lse,
        acc: Accumulation::Half,
    };
    check(&forward, &all_rows(p))
}

fn one_head(seqlen_q: usize, seqlen_kv: usize, dim: usize, scale: f32) -> Problem {
    Problem {
        batch: 1,
        heads: 1,
        kv_heads: 1,
        seqlen_q,
        seqlen_kv,
        dim,
        dim_v: dim,
        causal: false,
        scale,
        window: Window::NONE,
        softcap: None,
    }
}

#[test]
fn sums_in_f16_pass() {
    for (seqlen_q, seqlen_kv) in [(1, 1), (3, 2), (5, 20), (20, 300)] {
        for dim in [8, 64, 200, 1024] {
            for scale in [0.0, 1.0 / (dim as f32).sqrt(), -0.3, 1.0, 20.0] {
                let p = one_head(seqlen_q, seqlen_kv, dim, scale);
                for width in [8, 16] {
                    let report = in_half(&p, width, |_, _, _| 1.0);
                    assert!(report.passed(), "{p:?}, width {width}: {report}");
                }
            }
        }
    }
}

/// Of ordinary scores the tolerance is a few times the error, not hundreds of times.
#[test]
fn tolerances_of_sums_in_f16_are_tight() {
    for dim in [8, 64, 256, 1024] {
        let p = one_head(50, 100, dim, 1.0 / (dim as f32).sqrt());
        let report = in_half(&p, 16, |_, _, _| 1.0);
        assert!(report.o.max_abs_err > report.o.tolerance / 20.0, "{report}");
    }
}

#[test]
fn wrong_scores_in_f16_are_noticed() {
    type Factor = fn(usize, usize, usize) -> f64;
    let wrong: [(&str, [usize; 3], Factor); 5] = [
        (
            "a key off by a percent",
            [4, 8, 64],
            |_, key, _| match key {
                5 => 1.01,
                _ => 1.0,
            },
        ),
        (
            "a slice of one key left out",
            [4, 200, 64],
            |_, key, slice| match (key, slice) {
                (150, 2) => 0.0,
                _ => 1.0,
            },
        ),
        (
            "a slice of one row left out",
            [20, 200, 512],
            |row, _, slice| match (row, slice) {
                (17, 31) => 0.0,
                _ => 1.0,
            },
        ),
        (
            "a slice left out",
            [4, 200, 1024],
            |_, _, slice| match slice {
                63 => 0.0,
                _ => 1.0,
            },
        ),
        ("a scale off by a percent", [4, 200, 64], |_, _, _| 1.01),
    ];
    for (what, [seqlen_q, seqlen_kv, dim], factor) in wrong {
        let p = one_head(seqlen_q, seqlen_kv, dim, 1.0 / (dim as f32).sqrt());
        assert!(in_half(&p, 16, |_, _, _| 1.0).passed());
        let report = in_half(&p, 16, factor);
        assert!(!report.passed(), "{what}: {report}");
    }
}

#[test]
fn samples_are_distinct_rows_with_both_ends() {
    for count in [2, 10, 279] {
        let rows = sample_rows(&PROBLEM, count, 5);
        assert!(
            rows.len() == count || rows.len() == count + 1,
            "{} of {count}",
            rows.len()
        );
        assert!(rows.is_sorted_by(|a, b| a < b));
        assert_eq!((rows[0], rows.last()), (0, Some(&279)));
    }
    assert_eq!(sample_rows(&PROBLEM, 280, 5), all_rows(&PROBLEM));
    let tall = Problem {
        seqlen_q: 100_000,
        ..PROBLEM
    };
    let at_edge = |row: &usize| [0, 63].contains(&(row % 100_000 % 64));
    let edges = sample_rows(&tall, 100, 5)
        .into_iter()
        .filter(at_edge)
        .count();
    assert!(edges > 30, "{edges} rows at tile edges");
}
