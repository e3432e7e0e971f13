//! The order of a tensor's axes, and those that are repeated.

use ferroattn::{RawTensor, Sequences};

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

    /// Sequences of this form, with these numbers: of packed queries, keys have offsets or, in pages, lengths.
    pub fn sequences<T>(self, q: T, kv: T, in_pages: bool) -> Sequences<T> {
        match (self, in_pages) {
            (Form::Packed, true) => Sequences::PackedQueries { q, kv },
            (Form::Packed, false) => Sequences::Packed { q, kv },
            _ => Sequences::Padded { q, kv },
        }
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
