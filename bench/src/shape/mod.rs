//! The size of one attention call: on the command line, in a file of shapes, and in results.

mod fp8;
mod kinds;
mod names;
mod subject;

use ferroattn::{
    Attention, Error, Problem, RawBackward, RawBias, RawForward, RawMask, RawOptions, RawPrefix,
    RawTensor, Sequences, Window,
};
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

pub use fp8::Fp8Inputs;
pub use kinds::{Dtype, Pass};
pub use subject::BASELINE;

/// One attention call. These are the names of options and of fields in files; what may be left out has a default,
/// from which [`problem`](Shape::problem) makes the library's [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Independent sequences
    #[arg(long, value_name = "B", default_value_t = 1)]
    pub batch: usize,
    /// Query heads
    #[arg(long, value_name = "H", default_value_t = 8)]
    pub heads: usize,
    /// Key/value heads, of which heads is a multiple [default: heads]
    #[arg(long, value_name = "H")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<usize>,
    /// Queries per head
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub seqlen: usize,
    /// Keys per head [default: seqlen]
    #[arg(long, value_name = "M")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seqlen_kv: Option<usize>,
    /// Head dim, at most 1024
    #[arg(long, value_name = "D", default_value_t = 64)]
    pub dim: usize,
    /// Head dim of v and o [default: dim]
    #[arg(long, value_name = "D")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dim_v: Option<usize>,
    /// Element type of q, k, v and o
    #[arg(long, default_value = "f16")]
    pub dtype: Dtype,
    /// Query i sees only keys up to i + seqlen_kv - seqlen
    #[arg(long)]
    #[serde(default)]
    pub causal: bool,
    /// Query i sees only keys from i + seqlen_kv - seqlen - LEFT to i + seqlen_kv - seqlen + RIGHT; - is no bound
    #[arg(long, value_name = "LEFT,RIGHT", allow_hyphen_values = true)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Scores become C * tanh(score / C)
    #[arg(long, value_name = "C")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
    /// Scores lose slope * |i + seqlen_kv - seqlen - j|, with the slopes of ALiBi's paper
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_off")]
    pub alibi: bool,
    /// Each head has a sink: a random logit more in the softmax of its rows
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_off")]
    pub sinks: bool,
    /// Each score of a head gains a random bias of the inputs' type, the same for all sequences
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_off")]
    pub bias: bool,
    /// A boolean mask of bytes shows one in N blocks of 128 x 128 pairs, on diagonals
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_mask: Option<NonZeroUsize>,
    /// Queries and keys are N sequences, one after another: the longest has about a fifth of them, most are short
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequences: Option<NonZeroUsize>,
    /// Sequences of the batch have lengths of their own: the longest has all keys, the n-th longest one n-th of them
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_off")]
    pub uneven: bool,
    /// Keys and values lie in pages of N keys, a power of 2, in any order; heads lie inside of keys
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<NonZeroUsize>,
    /// All sequences share their first N keys and values, which lie by themselves and are read once
    #[arg(long, value_name = "N", conflicts_with_all = ["page", "uneven", "values_in_keys"])]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<NonZeroUsize>,
    /// Values are the first elements of keys, in memory too
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_off")]
    pub values_in_keys: bool,
    /// Queries, keys and values are multiplied in FP8: rounded to e4m3 in the call, or before; times of the main kernel alone stand at names that end
    /// in :rounded
    #[arg(long, value_name = "INPUTS", num_args = 0..=1, default_missing_value = "rounded")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8: Option<Fp8Inputs>,
    /// Keys of a split of a batch invariant call, 0 for no splits; none of other calls
    #[arg(skip)]
    #[serde(skip)]
    pub invariant: Option<u32>,
    /// Attention, or its gradient
    #[arg(long, default_value = "forward")]
    #[serde(default, skip_serializing_if = "Pass::is_forward")]
    pub pass: Pass,
}

/// Whether a mask of one in `every` blocks shows a pair.
fn shows(every: NonZeroUsize, [row, key]: [usize; 2]) -> bool {
    const BLOCK: usize = 128;
    (row / BLOCK)
        .abs_diff(key / BLOCK)
        .is_multiple_of(every.get())
}

fn is_off(option: &bool) -> bool {
    !option
}

impl Shape {
    /// Key/value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// Keys per head.
    pub fn seqlen_kv(&self) -> usize {
        self.seqlen_kv.unwrap_or(self.seqlen)
    }

    /// Keys that all sequences share.
    pub fn prefix(&self) -> usize {
        self.prefix.map_or(0, NonZeroUsize::get)
    }

    /// Keys per head that each sequence has for itself.
    pub fn own_keys(&self) -> usize {
        self.seqlen_kv().saturating_sub(self.prefix())
    }

