//! Scores at the edge of f32: finite numbers stay finite, in both passes, and equal ones share the weight.

use ferroattn::{Attention, BackwardInputs, Class, Device, Dtype, Element, Tensor, bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (name, call) in calls() {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let test = move |device: &Device| match dtype {
                Dtype::F16 => call.check::<f16>(device),
                _ => call.check::<bf16>(device),
            };
            let test = Test::backward(format!("{name}_{}", dtype.name()), test);
            tests.extend(test.emulated_as(Class::Sm90));
            tests.push(test);
        }
    }
    tests
}

const HEADS: usize = 2;
const QUERIES: usize = 70;

/// The lowest number that frameworks write for padding.
const LOWEST: f32 = f32::MIN;

/// The bias of a query and a key.
type BiasOf = fn(usize, usize) -> f32;

/// A call whose scores are far from 0.
#[derive(Clone, Copy)]
struct Call {
    causal: bool,
    scale: f32,
    softcap: Option<f32>,
    slopes: Option<[f32; HEADS]>,
    sinks: Option<[f32; HEADS]>,
    /// The bias of a query and a key, of this type.
    bias: Option<(Dtype, BiasOf)>,
    keys: usize,
    dim: usize,
    /// How far results may be off, relative to the largest.
    tolerance: f64,
}

const CALL: Call = Call {
    causal: false,
    scale: 0.125,
    softcap: None,
    slopes: None,
    sinks: None,
    bias: None,
    keys: 90,
    dim: 64,
    tolerance: 0.01,
};

fn calls() -> Vec<(&'static str, Call)> {
    let bias = |bias| Call {
        bias: Some((Dtype::F32, bias)),
        ..CALL
    };
    let of_bf16 = |bias| Call {
        bias: Some((Dtype::Bf16, bias)),
        ..CALL
    };
    let scale = |scale| Call { scale, ..CALL };
    let slopes = |slopes| Call {
        slopes: Some(slopes),
        ..CALL
    };
    vec![
        ("lowest_bias", bias(|_, _| LOWEST)),
        ("lowest_bias_of_bf16", of_bf16(|_, _| LOWEST)),
        (
            "lowest_bias_of_causal_rows",
            Call {
                causal: true,
                dim: 128,
                ..bias(|_, _| LOWEST)
            },
        ),
        (
            "lowest_bias_of_some_rows",
            bias(|i, j| match (i % 3, j % 2) {
                (0, _) | (_, 0) => LOWEST,
                _ => 0.5,
            }),
        ),
        (
            "lowest_bias_beside_hidden_keys",
            bias(|i, j| {
                if (i + j) % 4 == 0 {
                    LOWEST
                } else {
                    f32::NEG_INFINITY
                }
            }),
        ),
        (
            "lowest_bias_beside_blind_rows",
            Call {
                causal: true,
                keys: 50,
                ..bias(|_, _| LOWEST)
            },
        ),
        (
            "largest_bias",
            bias(|i, j| if j % 30 == i % 30 { f32::MAX } else { -1.0 }),
        ),
        (
            "biases_that_differ_by_much",
            bias(|i, j| [LOWEST, -1e30, -3e20, 1e35][(i * 7 + j * 3) % 4]),
        ),
        (
            "bias_without_digits",
            Call {
                tolerance: 0.04,
                ..bias(|_, _| -1e5)
            },
        ),
        (
            "lowest_bias_under_a_softcap",
            Call {
                softcap: Some(3.0),
                ..bias(|_, _| LOWEST)
            },
        ),
        (
            "lowest_bias_and_sinks",
            Call {
                sinks: Some([LOWEST, -3.0]),
                ..bias(|_, _| LOWEST)
            },
        ),
        (
            "sinks_far_above",
            Call {
                sinks: Some([1e30, f32::MAX]),
                ..CALL
            },
        ),
        (
            "sinks_far_below",
            Call {
                sinks: Some([-1e30, LOWEST]),
                ..CALL
            },
        ),
        ("steep_slopes", slopes([1e30, 3e5])),
        ("steepest_slopes", slopes([2e36, 0.0])),
        ("scale_of_1e6", scale(1e6)),
        ("scale_of_1e20", scale(1e20)),
        ("scale_of_minus_1e30", scale(-1e30)),
        ("least_scale", scale(1e-45)),
        (
            "scale_of_1e30_under_a_softcap",
            Call {
                softcap: Some(3e38),
                ..scale(1e30)
            },
        ),
    ]
}

type Run = Box<dyn Fn(&Device) -> Outcome>;

/// Runs that show faults of the kernels of far rows.
pub fn runs() -> Vec<Run> {
    let of_f32 = |call: &Call| matches!(call.bias, Some((Dtype::F32, _))) && call.softcap.is_none();
    let calls = calls().into_iter().map(|(_, call)| call);
    let calls = calls.filter(|call| of_f32(call) && call.sinks.is_none() && call.dim == 64);
    let run = |call: Call| -> Run { Box::new(move |device| call.check::<f16>(device)) };
    calls.map(run).collect()
}

