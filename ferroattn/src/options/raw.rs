//! Tensors of options by address.

use super::custom::RawCustom;
use super::{Fp8, RawE4m3, RawE4m3Cache, RawPrefix, RawSequences, Sequences};
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::{Dtype, RawTensor};
use kernels::abi::ForwardParams;
use std::mem::offset_of;

/// Tensors of options by address, for [`RawForward`](crate::RawForward) and [`RawBackward`](crate::RawBackward);
/// `None` where an option is off.
///
/// Shapes are full: an axis that an option does not have is repeated, with a stride of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawOptions {
    /// Slopes of [ALiBi](crate::Attention::alibi), `f32[batch, heads]`; of packed sequences `f32[sequences, heads]`, too.
    pub alibi: Option<RawTensor<2>>,
    /// [Sinks](crate::Attention::sinks), `f32[heads]`.
    pub sinks: Option<RawTensor<1>>,
    /// The additive [bias](crate::Attention::bias).
    pub bias: Option<RawBias>,
    /// The boolean [mask](crate::Attention::mask).
    pub mask: Option<RawMask>,
    /// [Packed](crate::Attention::packed) or [padded](crate::Attention::padded) sequences, or [packed
    /// queries](crate::Attention::packed_queries).
    pub sequences: Option<RawSequences>,
    /// The [first key](crate::Attention::first_keys) of each entry of the batch, `i32[batch]`, with stride 1.
    pub first_keys: Option<RawTensor<1>>,
    /// The [entry of k and v](crate::Attention::cache_entries) for each entry of the batch, `i32[batch]`, with stride 1.
    pub cache_entries: Option<RawTensor<1>>,
    /// The [pages](crate::Attention::pages) of each entry of the batch, `i32[batch, most]`, or of each sequence of packed queries, with
    /// stride 1 in the last axis.
    pub pages: Option<RawTensor<2>>,
    /// Whether v is the first part of k: its address and its strides are k's, and it has no more columns. Calls find that
    /// themselves, and read nothing here; it tells [`kernel::suitable`](crate::kernel::suitable).
    pub values_in_keys: bool,
    /// Whether a GPU [checks](crate::Attention::check_lengths) the numbers of `sequences`, `first_keys`, `cache_entries` and
    /// `pages`.
    pub check_lengths: bool,
    /// Whether the call is [batch invariant](crate::Attention::batch_invariant).
    pub batch_invariant: bool,
    /// Keys of a [split](crate::Attention::split_keys); 0 where splits are as many as the call says.
    pub split_keys: u32,
    /// [FP8](crate::Attention::fp8).
    pub fp8: Option<Fp8>,
    /// Whether o holds f32 in a call of another type, which must be in [FP8](crate::Attention::fp8): what tensor cores sum is not
    /// rounded to 16 bits.
    pub f32_o: bool,
    /// Of q, k and v that hold e4m3, what multiplies them. The call then is in [FP8](crate::Attention::fp8), and its type is that of o.
    pub e4m3: Option<RawE4m3>,
    /// Keys and values of [e4m3](crate::Attention::forward_e4m3_cache), with q and o of 16 bits.
    pub e4m3_cache: Option<RawE4m3Cache>,
    /// A [score or mask of another crate](crate::Attention::custom).
    pub custom: Option<RawCustom>,
    /// A shared [prefix](crate::Attention::prefix).
    pub prefix: Option<RawPrefix>,
    /// Of the call as a part of another one, what lies in the workspace.
    pub(crate) part: Part,
}

/// What a call finds in the workspace, by offsets in place of addresses, where it is a part of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    /// Whether o and lse do, at multiples of 16 bytes, with rows of whole pieces.
    pub outputs: bool,
    /// Whether q does, likewise.
    pub q: bool,
}

impl Part {
    /// The places of what lies in the workspace in a kernel's parameters.
    pub fn places(self) -> impl Iterator<Item = usize> {
        let outputs = [
            offset_of!(ForwardParams, o.address),
            offset_of!(ForwardParams, lse),
        ];
        let outputs = outputs.into_iter().filter(move |_| self.outputs);
        outputs.chain(self.q.then_some(offset_of!(ForwardParams, q.address)))
    }
}

/// An additive bias by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawBias {
    /// Type of the elements.
    pub dtype: Dtype,
    /// `[batch, heads, seqlen_q, seqlen_kv]`, with stride 1 in `seqlen_kv`.
    pub tensor: RawTensor,
}

impl RawBias {
    /// Whether rows are whole vectors of 8 elements, of 16 bits, at multiples of 16 bytes.
    pub(crate) fn has_vectors(&self) -> bool {
        self.dtype != Dtype::F32 && self.tensor.has_vectors(8)
    }
}

/// A boolean mask by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawMask {
    /// Whether elements are words of 32 bits, `u32`: key `j` is bit `j % 32` of word `j / 32`, and 1 lets it be seen.
    /// Otherwise they are bytes, and 0 hides a key.
    pub bits: bool,
    /// `[batch, heads, seqlen_q, seqlen_kv]`, of bits `[batch, heads, seqlen_q, ceil(seqlen_kv / 32)]`; with stride 1
    /// in the last axis.
    pub tensor: RawTensor,
}

