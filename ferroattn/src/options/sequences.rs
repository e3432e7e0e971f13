//! Sequences of variable lengths.

use crate::error::{Error, Result};
use crate::tensor::RawTensor;
use std::ops::Range;

/// Which queries and keys of a call are one sequence: a query sees keys of its own sequence alone, and causal mask,
/// window and ALiBi count from the sequence's own last query and key.
///
/// A query of no sequence sees no key; a key of no sequence is seen by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Sequences<T> {
    /// Of `n` sequences in the one entry of the batch, offsets `i32[n + 1]` that never fall: sequence `s` has queries
    /// `q[s]..q[s + 1]` and keys `kv[s]..kv[s + 1]`.
    Packed {
        /// Offsets of queries, from 0 to seqlen_q.
        q: T,
        /// Offsets of keys, from 0 to seqlen_kv.
        kv: T,
    },
    /// Lengths `i32[batch]`: entry `b` is one sequence of queries `0..q[b]` and keys `0..kv[b]`.
    Padded {
        /// Numbers of queries, from 0 to seqlen_q. By address 0: all of them.
        q: T,
        /// Numbers of keys, from 0 to seqlen_kv.
        kv: T,
    },
    /// Of `n` sequences in the one entry of q, offsets `i32[n + 1]` that never fall, and lengths `i32[n]`: sequence `s` has queries
    /// `q[s]..q[s + 1]` and the first `kv[s]` keys of row `s` of the table of [pages](crate::Attention::pages).
    PackedQueries {
        /// Offsets of queries, from 0 to seqlen_q.
        q: T,
        /// Numbers of keys, from 0 to those that a row's pages hold.
        kv: T,
    },
}

/// Sequences by address, with stride 1.
pub type RawSequences = Sequences<RawTensor<1>>;

/// Sequences of which each begins as many rows behind the one before, whatever its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spaced {
    /// Queries and keys from one to the next.
    pub rows: [usize; 2],
    /// Addresses of the lengths of queries and of keys; 0 where sequences fill their rows.
    pub lengths: [u64; 2],
    /// Sequences, one after another, that share a length.
    pub sharing: usize,
}

impl Spaced {
    /// Sequences that offsets bound.
    pub const NONE: Self = Spaced {
        rows: [0; 2],
        lengths: [0; 2],
        sharing: 1,
    };
}

