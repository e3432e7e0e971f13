//! The gradients of options' tensors by the reference.

use super::{Backward, HeadInputs};
use crate::backward::bounds::Factor;
use crate::backward::reference::Row;
use crate::comparison::{ExpectedRow, ExpectedRows, max_finite, round, rounding};
use crate::tensor::{Dtype, Element};
use ndarray::Array4;
use rayon::prelude::*;

/// Rows whose parts in the sums are found at once.
const ROWS: usize = 256;

/// The gradients of sinks and of a bias, as far as they are compared: what all rows give them.
pub(super) fn expected<T: Element>(backward: &Backward<T>) -> [Option<ExpectedRows>; 2] {
    let p = backward.problem;
    let mut d_sinks = backward.d_sinks.map(|_| Sums::zeros([1, p.heads, 1, 1]));
    let mut d_bias = backward.d_bias.map(|(shape, _)| Sums::zeros(shape));
    let is_compared = d_sinks.is_some() || d_bias.is_some();
    for head in (0..p.batch * p.kv_heads).filter(|_| is_compared) {
        let inputs = HeadInputs::new(backward, head);
        let reference = inputs.reference(backward, head);
        let (batch, first) = (head / p.kv_heads, head % p.kv_heads * p.group());
        let numbers: Vec<usize> = (0..p.group() * p.seqlen_q).collect();
        for numbers in numbers.chunks(ROWS) {
            let rows = numbers.par_iter().map(|&number| {
                let exact = reference.row(number, None)?;
                // Rounded scores may all be -inf: then there is no plain algorithm's row.
                let low = reference.row(number, Some(round::<T>));
                Some((number, exact, low))
            });
            let rows: Vec<Option<(usize, Row, Option<Row>)>> = rows.collect();
            for (number, exact, low) in rows.into_iter().flatten() {
                let place = |key| [batch, first + number / p.seqlen_q, number % p.seqlen_q, key];
                if let Some(sums) = &mut d_sinks {
                    let low = low.as_ref().map_or(exact.d_sink, |low| low.d_sink);
                    sums.add(place(0), exact.of_sink(), low);
                }
                if let Some(sums) = &mut d_bias {
                    for (j, &key) in exact.keys.iter().enumerate() {
                        let low = low.as_ref().map_or(exact.ds[j], |low| low.ds[j]);
                        sums.add(place(key), exact.of_ds(j), low);
                    }
                }
            }
        }
    }
    [d_sinks, d_bias].map(|sums| sums.map(Sums::expected))
}

/// Sums over the axes that have an extent of 1.
struct Sums {
    exact: Array4<f64>,
    /// Of the plain algorithm that rounds.
    low: Array4<f64>,
    /// Allowance for sums in f32, and for roundings to the element type.
    errors: Array4<f64>,
}

impl Sums {
    fn zeros(shape: [usize; 4]) -> Self {
        let [exact, low, errors] = [(); 3].map(|()| Array4::zeros(shape));
        Sums { exact, low, errors }
    }

    fn add(&mut self, place: [usize; 4], exact: Factor, low: f64) {
        let mut axes = self.exact.shape().iter();
        let place = place.map(|index| index.min(axes.next().expect("four axes") - 1));
        self.exact[place] += exact.value;
        self.low[place] += low;
        self.errors[place] += exact.error + exact.rounding;
    }

    fn expected(self) -> ExpectedRows {
        let [_, heads, seqlen, _] = self.exact.dim().into();
        let [unit, least] = rounding(Dtype::F32);
        let allowed = self.errors;
        let bounds = &allowed + &self.exact.mapv(|x| least.max(unit * x.abs()));
        let lanes = [&self.exact, &self.low, &allowed, &bounds];
        let [exact, low, allowed, bounds] = lanes.map(|all| all.rows().into_iter());
        let rows = exact.zip(low).zip(allowed.zip(bounds)).enumerate();
        let rows = rows.map(|(number, ((exact, low), (allowed, bounds)))| {
            let most = max_finite(allowed.to_owned());
            ExpectedRow::new::<f32>(number, exact.to_owned(), low, most, bounds.to_owned())
        });
        ExpectedRows {
            heads,
            seqlen,
            rows: rows.collect(),
        }
    }
}