/// Random inputs, as f64, of one batch entry.
struct Inputs {
    /// `[HEADS, QUERIES, dim]`.
    q: Vec<f64>,
    /// `[self.keys, dim]`: one key/value head.
    k: Vec<f64>,
    v: Vec<f64>,
    d_o: Vec<f64>,
}

/// Results of both passes.
#[derive(Default)]
struct Results {
    o: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    d_bias: Vec<f64>,
    d_sinks: Vec<f64>,
}

impl Call {
    /// Compares both passes on a device with the definition in f64.
    fn check<T: Element>(&self, device: &Device) -> Outcome {
        let inputs = self.inputs::<T>();
        let expected = self.results(&inputs);
        let found = self.run::<T>(device, &inputs)?;
        for (name, found, expected) in [
            ("o", &found.o, &expected.o),
            ("dq", &found.dq, &expected.dq),
            ("dk", &found.dk, &expected.dk),
            ("dv", &found.dv, &expected.dv),
            ("d_bias", &found.d_bias, &expected.d_bias),
            ("d_sinks", &found.d_sinks, &expected.d_sinks),
        ] {
            // Rounded dS, times such a scale, is noise.
            if ["dq", "dk"].contains(&name) && self.scale.abs() >= 1e6 {
                continue;
            }
            let factor = if T::DTYPE == Dtype::Bf16 { 2.0 } else { 1.0 };
            let largest = expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
            compare(name, found, expected, |_| factor * self.tolerance * largest)?;
        }
        compare("lse", &found.lse, &expected.lse, |lse| {
            1e-4 + 1e-5 * lse.abs()
        })
    }

    fn inputs<T: Element>(&self) -> Inputs {
        let mut rng = StdRng::seed_from_u64(7);
        let mut random = |rows: usize| -> Vec<f64> {
            let numbers = (0..rows * self.dim).map(|_| rng.sample::<f32, _>(StandardNormal));
            numbers.map(|x| T::from_f32(x).to_f32().into()).collect()
        };
        let mut inputs = Inputs {
            q: random(HEADS * QUERIES),
            k: random(self.keys),
            v: random(self.keys),
            d_o: random(HEADS * QUERIES),
        };
        // Rows that see no key may hold anything.
        for row in (0..HEADS * QUERIES).filter(|&row| !self.sees(row % QUERIES, 0)) {
            for rows in [&mut inputs.q, &mut inputs.d_o] {
                rows[row * self.dim..][..self.dim].fill(f64::NAN);
            }
        }
        inputs
    }

    /// The bias of a pair, rounded to its type.
    fn bias_at(&self, query: usize, key: usize) -> f32 {
        match self.bias {
            // The lowest number of bfloat16, not -inf.
            Some((Dtype::Bf16, bias)) => bf16::from_f32(bias(query, key))
                .to_f32()
                .max(bf16::MIN.to_f32()),
            Some((_, bias)) => bias(query, key),
            None => 0.0,
        }
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        !self.causal || key + QUERIES <= query + self.keys
    }

    /// The score of a product, and its derivative by that.
    fn score(&self, head: usize, [query, key]: [usize; 2], product: f64) -> (f64, f64) {
        let (mut score, mut derivative) = (f64::from(self.scale) * product, 1.0);
        if let Some(cap) = self.softcap {
            let tanh = (score / f64::from(cap)).tanh();
            (score, derivative) = (f64::from(cap) * tanh, 1.0 - tanh * tanh);
        }
        let slope = self.slopes.map_or(0.0, |slopes| f64::from(slopes[head]));
        score -= slope * (query + self.keys).abs_diff(key + QUERIES) as f64;
        score += f64::from(self.bias_at(query, key));
        // Scores in base 2 are f32.
        let most = f64::from(f32::MAX) / std::f64::consts::LOG2_E;
        let is_beyond = score.is_finite() && score.abs() >= most;
        let bounded = if is_beyond {
            f64::from(f32::MAX).copysign(score)
        } else {
            score
        };
        (bounded, derivative)
    }