impl RawOptions {
    /// How many sequences are packed.
    pub(super) fn packed_sequences(&self) -> Option<usize> {
        let offsets = *self.sequences.as_ref()?.offsets_q()?;
        Some(offsets.shape[0].saturating_sub(1))
    }

    /// How many entries of keys one entry of q has: of packed queries one for each sequence.
    pub(crate) fn key_entries(&self) -> usize {
        self.sequences
            .map_or(1, |sequences| sequences.key_entries())
    }

    /// Parts of the queries that share no tile: of packed queries those of each sequence, those before the first and those behind the
    /// last.
    pub(crate) fn query_parts(&self) -> usize {
        match self.has_packed_queries() {
            true => self.key_entries().saturating_add(2),
            false => 1,
        }
    }

    /// How many keys of the problem are of one entry of keys.
    pub(crate) fn keys_of_entry(&self, p: &Problem) -> usize {
        p.seqlen_kv / self.key_entries().max(1)
    }

    /// Whether queries are packed, and keys in entries of their own.
    pub(crate) fn has_packed_queries(&self) -> bool {
        matches!(self.sequences, Some(Sequences::PackedQueries { .. }))
    }

    /// Whether each entry of the batch has one sequence, whose lengths or first key lie in memory.
    pub(crate) fn has_lengths(&self) -> bool {
        match self.sequences {
            None => self.first_keys.is_some(),
            Some(sequences) => matches!(sequences, Sequences::Padded { .. }),
        }
    }

    /// Whether packed sequences have slopes of their own.
    pub(crate) fn has_slopes_of_sequences(&self) -> bool {
        let slopes = self.alibi.map(|alibi| alibi.shape[0]);
        slopes.is_some_and(|slopes| slopes > 1) && slopes == self.packed_sequences()
    }

    /// Whether queries see ranges of keys that tables tell.
    pub(crate) fn has_ranges(&self) -> bool {
        self.sequences.is_some() || self.first_keys.is_some()
    }

    /// These options, and the others where these are off.
    pub(crate) fn or(self, others: RawOptions) -> Self {
        RawOptions {
            alibi: self.alibi.or(others.alibi),
            sinks: self.sinks.or(others.sinks),
            bias: self.bias.or(others.bias),
            mask: self.mask.or(others.mask),
            sequences: self.sequences.or(others.sequences),
            first_keys: self.first_keys.or(others.first_keys),
            cache_entries: self.cache_entries.or(others.cache_entries),
            pages: self.pages.or(others.pages),
            values_in_keys: self.values_in_keys,
            check_lengths: self.check_lengths || others.check_lengths,
            batch_invariant: self.batch_invariant || others.batch_invariant,
            split_keys: match self.split_keys {
                0 => others.split_keys,
                keys => keys,
            },
            fp8: self.fp8.or(others.fp8),
            f32_o: self.f32_o || others.f32_o,
            e4m3: self.e4m3.or(others.e4m3),
            e4m3_cache: self.e4m3_cache.map(|cache| cache.or(others.e4m3_cache)),
            custom: self.custom.or(others.custom),
            prefix: self.prefix.or(others.prefix),
            part: self.part,
        }
    }
}

/// The axes of a tensor with an element for each pair.
pub(crate) const PAIRS: &str = "[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]";
/// The axes of a tensor with a bit for each pair, in words.
pub(super) const PAIRS_OF_BITS: &str =
    "[batch or 1, heads or 1, seqlen_q or 1, ceil(seqlen_kv / 32)]";

/// The tensor in the shape that the problem gives it, whose axes `allowed` names; the last is not repeated.
pub(crate) fn full<const R: usize>(
    tensor: &RawTensor<R>,
    argument: &'static str,
    allowed: &'static str,
    shape: [usize; R],
) -> Result<RawTensor<R>> {
    full_of(tensor, &tensor.shape, argument, allowed, shape)
}

/// Like [`full`], of a tensor whose owner gave it another shape.
pub(super) fn full_of<const R: usize>(
    tensor: &RawTensor<R>,
    owner_shape: &[usize],
    argument: &'static str,
    allowed: &'static str,
    shape: [usize; R],
) -> Result<RawTensor<R>> {
    let layout = tensor.layout().broadcast(shape);
    match layout.filter(|_| tensor.shape.last() == shape.last()) {
        Some(layout) => Ok(RawTensor {
            address: tensor.address,
            shape,
            strides: layout.strides,
        }),
        None => Err(Error::OptionShape {
            argument,
            allowed,
            full: shape.to_vec(),
            found: owner_shape.to_vec(),
        }),
    }
}

/// The shape of a tensor with an element for each query and so many keys.
pub(crate) fn score_shape(p: &Problem, keys: usize) -> [usize; 4] {
    [p.batch, p.heads, p.seqlen_q, p.seqlen_kv.div_ceil(keys)]
}
