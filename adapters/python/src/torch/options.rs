//! Options of a call.

use super::device::Place;
use super::failure::Failure;
use super::forward::RawInputs;
use super::prefix::Prefix;
use super::tensor::{Tensor, Type};
use super::value::Arguments;
pub use crate::form::Form;
use crate::form::repeated;
use ferroattn::{Attention, Dtype, Fp8, RawBias, RawMask, RawOptions, RawTensor, Sequences};

impl Form {
    /// Checks the axes of q, k, v or o.
    pub fn expect(self, name: &str, tensor: &Tensor) -> Result<(), Failure> {
        match self {
            Form::HeadsFirst => tensor.expect_rank(name, 4, "[batch, heads, seqlen, dim]"),
            Form::RowsFirst => tensor.expect_rank(name, 4, "[batch, seqlen, heads, dim]"),
            Form::Packed => tensor.expect_rank(name, 3, "[total, heads, dim]"),
        }
    }

    /// A new tensor of this form, for a problem's axes. Heads of one row lie side by side, or the axes in memory are those of
    /// another tensor of the form.
    pub fn allocate(
        self,
        [batch, heads, seqlen, dim]: [usize; 4],
        dtype: Dtype,
        place: Place,
        like: Option<&Tensor>,
    ) -> Result<Tensor, Failure> {
        let [batch, heads, seqlen, dim] = [batch, heads, seqlen, dim].map(|n| n as i64);
        let of = Type::Number(dtype);
        match self {
            Form::HeadsFirst => {
                let mut order = [0, 2, 1, 3];
                if let Some(like) = like {
                    order = [0, 1, 2, 3];
                    order.sort_by_key(|&axis| -like.strides()[axis]);
                }
                Tensor::ordered([batch, heads, seqlen, dim], order, of, place)
            }
            Form::RowsFirst => {
                Tensor::ordered([batch, seqlen, heads, dim], [0, 1, 2, 3], of, place)
            }
            Form::Packed => Tensor::ordered([seqlen, heads, dim], [0, 1, 2], of, place),
        }
    }

    /// A new tensor of a number for each row of scores: `[batch, heads, seqlen]`, packed `[heads, total]`.
    pub fn allocate_rows(
        self,
        [batch, heads, seqlen, _]: [usize; 4],
        place: Place,
    ) -> Result<Tensor, Failure> {
        let [batch, heads, seqlen] = [batch, heads, seqlen].map(|n| n as i64);
        let of = Type::Number(Dtype::F32);
        match self {
            Form::Packed => Tensor::ordered([heads, seqlen], [0, 1], of, place),
            _ => Tensor::ordered([batch, heads, seqlen], [0, 1, 2], of, place),
        }
    }

    /// A tensor of a number for each row of scores, by address.
    pub fn rows(self, name: &str, tensor: &Tensor) -> Result<RawTensor<3>, Failure> {
        match self {
            Form::Packed => {
                tensor.expect_rank(name, 2, "[heads, total]")?;
                Ok(tensor.raw([None, Some(0), Some(1)]))
            }
            _ => {
                tensor.expect_rank(name, 3, "[batch, heads, seqlen]")?;
                Ok(tensor.raw([Some(0), Some(1), Some(2)]))
            }
        }
    }
}

/// Options that are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    /// Factor of scores; none for `1 / sqrt(dim)`.
    pub scale: Option<f64>,
    /// Whether queries see no later keys.
    pub causal: bool,
    /// Keys before a query's own that it sees; negative for all.
    pub left: i64,
    /// Keys after a query's own that it sees; negative for all.
    pub right: i64,
    /// The bound of scores; 0 for none.
    pub softcap: f64,
    /// Splits of the keys; 0 for as many as fill the GPU.
    pub splits: i64,
    /// Keys of a split, in place of a number of splits; 0 for none.
    pub split_keys: i64,
    /// Whether gradients are the same bits in every run.
    pub deterministic: bool,
    /// Whether results are the same bits beside any neighbours.
    pub batch_invariant: bool,
    /// Whether q, k and v are rounded to e4m3: 0 for no, 1 for yes, 2 for yes, q and k after a rotation.
    pub fp8: i64,
    /// Whether heads come before rows in tensors of four axes.
    pub heads_first: bool,
}

impl Numbers {
    /// The call, without tensors of options.
    pub fn attention(&self) -> Result<Attention<'static>, Failure> {
        // A negative bound is none, as FlashAttention has it.
        let bound = |keys: i64| usize::try_from(keys).ok();
        let mut attention = Attention::new()
            .causal(self.causal)
            .window(bound(self.left), bound(self.right))
            .splits(count("splits", self.splits)?)
            .split_keys(count("split_keys", self.split_keys)?)
            .deterministic(self.deterministic)
            .batch_invariant(self.batch_invariant)
            .fp8(rounding(self.fp8)?);
        if let Some(scale) = self.scale {
            attention = attention.scale(scale as f32);
        }
        if self.softcap != 0.0 {
            attention = attention.softcap(self.softcap as f32);
        }
        Ok(attention)
    }

    /// How axes are ordered, if q has so many.
    pub fn form(&self, rank: usize) -> Form {
        Form::of(rank, self.heads_first)
    }
}

