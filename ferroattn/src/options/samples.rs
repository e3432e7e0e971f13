//! Random problems with options, for tests on the CPU.

use super::{Sequences, Window};
use crate::attention::Attention;
use crate::device::Device;
use crate::forward::Problem;
use crate::tensor::{Dtype, Element, Tensor};
use half::{bf16, f16};
use ndarray::ArrayView4;
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::ops::Range;

/// A problem, and tensors of its options.
#[derive(Debug)]
pub(crate) struct Sample {
    pub problem: Problem,
    pub seed: u64,
    /// `[heads]` or `[batch, heads]`.
    pub alibi: Option<Slopes>,
    pub sinks: Option<Tensor<f32, 1>>,
    pub bias: Option<Bias>,
    pub mask: Option<Mask>,
    pub sequences: Option<Sequences<Tensor<i32, 1>>>,
    /// `[batch]`, not of packed sequences.
    pub first_keys: Option<Tensor<i32, 1>>,
}

#[derive(Debug)]
pub(crate) enum Bias {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

#[derive(Debug)]
pub(crate) enum Mask {
    Bytes(Tensor<u8>),
    Bits(Tensor<u32>),
}

#[derive(Debug)]
pub(crate) enum Slopes {
    Heads(Tensor<f32, 1>),
    Entries(Tensor<f32, 2>),
    /// `[sequences, heads]`.
    Sequences(Tensor<f32, 2>),
}

impl From<Problem> for Sample {
    fn from(problem: Problem) -> Self {
        Sample {
            problem,
            seed: 0,
            alibi: None,
            sinks: None,
            bias: None,
            mask: None,
            sequences: None,
            first_keys: None,
        }
    }
}

impl Sample {
    /// The call.
    pub fn attention(&self) -> Attention<'_> {
        let p = &self.problem;
        let mut attention = Attention::new().causal(p.causal).scale(p.scale);
        attention = attention.window(p.window.left, p.window.right);
        if let Some(softcap) = p.softcap {
            attention = attention.softcap(softcap);
        }
        attention = match &self.alibi {
            Some(Slopes::Heads(slopes)) => attention.alibi(slopes),
            Some(Slopes::Entries(slopes) | Slopes::Sequences(slopes)) => attention.alibi(slopes),
            None => attention,
        };
        attention = match &self.bias {
            Some(Bias::F16(bias)) => attention.bias(bias),
            Some(Bias::Bf16(bias)) => attention.bias(bias),
            Some(Bias::F32(bias)) => attention.bias(bias),
            None => attention,
        };
        attention = match &self.mask {
            Some(Mask::Bytes(mask)) => attention.mask(mask),
            Some(Mask::Bits(mask)) => attention.mask(mask),
            None => attention,
        };
        attention = match &self.sequences {
            Some(Sequences::Packed { q, kv }) => attention.packed(q, kv),
            Some(Sequences::Padded { q, kv }) => attention.padded(q, kv),
            Some(Sequences::PackedQueries { q, kv }) => attention.packed_queries(q, kv),
            None => attention,
        };
        if let Some(first_keys) = &self.first_keys {
            attention = attention.first_keys(first_keys);
        }
        match &self.sinks {
            Some(sinks) => attention.sinks(sinks),
            None => attention,
        }
    }

    /// The sink of a head, by definition.
    pub fn sink(&self, head: usize) -> f64 {
        let sinks = self.sinks.as_ref();
        sinks.map_or(f64::NEG_INFINITY, |sinks| element(sinks, head))
    }

    /// Queries and keys of the sequences of an entry of the batch.
    fn sequences(&self, b: usize) -> Vec<[Range<usize>; 2]> {
        let p = &self.problem;
        let first = self
            .first_keys
            .as_ref()
            .map_or(0, |first_keys| numbers(first_keys)[b]);
        match &self.sequences {
            None => vec![[0..p.seqlen_q, first..p.seqlen_kv]],
            Some(Sequences::Padded { q, kv }) => {
                let [q, kv] = [q, kv].map(|lengths| numbers(lengths)[b]);
                vec![[0..q, first..kv]]
            }
            Some(Sequences::PackedQueries { .. }) => unreachable!("no sample has pages"),
            Some(Sequences::Packed { q, kv }) => {
                let [q, kv] = [q, kv].map(numbers);
                let sequences = 0..q.len() - 1;
                sequences
                    .map(|s| [q[s]..q[s + 1], kv[s]..kv[s + 1]])
                    .collect()
            }
        }
    }

