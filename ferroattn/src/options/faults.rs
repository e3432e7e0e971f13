//! Right results with one fault each, which the checks must refuse.

use super::definition::{Definition, Sum, place_in};
use super::passes::Passes;
use super::samples::{Sample, samples_of};
use crate::backward::check as gradients;
use crate::check::{Expected, all_rows};
use crate::comparison::rounding;
use crate::tensor::{Dtype, Element};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// The number in a tensor that nobody wrote.
const STALE: f64 = 5.5;

/// How a tensor's rows lie.
#[derive(Clone, Copy)]
struct Rows {
    heads: usize,
    seqlen: usize,
    dim: usize,
}

type Fault = fn(&mut [f64], Rows, &mut StdRng);

/// Faults of a tensor `[heads, seqlen, dim]`.
const FAULTS: &[(&str, Fault)] = &[
    ("a row in place of the next", |x, rows, rng| {
        let (row, dim) = (rng.random_range(0..x.len() / rows.dim), rows.dim);
        let next = (row + 1) % (x.len() / dim);
        (0..dim).for_each(|d| x.swap(row * dim + d, next * dim + d));
    }),
    ("a row of zeros", |x, rows, rng| {
        one_row(x, rows, rng).fill(0.0)
    }),
    ("a row with the other sign", |x, rows, rng| {
        one_row(x, rows, rng).iter_mut().for_each(|x| *x = -*x)
    }),
    ("a row times 1.02", |x, rows, rng| {
        one_row(x, rows, rng).iter_mut().for_each(|x| *x *= 1.02)
    }),
    ("heads in each other's place", |x, rows, rng| {
        let head = rows.seqlen * rows.dim;
        let [a, b] = [(); 2].map(|()| rng.random_range(0..rows.heads) * head);
        (0..head).for_each(|i| x.swap(a + i, b + i));
    }),
    ("a NaN", |x, _, rng| *one(x, rng) = f64::NAN),
    ("an infinity", |x, _, rng| *one(x, rng) = f64::NEG_INFINITY),
    ("a stale element", |x, _, rng| *one(x, rng) = STALE),
    ("a last row that nobody wrote", |x, rows, _| {
        let last = x.len() - rows.dim;
        x[last..].fill(STALE);
    }),
    ("a last column that nobody wrote", |x, rows, _| {
        x.iter_mut()
            .skip(rows.dim - 1)
            .step_by(rows.dim)
            .for_each(|x| *x = STALE);
    }),
    ("a tile times 1.02", |x, rows, rng| {
        let head = rng.random_range(0..rows.heads) * rows.seqlen;
        let first = rng.random_range(0..rows.seqlen.div_ceil(64)) * 64;
        let end = rows.seqlen.min(first + 64);
        x[(head + first) * rows.dim..(head + end) * rows.dim]
            .iter_mut()
            .for_each(|x| *x *= 1.02);
    }),
];

fn one<'x>(x: &'x mut [f64], rng: &mut StdRng) -> &'x mut f64 {
    let place = rng.random_range(0..x.len());
    &mut x[place]
}

fn one_row<'x>(x: &'x mut [f64], rows: Rows, rng: &mut StdRng) -> &'x mut [f64] {
    let row = rng.random_range(0..x.len() / rows.dim);
    &mut x[row * rows.dim..][..rows.dim]
}

/// The most that roundings may do to the elements of a tensor.
#[derive(Clone, Copy)]
struct Roundings {
    /// Half a unit in the last place of a type, or of f32 what sums of some hundred products come to.
    unit: f64,
    /// The size that they count by.
    size: fn(Sum) -> f64,
}

impl Roundings {
    /// Of outputs of this type, or of gradients in f32: terms have roundings of their own.
    fn independent<T: Element>() -> Self {
        let unit = match T::DTYPE {
            Dtype::F32 => 1e-5,
            dtype => rounding(dtype)[0],
        };
        Roundings {
            unit,
            size: Sum::independent,
        }
    }

    /// Of gradients of this type: their bounds in f16 and bf16 are of all roundings to one side.
    fn of_gradients<T: Element>() -> Self {
        let roundings = Self::independent::<T>();
        match T::DTYPE {
            Dtype::F32 => roundings,
            _ => Roundings {
                size: Sum::in_all,
                ..roundings
            },
        }
    }

    fn allowed(self, exact: Sum) -> f64 {
        16.0 * self.unit * (self.size)(exact) + 1e-5
    }

    /// Whether an element is so far from its definition that a check must refuse it.
    fn are_passed(self, found: f64, exact: Sum) -> bool {
        let kinds = [found, exact.value].map(f64::is_finite);
        kinds[0] != kinds[1] || kinds[0] && (found - exact.value).abs() > self.allowed(exact)
    }
}