/// Options as an operator takes them.
#[derive(Debug)]
pub struct Options {
    /// Options that are numbers.
    pub attention: Attention<'static>,
    /// How axes are ordered.
    pub form: Form,
    /// A bias with an element for each pair.
    pub bias: Option<Tensor>,
    /// A mask with a truth value for each pair.
    pub mask: Option<Tensor>,
    /// Sinks, `float32[heads]`.
    pub sinks: Option<Tensor>,
    /// Slopes of ALiBi, `float32[heads]` or `float32[batch, heads]`.
    pub alibi: Option<Tensor>,
    /// Lengths of queries and of keys; of packed sequences their offsets, but lengths of keys in pages.
    pub seqlens: [Option<Tensor>; 2],
    /// The first key of each entry.
    pub first_keys: Option<Tensor>,
    /// The entry of k and v of each entry.
    pub cache_entries: Option<Tensor>,
    /// The pages of k and v of each entry or, of packed queries, of each sequence.
    pub pages: Option<Tensor>,
    /// Keys and values that all entries share.
    pub prefix: Prefix,
    /// Whether outputs lie in memory as inputs do.
    pub like_inputs: bool,
    /// Keys that are there for the call; the others are seen by no query.
    pub keys: Option<usize>,
}

impl Options {
    /// The options in an operator's signature. None has a default: PyTorch would leave it out of what gradients see.
    pub fn signature() -> String {
        format!(
            "Tensor? bias, Tensor? mask, Tensor? sinks, Tensor? alibi_slopes, Tensor? seqlens_q, Tensor? seqlens_k, \
             Tensor? first_keys, Tensor? cache_entries, Tensor? pages, {}, float? scale, bool causal, int left, int right, \
             float softcap, int splits, int split_keys, bool deterministic, bool batch_invariant, int fp8, \
             bool heads_first",
            Prefix::SIGNATURE
        )
    }

    /// Reads them; `rank` is that of q.
    pub fn read(arguments: &mut Arguments, rank: usize) -> Result<Self, Failure> {
        let mut tensor = || arguments.optional_tensor();
        let [bias, mask, sinks, alibi] = [tensor(), tensor(), tensor(), tensor()];
        let [seqlens_q, seqlens_k] = [tensor(), tensor()];
        let [first_keys, cache_entries, pages] = [tensor(), tensor(), tensor()];
        let prefix = Prefix::read(arguments)?;
        let numbers = Numbers {
            scale: arguments.optional_float(),
            causal: arguments.bool(),
            left: arguments.int(),
            right: arguments.int(),
            softcap: arguments.float(),
            splits: arguments.int(),
            split_keys: arguments.int(),
            deterministic: arguments.bool(),
            batch_invariant: arguments.bool(),
            fp8: arguments.int(),
            heads_first: arguments.bool(),
        };
        Ok(Options {
            bias: bias.map(Tensor::in_rows).transpose()?,
            mask: mask.map(Tensor::in_rows).transpose()?,
            sinks,
            alibi,
            seqlens: [seqlens_q, seqlens_k],
            first_keys,
            cache_entries,
            pages,
            prefix,
            ..Self::new(numbers.attention()?, numbers.form(rank))
        })
    }

    /// A call without tensors of options.
    pub fn new(attention: Attention<'static>, form: Form) -> Self {
        Options {
            attention,
            form,
            bias: None,
            mask: None,
            sinks: None,
            alibi: None,
            seqlens: [None, None],
            first_keys: None,
            cache_entries: None,
            pages: None,
            prefix: Prefix::default(),
            like_inputs: false,
            keys: None,
        }
    }

    /// A new tensor for the call: an output, or a gradient, beside an input of the same axes.
    pub fn allocate(
        &self,
        shape: [usize; 4],
        dtype: Dtype,
        place: Place,
        input: &Tensor,
    ) -> Result<Tensor, Failure> {
        let like = self.like_inputs.then_some(input);
        self.form.allocate(shape, dtype, place, like)
    }

