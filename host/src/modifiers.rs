//! Options of attention that change its scores, and their tensors.

use crate::args::{value, whole};
use crate::fp8::scales;
use crate::tensors::{ALIBI, BIAS, Bias, MASK, Mask, Pairs, SINKS, Tensors};
use anyhow::ensure;
use clap::ArgAction;
use ferroattn::{
    Attention, Device, Dtype, Problem, RawOptions, RawPrefix, RawTensor, Result, Sequences, Tensor,
    Window, alibi_slopes, random,
};
use kernels::abi::MAX_SEQLEN;

/// Options that change the scores.
#[derive(Debug, clap::Args)]
pub struct Modifiers {
    /// Query i sees only keys from i + seqlen_kv - seqlen - LEFT to i + seqlen_kv - seqlen + RIGHT, such as
    /// 1024,0; - or nothing is no bound on that side
    #[arg(long, value_name = "LEFT,RIGHT", allow_hyphen_values = true)]
    pub window: Option<Window>,
    /// Bound the scores: each becomes C * tanh(score / C)
    #[arg(long, value_name = "C", allow_hyphen_values = true, value_parser = softcap)]
    pub softcap: Option<f32>,
    /// ALiBi: take slope * |i + seqlen_kv - seqlen - j| off the score of query i and key j. The slopes are
    /// tensor alibi of --input, F32 [heads], if it is there, or else 2^(-8 (h + 1) / heads)
    #[arg(long)]
    pub alibi: bool,
    /// Sinks: one more logit, without a value, in the softmax of each row of a head. They are tensor sinks of
    /// --input, F32 [heads], if it is there, or else random
    #[arg(long)]
    pub sinks: bool,
    /// Bias: a number for each pair, added to its score. It is tensor bias of --input, F16, BF16 or F32 [batch or 1,
    /// heads or 1, seqlen or 1, seqlen_kv], if it is there, or else random, of q's type
    #[arg(long)]
    pub bias: bool,
    /// Boolean mask: 0 hides a pair. It is tensor mask of --input, BOOL or U8 [batch or 1, heads or 1, seqlen or 1,
    /// seqlen_kv], if it is there, or else random, with half of its blocks of 128 x 128 pairs hidden. As U32 [batch or 1,
    /// heads or 1, seqlen or 1, ceil(seqlen_kv / 32)] it has key j in bit j % 32 of word j / 32. TFLOP/s count hidden
    /// pairs, too
    #[arg(long)]
    pub mask: bool,
    /// Sequences of these lengths, one after another, each of which attends to itself alone: batch is 1, and the
    /// lengths, of which some may be 0, add up to seqlen and to seqlen_kv
    #[arg(long, value_name = "LEN,LEN", allow_hyphen_values = true)]
    #[arg(value_delimiter = ',', action = ArgAction::Set, conflicts_with = "lengths")]
    #[arg(value_parser = whole(0..=MAX_SEQLEN as usize))]
    pub packed: Option<Vec<usize>>,
    /// A length for each entry of the batch: it has the first LEN keys and, at most, the first LEN queries; other rows
    /// are in no sequence
    #[arg(long, value_name = "LEN,LEN", allow_hyphen_values = true)]
    #[arg(value_delimiter = ',', action = ArgAction::Set)]
    #[arg(value_parser = whole(0..=MAX_SEQLEN as usize))]
    pub lengths: Option<Vec<usize>>,
    /// Keys and values in pages of this many keys, a power of 2, behind a table; the last page first
    #[arg(long, value_name = "KEYS", value_parser = whole(1..=MAX_SEQLEN as usize))]
    pub page: Option<usize>,
    /// All entries of the batch share the first KEYS keys and values, those of the first entry: they lie by themselves, with --page in
    /// pages of the same cache, and calls read them once. seqlen_kv and --lengths count them
    #[arg(long, value_name = "KEYS", value_parser = whole(1..=MAX_SEQLEN as usize))]
    pub prefix: Option<usize>,
    /// Append the last ROWS keys and values of each entry of the batch before each call; times include it
    #[arg(long, value_name = "ROWS", value_parser = whole(1..=MAX_SEQLEN as usize))]
    pub append: Option<usize>,
    /// FP8: round q, k and v to e4m3 in the call, and multiply these numbers. Results are compared with the exact ones of
    /// rounded inputs
    #[arg(long)]
    pub fp8: bool,
    /// Descales of e4m3: numbers that multiply q, k and v, the same ones for all heads; with --dtype fp8
    #[arg(long, value_name = "Q,K,V", allow_hyphen_values = true, value_parser = scales)]
    pub fp8_scales: Option<[f32; 3]>,
    /// Rotate rows of q and k before the call rounds them, which spreads outliers over a row; with --fp8 or --dtype fp8
    #[arg(long)]
    pub hadamard: bool,
    /// Results of a query have the same bits beside any neighbours in the batch, and in any chunk of its sequence
    #[arg(long)]
    pub batch_invariant: bool,
    /// Keys of a split, in place of --splits, rounded up to a step of the kernel; the CPU does not split
    #[arg(long, value_name = "KEYS", value_parser = whole(1..=MAX_SEQLEN))]
    pub split_keys: Option<u32>,
}