    /// Elements of a value and of a row of o.
    pub fn dim_v(&self) -> usize {
        self.dim_v.unwrap_or(self.dim)
    }

    /// The shape with every default written out, to compare shapes that files write differently.
    pub fn resolved(&self) -> Self {
        Shape {
            kv_heads: Some(self.kv_heads()),
            seqlen_kv: Some(self.seqlen_kv()),
            dim_v: Some(self.dim_v()),
            ..*self
        }
    }

    /// Shape of the bias.
    pub fn bias_shape(&self) -> Option<[usize; 4]> {
        let shape = [1, self.heads, self.seqlen, self.seqlen_kv()];
        self.bias.then_some(shape)
    }

    /// Bytes of the mask, `[1, 1, seqlen, seqlen_kv]`.
    pub fn mask_bytes(&self) -> Option<Vec<u8>> {
        let every = self.block_mask?;
        let row = |row| (0..self.seqlen_kv()).map(move |key| u8::from(shows(every, [row, key])));
        Some((0..self.seqlen).flat_map(row).collect())
    }

    /// The part of the pairs which see each other by their places that the mask shows.
    fn shown(&self, problem: &Problem) -> f64 {
        let Some(every) = self.block_mask else {
            return 1.0;
        };
        let (mut all, mut shown) = (0, 0);
        for row in 0..problem.seqlen_q {
            let keys = problem.keys(row);
            all += keys.len();
            shown += keys.filter(|&key| shows(every, [row, key])).count();
        }
        shown as f64 / all.max(1) as f64
    }

    /// The problem of this shape, at the default scale.
    ///
    /// # Errors
    /// Names the size that is not allowed.
    pub fn problem(&self) -> ferroattn::Result<Problem> {
        let q = [self.batch, self.heads, self.seqlen, self.dim];
        let keys = match (self.page, self.pages()) {
            (Some(page), Some(pages)) => page.get().saturating_mul(pages),
            _ => self.seqlen_kv(),
        };
        let kv = |dim| [self.batch, self.kv_heads(), keys, dim];
        for (option, is_on) in [
            ("pages", self.page.is_some()),
            ("uneven", self.uneven),
            ("values_in_keys", self.values_in_keys),
        ] {
            if is_on && self.prefix.is_some() {
                return Err(Error::Excluded("prefix", option));
            }
        }
        let problem = self
            .attention()
            .problem(q, kv(self.dim), kv(self.dim_v()))?;
        problem.expect_work()?;
        Ok(problem)
    }

