//! Sequences of variable lengths.

use crate::forward::Problem;
use crate::options::{Sequence, Sequences};

/// The sequences of one query head, in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeadSequences<'a> {
    /// Queries `0..q` and keys `first..kv`.
    One { q: usize, first: usize, kv: usize },
    /// Offsets.
    Packed { q: &'a [i32], kv: &'a [i32] },
}

impl<'a> HeadSequences<'a> {
    /// The sequences of an entry of the batch, whose keys begin with this one.
    pub fn new(
        p: &Problem,
        sequences: Option<Sequences<&'a [i32]>>,
        first: usize,
        batch: usize,
    ) -> Self {
        let [q, kv] = match sequences {
            None => [p.seqlen_q, p.seqlen_kv],
            Some(Sequences::Padded { q, kv }) => [q, kv].map(|lengths| lengths[batch] as usize),
            Some(Sequences::Packed { q, kv }) => return HeadSequences::Packed { q, kv },
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
                let between = |pair: &[i32]| pair[0] as usize..pair[1] as usize;
                let pairs = q.windows(2).zip(kv.windows(2));
                let sequences = pairs.map(|(q, kv)| Sequence {
                    queries: between(q),
                    keys: between(kv),
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
                    0 => alone(at(kv, 0)),
                    end if end == q.len() => alone(at(kv, end - 1)),
                    end => Sequence {
                        queries: at(q, end - 1)..at(q, end),
                        keys: at(kv, end - 1)..at(kv, end),
                    },
                }
            }
        }
    }
}
