//! The scores of one query head under options, on the host.

mod bias;
mod custom;
mod host;
mod mask;
mod rectangles;
mod sequences;

pub use host::HostOptions;

use super::{Sequence, has_far_scale};
use crate::forward::Problem;
use crate::tensor::Dtype;
use bias::HeadBias;
use custom::HeadCustom;
use kernels::abi::NEAR_SOFTCAP;
use mask::HeadMask;
use ndarray::{ArrayView1, ArrayViewMut2};
use rectangles::{Rectangle, rectangles};
use sequences::HeadSequences;
use std::f64::consts::LOG2_E;
use std::ops::Range;

/// Half a unit in the last place of f32, relative to numbers of any size.
const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// The options of one query head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    /// Sizes, and options of all heads.
    pub p: &'a Problem,
    /// Slope of ALiBi: one, or one of each sequence.
    pub slopes: Option<ArrayView1<'a, f32>>,
    /// The sink's logit.
    pub sink: Option<f32>,
    pub bias: Option<HeadBias<'a>>,
    pub mask: Option<HeadMask<'a>>,
    pub sequences: HeadSequences<'a>,
    pub custom: Option<HeadCustom<'a>>,
    /// Whether results of a row depend on its own keys alone.
    pub invariant: bool,
}

impl Head<'_> {
    /// Whether scores are scaled products, unchanged.
    pub fn is_plain(&self) -> bool {
        !has_far_scale(self.p)
            && self.p.softcap.is_none()
            && self.slopes.is_none()
            && self.bias.is_none()
            && self.custom.is_none()
    }

    /// Whether pairs inside the window may be hidden.
    pub fn hides(&self) -> bool {
        self.mask.is_some() || self.custom.is_some()
    }

    /// Whether derivatives of scores may not be 1.
    pub fn has_derivatives(&self) -> bool {
        self.p.softcap.is_some() || self.custom.is_some()
    }

    /// Whether a pair inside the window see each other.
    fn sees(&self, place: [usize; 2]) -> bool {
        self.mask.is_none_or(|mask| mask.sees(place))
            && self.custom.is_none_or(|custom| custom.sees(place))
    }

    /// Keys that query `row` sees by its place; from row to row, both ends only rise.
    pub fn range(&self, row: usize) -> Range<usize> {
        self.p.keys_in(&self.sequences.of(row), row)
    }

    /// The parts of some rows that are of one sequence, with its keys.
    pub fn by_sequence(&self, rows: Range<usize>) -> Vec<Sequence> {
        let of_rows = self.sequences.all().into_iter().map(|sequence| Sequence {
            queries: sequence.queries.start.max(rows.start)..sequence.queries.end.min(rows.end),
            keys: sequence.keys,
        });
        of_rows.filter(|part| !part.queries.is_empty()).collect()
    }

    /// Keys that query `row` sees, ascending.
    pub fn keys(&self, row: usize) -> Vec<usize> {
        let keys = self.range(row);
        keys.filter(|&key| self.sees([row, key])).collect()
    }

    /// [Rectangles] of the pairs of `rows` and `keys` that see each other.
    ///
    /// [Rectangles]: rectangles
    ///
    /// Where all factors are `finite`, a product with 0 is 0: then rectangles may hold pairs that the mask
    /// [hides](Self::hide).
    pub fn visible(&self, rows: Range<usize>, keys: Range<usize>, finite: bool) -> Vec<Rectangle> {
        if self.invariant && rows.len() > 1 {
            let [first, last] = [rows.start, rows.end - 1].map(|row| self.range(row));
            if keys.start < last.start || first.end < keys.end {
                // Else the rows decide into which parts the keys of one are cut.
                let alone = rows.map(|row| self.visible(row..row + 1, keys.clone(), finite));
                return alone.flatten().collect();
            }
        }
        let rectangles = rectangles(|row| self.range(row), rows, keys);
        if finite || !self.hides() {
            return rectangles;
        }
        let mut parts = Vec::new();
        for (rows, keys) in rectangles {
            for row in rows {
                let seen: Vec<usize> = keys.clone().filter(|&key| self.sees([row, key])).collect();
                let runs = seen.chunk_by(|a, b| a + 1 == *b);
                parts.extend(runs.map(|run| (row..row + 1, run[0]..run[0] + run.len())));
            }
        }
        parts
    }

    /// Puts a number in the places of pairs that the mask hides.
    pub fn hide(
        &self,
        rows: Range<usize>,
        keys: Range<usize>,
        mut pairs: ArrayViewMut2<f32>,
        number: f32,
    ) {
        if !self.hides() {
            return;
        }
        for (row, mut pairs) in rows.zip(pairs.rows_mut()) {
            for (key, pair) in keys.clone().zip(&mut pairs) {
                if !self.sees([row, key]) {
                    *pair = number;
                }
            }
        }
    }

    /// The sink's logit; `-inf`, which adds nothing, where there is none.
    pub fn sink(&self) -> f32 {
        self.sink.unwrap_or(f32::NEG_INFINITY)
    }

    /// The factor of products before they [become scores](Self::apply): 1 where the scale may take them beyond f32.
    pub fn product_scale(&self) -> f32 {
        match has_far_scale(self.p) {
            true => 1.0,
            false => self.p.scale,
        }
    }

    /// The scaled product from one by this [factor](Self::product_scale).
    pub fn scaled(&self, product: f32) -> f64 {
        let rest = match has_far_scale(self.p) {
            true => self.p.scale,
            false => 1.0,
        };
        f64::from(rest) * f64::from(product)
    }

    /// The score of query `row` and a key from their scaled product, rounded after each step.
    pub fn score(&self, place: [usize; 2], product: f64, round: impl Fn(f64) -> f64) -> f64 {
        let mut score = product;
        if let Some(cap) = self.p.softcap {
            let cap = f64::from(cap);
            // Rounded once: a quotient may be so small that it has fewer digits.
            score = round(cap * (score / cap).tanh());
        }
        for bias in self.biases(place).into_iter().flatten() {
            score = round(score + bias);
        }
        bounded(match self.custom {
            Some(custom) => round(custom.score(place, bounded(score))),
            None => score,
        })
    }

    /// The derivative of a score by its scaled product.
    pub fn derivative(&self, place: [usize; 2], product: f64) -> f64 {
        let capped = match self.p.softcap {
            Some(cap) => 1.0 - (product / f64::from(cap)).tanh().powi(2),
            None => 1.0,
        };
        let Some(custom) = self.custom else {
            return capped;
        };
        let before = Head {
            custom: None,
            ..*self
        };
        capped * custom.derivative(place, before.score(place, product, |x| x))
    }

    /// How far sums in f32, and a hyperbolic tangent with this error, may take a score from the one that its
    /// product gives.
    pub fn error(&self, place: [usize; 2], product: f64, tanh: f64) -> f64 {
        let capped = self.p.softcap.map_or(0.0, |cap| {
            let cap = f64::from(cap);
            cap * (product / cap).tanh().abs()
        });
        let score = self.score(place, product, |x| x);
        if self.is_plain() || !score.is_finite() {
            return 0.0;
        }
        let biases = self.biases(place).into_iter().flatten();
        // Another crate's score works on its product in f32.
        let custom = self.custom.map_or(0.0, |_| product);
        let sizes: f64 = biases.chain([capped, score, custom]).map(f64::abs).sum();
        let cap = f64::from(self.p.softcap.unwrap_or(0.0));
        let of_tanh = match cap <= f64::from(NEAR_SOFTCAP) {
            true => cap,
            false => cap.min(8.0 * capped),
        };
        tanh * of_tanh + 4.0 * UNIT * sizes
    }

    /// Turns products of rows and keys by the [factor](Self::product_scale) into scores; `-inf` for pairs that the mask hides.
    pub fn apply(&self, rows: Range<usize>, keys: Range<usize>, mut products: ArrayViewMut2<f32>) {
        if !self.is_plain() {
            for (row, mut products) in rows.clone().zip(products.rows_mut()) {
                for (key, score) in keys.clone().zip(&mut products) {
                    *score = self.score([row, key], self.scaled(*score), |x| x) as f32;
                }
            }
        }
        self.hide(rows, keys, products, f32::NEG_INFINITY);
    }

    /// The terms that ALiBi and the bias add to a score.
    fn biases(&self, [row, key]: [usize; 2]) -> [Option<f64>; 2] {
        let of_alibi = |slopes: ArrayView1<f32>| {
            let Sequence { queries, keys } = self.sequences.of(row);
            let distance = (row + keys.end).abs_diff(key + queries.end);
            let number = self.sequences.number(row).min(slopes.len() - 1);
            -f64::from(slopes[number]) * distance as f64
        };
        [
            self.slopes.map(of_alibi),
            self.bias.map(|bias| bias.at([row, key])),
        ]
    }
}

/// A score as every device has it: kernels compute in base 2, where the largest f32 stands for all finite scores beyond it.
pub(crate) fn bounded(score: f64) -> f64 {
    let most = f64::from(f32::MAX);
    match score.is_finite() && score.abs() >= most / LOG2_E {
        true => most.copysign(score),
        false => score,
    }
}

/// The error of the hyperbolic tangent in calls of this type: kernels make it of an exponential and a reciprocal, each to
/// about 2^-22, and only the CPU computes f32.
pub(crate) fn tanh_error(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 | Dtype::Bf16 => 1.0 / (1 << 20) as f64,
        Dtype::F32 => 0.0,
    }
}
