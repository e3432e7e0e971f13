//! The size of an attention problem, and what sizes are allowed.

use crate::error::{Error, Result, expect_at_most};
use crate::tensor::{Layout, expect_shape};
use kernels::abi::MAX_SEQLEN;
use kernels::catalog::MAX_HEAD_DIM;
use std::ops::Range;

/// Sizes and options of one attention call.
///
/// The feature `serde` reads and writes it as these fields.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Problem {
    /// Independent sequences.
    pub batch: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Queries per head.
    pub seqlen_q: usize,
    /// Keys per head.
    pub seqlen_kv: usize,
    /// Elements of a query, key or value: a multiple of 8, at most 1024.
    pub dim: usize,
    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    pub causal: bool,
    /// Scores are `scale * (q . k)`.
    pub scale: f32,
}

impl Problem {
    /// The problem that q, k and v of these shapes pose; the scale defaults to `1 / sqrt(dim)`.
    ///
    /// # Errors
    /// Says which argument is wrong: shapes that disagree, or sizes that are [not
    /// allowed](Problem::validate).
    pub fn new(
        q: [usize; 4],
        k: [usize; 4],
        v: [usize; 4],
        causal: bool,
        scale: Option<f32>,
    ) -> Result<Self> {
        let [batch, heads, seqlen_q, dim] = q;
        let [_, kv_heads, seqlen_kv, _] = k;
        for (argument, found) in [("k", k), ("v", v)] {
            expect_shape(argument, &[batch, kv_heads, seqlen_kv, dim], &found)?;
        }
        let problem = Problem {
            batch,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            causal,
            scale: scale.unwrap_or_else(|| (dim as f32).sqrt().recip()),
        };
        problem.validate()?;
        Ok(problem)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is out of range and says what is allowed.
    pub fn validate(&self) -> Result<()> {
        if self.dim == 0 || self.dim > MAX_HEAD_DIM as usize || !self.dim.is_multiple_of(8) {
            return Err(Error::Dim(self.dim));
        }
        for (argument, value) in [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("seqlen_q", self.seqlen_q),
            ("seqlen_kv", self.seqlen_kv),
        ] {
            if value == 0 {
                return Err(Error::Zero(argument));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::Heads {
                heads: self.heads,
                kv_heads: self.kv_heads,
            });
        }
        for (argument, value) in [("seqlen_q", self.seqlen_q), ("seqlen_kv", self.seqlen_kv)] {
            expect_at_most(argument, value, MAX_SEQLEN)?;
        }
        if !self.scale.is_finite() {
            return Err(Error::Scale(self.scale));
        }
        for (argument, shape) in [("q", self.q_shape()), ("k", self.kv_shape())] {
            Layout::expect_countable_bytes(argument, shape)?;
        }
        Ok(())
    }

    /// Shape of q and o: `[batch, heads, seqlen_q, dim]`.
    pub fn q_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.seqlen_q, self.dim]
    }

    /// Shape of k and v: `[batch, kv_heads, seqlen_kv, dim]`.
    pub fn kv_shape(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.seqlen_kv, self.dim]
    }

    /// Shape of lse: `[batch, heads, seqlen_q]`.
    pub fn lse_shape(&self) -> [usize; 3] {
        [self.batch, self.heads, self.seqlen_q]
    }

    /// Query heads that share a key/value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The key/value head that serves a query head.
    pub fn kv_head(&self, head: usize) -> usize {
        head / self.group()
    }

    /// Number of keys that query `row` sees: keys `0..key_limit(row)`.
    pub fn key_limit(&self, row: usize) -> usize {
        if self.causal {
            (row + 1 + self.seqlen_kv)
                .saturating_sub(self.seqlen_q)
                .min(self.seqlen_kv)
        } else {
            self.seqlen_kv
        }
    }

    /// Rectangles of rows and keys: together they hold each pair of `rows` and `keys` that see each other, once,
    /// and no other pair.
    ///
    /// Products over rectangles need no mask, which 0 * NaN would pass.
    pub(crate) fn visible(
        &self,
        rows: Range<usize>,
        keys: Range<usize>,
    ) -> Vec<(Range<usize>, Range<usize>)> {
        let mut rectangles = Vec::new();
        self.add_visible(rows, keys, &mut rectangles);
        rectangles
    }

    fn add_visible(
        &self,
        rows: Range<usize>,
        keys: Range<usize>,
        rectangles: &mut Vec<(Range<usize>, Range<usize>)>,
    ) {
        if rows.is_empty() || keys.is_empty() {
            return;
        }
        let seen_by_all = self.key_limit(rows.start).clamp(keys.start, keys.end);
        if seen_by_all > keys.start {
            rectangles.push((rows.clone(), keys.start..seen_by_all));
        }
        // The rest is a triangle, empty for a single row.
        let keys = seen_by_all..self.key_limit(rows.end - 1).min(keys.end);
        let middle = rows.start + rows.len() / 2;
        if rows.len() > 1 {
            self.add_visible(rows.start..middle, keys.clone(), rectangles);
            self.add_visible(middle..rows.end, keys, rectangles);
        }
    }

    /// Floating-point operations of the backward pass by the convention of the field: five products where the
    /// forward pass has two.
    pub fn backward_flops(&self) -> f64 {
        2.5 * self.flops()
    }

    /// Floating-point operations of the forward pass by the convention of the field: two products of two operations
    /// each, half of that if causal.
    pub fn flops(&self) -> f64 {
        let [batch, heads, seqlen_q, dim] = self.q_shape().map(|n| n as f64);
        let full = 4.0 * batch * heads * seqlen_q * self.seqlen_kv as f64 * dim;
        if self.causal { full / 2.0 } else { full }
    }
}

