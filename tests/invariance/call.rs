//! Batch invariant calls on the tokens of a sequence, and their bits.

use ferroattn::{Attention, Device, Element, Result, Tensor, f16};
use libtest_mimic::Failed;
use ndarray::{Array4, ArrayView4, s};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::ops::Range;

/// Tokens of the sequence.
pub const TOKENS: usize = 290;

/// Tokens of a sequence with gradients.
pub const LENGTH: usize = 150;

/// The shape and the options of a call.
#[derive(Clone, Copy)]
pub struct Setting {
    pub heads: [usize; 2],
    pub dim: usize,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub sinks: bool,
    pub alibi: bool,
    pub split_keys: u32,
}

/// Two heads on one, without options.
pub const PLAIN: Setting = Setting {
    heads: [2, 1],
    dim: 64,
    window: None,
    softcap: None,
    sinks: false,
    alibi: false,
    split_keys: 0,
};

/// The tokens of a sequence.
pub struct Tokens<T> {
    /// `[1, heads, TOKENS, dim]`.
    pub q: Array4<T>,
    pub k: Array4<T>,
    pub v: Array4<T>,
    pub d_o: Array4<T>,
}

impl<T: Element> Tokens<T> {
    /// Random numbers. Some queries of some heads have large scores, and early keys, which blocks reach last, larger ones: neighbours of
    /// these queries would raise their maxima when they do.
    pub fn new(setting: &Setting, seed: u64) -> Self {
        Self::times(setting, seed, 1.0)
    }

    /// Such numbers, which are so much larger.
    pub fn times(setting: &Setting, seed: u64, factor: f32) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let [heads, kv_heads] = setting.heads;
        let mut random = |heads, of_place: fn([usize; 2]) -> f32| {
            Array4::from_shape_fn([1, heads, TOKENS, setting.dim], |(_, head, token, _)| {
                let random: f32 = rng.sample(StandardNormal);
                T::from_f32(factor * of_place([head, token]) * random)
            })
        };
        Tokens {
            q: random(heads, |[head, token]| match (head + token) % 5 {
                3 => 8.0,
                _ => 1.0,
            }),
            k: random(
                kv_heads,
                |[_, token]| if token < TOKENS / 3 { 3.0 } else { 1.0 },
            ),
            v: random(kv_heads, |_| 1.0),
            d_o: random(heads, |_| 1.0),
        }
    }

    /// The tokens of one query head, and of the key/value head that it reads.
    pub fn of_head(&self, head: usize) -> Self {
        let group = self.q.dim().1 / self.k.dim().1;
        let of =
            |tokens: &Array4<T>, head: usize| tokens.slice(s![.., head..=head, .., ..]).to_owned();
        Tokens {
            q: of(&self.q, head),
            k: of(&self.k, head / group),
            v: of(&self.v, head / group),
            d_o: of(&self.d_o, head),
        }
    }

    /// Tokens of the chunk of queries, and all keys up to its last one.
    pub fn chunk(&self, queries: Range<usize>) -> [ArrayView4<'_, T>; 3] {
        let keys = s![.., .., ..queries.end, ..];
        [
            self.q.slice(s![.., .., queries, ..]),
            self.k.slice(keys),
            self.v.slice(keys),
        ]
    }
}

/// A call that is batch invariant, on a device.
pub struct Call<'a> {
    pub device: &'a Device,
    pub setting: &'a Setting,
    /// A number for each head: logits of sinks, and slopes.
    pub of_heads: Tensor<f32, 1>,
    /// The kernel, if not the best one.
    pub kernel: Option<&'static str>,
}

/// o and lse as bits, in the order of heads, queries and columns.
pub type Bits = Vec<u32>;

impl<'a> Call<'a> {
    pub fn new(device: &'a Device, setting: &'a Setting) -> Result<Self> {
        Self::of_heads(device, setting, 0..setting.heads[0])
    }

    /// The call for some heads of another one.
    pub fn of_heads(device: &'a Device, setting: &'a Setting, heads: Range<usize>) -> Result<Self> {
        let of_heads: Vec<_> = heads.map(|head| head as f32 / 4.0 - 0.1).collect();
        Ok(Call {
            device,
            setting,
            of_heads: Tensor::new(device, [of_heads.len()], &of_heads)?,
            kernel: None,
        })
    }

