//! Short sequences of a dense batch as packed ones, whose rows fill tiles.
//!
//! A block takes a tile of rows of one head. Of short sequences it would have a few rows, pad its sums of dq to the whole tile,
//! and take as long as for all of them. Where heads or batch entries follow each other in memory, rows of one axis reach over
//! all of them, and a mask of sequences keeps them apart: a tile has rows of many. Padded ones keep their lengths.

use super::RawBackward;
use crate::device::Facts;
use crate::forward::Problem;
use crate::options::{Sequences, Spaced, Window};
use crate::tensor::RawTensor;
use kernels::abi::MAX_SEQLEN;

/// The most queries and keys of sequences that share tiles: half of a tile, which wide heads have smaller.
const fn most_rows(dim: usize) -> usize {
    if dim > 128 { 32 } else { 64 }
}

/// The axes of tensors.
const BATCH: usize = 0;
const HEADS: usize = 1;
const ROWS: usize = 2;

/// A call as kernels compute it.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub problem: Problem,
    pub args: RawBackward,
    /// Sequences in place of what the options say.
    pub spaced: Option<Spaced>,
    /// Whether all sums have one order.
    pub deterministic: bool,
}

impl Call {
    /// A call as its caller made it.
    pub fn new(problem: &Problem, args: &RawBackward, deterministic: bool) -> Self {
        Call {
            problem: *problem,
            args: *args,
            spaced: None,
            deterministic,
        }
    }

    /// Packed sequences of equal work, if the dense batch has so many short ones that it pays, and memory and options allow it.
    pub fn packed(self, facts: &Facts) -> Option<Self> {
        let (problem, options) = (self.problem, self.args.options);
        let is_short = problem.seqlen_q.max(problem.seqlen_kv) <= most_rows(problem.widest());
        // Blocks that run at once take no longer for being nearly empty.
        let is_full = problem.batch * problem.kv_heads > facts.multiprocessors as usize;
        let has_pairs =
            options.bias.is_some() || options.mask.is_some() || options.custom.is_some();
        let lengths = match options.sequences {
            None => None,
            Some(Sequences::Padded { q, kv }) => Some([q.address, kv.address]),
            Some(_) => return None,
        };
        if !is_short || !is_full || has_pairs || options.first_keys.is_some() {
            return None;
        }
        let heads_differ = options.alibi.is_some() || options.sinks.is_some();
        // Padding of a query head lies between the queries of a group.
        let folds = !heads_differ && lengths.is_none();
        let grouped = self.groups().filter(|_| folds).unwrap_or(self);
        let rows = [grouped.problem.seqlen_q, grouped.problem.seqlen_kv];
        let joined = grouped.heads().filter(|_| !heads_differ);
        let joined = joined.unwrap_or(grouped);
        let sharing = grouped.problem.kv_heads / joined.problem.kv_heads;
        let mut call = joined.entries().unwrap_or(joined);
        call = call.of_sequences();
        call.spaced = Some(Spaced {
            rows,
            lengths: lengths.unwrap_or_default(),
            sharing,
        });
        (call.problem.seqlen_kv > rows[1]).then_some(call)
    }

    /// The call with ranges of keys, which entries fill where they have no lengths: key tiles then have one order.
    pub fn of_sequences(mut self) -> Self {
        let options = &mut self.args.options;
        if !options.has_ranges() {
            let none = RawTensor::row_major([self.problem.batch]);
            options.sequences = Some(Sequences::Padded { q: none, kv: none });
        }
        self
    }

    /// The query heads of a group as queries of one head, if all queries see all keys.
    fn groups(self) -> Option<Self> {
        let problem = self.problem;
        let sees_all = !problem.causal && problem.window == Window::NONE;
        let count = if sees_all { problem.group() } else { 1 };
        self.join(HEADS, [count, 1])
    }

    /// The heads of a batch entry as one, if each has keys of its own.
    fn heads(self) -> Option<Self> {
        let problem = self.problem;
        let count = if problem.group() == 1 {
            problem.heads
        } else {
            1
        };
        self.join(HEADS, [count; 2])
    }

    /// The batch entries as one, if they have the same slopes.
    fn entries(self) -> Option<Self> {
        let slopes = self.args.options.alibi;
        let differ = slopes.is_some_and(|slopes| slopes.used_strides()[BATCH] != 0);
        let count = if differ { 1 } else { self.problem.batch };
        self.join(BATCH, [count; 2])
    }

