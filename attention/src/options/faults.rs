//! Right results with one fault each, which the checks must refuse.

use super::passes::Passes;
use super::samples::{Bias, Sample, Slopes, samples_of};
use super::window::Window;
use crate::backward::check as gradients;
use crate::check::{Expected, all_rows};
use crate::comparison::rounding;
use crate::device::Device;
use crate::forward::Problem;
use crate::random;
use crate::tensor::{Dtype, Element, Tensor};
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

/// An element by its definition.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    /// Sum of the squares of its terms.
    squares: f64,
    /// Sum of the sizes of its terms.
    sizes: f64,
    /// Sum of the sizes that one error of several terms counts by.
    shared: f64,
}

impl Sum {
    /// Adds a term, and a size that other terms share their errors by.
    fn add(&mut self, term: f64, shared: f64) {
        self.value += term;
        self.squares += term * term;
        self.sizes += term.abs();
        self.shared += shared.abs();
    }

    /// The size by which roundings of independent terms count.
    fn independent(self) -> f64 {
        self.value.abs() + self.squares.sqrt() + self.shared
    }

    /// The size by which roundings of all terms to one side count.
    fn in_all(self) -> f64 {
        self.value.abs() + self.sizes + self.shared
    }
}

/// Results by their definition, pair by pair.
struct Definition {
    o: Vec<Sum>,
    lse: Vec<f64>,
    dq: Vec<Sum>,
    dk: Vec<Sum>,
    dv: Vec<Sum>,
    d_bias: Vec<Sum>,
    /// A query and a key that it sees: the query's row, the key's, the weight, dS, and dS for the product.
    pairs: Vec<Shared>,
}

#[derive(Clone, Copy)]
struct Shared {
    place: [usize; 4],
    row: usize,
    key: usize,
    p: f64,
    ds: f64,
    by_product: f64,
}

impl Definition {
    fn new<T: Element>(passes: &Passes<T>) -> Self {
        let p = &passes.sample.problem;
        let wide = |data: &[T]| -> Vec<f64> { data.iter().map(|x| x.to_f32().into()).collect() };
        let [q, k, v, d_o] = [&passes.q, &passes.k, &passes.v, &passes.d_o].map(|data| wide(data));
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let zeros = |len: usize| vec![Sum::default(); len];
        let mut found = Definition {
            o: zeros(passes.o.len()),
            lse: vec![],
            dq: zeros(q.len()),
            dk: zeros(k.len()),
            dv: zeros(v.len()),
            d_bias: zeros(passes.d_bias.as_ref().map_or(0, |(_, d_bias)| d_bias.len())),
            pairs: vec![],
        };
        let (dim, dim_v, scale) = (p.dim, p.dim_v, f64::from(p.scale));
        for row in 0..p.batch * p.heads * p.seqlen_q {
            let [b, h, i] = [
                row / p.seqlen_q / p.heads,
                row / p.seqlen_q % p.heads,
                row % p.seqlen_q,
            ];
            let first = (b * p.kv_heads + p.kv_head(h)) * p.seqlen_kv;
            let [q, d_o] = [&q[row * dim..][..dim], &d_o[row * dim_v..][..dim_v]];
            let product = |j: usize| scale * dot(q, &k[(first + j) * dim..][..dim]);
            let score = |j: usize| passes.sample.score([b, h, i, j], product(j));
            // A bias may hide keys, too.
            let sees =
                |&j: &usize| passes.sample.sees([b, h, i, j]) && score(j) > f64::NEG_INFINITY;
            let seen: Vec<usize> = (0..p.seqlen_kv).filter(sees).collect();
            let scores: Vec<f64> = seen.iter().map(|&j| score(j)).collect();
            let sink = passes.sample.sink(h);
            let most = scores.iter().copied().fold(sink, f64::max);
            let above = |score: &f64| (score - most).exp();
            let sum: f64 = scores.iter().chain([&sink]).map(above).sum();
            let weight = |score: &f64| above(score) / sum;
            let lse = match most {
                f64::NEG_INFINITY => most,
                _ => most + sum.ln(),
            };
            found.lse.push(lse);
            let values: Vec<&[f64]> = seen
                .iter()
                .map(|j| &v[(first + j) * dim_v..][..dim_v])
                .collect();
            let o = &mut found.o[row * dim_v..][..dim_v];
            for (score, value) in scores.iter().zip(&values) {
                o.iter_mut().zip(*value).for_each(|(o, v)| {
                    let term = weight(score) * v;
                    o.add(term, 0.0)
                });
            }
            let o: Vec<f64> = o.iter().map(|o| o.value).collect();
            // delta is off by the roundings of o, and of the weights that it is made of.
            let of_o = d_o.iter().zip(&o).map(|(d_o, o)| d_o * o);
            let of_p = scores
                .iter()
                .zip(&values)
                .map(|(score, value)| weight(score) * dot(d_o, value));
            let of_delta = [of_o.collect::<Vec<_>>(), of_p.collect()].map(|terms| {
                let sum: f64 = terms.iter().sum();
                sum.abs() + dot(&terms, &terms).sqrt()
            });
            let of_delta = of_delta[0].max(of_delta[1]);
            let delta = dot(d_o, &o) - f64::from(passes.d_lse[row]);
            for ((&j, score), value) in seen.iter().zip(&scores).zip(&values) {
                let weight = weight(score);
                if weight == 0.0 {
                    continue;
                }
                let ds = weight * (dot(d_o, value) - delta);
                let slope = p.softcap.map_or(1.0, |cap| {
                    1.0 - (product(j) / f64::from(cap)).tanh().powi(2)
                });
                let shared = Shared {
                    place: [b, h, i, j],
                    row,
                    key: first + j,
                    p: weight,
                    ds,
                    by_product: scale * slope * ds,
                };
                found.pairs.push(shared);
                let of =
                    |sums: &mut [Sum], place: usize, [factor, shared]: [f64; 2], row: &[f64]| {
                        let sums = sums[place * row.len()..].iter_mut();
                        sums.zip(row)
                            .for_each(|(sum, x)| sum.add(factor * x, shared * x));
                    };
                let of_delta = weight * of_delta;
                let by_product = [shared.by_product, scale * slope * of_delta];
                of(
                    &mut found.dq,
                    row,
                    by_product,
                    &k[shared.key * dim..][..dim],
                );
                of(&mut found.dk, shared.key, by_product, q);
                of(&mut found.dv, shared.key, [weight, 0.0], d_o);
                if let Some((shape, _)) = &passes.d_bias {
                    found.d_bias[place_in(*shape, shared.place)].add(ds, of_delta);
                }
            }
        }
        found
    }
}