    pub fn attention(&self) -> Attention<'_> {
        let Setting {
            window,
            softcap,
            split_keys,
            ..
        } = *self.setting;
        let attention = Attention::new().causal(true).batch_invariant(true);
        let attention = attention.split_keys(split_keys).window(window, None);
        let attention = self
            .kernel
            .map_or(attention.clone(), |kernel| attention.kernel(kernel));
        let attention = softcap.map_or(attention.clone(), |softcap| attention.softcap(softcap));
        let attention = match self.setting.sinks {
            true => attention.sinks(&self.of_heads),
            false => attention,
        };
        match self.setting.alibi {
            true => attention.alibi(&self.of_heads),
            false => attention,
        }
    }

    pub fn tensor<T: Element>(&self, array: ArrayView4<T>) -> Result<Tensor<T>> {
        let (b, h, n, d) = array.dim();
        let elements: Vec<_> = array.iter().copied().collect();
        Tensor::new(self.device, [b, h, n, d], &elements)
    }

    pub fn numbers(&self, numbers: &[usize]) -> Result<Tensor<i32, 1>> {
        let numbers: Vec<_> = numbers.iter().map(|&n| n as i32).collect();
        Tensor::new(self.device, [numbers.len()], &numbers)
    }

    /// The bits of the first `queries` queries of an entry.
    pub fn forward<T: Element>(
        &self,
        attention: &Attention,
        [q, k, v]: [ArrayView4<T>; 3],
        (entry, queries): (usize, Range<usize>),
    ) -> Result<Bits> {
        let [q, k, v] = [self.tensor(q)?, self.tensor(k)?, self.tensor(v)?];
        let (o, lse) = attention.forward(&q, &k, &v)?;
        let lse = Tensor::from_vec(lse.shape(), lse.to_vec()?)?.reshape([
            q.shape()[0],
            q.shape()[1],
            q.shape()[2],
            1,
        ])?;
        let mut bits = bits(&o, entry, queries.clone())?;
        bits.extend(self::bits(&lse, entry, queries)?);
        Ok(bits)
    }

    /// The bits of the gradients of q, k and v, of [`LENGTH`] rows of an entry from `first` on.
    pub fn backward(
        &self,
        attention: &Attention,
        tensors: [ArrayView4<f16>; 4],
        (entry, first): (usize, usize),
    ) -> Result<[Bits; 3]> {
        let [q, k, v, d_o] = tensors.map(|tensor| self.tensor(tensor));
        let [q, k, v, d_o] = [q?, k?, v?, d_o?];
        let (o, lse) = attention.forward(&q, &k, &v)?;
        let (dq, dk, dv) = attention.backward(&q, &k, &v, &o, &lse, &d_o)?;
        let rows = first..first + LENGTH;
        let [dq, dk, dv] = [dq, dk, dv].map(|gradient| bits(&gradient, entry, rows.clone()));
        Ok([dq?, dk?, dv?])
    }

    /// The bits of a chunk, in a call of its own.
    pub fn alone<T: Element>(&self, tokens: &Tokens<T>, queries: Range<usize>) -> Result<Bits> {
        let count = queries.len();
        self.forward(&self.attention(), tokens.chunk(queries), (0, 0..count))
    }

    /// The bits of the whole sequence.
    pub fn whole<T: Element>(&self, tokens: &Tokens<T>) -> Result<Bits> {
        self.alone(tokens, 0..TOKENS)
    }

    /// Checks that the bits of a chunk are those among the whole sequence's.
    pub fn expect_part(
        &self,
        found: &[u32],
        whole: &[u32],
        queries: Range<usize>,
    ) -> Result<(), Failed> {
        let what = format!("{queries:?} of D = {}", self.setting.dim);
        expect_same(found, &self.part(whole, queries), what)
    }

    /// The bits of a chunk among those of the whole sequence.
    fn part(&self, whole: &[u32], queries: Range<usize>) -> Bits {
        let (heads, dim) = (self.setting.heads[0], self.setting.dim);
        let (o, lse) = whole.split_at(heads * TOKENS * dim);
        let rows = |numbers: &[u32], columns: usize| -> Bits {
            let heads = numbers.chunks(TOKENS * columns);
            heads
                .flat_map(|head| head[queries.start * columns..queries.end * columns].to_vec())
                .collect()
        };
        [rows(o, dim), rows(lse, 1)].concat()
    }
}

/// Checks that bits are those that they must be.
pub fn expect_same(found: &[u32], expected: &[u32], what: String) -> Result<(), Failed> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: other bits").into()),
    }
}

/// The bits of some rows of an entry's heads.
fn bits<T: Element>(tensor: &Tensor<T>, entry: usize, rows: Range<usize>) -> Result<Bits> {
    let [b, h, n, d] = tensor.shape();
    let array = Array4::from_shape_vec([b, h, n, d], tensor.to_vec()?).expect("its shape");
    let rows = array.slice(s![entry, .., rows, ..]);
    Ok(rows
        .iter()
        .map(|element| element.to_f32().to_bits())
        .collect())
}

/// Entries side by side, each padded with NaN to the longest.
pub fn padded<T: Element>(entries: &[ArrayView4<T>]) -> Array4<T> {
    let longest = entries.iter().map(|entry| entry.dim().2).max();
    let (_, heads, _, dim) = entries[0].dim();
    let shape = [entries.len(), heads, longest.unwrap_or(0), dim];
    let mut all = Array4::from_elem(shape, T::from_f32(f32::NAN));
    for (i, entry) in entries.iter().enumerate() {
        let mut to = all.slice_mut(s![i..=i, .., ..entry.dim().2, ..]);
        to.assign(entry);
    }
    all
}