/// How often each fault was made that a check must refuse.
type Made = BTreeMap<&'static str, usize>;

/// A tensor of a pass.
struct Right<'a, T> {
    name: &'static str,
    elements: &'a [T],
    exact: &'a [Sum],
    rows: Rows,
    roundings: Roundings,
}

/// A tensor with each of the faults; `refused` says whether the check refuses a tensor in its place.
fn spoil<T: Element>(
    right: &Right<T>,
    made: &mut Made,
    rng: &mut StdRng,
    refused: &mut dyn FnMut(Vec<T>) -> Option<String>,
) {
    let &Right {
        name,
        elements,
        exact,
        rows,
        roundings,
    } = right;
    let mut expect = |fault: &'static str, x: Vec<f64>| {
        let x: Vec<T> = x.into_iter().map(|x| T::from_f32(x as f32)).collect();
        let mut elements = x.iter().zip(exact);
        if elements.any(|(found, exact)| roundings.are_passed(found.to_f32().into(), *exact)) {
            *made.entry(fault).or_default() += 1;
            if let Some(report) = refused(x) {
                panic!("{name} with {fault}: {report}");
            }
        }
    };
    let wide: Vec<f64> = elements.iter().map(|x| x.to_f32().into()).collect();
    for (fault, spoil) in FAULTS {
        let mut x = wide.clone();
        spoil(&mut x, rows, rng);
        expect(fault, x);
    }
    let mut x = wide.clone();
    let place = rng.random_range(0..x.len());
    x[place] += 2.0 * roundings.allowed(exact[place]);
    expect("an element off by a few roundings", x);
}

fn forward<T: Element>(passes: &Passes<T>, exact: &Definition, made: &mut Made, rng: &mut StdRng) {
    let p = &passes.sample.problem;
    let expected = Expected::new(&passes.as_forward(), &all_rows(p));
    let rows = Rows {
        heads: p.batch * p.heads,
        seqlen: p.seqlen_q,
        dim: p.dim_v,
    };
    let mut spoilt = passes.clone();
    let roundings = Roundings::independent::<T>();
    let right = Right {
        name: "o",
        elements: &passes.o,
        exact: &exact.o,
        rows,
        roundings,
    };
    spoil(&right, made, rng, &mut |o| {
        spoilt.o = o;
        let report = expected.compare(&spoilt.as_forward());
        report.o.passed().then(|| report.to_string())
    });
    let mut spoilt = passes.clone();
    let mut lse_fault = |fault: &'static str, spoil: &dyn Fn(&mut [f32], usize)| {
        let row = rng.random_range(0..passes.lse.len());
        spoilt.lse.clone_from(&passes.lse);
        spoil(&mut spoilt.lse, row);
        let differs = |(found, exact): (&f32, &f64)| {
            let kinds = [f64::from(*found), *exact].map(f64::is_finite);
            kinds[0] != kinds[1] || kinds[0] && (f64::from(*found) - exact).abs() > 2e-4
        };
        if spoilt.lse.iter().zip(&exact.lse).any(differs) {
            *made.entry(fault).or_default() += 1;
            let report = expected.compare(&spoilt.as_forward());
            assert!(!report.lse.passed(), "lse with {fault}: {report}");
        }
    };
    lse_fault("an lse off by 0.1 %", &|lse, row| lse[row] *= 1.001);
    lse_fault("an lse in place of the next", &|lse, row| {
        lse.swap(row, (row + 1) % lse.len())
    });
    lse_fault("a stale lse", &|lse, row| lse[row] = STALE as f32);
    lse_fault("an lse of NaN", &|lse, row| lse[row] = f32::NAN);
}

