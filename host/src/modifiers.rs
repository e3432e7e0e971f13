//! Options of attention that change its scores, and their tensors.

use crate::args::{value, whole};
use anyhow::ensure;
use attention::{
    Attention, Device, Problem, RawOptions, RawTensor, Result, Sequences, Tensor, Window,
    alibi_slopes, random,
};
use kernels::abi::MAX_SEQLEN;

/// The name of slopes in a file.
pub const ALIBI: &str = "alibi";
/// The name of sinks in a file.
pub const SINKS: &str = "sinks";

/// What changes the scores.
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
    /// Sequences of these lengths, one behind another, each of which attends to itself alone: batch is 1, and the
    /// lengths, of which some may be 0, add up to seqlen and to seqlen_kv
    #[arg(
        long,
        value_name = "LEN,LEN",
        allow_hyphen_values = true,
        value_delimiter = ','
    )]
    #[arg(value_parser = whole(0..=MAX_SEQLEN as usize), conflicts_with = "lengths")]
    pub packed: Option<Vec<usize>>,
    /// A length for each entry of the batch: it has the first LEN keys and, at most, the first LEN queries; other rows
    /// are in no sequence
    #[arg(
        long,
        value_name = "LEN,LEN",
        allow_hyphen_values = true,
        value_delimiter = ','
    )]
    #[arg(value_parser = whole(0..=MAX_SEQLEN as usize))]
    pub lengths: Option<Vec<usize>>,
}

impl Modifiers {
    /// The first one that is on.
    pub fn first(&self) -> Option<&'static str> {
        let options = [
            ("--window", self.window.is_some()),
            ("--softcap", self.softcap.is_some()),
            ("--alibi", self.alibi),
            ("--sinks", self.sinks),
            ("--packed", self.packed.is_some()),
            ("--lengths", self.lengths.is_some()),
        ];
        let on = options.into_iter().find(|(_, is_on)| *is_on);
        on.map(|(name, _)| name)
    }

    /// The call with window and softcap.
    pub fn limit<'a>(&self, mut call: Attention<'a>) -> Attention<'a> {
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
        let names = [self.alibi.then_some(ALIBI), self.sinks.then_some(SINKS)];
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

    /// The tensors at address 0: enough to plan a call.
    pub fn planned(&self, problem: &Problem) -> RawOptions {
        let slopes = || RawTensor::row_major([problem.batch, problem.heads]);
        let sinks = || RawTensor::row_major([problem.heads]);
        let sequences = self.sequences(problem);
        let numbers = |numbers: &Vec<i32>| RawTensor::row_major([numbers.len()]);
        RawOptions {
            alibi: self.alibi.then(slopes),
            sinks: self.sinks.then(sinks),
            sequences: sequences.map(|sequences| sequences.map(numbers)),
            ..RawOptions::default()
        }
    }

    /// The tensors' numbers, where a file does not have them.
    pub fn numbers(&self, problem: &Problem, seed: u64, file: Numbers) -> Numbers {
        let (slopes, sinks) = (
            || alibi_slopes(problem.heads),
            || random::sinks(problem, seed),
        );
        Numbers {
            alibi: self.alibi.then(|| file.alibi.unwrap_or_else(slopes)),
            sinks: self.sinks.then(|| file.sinks.unwrap_or_else(sinks)),
            sequences: self.sequences(problem),
        }
    }
}

/// Numbers of the tensors, where they are on.
#[derive(Default)]
pub struct Numbers {
    /// `[heads]`.
    pub alibi: Option<Vec<f32>>,
    /// `[heads]`.
    pub sinks: Option<Vec<f32>>,
    pub sequences: Option<Sequences<Vec<i32>>>,
}

/// The tensors on a device.
pub struct Tensors {
    alibi: Option<Tensor<f32, 1>>,
    pub sinks: Option<Tensor<f32, 1>>,
    sequences: Option<Sequences<Tensor<i32, 1>>>,
}

impl Numbers {
    /// Copies them to a device.
    pub fn on(&self, device: &Device) -> Result<Tensors> {
        let tensor = |numbers: &Option<Vec<f32>>| {
            let numbers = numbers.as_ref();
            let tensor = numbers.map(|numbers| Tensor::new(device, [numbers.len()], numbers));
            tensor.transpose()
        };
        let integers = |numbers: &Vec<i32>| Tensor::new(device, [numbers.len()], numbers);
        let sequences = self.sequences.as_ref();
        let sequences = sequences.map(|sequences| sequences.try_map(integers));
        Ok(Tensors {
            alibi: tensor(&self.alibi)?,
            sinks: tensor(&self.sinks)?,
            sequences: sequences.transpose()?,
        })
    }
}

impl Tensors {
    /// A call with the tensors.
    pub fn given_to<'a>(&'a self, call: &Attention<'a>) -> Attention<'a> {
        let mut call = call.clone();
        if let Some(slopes) = &self.alibi {
            call = call.alibi(slopes);
        }
        if let Some(sinks) = &self.sinks {
            call = call.sinks(sinks);
        }
        match &self.sequences {
            Some(Sequences::Packed { q, kv }) => call.packed(q, kv),
            Some(Sequences::Padded { q, kv }) => call.padded(q, kv),
            None => call,
        }
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
