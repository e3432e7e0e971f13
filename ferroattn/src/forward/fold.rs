//! Calls that are others, of fewer heads or keys, which kernels compute sooner.
//!
//! Kernels with options have tiles of one head's queries: of decoding, heads that share keys become the queries of one head.
//! Splits divide all keys: those that no window shows are left out.

use super::{Problem, RawForward};
use crate::options::{self, RawOptions};
use crate::tensor::RawTensor;
use kernels::layout::element;

/// The call as `heads / kv_heads` queries of `kv_heads` heads, if each head has one query, and the options treat
/// these queries alike.
pub(super) fn folded(problem: &Problem, args: &RawForward) -> Option<(Problem, RawForward)> {
    let plain = Problem {
        dim_v: problem.dim,
        softcap: None,
        ..*problem
    };
    // Rows of a tile do not change each other's results.
    let others = RawOptions {
        batch_invariant: false,
        ..args.options
    };
    let alike = options::first_beside_cache(&plain, &others).is_none();
    let has_options = options::first(problem, &args.options).is_some();
    if !(has_options && alike && problem.seqlen_q == 1 && problem.group() > 1) {
        return None;
    }
    let (kv_heads, group) = (problem.kv_heads, problem.group());
    // Only the stride of an axis of one head may wrap, and nothing steps along that.
    let of_heads = |tensor: RawTensor| {
        let [batch, _, _, dim] = tensor.shape;
        let [batch_stride, head_stride, _, stride] = tensor.strides;
        RawTensor {
            address: tensor.address,
            shape: [batch, kv_heads, group, dim],
            strides: [
                batch_stride,
                head_stride.wrapping_mul(group as isize),
                head_stride,
                stride,
            ],
        }
    };
    let lse = RawTensor {
        address: args.lse.address,
        ..RawTensor::row_major([problem.batch, kv_heads, group])
    };
    let problem = Problem {
        heads: kv_heads,
        seqlen_q: group,
        // The one query sees all keys.
        causal: false,
        ..*problem
    };
    let args = RawForward {
        q: of_heads(args.q),
        o: of_heads(args.o),
        lse,
        ..*args
    };
    Some((problem, args))
}

/// The call without the keys before the window of its first query, if there are some and nothing else counts keys from the first.
/// Masks, windows and ALiBi count from the last one.
pub(super) fn windowed(problem: &Problem, args: &RawForward) -> Option<(Problem, RawForward)> {
    let options = &args.options;
    // Blocks of keys, which share scales in FP8, would begin elsewhere for each number of queries.
    let has_blocks = options.batch_invariant || options.fp8.is_some();
    let counted = options.has_ranges() || options.pages.is_some() || has_blocks;
    let left = problem.window.left.filter(|_| !counted)?;
    let of_one_dim = Problem {
        dim_v: problem.dim,
        ..*problem
    };
    if options::first_of_pairs(&of_one_dim, &args.options).is_some() {
        return None;
    }
    let seen = problem.seqlen_q.saturating_add(left);
    let first = problem.seqlen_kv.saturating_sub(seen);
    let behind = |tensor: RawTensor| {
        let mut behind = tensor;
        behind.shape[2] -= first;
        let rows = (first as i64).wrapping_mul(tensor.strides[2] as i64);
        behind.address = element::at(tensor.address, rows);
        behind
    };
    let problem = Problem {
        seqlen_kv: problem.seqlen_kv - first,
        ..*problem
    };
    let args = RawForward {
        k: behind(args.k),
        v: behind(args.v),
        ..*args
    };
    (first > 0).then_some((problem, args))
}
