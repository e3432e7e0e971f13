//! Short sequences of a dense batch as packed ones, whose rows fill tiles.
//!
//! A block takes a tile of rows of one head. Of short sequences it would have a few rows, pad its sums of dq to the whole tile,
//! and take as long as for all of them. Where heads or batch entries follow each other in memory, rows of one axis reach over
//! all of them, and a mask of sequences keeps them apart: a tile has rows of many.

use super::RawBackward;
use crate::device::Facts;
use crate::forward::Problem;
use crate::options::{Sequences, Window};
use crate::tensor::RawTensor;
use kernels::abi::MAX_SEQLEN;

/// The most queries and keys of sequences that share tiles: half of a tile.
const MOST_ROWS: usize = 64;

/// The axes of tensors.
const BATCH: usize = 0;
const HEADS: usize = 1;
const ROWS: usize = 2;

/// The same work on packed sequences, if the dense batch has so many short ones that it pays, and memory and options allow it.
pub(super) fn packed(
    problem: &Problem,
    args: &RawBackward,
    facts: &Facts,
) -> Option<(Problem, RawBackward)> {
    let options = &args.options;
    let is_short = problem.seqlen_q.max(problem.seqlen_kv) <= MOST_ROWS;
    // Blocks that run at once take no longer for being nearly empty.
    let is_full = problem.batch * problem.kv_heads > facts.multiprocessors as usize;
    let has_pairs = options.bias.is_some() || options.mask.is_some() || options.custom.is_some();
    if !is_short || !is_full || has_pairs || options.sequences.is_some() {
        return None;
    }
    let dense = Joined {
        problem: *problem,
        args: *args,
    };
    let mut joined = dense;
    if options.alibi.is_none() && options.sinks.is_none() {
        joined = joined.groups().unwrap_or(joined);
    }
    let rows = [joined.problem.seqlen_q, joined.problem.seqlen_kv];
    if options.alibi.is_none() && options.sinks.is_none() {
        joined = joined.heads().unwrap_or(joined);
    }
    joined = joined.entries().unwrap_or(joined);
    let Joined { problem, mut args } = joined;
    let count = problem.seqlen_kv / rows[1];
    args.options.sequences = Some(Sequences::alike(count, rows));
    (count > 1).then_some((problem, args))
}

/// A call, some of whose axes are joined with the rows.
#[derive(Clone, Copy)]
struct Joined {
    problem: Problem,
    args: RawBackward,
}

impl Joined {
    /// The query heads of a group as queries of one head, if all queries see all keys.
    fn groups(self) -> Option<Self> {
        let problem = self.problem;
        let sees_all = !problem.causal && problem.window == Window::NONE;
        let joined = self.join(HEADS, [problem.group(), 1])?;
        sees_all.then_some(joined)
    }

    /// The heads of a batch entry as one.
    fn heads(self) -> Option<Self> {
        let heads = self.problem.heads;
        let joined = self.join(HEADS, [heads; 2])?;
        (self.problem.group() == 1).then_some(joined)
    }

    /// The batch entries as one.
    fn entries(self) -> Option<Self> {
        let options = self.args.options;
        let alibi = options.alibi.map_or(0, |alibi| alibi.used_strides()[BATCH]);
        let joined = self.join(BATCH, [self.problem.batch; 2])?;
        (alibi == 0).then_some(joined)
    }

    /// Joins each so many query heads or entries of `axis`, and key/value heads, with their rows.
    fn join(self, axis: usize, [of_q, of_kv]: [usize; 2]) -> Option<Self> {
        let Joined { problem: p, args } = self;
        let seqlen_q = p.seqlen_q.checked_mul(of_q)?;
        let seqlen_kv = p.seqlen_kv.checked_mul(of_kv)?;
        let problem = match axis {
            BATCH => Problem { batch: 1, ..p },
            _ => Problem {
                heads: p.heads / of_q,
                kv_heads: p.kv_heads / of_kv,
                ..p
            },
        };
        let problem = Problem {
            seqlen_q,
            seqlen_kv,
            ..problem
        };
        // Else lse keeps its entries, whose rows of a head lie apart.
        let is_contiguous = axis == HEADS || p.heads == 1;
        let lse = match is_contiguous {
            true => problem.lse_shape(),
            false => args.lse.shape,
        };
        let args = RawBackward {
            q: join(args.q, axis, of_q)?,
            k: join(args.k, axis, of_kv)?,
            v: join(args.v, axis, of_kv)?,
            o: join(args.o, axis, of_q)?,
            d_o: join(args.d_o, axis, of_q)?,
            dq: join(args.dq, axis, of_q)?,
            dk: join(args.dk, axis, of_kv)?,
            dv: join(args.dv, axis, of_kv)?,
            lse: RawTensor {
                address: args.lse.address,
                ..RawTensor::row_major(lse)
            },
            ..args
        };
        let fits = seqlen_q.max(seqlen_kv) <= MAX_SEQLEN as usize;
        fits.then_some(Joined { problem, args })
    }
}

