//! The size of an attention problem, and what sizes are allowed.

use crate::error::{Error, Result, expect_at_most};
use crate::options::{Sequence, Window};
use crate::tensor::{Layout, expect_shape};
use kernels::abi::MAX_SEQLEN;
use kernels::catalog::MAX_HEAD_DIM;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Sizes and options of one attention call. All sizes but the head dims may be 0: then results are empty, or 0 with an lse of -inf.
///
/// A problem is a key of a cache of plans. Those with other options come from [`Attention::problem`](crate::Attention::problem), or
/// fields that are set:
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, Problem, Window};
///
/// let shape = [1, 8, 1000, 64];
/// let mut problem = Problem::new(shape, shape, shape, true, None)?;
/// problem.window = Window { left: Some(255), right: None };
/// let attention = Attention::new().causal(true).window(255, None);
/// assert_eq!(attention.problem(shape, shape, shape)?, problem);
/// # Ok(())
/// # }
/// ```
///
/// The feature `serde` reads and writes it as these fields.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
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
    /// Elements of a query or key: at least 1, at most 1024.
    pub dim: usize,
    /// Elements of a value and of a row of o: at least 1, at most 1024.
    pub dim_v: usize,
    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q`.
    pub causal: bool,
    /// The keys that a query sees around its own place; with `causal`, none after it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub window: Window,
    /// Scores are `scale * (q . k)`.
    pub scale: f32,
    /// The bound `c` of scores, which become `c * tanh(score / c)`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub softcap: Option<f32>,
}

/// Problems are equal if all sizes and options are, and scale and softcap bit for bit: 0.0 is not -0.0, and each NaN is itself.
impl PartialEq for Problem {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Problem {}

impl Hash for Problem {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl Problem {
    /// All fields, as numbers that are equal only to themselves.
    fn key(&self) -> impl Eq + Hash + use<> {
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
            scale,
            softcap,
        } = *self;
        let sizes = [batch, heads, kv_heads, seqlen_q, seqlen_kv, dim, dim_v];
        let softcap = softcap.map(f32::to_bits);
        (sizes, causal, window, scale.to_bits(), softcap)
    }

    /// The problem that q, k and v of these shapes pose, without window and softcap; the scale defaults to
    /// `1 / sqrt(dim)`.
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
        let [.., dim_v] = v;
        for (argument, found, dim) in [("k", k, dim), ("v", v, dim_v)] {
            expect_shape(argument, &[batch, kv_heads, seqlen_kv, dim], &found)?;
        }
        let problem = Problem {
            batch,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            dim_v,
            causal,
            window: Window::NONE,
            scale: scale.unwrap_or_else(|| (dim as f32).sqrt().recip()),
            softcap: None,
        };
        problem.validate()?;
        Ok(problem)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is out of range and says what is allowed.
    pub fn validate(&self) -> Result<()> {
        let allowed = |dim: usize| (1..=MAX_HEAD_DIM as usize).contains(&dim);
        if !allowed(self.dim) {
            return Err(Error::Dim(self.dim));
        }
        if !allowed(self.dim_v) {
            return Err(Error::ValueDim(self.dim_v));
        }
        if self.kv_heads == 0 && self.heads > 0 {
            return Err(Error::Zero("kv_heads"));
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
        if let Some(softcap) = self.softcap
            && !(softcap.is_finite() && softcap > 0.0)
        {
            return Err(Error::Softcap(softcap));
        }
        for (argument, shape) in [
            ("q", self.q_shape()),
            ("k", self.k_shape()),
            ("v", self.v_shape()),
            ("o", self.o_shape()),
        ] {
            Layout::expect_countable_bytes(argument, shape)?;
        }
        Ok(())
    }

    /// Whether there is nothing to compute: no entry, no head, no query or no key.
    pub fn is_empty(&self) -> bool {
        [self.batch, self.heads, self.seqlen_q, self.seqlen_kv].contains(&0)
    }

    /// Checks that there is something to compute.
    ///
    /// # Errors
    /// Names the first size that is 0.
    pub fn expect_work(&self) -> Result<()> {
        let sizes = [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("seqlen_q", self.seqlen_q),
            ("seqlen_kv", self.seqlen_kv),
        ];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            Some((argument, _)) => Err(Error::Zero(argument)),
            None => Ok(()),
        }
    }

    /// Shape of q: `[batch, heads, seqlen_q, dim]`.
    pub fn q_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.seqlen_q, self.dim]
    }

    /// Shape of k: `[batch, kv_heads, seqlen_kv, dim]`.
    pub fn k_shape(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.seqlen_kv, self.dim]
    }

    /// Shape of v: `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub fn v_shape(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.seqlen_kv, self.dim_v]
    }

    /// Shape of o: `[batch, heads, seqlen_q, dim_v]`.
    pub fn o_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.seqlen_q, self.dim_v]
    }

    /// Shape of lse: `[batch, heads, seqlen_q]`.
    pub fn lse_shape(&self) -> [usize; 3] {
        [self.batch, self.heads, self.seqlen_q]
    }

    /// The problem as kernels compute it: head dims are whole vectors of 8 elements, which zeros fill. The scale stays.
    pub(crate) fn in_vectors(&self) -> Self {
        Problem {
            dim: self.dim.next_multiple_of(8),
            dim_v: self.dim_v.next_multiple_of(8),
            ..*self
        }
    }

    /// The larger one of `dim` and `dim_v`.
    pub fn widest(&self) -> usize {
        self.dim.max(self.dim_v)
    }

    /// Query heads that share a key/value head.
    ///
    /// # Panics
    /// If there are no key/value heads.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The key/value head that serves a query head.
    ///
    /// # Panics
    /// If there are no key/value heads, or fewer query heads.
    pub fn kv_head(&self, head: usize) -> usize {
        head / self.group()
    }

    /// Keys that query `row` sees by its place, where all are one sequence.
    pub fn keys(&self, row: usize) -> Range<usize> {
        let all = Sequence {
            queries: 0..self.seqlen_q,
            keys: 0..self.seqlen_kv,
        };
        self.keys_in(&all, row)
    }

    /// Keys that query `row` sees by its place in a sequence.
    pub(crate) fn keys_in(
        &self,
        Sequence { queries, keys }: &Sequence,
        row: usize,
    ) -> Range<usize> {
        let right = match self.causal {
            true => Some(0),
            false => self.window.right,
        };
        // Key `j` lies `j + queries.end - (row + keys.end)` behind the row's own place.
        let place = row.saturating_add(keys.end);
        let end = right.map_or(keys.end, |right| {
            let behind = place.saturating_add(right).saturating_add(1);
            behind
                .saturating_sub(queries.end)
                .clamp(keys.start, keys.end)
        });
        let start = self.window.left.map_or(keys.start, |left| {
            place.saturating_sub(queries.end.saturating_add(left))
        });
        start.clamp(keys.start, end)..end
    }

    /// Floating-point operations of the backward pass by the convention of the field: five products where the
    /// forward pass has two.
    pub fn backward_flops(&self) -> f64 {
        self.products(3, 2)
    }

    /// Floating-point operations of the forward pass by the convention of the field: two products of two operations
    /// each, half of that if causal. With a window, only pairs that see each other count, which takes time for each row.
    pub fn flops(&self) -> f64 {
        self.products(1, 1)
    }

    /// Operations of so many products with elements of q or k, and with elements of v or o.
    fn products(&self, of_dim: usize, of_dim_v: usize) -> f64 {
        let [batch, heads, seqlen_q] = self.lse_shape().map(|n| n as f64);
        let all = seqlen_q * self.seqlen_kv as f64;
        let pairs = match (self.window, self.causal) {
            (Window::NONE, false) => all,
            (Window::NONE, true) => all / 2.0,
            _ => (0..self.seqlen_q)
                .map(|row| self.keys(row).len() as f64)
                .sum(),
        };
        2.0 * batch
            * heads
            * pairs
            * (of_dim as f64 * self.dim as f64 + of_dim_v as f64 * self.dim_v as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::{Problem, Window};
    use std::collections::HashSet;
    use std::hash::{BuildHasher, RandomState};

    #[test]
    fn problems_are_keys() {
        let shape = [2, 4, 60, 16];
        let first = Problem::new(shape, [2, 2, 70, 16], [2, 2, 70, 24], false, None);
        let first = first.expect("valid");
        let change = |change: fn(&mut Problem)| {
            let mut other = first;
            change(&mut other);
            other
        };
        let others = [
            change(|p| p.batch = 3),
            change(|p| p.heads = 2),
            change(|p| p.kv_heads = 1),
            change(|p| p.seqlen_q = 61),
            change(|p| p.seqlen_kv = 60),
            change(|p| p.dim = 24),
            change(|p| p.dim_v = 16),
            change(|p| p.causal = true),
            change(|p| p.window.left = Some(0)),
            change(|p| p.window.right = Some(0)),
            change(|p| p.scale = 0.0),
            change(|p| p.scale = -0.0),
            change(|p| p.scale = f32::NAN),
            change(|p| p.scale = -f32::NAN),
            change(|p| p.softcap = Some(0.0)),
            change(|p| p.softcap = Some(-0.0)),
            change(|p| p.softcap = Some(f32::INFINITY)),
        ];
        let mut found = HashSet::from([first]);
        for (n, other) in others.into_iter().enumerate() {
            assert_ne!(first, other, "{n}");
            assert!(found.insert(other), "{n}: {other:?}");
            assert!(!found.insert(other), "{n}: {other:?}");
        }
        let hasher = RandomState::new();
        let again = change(|_| ());
        assert_eq!(again, first);
        assert_eq!(hasher.hash_one(again), hasher.hash_one(first));
        assert!(found.contains(&again));
    }

    fn problem(seqlen_q: usize, seqlen_kv: usize, causal: bool, window: Window) -> Problem {
        let [q, kv] = [seqlen_q, seqlen_kv].map(|rows| [1, 1, rows, 8]);
        let problem = Problem::new(q, kv, kv, causal, None).expect("valid");
        Problem { window, ..problem }
    }

    #[test]
    fn windows_are_bottom_right() {
        let keys = |[seqlen_q, seqlen_kv]: [usize; 2], left, right, causal| -> Vec<_> {
            let window = Window { left, right };
            let problem = problem(seqlen_q, seqlen_kv, causal, window);
            (0..seqlen_q).map(|row| problem.keys(row)).collect()
        };
        assert_eq!(keys([3, 5], Some(1), Some(0), false), [1..3, 2..4, 3..5]);
        assert_eq!(keys([3, 5], Some(1), Some(7), true), [1..3, 2..4, 3..5]);
        assert_eq!(keys([3, 3], None, Some(1), false), [0..2, 0..3, 0..3]);
        assert_eq!(keys([3, 3], Some(0), None, false), [0..3, 1..3, 2..3]);
        assert_eq!(
            keys([4, 2], Some(0), Some(0), false),
            [0..0, 0..0, 0..1, 1..2]
        );
        assert_eq!(
            keys([4, 2], Some(usize::MAX), Some(usize::MAX), false),
            [0..2, 0..2, 0..2, 0..2]
        );
        let p = problem(
            4,
            2,
            false,
            Window {
                left: Some(0),
                right: None,
            },
        );
        assert_eq!(p.flops(), 4.0 * 8.0 * (2.0 + 2.0 + 2.0 + 1.0));
    }

    #[test]
    fn causal_limits_are_bottom_right() {
        let limits = |seqlen_q, seqlen_kv| -> Vec<usize> {
            let problem = problem(seqlen_q, seqlen_kv, true, Window::NONE);
            (0..seqlen_q).map(|row| problem.keys(row).end).collect()
        };
        assert_eq!(limits(3, 3), [1, 2, 3]);
        assert_eq!(limits(2, 5), [4, 5]);
        assert_eq!(limits(5, 2), [0, 0, 0, 1, 2]);
    }
}