    /// The call by the best kernel, without tensors of options.
    pub fn attention(&self) -> Attention<'static> {
        let Window { left, right } = self.window.unwrap_or_default();
        let attention = Attention::new()
            .causal(self.causal)
            .window(left, right)
            .fp8(self.fp8.and_then(Fp8Inputs::rounding))
            .batch_invariant(self.invariant.is_some())
            .split_keys(self.invariant.unwrap_or(0));
        match self.softcap {
            Some(softcap) => attention.softcap(softcap),
            None => attention,
        }
    }

    /// Tensors of options at address 0.
    pub fn planned_options(&self) -> RawOptions {
        let slopes = || RawTensor::row_major([self.batch, self.heads]);
        let sinks = || RawTensor::row_major([self.heads]);
        let pairs = [self.batch, self.heads, self.seqlen, self.seqlen_kv()];
        let pairs = RawTensor::row_major(pairs);
        let bias = RawBias {
            dtype: self.dtype.into(),
            tensor: pairs,
        };
        let mask = RawMask {
            bits: false,
            tensor: pairs,
        };
        let mut planned = RawOptions::default();
        planned.alibi = self.alibi.then(slopes);
        planned.sinks = self.sinks.then(sinks);
        planned.bias = self.bias.then_some(bias);
        planned.mask = self.block_mask.map(|_| mask);
        planned.sequences = self.offsets().map(|offsets| {
            let offsets = RawTensor::row_major([offsets.len()]);
            Sequences::Packed {
                q: offsets,
                kv: offsets,
            }
        });
        if self.uneven {
            let lengths = RawTensor::row_major([self.batch]);
            planned.sequences = Some(Sequences::Padded {
                q: lengths,
                kv: lengths,
            });
        }
        let table = |pages| RawTensor::row_major([self.batch, pages]);
        planned.pages = self.pages().map(table);
        planned.values_in_keys = self.values_in_keys;
        let shared = |dim| RawTensor::row_major([1, self.kv_heads(), self.prefix(), dim]);
        planned.prefix = self.prefix.map(|_| RawPrefix::Keys {
            dtype: self.dtype.into(),
            k: shared(self.dim),
            v: shared(self.dim_v()),
        });
        planned.fp8 = self.fp8.and_then(Fp8Inputs::rounding);
        if let Some(inputs) = self.fp8 {
            inputs.plan(&mut planned);
        }
        planned.batch_invariant = self.invariant.is_some();
        planned.split_keys = self.invariant.unwrap_or(0);
        planned
    }

    /// Offsets of the sequences, whose lengths fall as `1 / i`, in an order that mixes them.
    pub fn offsets(&self) -> Option<Vec<i32>> {
        let count = self.sequences?.get();
        // A prime, so that each comes once.
        let rank = |i: usize| (i * 7919 + count / 2) % count + 1;
        let all: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let mut share = 0.0;
        let mut offsets = vec![0];
        for i in 0..count {
            share += 1.0 / rank(i) as f64 / all;
            offsets.push((share * self.seqlen as f64).round() as i32);
        }
        Some(offsets)
    }

    /// The keys of each entry of the batch, in an order that mixes them.
    pub fn lengths(&self) -> Option<Vec<i32>> {
        let length = |rank: usize| (self.seqlen_kv() / rank).max(1) as i32;
        let of = |i: usize| length((i * 7919 + self.batch / 2) % self.batch + 1);
        self.uneven.then(|| (0..self.batch).map(of).collect())
    }

    /// Pages of an entry of the batch.
    pub fn pages(&self) -> Option<usize> {
        let page = self.page?.get();
        Some(self.seqlen_kv().div_ceil(page))
    }

    /// Shape of k or v, with rows of `dim` elements.
    pub fn kv_shape(&self, dim: usize) -> [usize; 4] {
        match (self.page, self.pages()) {
            (Some(page), Some(pages)) => [self.batch * pages, self.kv_heads(), page.get(), dim],
            _ => [self.batch, self.kv_heads(), self.own_keys(), dim],
        }
    }

    /// The problems that its sequences pose.
    fn problems(&self) -> ferroattn::Result<Vec<Problem>> {
        let problem = self.problem()?;
        if let Some(lengths) = self.lengths() {
            let of = |length: i32| {
                let mut alone = problem;
                (alone.batch, alone.seqlen_kv) = (1, length as usize);
                alone
            };
            return Ok(lengths.into_iter().map(of).collect());
        }
        let Some(offsets) = self.offsets() else {
            return Ok(vec![problem]);
        };
        let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
        let problems = lengths.map(|length| {
            let mut alone = problem;
            (alone.seqlen_q, alone.seqlen_kv) = (length, length);
            alone
        });
        Ok(problems.collect())
    }

    /// All tensors of a forward pass at address 0.
    pub fn planned(&self, problem: &Problem) -> RawForward {
        let k = RawTensor::row_major(self.kv_shape(self.dim));
        let v = RawTensor::row_major(self.kv_shape(self.dim_v()));
        RawForward {
            options: self.planned_options(),
            k,
            v: match self.values_in_keys {
                true => RawTensor {
                    shape: v.shape,
                    ..k
                },
                false => v,
            },
            ..RawForward::row_major(problem)
        }
    }

    /// All tensors of a backward pass at address 0.
    pub fn planned_backward(&self, problem: &Problem) -> RawBackward {
        let mut planned = RawBackward::row_major(problem);
        planned.options = self.planned_options();
        planned.d_sinks = planned.options.sinks;
        planned.d_bias = self.bias_shape().map(RawTensor::row_major);
        planned
    }

    /// Whether the call is more than plain or causal attention.
    pub fn has_options(&self) -> bool {
        let of_scores = self.softcap.is_some() || self.alibi || self.sinks || self.bias;
        let of_pairs = self.window.is_some() || self.block_mask.is_some();
        let of_keys = self.sequences.is_some() || self.uneven || self.page.is_some();
        let of_keys = of_keys || self.prefix.is_some();
        let of_values = self.values_in_keys || self.dim_v() != self.dim;
        of_scores
            || of_pairs
            || of_keys
            || of_values
            || self.fp8.is_some()
            || self.invariant.is_some()
    }

    /// The batch invariant call with splits of so many keys, which packed sequences do not have.
    pub fn invariant(&self, split_keys: u32) -> Self {
        let split_keys = if self.sequences.is_none() {
            split_keys
        } else {
            0
        };
        Shape {
            invariant: Some(split_keys),
            ..*self
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::{Dtype, Pass, Shape};

    /// A small call without options.
    pub const SHAPE: Shape = Shape {
        batch: 1,
        heads: 8,
        kv_heads: None,
        seqlen: 16,
        seqlen_kv: None,
        dim: 64,
        dim_v: None,
        dtype: Dtype::F16,
        causal: false,
        window: None,
        softcap: None,
        alibi: false,
        sinks: false,
        bias: false,
        block_mask: None,
        sequences: None,
        uneven: false,
        page: None,
        prefix: None,
        values_in_keys: false,
        fp8: None,
        invariant: None,
        pass: Pass::Forward,
    };
}