    /// Both passes by their definition.
    fn results(&self, inputs: &Inputs) -> Results {
        let dim = self.dim;
        let row = |all: &'_ [f64], i: usize| all[i * dim..][..dim].to_vec();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut all = Results {
            dk: vec![0.0; self.keys * dim],
            dv: vec![0.0; self.keys * dim],
            ..Results::default()
        };
        for head in 0..HEADS {
            let sink = self
                .sinks
                .map_or(f64::NEG_INFINITY, |sinks| sinks[head].into());
            let mut d_sink = 0.0;
            for query in 0..QUERIES {
                let number = head * QUERIES + query;
                let [q, d_o] = [&inputs.q, &inputs.d_o].map(|all| row(all, number));
                let scores: Vec<(f64, f64)> = (0..self.keys)
                    .map(|key| match self.sees(query, key) {
                        true => self.score(head, [query, key], dot(&q, &row(&inputs.k, key))),
                        false => (f64::NEG_INFINITY, 1.0),
                    })
                    .collect();
                let max = scores.iter().fold(sink, |max, (score, _)| max.max(*score));
                if max == f64::NEG_INFINITY {
                    all.lse.push(max);
                    all.o.extend(vec![0.0; dim]);
                    all.dq.extend(vec![0.0; dim]);
                    all.d_bias.extend(vec![0.0; self.keys]);
                    continue;
                }
                let weights: Vec<f64> = scores.iter().map(|(s, _)| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f64>() + (sink - max).exp();
                all.lse.push(max + sum.ln());
                let mut o = vec![0.0; dim];
                for (key, weight) in weights.iter().enumerate() {
                    for (o, v) in o.iter_mut().zip(row(&inputs.v, key)) {
                        *o += weight / sum * v;
                    }
                }
                let delta = dot(&o, &d_o);
                all.o.extend(o);
                d_sink -= (sink - max).exp() / sum * delta;
                let mut dq = vec![0.0; dim];
                for key in 0..self.keys {
                    let p = weights[key] / sum;
                    let ds = p * (dot(&d_o, &row(&inputs.v, key)) - delta);
                    all.d_bias.push(ds);
                    let by_product = f64::from(self.scale) * ds * scores[key].1;
                    for d in 0..dim {
                        dq[d] += by_product * inputs.k[key * dim + d];
                        all.dk[key * dim + d] += by_product * q[d];
                        all.dv[key * dim + d] += p * d_o[d];
                    }
                }
                all.dq.extend(dq);
            }
            all.d_sinks.push(d_sink);
        }
        if self.bias.is_none() {
            all.d_bias.clear();
        }
        if self.sinks.is_none() {
            all.d_sinks.clear();
        }
        all
    }

    /// Both passes on a device.
    fn run<T: Element>(&self, device: &Device, inputs: &Inputs) -> ferroattn::Result<Results> {
        let tensor = |numbers: &[f64], heads: usize| {
            let elements: Vec<T> = numbers.iter().map(|&x| T::from_f32(x as f32)).collect();
            let shape = [1, heads, elements.len() / heads / self.dim, self.dim];
            Tensor::new(device, shape, &elements)
        };
        let (q, d_o) = (tensor(&inputs.q, HEADS)?, tensor(&inputs.d_o, HEADS)?);
        let (k, v) = (tensor(&inputs.k, 1)?, tensor(&inputs.v, 1)?);
        let of_heads = |numbers: Option<[f32; HEADS]>| {
            Tensor::new(device, [HEADS], &numbers.unwrap_or_default())
        };
        let (slopes, sinks) = (of_heads(self.slopes)?, of_heads(self.sinks)?);
        let pairs = (0..HEADS * QUERIES * self.keys)
            .map(|i| self.bias_at(i / self.keys % QUERIES, i % self.keys));
        let shape = [1, HEADS, QUERIES, self.keys];
        let bias = Tensor::new(device, shape, &pairs.clone().collect::<Vec<_>>())?;
        let pairs: Vec<_> = pairs.map(bf16::from_f32).collect();
        let bf16_bias = Tensor::new(device, shape, &pairs)?;

        let mut call = Attention::new().causal(self.causal).scale(self.scale);
        if let Some(softcap) = self.softcap {
            call = call.softcap(softcap);
        }
        if self.slopes.is_some() {
            call = call.alibi(&slopes);
        }
        if self.sinks.is_some() {
            call = call.sinks(&sinks);
        }
        call = match self.bias {
            Some((Dtype::Bf16, _)) => call.bias(&bf16_bias),
            Some(_) => call.bias(&bias),
            None => call,
        };
        let (o, lse) = call.forward(&q, &k, &v)?;
        let all = call.backward_all(&BackwardInputs::new(&q, &k, &v, &o, &lse, &d_o))?;
        let widened = |tensor: &Tensor<T>| -> ferroattn::Result<Vec<f64>> {
            Ok(tensor
                .to_vec()?
                .into_iter()
                .map(|x| x.to_f32().into())
                .collect())
        };
        let widen = |numbers: Vec<f32>| numbers.into_iter().map(f64::from).collect();
        Ok(Results {
            o: widened(&o)?,
            lse: widen(lse.to_vec()?),
            dq: widened(&all.dq)?,
            dk: widened(&all.dk)?,
            dv: widened(&all.dv)?,
            d_bias: all
                .d_bias
                .map_or(Ok(vec![]), |d_bias| d_bias.to_vec())
                .map(widen)?,
            d_sinks: all
                .d_sinks
                .map_or(Ok(vec![]), |d_sinks| d_sinks.to_vec())
                .map(widen)?,
        })
    }
}

/// Compares numbers, each with its tolerance; a tolerance holds no NaN.
fn compare(name: &str, found: &[f64], expected: &[f64], tolerance: impl Fn(f64) -> f64) -> Outcome {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_right = found == expected || (found - expected).abs() <= tolerance(*expected);
        if !is_right {
            return Err(format!("{name}: element {i} is {found}, not {expected}").into());
        }
    }
    PASSED
}