    /// Joins each so many query heads or entries of `axis`, and key/value heads, with their rows.
    fn join(self, axis: usize, [of_q, of_kv]: [usize; 2]) -> Option<Self> {
        let Call {
            problem: p, args, ..
        } = self;
        let seqlen_q = p.seqlen_q.checked_mul(of_q)?;
        let seqlen_kv = p.seqlen_kv.checked_mul(of_kv)?;
        let problem = match axis {
            BATCH => Problem {
                batch: p.batch / of_q,
                ..p
            },
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
        fits.then_some(Call {
            problem,
            args,
            ..self
        })
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
    use crate::device::Class;
    use crate::options::{RawBias, RawMask, RawOptions};
    use crate::plan::Step;
    use crate::{Attention, Dtype};

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
        let call = Call::new(problem, args, true).packed(&Facts::emulated(Class::Sm90))?;
        let Call {
            problem: p, args, ..
        } = call;
        p.validate().expect("sizes that kernels take");
        let rows = call.spaced.map(|spaced| spaced.rows);
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
        assert_eq!(rows([100, 8, 8], [4, 33, 136], true, bhnd), None);
    }

    /// Options that differ between heads, entries or pairs keep them apart.
    #[test]
    fn options_are_those_of_each_row() {
        let [bhnd, bnhd] = LAYOUTS;
        let with = |strides, options: RawOptions| {
            let (problem, args) = call([100, 8, 8], [4, 8, 64], true, &strides);
            joined(&(problem, RawBackward { options, ..args })).map(|(sizes, _)| sizes)
        };
        let none = RawOptions::default();
        let slopes = |batch_stride| RawTensor {
            address: 0,
            shape: [100, 8],
            strides: [batch_stride, 1],
        };
        let [alibi, of_entries] = [0, 8].map(|batch_stride| RawOptions {
            alibi: Some(slopes(batch_stride)),
            ..none
        });
        let sinks = RawOptions {
            sinks: Some(RawTensor::row_major([8])),
            ..none
        };
        let bias = RawOptions {
            bias: Some(RawBias {
                dtype: Dtype::F32,
                tensor: RawTensor::row_major([100, 8, 4, 8]),
            }),
            ..none
        };
        let mask = RawOptions {
            mask: Some(RawMask {
                bits: false,
                tensor: RawTensor::row_major([100, 8, 4, 8]),
            }),
            ..none
        };
        let padded = RawOptions {
            sequences: Some(Sequences::Padded {
                q: RawTensor::row_major([100]),
                kv: RawTensor::row_major([100]),
            }),
            ..none
        };
        for options in [alibi, sinks] {
            assert_eq!(with(bnhd, options), Some([1, 8, 400, 800]));
            assert_eq!(with(bhnd, options), None);
        }
        for options in [of_entries, bias, mask] {
            assert_eq!(with(bnhd, options), None);
        }
        // Heads of an entry share its lengths.
        assert_eq!(with(bnhd, padded), Some([1, 8, 400, 800]));
        assert_eq!(with(bhnd, padded), Some([1, 1, 3200, 6400]));
        for (strides, causal, sharing) in [(bnhd, true, 1), (bhnd, true, 8), (bhnd, false, 8)] {
            let (problem, args) = call([100, 8, 8], [4, 8, 64], causal, &strides);
            let args = RawBackward {
                options: padded,
                ..args
            };
            let facts = Facts::emulated(Class::Sm90);
            let call = Call::new(&problem, &args, true).packed(&facts);
            let spaced = call.and_then(|call| call.spaced).expect("joined");
            assert_eq!((spaced.rows, spaced.sharing), ([4, 8], sharing));
        }
        // Groups are not folded, for their queries end in padding.
        let (problem, args) = call([100, 8, 2], [4, 8, 64], false, &bhnd);
        let args = RawBackward {
            options: padded,
            ..args
        };
        assert!(joined(&(problem, args)).is_none());
    }

    /// A named kernel takes packed sequences if it takes options, and adds up dq.
    #[test]
    fn named_kernels_take_what_they_can() {
        let facts = Facts::emulated(Class::Sm90);
        let (_, args) = call([100, 8, 8], [4, 8, 128], false, &LAYOUTS[1]);
        for (name, packed) in [
            ("backward_f16_d128", false),
            ("backward_optional_f16_d128", true),
            ("backward_hopper_f16_d128", false),
            ("backward_hopper_optional_f16_d128", true),
            ("backward_hopper_stored_f16_d128", false),
            ("backward_hopper_stored_optional_f16_d128", false),
        ] {
            let plan = Attention::new()
                .kernel(name)
                .backward_plan(Some(&facts), Dtype::F16, &args);
            let plan = plan.expect("a kernel for it");
            assert_eq!(plan.kernel, name);
            let finds = |step: &Step| step.entry.name == "ranges";
            assert_eq!(plan.steps.iter().any(finds), packed, "{name}");
        }
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