impl Modifiers {
    /// The first one that is on.
    pub fn first(&self) -> Option<&'static str> {
        let options = [
            ("--window", self.window.is_some()),
            ("--softcap", self.softcap.is_some()),
            ("--alibi", self.alibi),
            ("--sinks", self.sinks),
            ("--bias", self.bias),
            ("--mask", self.mask),
            ("--packed", self.packed.is_some()),
            ("--lengths", self.lengths.is_some()),
            ("--page", self.page.is_some()),
            ("--prefix", self.prefix.is_some()),
            ("--append", self.append.is_some()),
            ("--fp8", self.fp8),
            ("--batch-invariant", self.batch_invariant),
            ("--split-keys", self.split_keys.is_some()),
        ];
        let on = options.into_iter().find(|(_, is_on)| *is_on);
        on.map(|(name, _)| name)
    }

    /// The call with the options that are no tensors, but for FP8.
    pub fn set<'a>(&self, call: Attention<'a>) -> Attention<'a> {
        let mut call = call
            .batch_invariant(self.batch_invariant)
            .split_keys(self.split_keys.unwrap_or(0));
        if let Some(Window { left, right }) = self.window {
            call = call.window(left, right);
        }
        match self.softcap {
            Some(softcap) => call.softcap(softcap),
            None => call,
        }
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let names = [
            self.alibi.then_some(ALIBI),
            self.sinks.then_some(SINKS),
            self.bias.then_some(BIAS),
            self.mask.then_some(MASK),
        ];
        names.into_iter().flatten()
    }

    /// Checks that sequences fit the problem.
    ///
    /// # Errors
    /// Says which lengths do not, and what is allowed.
    pub fn expect_sequences(&self, problem: &Problem) -> anyhow::Result<()> {
        let (batch, keys) = (problem.batch, problem.seqlen_kv);
        if let Some(lengths) = &self.packed {
            let sum = lengths.iter().sum::<usize>();
            ensure!(batch == 1, "batch is {batch}; with --packed it must be 1");
            for (name, rows) in [("seqlen", problem.seqlen_q), ("seqlen_kv", keys)] {
                ensure!(
                    sum == rows,
                    "the lengths of --packed add up to {sum}; they must add up to {name}, which is {rows}"
                );
            }
        }
        if let Some(lengths) = &self.lengths {
            let count = lengths.len();
            ensure!(
                count == batch,
                "--lengths has {count} lengths; it must have {batch}, one for each entry of the batch"
            );
            for length in lengths {
                ensure!(
                    *length <= keys,
                    "--lengths has {length}; it must be at most seqlen_kv, which is {keys}"
                );
            }
        }
        Ok(())
    }

    /// Offsets or lengths of sequences that fit the problem.
    pub fn sequences(&self, problem: &Problem) -> Option<Sequences<Vec<i32>>> {
        if let Some(lengths) = &self.packed {
            let ends = lengths.iter().scan(0, |end, length| {
                *end += *length as i32;
                Some(*end)
            });
            let offsets: Vec<i32> = [0].into_iter().chain(ends).collect();
            let kv = offsets.clone();
            return Some(Sequences::Packed { q: offsets, kv });
        }
        let lengths = self.lengths.as_ref()?;
        let [q, kv] = [problem.seqlen_q, problem.seqlen_kv].map(|rows| {
            let lengths = lengths.iter().map(|&length| length.min(rows) as i32);
            lengths.collect()
        });
        Some(Sequences::Padded { q, kv })
    }

    /// The tensors at address 0, as if no axis repeated: enough to plan a call on elements of this type, but for FP8. The problem is
    /// that of own keys.
    pub fn planned(&self, problem: &Problem, pairs: &Pairs, dtype: Dtype) -> RawOptions {
        let slopes = || RawTensor::row_major([problem.batch, problem.heads]);
        let sinks = || RawTensor::row_major([problem.heads]);
        let sequences = self.sequences(problem);
        let numbers = |numbers: &Vec<i32>| RawTensor::row_major([numbers.len()]);
        let mut planned = RawOptions::default();
        planned.alibi = self.alibi.then(slopes);
        planned.sinks = self.sinks.then(sinks);
        planned.bias = pairs.planned_bias(problem);
        planned.mask = pairs.planned_mask(problem);
        planned.sequences = sequences.map(|sequences| sequences.map(numbers));
        let (_, table) = self.cache_shapes(problem);
        planned.pages = table.map(RawTensor::row_major);
        planned.prefix = self.prefix.map(|keys| {
            let shared = |dim| RawTensor::row_major([1, problem.kv_heads, keys, dim]);
            let (k, v) = (shared(problem.dim), shared(problem.dim_v));
            match self
                .shared_pages()
                .map(|pages| RawTensor::row_major([pages]))
            {
                None => RawPrefix::Keys { dtype, k, v },
                Some(table) => RawPrefix::Pages { table, keys },
            }
        });
        planned.batch_invariant = self.batch_invariant;
        planned.split_keys = self.split_keys.unwrap_or(0);
        planned
    }

    /// Types and shapes of random tensors with an element for each pair.
    pub fn pairs(&self, problem: &Problem, dtype: Dtype) -> Pairs {
        Pairs::random(self.bias, self.mask, problem, dtype)
    }

    /// The tensors on the CPU; what a file does not have is drawn.
    pub fn tensors(
        &self,
        problem: &Problem,
        pairs: &Pairs,
        seed: u64,
        file: Tensors,
    ) -> Result<Tensors> {
        let cpu = &Device::cpu();
        let vector = |numbers: Vec<f32>| Tensor::new(cpu, [numbers.len()], &numbers);
        let integers = |numbers: &Vec<i32>| Tensor::new(cpu, [numbers.len()], numbers);
        let sequences = self.sequences(problem);
        let sequences = sequences.map(|sequences| sequences.try_map(integers));
        let mut tensors = Tensors {
            sequences: sequences.transpose()?,
            ..file
        };
        if self.alibi && tensors.alibi.is_none() {
            tensors.alibi = Some(vector(alibi_slopes(problem.heads))?);
        }
        if self.sinks && tensors.sinks.is_none() {
            tensors.sinks = Some(vector(random::sinks(problem, seed))?);
        }
        if let (Some(bias), None) = (pairs.bias, &tensors.bias) {
            tensors.bias = Some(Bias::random(bias, seed)?);
        }
        if let (Some((_, shape)), None) = (pairs.mask, &tensors.mask) {
            tensors.mask = Some(Mask::random(shape, seed)?);
        }
        Ok(tensors)
    }
}

/// Takes a finite number above 0.
fn softcap(given: &str) -> std::result::Result<f32, String> {
    let allowed = |&cap: &f32| cap.is_finite() && cap > 0.0;
    let must_be = format_args!("a number above 0, at most {:e}", f32::MAX);
    value(given, allowed, must_be)
}

#[cfg(test)]
mod tests {
    use super::softcap;

    #[test]
    fn a_softcap_bounds() {
        assert_eq!(softcap("30"), Ok(30.0));
        for wrong in ["0", "-0", "-1", "NaN", "inf", "1e39", "1e-60", "x", ""] {
            assert!(softcap(wrong).is_err(), "{wrong}");
        }
    }
}