fn backward<T: Element>(passes: &Passes<T>, exact: &Definition, made: &mut Made, rng: &mut StdRng) {
    let p = &passes.sample.problem;
    let expected = passes.expected_gradients();
    let roundings = Roundings::of_gradients::<T>();
    let q_rows = Rows {
        heads: p.batch * p.heads,
        seqlen: p.seqlen_q,
        dim: p.dim,
    };
    let k_rows = Rows {
        heads: p.batch * p.kv_heads,
        seqlen: p.seqlen_kv,
        dim: p.dim,
    };
    let v_rows = Rows {
        dim: p.dim_v,
        ..k_rows
    };
    let passed =
        |spoilt: &Passes<T>| -> gradients::Report { expected.compare(&spoilt.as_backward()) };
    let mut spoilt = passes.clone();
    let right = Right {
        name: "dq",
        elements: &passes.dq,
        exact: &exact.dq,
        rows: q_rows,
        roundings,
    };
    spoil(&right, made, rng, &mut |dq| {
        spoilt.dq = dq;
        let report = passed(&spoilt);
        report.dq.passed().then(|| report.to_string())
    });
    let mut spoilt = passes.clone();
    let right = Right {
        name: "dk",
        elements: &passes.dk,
        exact: &exact.dk,
        rows: k_rows,
        roundings,
    };
    spoil(&right, made, rng, &mut |dk| {
        spoilt.dk = dk;
        let report = passed(&spoilt);
        report.dk.passed().then(|| report.to_string())
    });
    let mut spoilt = passes.clone();
    let right = Right {
        name: "dv",
        elements: &passes.dv,
        exact: &exact.dv,
        rows: v_rows,
        roundings,
    };
    spoil(&right, made, rng, &mut |dv| {
        spoilt.dv = dv;
        let report = passed(&spoilt);
        report.dv.passed().then(|| report.to_string())
    });
    if exact.pairs.is_empty() {
        return;
    }
    // Pairs without a part in a gradient.
    for _ in 0..20 {
        let pair = exact.pairs[rng.random_range(0..exact.pairs.len())];
        let less = |x: &mut [T], row: usize, factor: f64, of: &[T], exact: &[Sum]| {
            let dim = of.len();
            let mut wrong = false;
            for (d, of) in of.iter().enumerate() {
                let found = &mut x[row * dim + d];
                *found = T::from_f32(
                    (f64::from(found.to_f32()) - factor * f64::from(of.to_f32())) as f32,
                );
                wrong |= roundings.are_passed(found.to_f32().into(), exact[row * dim + d]);
            }
            wrong
        };
        let (dim, dim_v) = (p.dim, p.dim_v);
        let q = &passes.q[pair.row * dim..][..dim];
        let k = &passes.k[pair.key * dim..][..dim];
        let d_o = &passes.d_o[pair.row * dim_v..][..dim_v];
        let mut spoilt = passes.clone();
        let wrong = [
            less(&mut spoilt.dq, pair.row, pair.by_product, k, &exact.dq),
            less(&mut spoilt.dk, pair.key, pair.by_product, q, &exact.dk),
            less(&mut spoilt.dv, pair.key, pair.p, d_o, &exact.dv),
        ];
        let report = passed(&spoilt);
        let found = [report.dq, report.dk, report.dv];
        for ((wrong, found), fault) in wrong.into_iter().zip(found).zip([
            "dq without a key",
            "dk without a query",
            "dv without a query",
        ]) {
            if wrong {
                *made.entry(fault).or_default() += 1;
                assert!(!found.passed(), "{fault}: {report}");
            }
        }
        if let (Some((shape, d_bias)), Some(_)) = (&mut spoilt.d_bias, report.d_bias) {
            let place = place_in(*shape, pair.place);
            d_bias[place] -= pair.ds as f32;
            if roundings.are_passed(d_bias[place].into(), exact.d_bias[place]) {
                *made.entry("d_bias without a pair").or_default() += 1;
                let report = passed(&spoilt);
                assert!(
                    report.d_bias.is_some_and(|d_bias| !d_bias.passed()),
                    "d_bias without a pair: {report}"
                );
            }
        }
    }
}

/// Every fault that changes a result by more than roundings could is refused, in each type, with all options.
#[test]
fn faults_are_refused() {
    let lengths = || select(vec![1_usize, 2, 9, 70, 100]);
    let samples = samples_of((1..=2_usize, 1..=2_usize, 1..=2_usize, lengths(), lengths()));
    let mut runner = TestRunner::deterministic();
    let mut rng = StdRng::seed_from_u64(0);
    let mut made = [(); 3].map(|()| Made::new());
    for _ in 0..100 {
        let sample = samples.new_tree(&mut runner).expect("a sample").current();
        fn both<T: Element>(sample: &Sample, made: &mut Made, rng: &mut StdRng) {
            let passes = Passes::<T>::new(sample);
            let exact = Definition::new(&passes);
            forward(&passes, &exact, made, rng);
            backward(&passes, &exact, made, rng);
        }
        both::<f32>(&sample, &mut made[0], &mut rng);
        both::<f16>(&sample, &mut made[1], &mut rng);
        both::<bf16>(&sample, &mut made[2], &mut rng);
    }
    for (made, kinds) in made.into_iter().zip([18; 3]) {
        let rare = made.iter().find(|(_, made)| **made < 20);
        assert!(
            made.len() >= kinds && rare.is_none(),
            "{rare:?} of {made:?}"
        );
    }
}