    /// Whether query `i` of an entry of the batch is part of a sequence.
    pub fn is_in_sequence(&self, b: usize, i: usize) -> bool {
        self.sequences(b).iter().any(|[q, _]| q.contains(&i))
    }

    /// How far key `j` lies behind the place of query `i` in their sequence, by definition; `None` if they have none.
    fn behind(&self, [b, _, i, j]: [usize; 4]) -> Option<f64> {
        let mut sequences = self.sequences(b).into_iter();
        let [queries, keys] = sequences.find(|[q, kv]| q.contains(&i) && kv.contains(&j))?;
        // Both counted from the end.
        Some((queries.end - i) as f64 - (keys.end - j) as f64)
    }

    /// Whether the query `[batch, head, i]` sees key `j`, by definition.
    pub fn sees(&self, place: [usize; 4]) -> bool {
        let [b, h, i, j] = place;
        let p = &self.problem;
        let Some(behind) = self.behind(place) else {
            return false;
        };
        let within = |bound: Option<usize>, distance: f64| {
            bound.is_none_or(|bound| distance <= bound as f64)
        };
        let in_mask = match &self.mask {
            None => true,
            Some(Mask::Bytes(mask)) => repeated(mask, place) != 0,
            Some(Mask::Bits(mask)) => repeated(mask, [b, h, i, j / 32]) & (1 << (j % 32)) != 0,
        };
        in_mask
            && within(p.window.left, -behind)
            && within(p.window.right, behind)
            && !(p.causal && behind > 0.0)
    }

    /// The score of a pair that see each other, by definition.
    pub fn score(&self, place: [usize; 4], product: f64) -> f64 {
        let [b, h, i, _] = place;
        let p = &self.problem;
        let distance = self.behind(place).expect("of one sequence").abs();
        let slope = match &self.alibi {
            None => 0.0,
            Some(Slopes::Heads(slopes)) => element(slopes, h),
            Some(Slopes::Entries(slopes)) => element(slopes, b * p.heads + h),
            Some(Slopes::Sequences(slopes)) => {
                let sequences = self.sequences(b);
                let number = sequences.iter().position(|[q, _]| q.contains(&i));
                element(slopes, number.expect("in one") * p.heads + h)
            }
        };
        let softcap = p.softcap.map(f64::from);
        let capped = softcap.map_or(product, |cap| cap * (product / cap).tanh());
        let bias = match &self.bias {
            None => 0.0,
            Some(Bias::F16(bias)) => repeated(bias, place).into(),
            Some(Bias::Bf16(bias)) => repeated(bias, place).into(),
            Some(Bias::F32(bias)) => repeated(bias, place).into(),
        };
        capped - slope * distance + bias
    }
}

/// The element of a row-major tensor on the CPU, whose axes of extent 1 are repeated.
fn repeated<T: bytemuck::Pod>(tensor: &Tensor<T>, place: [usize; 4]) -> T {
    let index: [usize; 4] = std::array::from_fn(|axis| place[axis].min(tensor.shape()[axis] - 1));
    // SAFETY: the tensor is in host memory.
    let elements: ArrayView4<T> = unsafe { tensor.as_raw().view() };
    elements[index]
}

fn element<const R: usize>(tensor: &Tensor<f32, R>, place: usize) -> f64 {
    f64::from(tensor.to_vec().expect("on the CPU")[place])
}

fn numbers(tensor: &Tensor<i32, 1>) -> Vec<usize> {
    let numbers = tensor.to_vec().expect("on the CPU").into_iter();
    numbers.map(|number| number as usize).collect()
}