/// The place of a pair in a tensor that repeats axes of one element.
fn place_in(shape: [usize; 4], pair: [usize; 4]) -> usize {
    let axes = shape.iter().zip(pair);
    axes.fold(0, |place, (&extent, index)| {
        place * extent + index.min(extent - 1)
    })
}

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

/// A problem of 70 queries and keys, without options.
const PLAIN: Problem = Problem {
    batch: 1,
    heads: 2,
    kv_heads: 1,
    seqlen_q: 70,
    seqlen_kv: 70,
    dim: 16,
    dim_v: 16,
    causal: false,
    scale: 0.25,
    window: Window::NONE,
    softcap: None,
};

/// A bias of `f32::MIN` on the keys of a row for which `hides` is true, on top of ordinary numbers.
fn biased(hides: fn(usize, usize) -> bool) -> Sample {
    let bias = (0..70 * 70).map(|pair| match hides(pair / 70, pair % 70) {
        true => f32::MIN,
        false => (pair * 7 % 31) as f32 / 9.0 - 1.5,
    });
    let bias: Vec<f32> = bias.collect();
    let bias = Tensor::new(&Device::cpu(), [1, 1, 70, 70], &bias).expect("valid");
    Sample {
        bias: Some(Bias::F32(bias)),
        ..PLAIN.into()
    }
}

/// Samples with a huge number, and whether dq and dk are more than the roundings of scores.
fn huge() -> Vec<(&'static str, Sample, bool)> {
    let slopes = |slope: f32| {
        let slopes = Tensor::new(&Device::cpu(), [2], &[slope, slope / 3.0]).expect("valid");
        Sample {
            alibi: Some(Slopes::OfHeads(slopes)),
            ..PLAIN.into()
        }
    };
    let scaled = |scale| Sample::from(Problem { scale, ..PLAIN });
    let capped = |softcap| {
        Sample::from(Problem {
            softcap: Some(softcap),
            ..PLAIN
        })
    };
    vec![
        (
            "a bias on all keys of a row",
            biased(|row, _| row == 5),
            true,
        ),
        ("a bias on all keys of all rows", biased(|_, _| true), true),
        (
            "a bias on some keys",
            biased(|row, key| row % 3 == 0 && key % 2 == 0),
            true,
        ),
        ("slopes", slopes(1e30), true),
        ("slopes below 0", slopes(-1e30), true),
        ("a scale", scaled(1e30), false),
        ("a scale below 0", scaled(-1e20), false),
        ("a softcap", capped(1e30), true),
    ]
}

