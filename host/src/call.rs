//! What a line of the output says of an attention call.

use crate::choice::{Choice, Task};
use crate::report::Call;
use ferroattn::{Problem, Sequences, Window};
use serde::Serialize;
use std::fmt;

pub const FORWARD: &str = "forward";
pub const BACKWARD: &str = "backward";

/// An attention call: what was computed, and how it was divided.
#[derive(Serialize)]
pub struct AttentionCall {
    /// "forward" or "backward".
    pass: &'static str,
    /// Splits of the keys.
    splits: u32,
    /// Element type of q, k and v.
    dtype: &'static str,
    o_dtype: &'static str,
    /// Sizes and options.
    #[serde(flatten)]
    problem: Problem,
    /// Whether it has slopes of ALiBi.
    alibi: bool,
    /// Whether it has sinks.
    sinks: bool,
    /// Element type of its bias.
    bias: Option<&'static str>,
    /// The elements of its boolean mask: "bytes" or "bits".
    mask: Option<&'static str>,
    /// Offsets or lengths.
    sequences: Option<Sequences<Vec<i32>>>,
    /// Keys of a page.
    page: Option<usize>,
    /// Keys that all entries of the batch share.
    prefix: Option<usize>,
    /// Keys that the call appends to each entry of the batch.
    append: Option<usize>,
    /// Whether it rounds q, k and v to e4m3.
    fp8: bool,
    /// Descales of q, k and v.
    fp8_scales: Option<[f32; 3]>,
    hadamard: bool,
    /// Whether it is batch invariant.
    batch_invariant: bool,
    /// Keys of a split.
    split_keys: Option<u32>,
}

impl fmt::Display for AttentionCall {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Problem {
            batch,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            dim_v,
            causal,
            window,
            softcap,
            ..
        } = self.problem;
        let Self { dtype, o_dtype, .. } = self;
        write!(
            f,
            "batch {batch}, heads {heads}, kv_heads {kv_heads}, seqlen {seqlen_q}, \
             seqlen_kv {seqlen_kv}, dim {dim}"
        )?;
        if dim_v != dim {
            write!(f, ", dim_v {dim_v}")?;
        }
        write!(f, ", {dtype}")?;
        if o_dtype != dtype {
            write!(f, " with o in {o_dtype}")?;
        }
        if causal {
            write!(f, ", causal")?;
        }
        if window != Window::NONE {
            write!(f, ", window {window}")?;
        }
        if let Some(softcap) = softcap {
            write!(f, ", softcap {softcap}")?;
        }
        for (name, is_on) in [("ALiBi", self.alibi), ("sinks", self.sinks)] {
            if is_on {
                write!(f, ", {name}")?;
            }
        }
        if let Some(dtype) = self.bias {
            write!(f, ", bias in {dtype}")?;
        }
        if let Some(elements) = self.mask {
            write!(f, ", mask of {elements}")?;
        }
        match &self.sequences {
            Some(packed @ (Sequences::Packed { .. } | Sequences::PackedQueries { .. })) => {
                write!(f, ", {} packed sequences", packed.lengths().len())?;
            }
            Some(Sequences::Padded { .. }) => write!(f, ", padded")?,
            None => {}
        }
        if let Some(page) = self.page {
            write!(f, ", pages of {page}")?;
        }
        if let Some(keys) = self.prefix {
            write!(f, ", prefix of {keys}")?;
        }
        if let Some(rows) = self.append {
            write!(f, ", {rows} appended")?;
        }
        if let Some([q, k, v]) = self.fp8_scales {
            write!(f, ", scales {q},{k},{v}")?;
        }
        for (name, is_on) in [("in FP8", self.fp8), ("rotated", self.hadamard)] {
            if is_on {
                write!(f, ", {name}")?;
            }
        }
        if self.batch_invariant {
            write!(f, ", batch invariant")?;
        }
        match self.split_keys {
            Some(keys) => write!(f, ", splits of {keys} keys"),
            None => Ok(()),
        }
    }
}

impl Call for AttentionCall {
    fn columns(&self) -> Vec<(&str, String)> {
        let pass = self.pass.to_owned();
        vec![("pass", pass), ("splits", self.splits.to_string())]
    }

    fn flops(&self) -> f64 {
        let of = |problem: Problem| match self.pass {
            BACKWARD => problem.backward_flops(),
            _ => problem.flops(),
        };
        let Some(sequences) = &self.sequences else {
            return of(self.problem);
        };
        let alone = |[seqlen_q, seqlen_kv]: [usize; 2]| {
            let mut alone = self.problem;
            (alone.batch, alone.seqlen_q, alone.seqlen_kv) = (1, seqlen_q, seqlen_kv);
            alone
        };
        sequences.lengths().into_iter().map(alone).map(of).sum()
    }
}

impl Task<'_> {
    /// A pass by a kernel.
    pub fn call_of(&self, pass: &'static str, choice: &Choice) -> AttentionCall {
        AttentionCall {
            pass,
            splits: choice.splits,
            dtype: self.args.type_of_inputs(self.dtype).name(),
            o_dtype: self.dtype.name(),
            problem: self.problem,
            alibi: self.args.modifiers.alibi,
            sinks: self.args.modifiers.sinks,
            bias: self.pairs.bias.map(|(dtype, _)| dtype.name()),
            mask: self.pairs.mask_name(),
            sequences: self.args.modifiers.sequences(&self.problem),
            page: self.args.modifiers.page,
            prefix: self.args.modifiers.prefix,
            append: self.args.modifiers.append,
            fp8: self.args.modifiers.fp8,
            fp8_scales: self.args.modifiers.fp8_scales,
            hadamard: self.args.modifiers.hadamard,
            batch_invariant: self.args.modifiers.batch_invariant,
            split_keys: self.args.modifiers.split_keys,
        }
    }
}
