//! The order of a tensor's axes, and those that are repeated.

use ferroattn::{RawSequences, RawTensor, Sequences};

/// How the axes of q, k, v and o are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[batch, heads, seqlen, dim]`, as PyTorch's own function has them.
    HeadsFirst,
    /// `[batch, seqlen, heads, dim]`, as FlashAttention has them.
    RowsFirst,
    /// `[total, heads, dim]` of packed sequences.
    Packed,
}

impl Form {
    /// The order of axes, if q has so many.
    pub fn of(rank: usize, heads_first: bool) -> Self {
        match (rank, heads_first) {
            (3, _) => Form::Packed,
            (_, true) => Form::HeadsFirst,
            (_, false) => Form::RowsFirst,
        }
    }

    /// Which axis is batch, heads, seqlen and dim.
    pub fn axes(self) -> [Option<usize>; 4] {
        match self {
            Form::HeadsFirst => [Some(0), Some(1), Some(2), Some(3)],
            Form::RowsFirst => [Some(0), Some(2), Some(1), Some(3)],
            Form::Packed => [None, Some(1), Some(0), Some(2)],
        }
    }

    /// How the axes of k and v are ordered beside q of this form: pages beside packed queries have four axes, rows first.
    pub fn of_keys(self, in_pages: bool) -> Self {
        match (self, in_pages) {
            (Form::Packed, true) => Form::RowsFirst,
            _ => self,
        }
    }

    /// Sequences of this form, with these numbers: of packed queries, keys have offsets or, in pages, lengths; padded ones may have lengths of
    /// keys alone. None without numbers.
    ///
    /// # Errors
    /// Says which numbers are missing.
    pub fn sequences(
        self,
        q: Option<RawTensor<1>>,
        kv: Option<RawTensor<1>>,
        in_pages: bool,
    ) -> Result<Option<RawSequences>, &'static str> {
        Ok(Some(match (self, q, kv) {
            (Form::Packed, Some(q), Some(kv)) if in_pages => Sequences::PackedQueries { q, kv },
            (Form::Packed, Some(q), Some(kv)) => Sequences::Packed { q, kv },
            (Form::Packed, ..) => {
                return Err("packed sequences need the offsets of both queries and keys");
            }
            (_, Some(q), Some(kv)) => Sequences::Padded { q, kv },
            (_, None, Some(kv)) => RawSequences::padded_keys(kv),
            (_, Some(_), None) => return Err("padded sequences need the lengths of keys, too"),
            (_, None, None) => return Ok(None),
        }))
    }

    /// Which axis is batch, heads and seqlen, of a tensor with a number for each row of scores.
    pub fn axes_of_rows(self) -> [Option<usize>; 3] {
        match self {
            Form::Packed => [None, Some(0), Some(1)],
            _ => [Some(0), Some(1), Some(2)],
        }
    }
}

/// A tensor with an element for each pair of a query and a key, from one whose axes of one element stand for all of the batch,
/// the heads or the queries.
pub fn repeated(mut tensor: RawTensor, extents: [usize; 3]) -> RawTensor {
    for (axis, extent) in extents.into_iter().enumerate() {
        if tensor.shape[axis] == 1 && extent != 1 {
            (tensor.shape[axis], tensor.strides[axis]) = (extent, 0);
        }
    }
    tensor
}