    /// The options' tensors by address, beside these inputs.
    pub fn raw(&self, inputs: &RawInputs) -> Result<RawOptions, Failure> {
        let float = Type::Number(Dtype::F32);
        let place = inputs.place;
        let [batch, heads, queries, _] = inputs.q.shape;
        let pairs = [batch, heads, queries];
        let mut options = RawOptions::default();
        if let Some(bias) = &self.bias {
            let dtype = bias.number("bias")?;
            bias.expect("bias", Type::Number(dtype), place)?;
            let tensor = of_pairs("bias", bias, pairs)?;
            options.bias = Some(RawBias { dtype, tensor });
        }
        if let Some(mask) = &self.mask {
            mask.expect("mask", Type::Bool, place)?;
            let tensor = of_pairs("mask", mask, pairs)?;
            options.mask = Some(RawMask {
                bits: false,
                tensor,
            });
        }
        if let Some(sinks) = &self.sinks {
            sinks.expect("sinks", float, place)?;
            sinks.expect_rank("sinks", 1, "[heads]")?;
            options.sinks = Some(sinks.raw([Some(0)]));
        }
        if let Some(alibi) = &self.alibi {
            alibi.expect("alibi_slopes", float, place)?;
            options.alibi = Some(match alibi.sizes().len() {
                1 => RawTensor {
                    shape: [batch, alibi.sizes()[0] as usize],
                    ..alibi.raw([None, Some(0)])
                },
                _ => {
                    alibi.expect_rank("alibi_slopes", 2, "[heads] or [batch, heads]")?;
                    alibi.raw([Some(0), Some(1)])
                }
            });
        }
        options.sequences = self.sequences(place)?;
        options.first_keys = numbers("first_keys", self.first_keys.as_ref(), place)?;
        options.cache_entries = numbers("cache_entries", self.cache_entries.as_ref(), place)?;
        options.pages = pages(self.pages.as_ref(), place)?;
        options.prefix = self.prefix.raw(self.form, inputs)?;
        Ok(options)
    }

    fn sequences(&self, place: Place) -> Result<Option<Sequences<RawTensor<1>>>, Failure> {
        let [q, kv] = &self.seqlens;
        let q = numbers("seqlens_q", q.as_ref(), place)?;
        let kv = numbers("seqlens_k", kv.as_ref(), place)?;
        let sequences = self.form.sequences(q, kv, self.pages.is_some());
        sequences.map_err(Failure::value)
    }
}

/// A tensor with an element for each pair, or one for all along axes of extent 1.
fn of_pairs(name: &str, tensor: &Tensor, pairs: [usize; 3]) -> Result<RawTensor, Failure> {
    tensor.expect_rank(name, 4, "[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]")?;
    let raw = tensor.raw([Some(0), Some(1), Some(2), Some(3)]);
    Ok(repeated(raw, pairs))
}

/// How inputs are rounded to e4m3.
fn rounding(fp8: i64) -> Result<Option<Fp8>, Failure> {
    match fp8 {
        0 => Ok(None),
        1 => Ok(Some(Fp8::new())),
        2 => Ok(Some(Fp8::new().hadamard(true))),
        _ => Err(Failure::value(format!(
            "fp8 is {fp8}; it must be 0, 1 or 2"
        ))),
    }
}

/// A number of things.
pub fn count<T: TryFrom<i64>>(name: &str, number: i64) -> Result<T, Failure> {
    T::try_from(number)
        .map_err(|_| Failure::value(format!("{name} is {number}; it must be at least 0")))
}

/// What multiplies heads of e4m3, `[batch or pages, kv_heads]`.
pub fn descale(
    name: &str,
    tensor: Option<&Tensor>,
    place: Place,
) -> Result<Option<RawTensor<2>>, Failure> {
    let Some(tensor) = tensor else {
        return Ok(None);
    };
    tensor.expect(name, Type::Number(Dtype::F32), place)?;
    tensor.expect_rank(name, 2, "[batch, kv_heads]; of pages [pages, kv_heads]")?;
    Ok(Some(tensor.raw([Some(0), Some(1)])))
}

/// Whole numbers, one for each sequence.
pub fn numbers(
    name: &str,
    tensor: Option<&Tensor>,
    place: Place,
) -> Result<Option<RawTensor<1>>, Failure> {
    tensor.map(|tensor| row(name, tensor, place)).transpose()
}

/// A row of whole numbers.
pub fn row(name: &str, tensor: &Tensor, place: Place) -> Result<RawTensor<1>, Failure> {
    tensor.expect(name, Type::Int32, place)?;
    tensor.expect_rank(name, 1, "a row of numbers")?;
    Ok(tensor.raw([Some(0)]))
}

/// A table of pages.
pub fn pages(tensor: Option<&Tensor>, place: Place) -> Result<Option<RawTensor<2>>, Failure> {
    let Some(tensor) = tensor else {
        return Ok(None);
    };
    tensor.expect("pages", Type::Int32, place)?;
    tensor.expect_rank("pages", 2, "[batch, most pages]")?;
    Ok(Some(tensor.raw([Some(0), Some(1)])))
}
