//! Sequences of variable lengths.

use crate::forward::Problem;
use crate::options::{Sequence, Sequences};
use std::ops::Range;

/// The sequences of one query head, in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeadSequences<'a> {
    /// Queries `0..q` and keys `first..kv`.
    One { q: usize, first: usize, kv: usize },
    /// Offsets of queries, and where keys lie.
    Packed { q: &'a [i32], kv: Keys<'a> },
}

/// The keys of packed queries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys<'a> {
    /// Between offsets.
    Offsets(&'a [i32]),
    /// So many from each multiple of a step on.
    Lengths(&'a [i32], usize),
}

impl Keys<'_> {
    /// The keys of a sequence.
    fn of(&self, sequence: usize) -> Range<usize> {
        match *self {
            Keys::Offsets(offsets) => offsets[sequence] as usize..offsets[sequence + 1] as usize,
            Keys::Lengths(lengths, step) => {
                let first = sequence * step;
                first..first + lengths[sequence] as usize
            }
        }
    }

    /// The key behind those of the sequences before this one.
    fn before(&self, sequence: usize) -> usize {
        match *self {
            Keys::Offsets(offsets) => offsets[sequence] as usize,
            Keys::Lengths(_, step) => sequence * step,
        }
    }
}

impl<'a> HeadSequences<'a> {
    /// The sequences of an entry of the batch, whose keys begin with this one; `step` keys are of an entry of keys.
    pub fn new(
        p: &Problem,
        sequences: Option<Sequences<&'a [i32]>>,
        first: usize,
        batch: usize,
        step: usize,
    ) -> Self {
        let [q, kv] = match sequences {
            None => [p.seqlen_q, p.seqlen_kv],
            Some(Sequences::Padded { q, kv }) => {
                // No lengths of queries stand for all of them.
                let q = q.get(batch).map_or(p.seqlen_q, |&length| length as usize);
                [q, kv[batch] as usize]
            }
            Some(Sequences::Packed { q, kv }) => {
                let kv = Keys::Offsets(kv);
                return HeadSequences::Packed { q, kv };
            }
            Some(Sequences::PackedQueries { q, kv }) => {
                let kv = Keys::Lengths(kv, step);
                return HeadSequences::Packed { q, kv };
            }
        };
        HeadSequences::One {
            q,
            first: first.min(kv),
            kv,
        }
    }

    /// All sequences.
    pub fn all(&self) -> Vec<Sequence> {
        match *self {
            HeadSequences::One { q, first, kv } => vec![Sequence {
                queries: 0..q,
                keys: first..kv,
            }],
            HeadSequences::Packed { q, kv } => {
                let pairs = q.windows(2).enumerate();
                let sequences = pairs.map(|(number, q)| Sequence {
                    queries: q[0] as usize..q[1] as usize,
                    keys: kv.of(number),
                });
                sequences.collect()
            }
        }
    }

    /// The number of a query's sequence, of those that are packed.
    pub fn number(&self, row: usize) -> usize {
        match *self {
            HeadSequences::One { .. } => 0,
            HeadSequences::Packed { q, .. } => {
                let begun = q.partition_point(|&first| first as usize <= row);
                begun.clamp(1, q.len() - 1) - 1
            }
        }
    }

    /// Whether a query is part of a sequence.
    pub fn contain(&self, row: usize) -> bool {
        match *self {
            HeadSequences::One { q, .. } => row < q,
            HeadSequences::Packed { q, .. } => {
                (q[0] as usize..q[q.len() - 1] as usize).contains(&row)
            }
        }
    }

    /// The sequence of a query. A query of none is one by itself, with no key, at the end of the keys before it.
    pub fn of(&self, row: usize) -> Sequence {
        let alone = |end| Sequence {
            queries: row..row + 1,
            keys: end..end,
        };
        match *self {
            HeadSequences::One { q, first, kv } if row < q => Sequence {
                queries: 0..q,
                keys: first..kv,
            },
            HeadSequences::One { kv, .. } => alone(kv),
            HeadSequences::Packed { q, kv } => {
                let at = |offsets: &[i32], index: usize| offsets[index] as usize;
                match q.partition_point(|&first| first as usize <= row) {
                    0 => alone(kv.before(0)),
                    end if end == q.len() => alone(kv.before(end - 1)),
                    end => Sequence {
                        queries: at(q, end - 1)..at(q, end),
                        keys: kv.of(end - 1),
                    },
                }
            }
        }
    }
}
