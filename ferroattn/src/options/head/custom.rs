//! Scores and masks of other crates.

use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::options::{CustomKernels, RawCustom};
use kernels::abi::ArrayRef;
use kernels::attention::custom::{Call, Pair};
use std::ops::Range;

impl RawCustom {
    /// Checks on the host that each query's keys are those whose queries have it.
    ///
    /// # Safety
    /// The conditions of [`head`](Self::head).
    pub(super) unsafe fn expect_mask(&self, p: &Problem) -> Result<()> {
        for batch in 0..p.batch {
            // SAFETY: the caller's word.
            let HeadCustom { call, .. } = unsafe { self.head(p, [batch, 0]) };
            let bounds = |of: fn(&Call, u32) -> Range<u32>, number: usize, count: u32| {
                let Range { start, end } = of(&call, number as u32);
                [start, end].map(|bound| bound.min(count))
            };
            let of_key = |key| bounds(self.kernels.queries, key, call.queries);
            let queries: Vec<_> = (0..p.seqlen_kv).map(of_key).collect();
            let falls = |pair: &[[u32; 2]]| (0..2).any(|end| pair[1][end] < pair[0][end]);
            if let Some(key) = queries.windows(2).position(falls) {
                return Err(Error::CustomOrder { batch, key });
            }
            for query in 0..p.seqlen_q {
                // Keys before the first whose queries end behind it, and before the first whose queries begin behind it.
                let keys = [1, 0].map(|end| {
                    queries.partition_point(|queries| queries[end] as usize <= query) as u32
                });
                if bounds(self.kernels.keys, query, call.keys) != keys {
                    return Err(Error::CustomMask { batch, query, keys });
                }
            }
        }
        Ok(())
    }

    /// The type on one query head, on the host.
    ///
    /// # Safety
    /// The arrays lie in readable memory of the host, aligned, and nothing writes them during `'a`.
    pub(super) unsafe fn head<'a>(&self, p: &Problem, [batch, head]: [usize; 2]) -> HeadCustom<'a> {
        let lengths = [p.seqlen_q as u32, p.seqlen_kv as u32];
        HeadCustom {
            kernels: self.kernels,
            // SAFETY: the caller's word; `validate` counted the elements.
            call: unsafe { Call::new(batch as u32, lengths, self.arrays.map(ArrayRef::from)) },
            head: head as u32,
        }
    }
}

/// A type on one query head, on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadCustom<'a> {
    kernels: &'static CustomKernels,
    call: Call<'a>,
    head: u32,
}

impl HeadCustom<'_> {
    /// Whether the mask lets a query see a key.
    pub fn sees(&self, [row, key]: [usize; 2]) -> bool {
        (self.kernels.keys)(&self.call, row as u32).contains(&(key as u32))
    }

    /// The score of a pair.
    pub fn score(&self, place: [usize; 2], score: f64) -> f64 {
        (self.kernels.score)(&self.call, self.head, score as f32, self.pair(place)).into()
    }

    /// The derivative of [`score`](Self::score).
    pub fn derivative(&self, place: [usize; 2], score: f64) -> f64 {
        (self.kernels.derivative)(&self.call, self.head, score as f32, self.pair(place)).into()
    }

    fn pair(&self, [row, key]: [usize; 2]) -> Pair {
        let Call { queries, keys, .. } = self.call;
        let distance = row as i64 + i64::from(keys) - i64::from(queries) - key as i64;
        Pair {
            query: row as u32,
            key: key as u32,
            distance: distance as f32,
        }
    }
}