fn converted<T: Element>(device: &Device, shape: [usize; 4], elements: &[f32]) -> Tensor<T> {
    let elements: Vec<T> = elements.iter().map(|&x| T::from_f32(x)).collect();
    Tensor::new(device, shape, &elements).expect("valid")
}

/// Samples with lengths around a tile's.
pub(crate) fn samples() -> impl Strategy<Value = Sample> {
    let lengths = || select(vec![1_usize, 2, 9, 70, 130, 200]);
    samples_of((1..=2_usize, 1..=2_usize, 1..=2_usize, lengths(), lengths()))
}

/// Samples of these batches, key/value heads, groups, queries and keys; a batch of packed sequences is 1.
pub(crate) fn samples_of(
    sizes: impl Strategy<Value = (usize, usize, usize, usize, usize)>,
) -> impl Strategy<Value = Sample> {
    let bound = || prop::option::of(select(vec![0_usize, 1, 5, 64, 150]));
    let window = (bound(), bound()).prop_map(|(left, right)| Window { left, right });
    let scale = select(vec![-1.5_f32, -0.3, 0.0, 0.35, 1.0]);
    let softcap = prop::option::of(select(vec![0.3_f32, 2.0, 50.0]));
    let tensors = (prop::option::of(any::<bool>()), any::<bool>());
    let axes = || [any::<bool>(), any::<bool>(), any::<bool>()];
    let bias = prop::option::of((select(Dtype::ALL.to_vec()), axes()));
    let density = select(vec![0.0, 0.3, 0.97, 1.0]);
    let mask = prop::option::of((any::<bool>(), density, axes()));
    let dims = (select(vec![8_usize, 5]), select(vec![8_usize, 16, 11, 1]));
    let packed = prop::option::weighted(0.7, any::<bool>());
    let options = (
        any::<bool>(),
        window,
        scale,
        softcap,
        tensors,
        bias,
        mask,
        dims,
        packed,
    );
    (sizes, options, 0..1000_u64).prop_map(|(sizes, options, seed)| {
        let (batch, kv_heads, group, seqlen_q, seqlen_kv) = sizes;
        let (causal, window, scale, softcap, (alibi, sinks), bias, mask, dims, packed) = options;
        let (dim, dim_v) = dims;
        let batch = if packed == Some(true) { 1 } else { batch };
        let heads = kv_heads * group;
        let mut draw = Draw {
            rng: StdRng::seed_from_u64(seed),
            sizes: [batch, heads, seqlen_q, seqlen_kv],
        };
        // Up to six sequences are packed.
        let slopes = draw.normal(6 * heads, 0.2);
        let logits = draw.sinks(seed % 5 == 0);
        let bias = bias.map(|(dtype, axes)| draw.bias(dtype, axes));
        let mask = mask.map(|(bits, density, axes)| match bits {
            true => draw.mask_bits(density, axes),
            false => draw.mask_bytes(density, axes),
        });
        let sequences = packed.map(|packed| draw.sequences(packed));
        let packed_count = match &sequences {
            Some(Sequences::Packed { q, .. }) => Some(q.shape()[0] - 1),
            _ => None,
        };
        let alibi = alibi.map(|of_entries| match packed_count {
            // Every other time they have their own.
            Some(count) if of_entries && seed % 2 == 0 => {
                Slopes::Sequences(leading([count, heads], &slopes))
            }
            _ if of_entries => Slopes::Entries(leading([batch, heads], &slopes)),
            _ => Slopes::Heads(leading([heads], &slopes)),
        });
        let has_first_keys = packed != Some(true) && seed % 3 == 0;
        Sample {
            first_keys: has_first_keys.then(|| draw.first_keys()),
            bias,
            mask,
            sequences,
            problem: Problem {
                batch,
                heads,
                kv_heads,
                seqlen_q,
                seqlen_kv,
                dim,
                dim_v,
                causal,
                window,
                scale,
                softcap,
            },
            seed,
            alibi,
            sinks: sinks.then_some(logits),
        }
    })
}

/// The random tensors of a sample.
struct Draw {
    rng: StdRng,
    /// Batch, heads, queries and keys.
    sizes: [usize; 4],
}

