//! Decoding with options: kernels with options have tiles of one head's queries, so the heads that share keys become
//! the queries of one head.

use super::{Problem, RawForward};
use crate::options;
use crate::tensor::RawTensor;

/// The call as `heads / kv_heads` queries of `kv_heads` heads, if each head has one query, and the options treat
/// these queries alike.
pub(super) fn folded(problem: &Problem, args: &RawForward) -> Option<(Problem, RawForward)> {
    let plain = Problem {
        dim_v: problem.dim,
        softcap: None,
        ..*problem
    };
    let alike = options::first_beside_cache(&plain, &args.options).is_none();
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