/// The passes with gradients by their definition, in place of what the CPU finds from a rounded lse.
fn by_definition<T: Element>(passes: Passes<T>) -> Passes<T> {
    let exact = Definition::new(&passes);
    let rounded = |sums: &[Sum]| {
        sums.iter()
            .map(|sum| T::from_f32(sum.value as f32))
            .collect()
    };
    let d_bias = passes.d_bias.as_ref().map(|(shape, _)| {
        let d_bias = exact.d_bias.iter().map(|sum| sum.value as f32);
        (*shape, d_bias.collect())
    });
    Passes {
        dq: rounded(&exact.dq),
        dk: rounded(&exact.dk),
        dv: rounded(&exact.dv),
        d_bias,
        ..passes
    }
}

/// A huge number leaves no room for results that are wrong by a percent, in f16 by four, and in bf16 by thirty.
fn wrong_by_a_percent<T: Element>(what: &str, passes: &Passes<T>, has_dq: bool) {
    let factor = match T::DTYPE {
        Dtype::F32 => 1.01,
        Dtype::F16 => 1.04,
        Dtype::Bf16 => 1.3,
    };
    let wrong =
        |x: &[T]| -> Vec<T> { x.iter().map(|x| T::from_f32(x.to_f32() * factor)).collect() };
    let name = T::DTYPE.name();
    let report = passes.forward();
    assert!(report.passed(), "{what} in {name}: {report}");
    let o = Passes {
        o: wrong(&passes.o),
        ..passes.clone()
    }
    .forward();
    assert!(!o.o.passed() && o.lse.passed(), "{what} in {name}: {o}");
    let lse = passes.lse.iter().map(|lse| lse * 1.01).collect();
    let lse = Passes {
        lse,
        ..passes.clone()
    }
    .forward();
    assert!(
        lse.o.passed() && !lse.lse.passed(),
        "{what} in {name}: {lse}"
    );

    let passes = &by_definition(passes.clone());
    let expected = passes.expected_gradients();
    let report = expected.compare(&passes.as_backward());
    assert!(
        report.passed() || !has_dq && report.dv.passed(),
        "{what} in {name}: {report}"
    );
    let spoilt = Passes {
        dq: wrong(&passes.dq),
        dk: wrong(&passes.dk),
        dv: wrong(&passes.dv),
        ..passes.clone()
    };
    let report = expected.compare(&spoilt.as_backward());
    let found = [report.dq, report.dk, report.dv].map(|found| found.passed());
    assert!(
        !found[2] && !(has_dq && (found[0] || found[1])),
        "{what} in {name}: {report}"
    );
}

#[test]
fn huge_numbers_leave_no_room() {
    for (what, sample, has_dq) in huge() {
        wrong_by_a_percent(what, &Passes::<f32>::new(&sample), has_dq);
        wrong_by_a_percent(what, &Passes::<f16>::new(&sample), has_dq);
        wrong_by_a_percent(what, &Passes::<bf16>::new(&sample), has_dq);
    }
}

/// Huge values of one column, and of one key that hardly counts, leave no room for the others.
#[test]
fn huge_values_leave_no_room() {
    let plain = Sample::from(PLAIN);
    let first = Sample {
        bias: biased(|_, key| key > 0).bias,
        ..PLAIN.into()
    };
    for (sample, size) in [(&plain, 30_000.0), (&plain, 1e-3), (&first, 30_000.0)] {
        let [q, k, mut v] = random::inputs::<f16>(&sample.problem, 1);
        let is_huge = |place: &usize| match sample.bias {
            None => place % 16 == 3,
            // Of keys that are not seen beside the first.
            Some(_) => *place >= 16 * 20,
        };
        for place in (0..v.len()).filter(is_huge) {
            v[place] = f16::from_f32(size);
        }
        let passes = Passes::of(sample, [q, k, v]);
        let report = passes.forward();
        assert!(report.passed(), "{report}");
        for column in 0..16 {
            let mut spoilt = passes.clone();
            spoilt
                .o
                .iter_mut()
                .skip(column)
                .step_by(16)
                .for_each(|o| *o *= f16::from_f32(1.01));
            let report = spoilt.forward();
            assert!(
                !report.o.passed() && report.o.worst[3] == column,
                "{column}: {report}"
            );
        }
    }
}