impl Draw {
    /// Normally distributed numbers with this standard deviation.
    fn normal(&mut self, len: usize, scale: f32) -> Vec<f32> {
        let normal = (0..len).map(|_| scale * self.rng.sample::<f32, _>(StandardNormal));
        normal.collect()
    }

    /// `[batch, heads, queries, last]`, with an extent of 1 in place of axes that a tensor does not have.
    fn shape(&self, axes: [bool; 3], last: usize) -> [usize; 4] {
        let extent = |i: usize| if axes[i] { self.sizes[i] } else { 1 };
        [extent(0), extent(1), extent(2), last]
    }

    /// Logits of sinks, of which the first one may hide its sink.
    fn sinks(&mut self, hides_first: bool) -> Tensor<f32, 1> {
        let heads = self.sizes[1];
        let mut logits = self.normal(heads, 2.0);
        if hides_first {
            logits[0] = f32::NEG_INFINITY;
        }
        leading([heads], &logits)
    }

    fn bias(&mut self, dtype: Dtype, axes: [bool; 3]) -> Bias {
        let shape = self.shape(axes, self.sizes[3]);
        let mut elements = self.normal(shape.iter().product(), 1.0);
        // A bias may hide keys, too.
        elements
            .iter_mut()
            .step_by(37)
            .for_each(|x| *x = f32::NEG_INFINITY);
        let cpu = Device::cpu();
        match dtype {
            Dtype::F16 => Bias::F16(converted(&cpu, shape, &elements)),
            Dtype::Bf16 => Bias::Bf16(converted(&cpu, shape, &elements)),
            Dtype::F32 => Bias::F32(converted(&cpu, shape, &elements)),
        }
    }

    /// A mask that shows this part of all pairs.
    fn mask_bits(&mut self, density: f64, axes: [bool; 3]) -> Mask {
        let shape = self.shape(axes, self.sizes[3].div_ceil(32));
        let mut bit = || u32::from(self.rng.random_bool(density));
        let word = |_| (0..32).fold(0, |word, _| word << 1 | bit());
        let words: Vec<u32> = (0..shape.iter().product::<usize>()).map(word).collect();
        Mask::Bits(leading(shape, &words))
    }

    /// A mask that shows this part of all pairs.
    fn mask_bytes(&mut self, density: f64, axes: [bool; 3]) -> Mask {
        let shape = self.shape(axes, self.sizes[3]);
        let byte = |_| match self.rng.random_bool(density) {
            true => self.rng.random_range(1..=255),
            false => 0,
        };
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>()).map(byte).collect();
        Mask::Bytes(leading(shape, &bytes))
    }

    /// Up to six packed sequences or, of each batch entry, a padded one.
    fn sequences(&mut self, packed: bool) -> Sequences<Tensor<i32, 1>> {
        let [batch, _, queries, keys] = self.sizes;
        let rng = &mut self.rng;
        let count = if packed {
            rng.random_range(1..=6)
        } else {
            batch
        };
        let mut number = |rows: usize| match rng.random_range(0..4) {
            0 => 0,
            1 => rows as i32,
            _ => rng.random_range(0..=rows as i32),
        };
        let [q, kv] = [queries, keys].map(|rows| {
            let mut numbers: Vec<i32> = (0..count).map(|_| number(rows)).collect();
            if packed {
                numbers.push(number(rows));
                numbers.sort_unstable();
            }
            leading([numbers.len()], &numbers)
        });
        match packed {
            true => Sequences::Packed { q, kv },
            false => Sequences::Padded { q, kv },
        }
    }

    fn first_keys(&mut self) -> Tensor<i32, 1> {
        let [batch, .., keys] = self.sizes;
        let first = (0..batch).map(|_| self.rng.random_range(0..=keys as i32));
        leading([batch], &first.collect::<Vec<_>>())
    }
}

/// A tensor of the first elements.
fn leading<T: bytemuck::Pod, const R: usize>(shape: [usize; R], elements: &[T]) -> Tensor<T, R> {
    let len = shape.iter().product();
    Tensor::new(&Device::cpu(), shape, &elements[..len]).expect("valid")
}