impl<T> Sequences<T> {
    /// Queries' and keys' part, with the argument's name.
    pub(super) fn named(&self) -> [(&'static str, &T); 2] {
        match self {
            Sequences::Packed { q, kv } => [("offsets_q", q), ("offsets_kv", kv)],
            Sequences::Padded { q, kv } => [("lengths_q", q), ("lengths_kv", kv)],
            Sequences::PackedQueries { q, kv } => [("offsets_q", q), ("lengths_kv", kv)],
        }
    }

    /// Sequences of this kind, with what `of` makes of each part.
    ///
    /// ```
    /// use ferroattn::{RawTensor, Sequences};
    ///
    /// let offsets = Sequences::Packed { q: vec![0, 3, 5], kv: vec![0, 0, 9] };
    /// let planned = offsets.map(|offsets| RawTensor::row_major([offsets.len()]));
    /// assert_eq!(planned, Sequences::Packed { q: RawTensor::row_major([3]), kv: RawTensor::row_major([3]) });
    /// ```
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> Sequences<U> {
        let [q, kv] = self.named().map(|(_, part)| of(part));
        self.with(q, kv)
    }

    /// Sequences of this kind, with what `of` makes of each part, unless it fails.
    ///
    /// # Errors
    /// The first failure.
    pub fn try_map<U, E>(&self, of: impl Fn(&T) -> Result<U, E>) -> Result<Sequences<U>, E> {
        let [(_, q), (_, kv)] = self.named();
        Ok(self.with(of(q)?, of(kv)?))
    }

    /// Sequences of this kind, with these parts.
    pub(super) fn with<U>(&self, q: U, kv: U) -> Sequences<U> {
        match self {
            Sequences::Packed { .. } => Sequences::Packed { q, kv },
            Sequences::Padded { .. } => Sequences::Padded { q, kv },
            Sequences::PackedQueries { .. } => Sequences::PackedQueries { q, kv },
        }
    }

    /// Whether queries and keys are bounded by offsets, which rise, or by lengths.
    pub(super) fn have_offsets(&self) -> [bool; 2] {
        match self {
            Sequences::Packed { .. } => [true; 2],
            Sequences::Padded { .. } => [false; 2],
            Sequences::PackedQueries { .. } => [true, false],
        }
    }

    /// The offsets of the queries, of sequences whose queries are packed.
    pub(super) fn offsets_q(&self) -> Option<&T> {
        match self {
            Sequences::Packed { q, .. } | Sequences::PackedQueries { q, .. } => Some(q),
            Sequences::Padded { .. } => None,
        }
    }
}

impl<T: AsRef<[i32]>> Sequences<T> {
    /// How many queries and keys each sequence has; none where offsets fall or a length is negative, which no call takes.
    ///
    /// ```
    /// use ferroattn::Sequences;
    ///
    /// let packed = Sequences::Packed { q: [2, 2, 7], kv: [0, 3, 9] };
    /// assert_eq!(packed.lengths(), [[0, 3], [5, 6]]);
    /// let padded = Sequences::Padded { q: [2, 7], kv: [3, 0] };
    /// assert_eq!(padded.lengths(), [[2, 3], [7, 0]]);
    /// let mixed = Sequences::PackedQueries { q: vec![0, 1, 5], kv: vec![3, 9] };
    /// assert_eq!(mixed.lengths(), [[1, 3], [4, 9]]);
    /// let falling = Sequences::Packed { q: [0, 7, 2], kv: [0, 3, 9] };
    /// assert_eq!(falling.lengths(), [[7, 3], [0, 6]]);
    /// ```
    pub fn lengths(&self) -> Vec<[usize; 2]> {
        let between = |from: i32, to: i32| (i64::from(to) - i64::from(from)).max(0) as usize;
        let lengths = |(_, numbers): (&str, &T), has_offsets| -> Vec<usize> {
            let numbers = numbers.as_ref();
            match has_offsets {
                true => {
                    let pairs = numbers.windows(2);
                    pairs.map(|pair| between(pair[0], pair[1])).collect()
                }
                false => numbers.iter().map(|&n| between(0, n)).collect(),
            }
        };
        let ([q, kv], [of_q, of_kv]) = (self.named(), self.have_offsets());
        let pairs = lengths(q, of_q).into_iter().zip(lengths(kv, of_kv));
        pairs.map(|(q, kv)| [q, kv]).collect()
    }
}

impl RawSequences {
    /// How many sequences there must be in a call of so many entries.
    pub(super) fn count(&self, batch: usize) -> Result<usize> {
        match (batch, self.offsets_q().map(|q| q.shape[0])) {
            (batch, None) => Ok(batch),
            (1, Some(offsets @ 2..)) => Ok(offsets - 1),
            (1, Some(offsets)) => Err(Error::Offsets(offsets)),
            (batch, _) => Err(Error::PackedBatch(batch)),
        }
    }

    /// Entries of which each is one sequence of all its queries and of so many keys, `i32[batch]`.
    ///
    /// ```
    /// use ferroattn::{RawSequences, RawTensor, Sequences};
    ///
    /// let lengths = RawTensor { address: 4096, ..RawTensor::row_major([3]) };
    /// let all = RawTensor::row_major([3]);
    /// assert_eq!(RawSequences::padded_keys(lengths), Sequences::Padded { q: all, kv: lengths });
    /// ```
    pub fn padded_keys(kv: RawTensor<1>) -> Self {
        let q = RawTensor::row_major(kv.shape);
        Sequences::Padded { q, kv }
    }

    /// Whether lengths are of keys alone.
    pub(super) fn has_all_queries(&self) -> bool {
        matches!(self, Sequences::Padded { q, kv } if q.address == 0 && q.shape == kv.shape)
    }

    /// How many sequences of one entry of q have keys in an entry of their own: 1, but of packed queries all.
    pub(crate) fn key_entries(&self) -> usize {
        match self {
            Sequences::PackedQueries { q, .. } => q.shape[0].saturating_sub(1),
            _ => 1,
        }
    }
}

/// Queries and keys that may see each other.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::Sequences;

    #[test]
    fn lengths_are_never_negative() {
        let (least, most) = (i32::MIN, i32::MAX);
        let packed = Sequences::Packed {
            q: [3, 1, least, most],
            kv: [0, 5, 4, 4],
        };
        assert_eq!(packed.lengths(), [[0, 5], [0, 0], [u32::MAX as usize, 0]]);
        let padded = Sequences::Padded {
            q: [-1, least, 2],
            kv: [3, -7, most],
        };
        assert_eq!(padded.lengths(), [[0, 3], [0, 0], [2, most as usize]]);
    }
}