/// The tensor with each `count` of `axis` joined with the rows, if these lie a stride apart then.
fn join(tensor: RawTensor, axis: usize, count: usize) -> Option<RawTensor> {
    let RawTensor {
        mut shape,
        mut strides,
        ..
    } = tensor;
    let stride = strides[axis];
    let follows = || (shape[ROWS] as isize).checked_mul(strides[ROWS]) == Some(stride);
    if count > 1 {
        if shape[ROWS] == 1 {
            strides[ROWS] = stride;
        } else if !follows() {
            return None;
        }
        shape[axis] /= count;
        shape[ROWS] *= count;
        strides[axis] = stride.checked_mul(count as isize)?;
    }
    Some(RawTensor {
        shape,
        strides,
        ..tensor
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, Dtype};
    use kernels::catalog::class::Class;

    /// Strides of row-major tensors, and of tensors with heads beside each other in a row.
    const LAYOUTS: [fn([usize; 4]) -> [usize; 4]; 2] = [
        |[_, heads, rows, dim]| [heads * rows * dim, rows * dim, dim, 1],
        |[_, heads, rows, dim]| [heads * rows * dim, dim, heads * dim, 1],
    ];

    /// A call of these heads, all of whose tensors lie so.
    fn call(
        [batch, heads, kv_heads]: [usize; 3],
        [seqlen_q, seqlen_kv, dim]: [usize; 3],
        causal: bool,
        strides: &dyn Fn([usize; 4]) -> [usize; 4],
    ) -> (Problem, RawBackward) {
        let q = [batch, heads, seqlen_q, dim];
        let kv = [batch, kv_heads, seqlen_kv, dim];
        let problem = Problem::new(q, kv, kv, causal, None).expect("valid");
        let of = |shape| RawTensor {
            strides: strides(shape).map(|stride| stride as isize),
            ..RawTensor::row_major(shape)
        };
        let [q, k] = [of(q), of(kv)];
        let args = RawBackward {
            q,
            k,
            v: k,
            o: q,
            d_o: q,
            dq: q,
            dk: k,
            dv: k,
            ..RawBackward::row_major(&problem)
        };
        (problem, args)
    }

    /// Heads, and rows of a head and of a sequence, of a call on a GPU.
    fn joined(call: &(Problem, RawBackward)) -> Option<([usize; 4], [usize; 2])> {
        let (problem, args) = call;
        let (p, args) = packed(problem, args, &Facts::emulated(Class::Sm90))?;
        p.validate().expect("sizes that kernels take");
        let rows = args.options.sequences.and_then(|s| s.rows_alike());
        for q in [args.q, args.o, args.d_o, args.dq] {
            assert_eq!(q.shape, p.q_shape());
        }
        for kv in [args.k, args.v, args.dk, args.dv] {
            assert_eq!(kv.shape, p.k_shape());
        }
        Some(([p.batch, p.heads, p.seqlen_q, p.seqlen_kv], rows?))
    }

    #[test]
    fn heads_and_entries_that_follow_each_other_are_joined() {
        let [bhnd, bnhd]: [&dyn Fn(_) -> _; 2] = [&LAYOUTS[0], &LAYOUTS[1]];
        fn rows(
            heads: [usize; 3],
            sizes: [usize; 3],
            causal: bool,
            strides: &dyn Fn([usize; 4]) -> [usize; 4],
        ) -> Option<([usize; 4], [usize; 2])> {
            joined(&call(heads, sizes, causal, strides))
        }
        let all = Some(([1, 1, 3200, 6400], [4, 8]));
        let of_entries = Some(([1, 8, 400, 800], [4, 8]));
        assert_eq!(rows([100, 8, 8], [4, 8, 64], true, bhnd), all);
        assert_eq!(rows([100, 8, 8], [4, 8, 64], true, bnhd), of_entries);
        // Groups are queries of one head where all queries see all keys.
        let folded = Some(([1, 1, 3200, 1600], [16, 8]));
        assert_eq!(rows([100, 8, 2], [4, 8, 64], false, bhnd), folded);
        assert_eq!(rows([100, 8, 2], [4, 8, 64], true, bhnd), None);
        assert_eq!(rows([100, 8, 2], [4, 8, 64], true, bnhd), of_entries);
        // One row lies however it likes.
        let single = Some(([1, 1, 800, 800], [1, 1]));
        assert_eq!(rows([100, 8, 8], [1, 1, 64], true, bnhd), single);
        // Entries with a gap between them, and heads.
        let gap = |at: usize| {
            move |shape| {
                let mut strides = bhnd(shape);
                strides[at] += 64;
                strides
            }
        };
        let of_heads = Some(([100, 1, 32, 64], [4, 8]));
        assert_eq!(rows([100, 8, 8], [4, 8, 64], true, &gap(0)), of_heads);
        assert_eq!(rows([100, 8, 8], [4, 8, 64], true, &gap(1)), None);
        // Long ones, and few.
        assert_eq!(rows([100, 8, 8], [65, 8, 64], true, bhnd), None);
        assert_eq!(rows([100, 8, 8], [4, 65, 64], true, bhnd), None);
        assert_eq!(rows([16, 8, 8], [4, 8, 64], true, bhnd), None);
    }

    #[test]
    fn memory_is_in_proportion_to_tokens() {
        for class in [Class::Sm80, Class::Sm90] {
            for (heads, strides) in [
                ([8, 8], LAYOUTS[0]),
                ([8, 8], LAYOUTS[1]),
                ([8, 2], LAYOUTS[1]),
            ] {
                for causal in [false, true] {
                    let [heads, kv_heads] = heads;
                    let (_, args) = call([65536, heads, kv_heads], [4, 4, 64], causal, &strides);
                    let attention = Attention::new().causal(causal);
                    let facts = Facts::emulated(class);
                    let plan = attention
                        .backward_plan(Some(&facts), Dtype::F16, &args)
                        .expect("valid");
                    let q_bytes = 65536 * heads * 4 * 64 * size_of::<u16>();
                    let bytes = plan.workspace_bytes;
                    assert!(bytes <= 3 * q_bytes, "{class:?}: {bytes} for {q_bytes}");
                    // A block for each 32 sequences of 4 rows.
                    let main = plan
                        .steps
                        .iter()
                        .find(|step| step.entry.name == plan.kernel);
                    let blocks = main.expect("the main kernel").blocks as usize;
                    assert_eq!(blocks, 65536 * kv_heads * 4 / 128, "{}", plan.kernel);
                }
            }
        }
    }
}