#[cfg(test)]
mod tests {
    use super::Problem;

    #[test]
    fn causal_limits_are_bottom_right() {
        let limits = |seqlen_q, seqlen_kv| -> Vec<usize> {
            let shape = |rows| [1, 1, rows, 8];
            let problem = Problem::new(
                shape(seqlen_q),
                shape(seqlen_kv),
                shape(seqlen_kv),
                true,
                None,
            );
            let problem = problem.unwrap();
            (0..seqlen_q).map(|row| problem.key_limit(row)).collect()
        };
        assert_eq!(limits(3, 3), [1, 2, 3]);
        assert_eq!(limits(2, 5), [4, 5]);
        assert_eq!(limits(5, 2), [0, 0, 0, 1, 2]);
    }

    #[test]
    fn rectangles_hold_each_visible_pair_once() {
        for (seqlen_q, seqlen_kv) in [(1, 1), (13, 13), (9, 20), (20, 9), (1, 20), (20, 1)] {
            for causal in [false, true] {
                let shape = |rows| [1, 1, rows, 8];
                let (q, kv) = (shape(seqlen_q), shape(seqlen_kv));
                let problem = Problem::new(q, kv, kv, causal, None).unwrap();
                for (first, last) in [(0, seqlen_q), (seqlen_q / 3, seqlen_q / 2), (0, 1)] {
                    for keys in [0..seqlen_kv, seqlen_kv / 3..seqlen_kv / 2, 0..1] {
                        let mut pairs = Vec::new();
                        for (rows, keys) in problem.visible(first..last, keys.clone()) {
                            pairs.extend(rows.flat_map(|i| keys.clone().map(move |j| (i, j))));
                        }
                        pairs.sort_unstable();
                        let seen = |i: usize| keys.start..keys.end.min(problem.key_limit(i));
                        let expected: Vec<_> = (first..last)
                            .flat_map(|i| seen(i).map(move |j| (i, j)))
                            .collect();
                        assert_eq!(pairs, expected, "{problem:?}, {first}..{last}, {keys:?}");
                    }
                }
            }
        }
    }
}
