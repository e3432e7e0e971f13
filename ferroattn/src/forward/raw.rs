//! Tensors of a forward pass by address.

use super::Problem;
use crate::options::RawOptions;
use crate::tensor::RawTensor;

/// Tensors of a forward pass by address, for [`Attention::forward_raw`](crate::Attention::forward_raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawForward {
    /// Queries, `[batch, heads, seqlen_q, dim]`; like k, v and o, with stride 1 in dim.
    pub q: RawTensor,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`, or a [cache](crate::Attention::cache_entries) of any number of entries, or
    /// [pages](crate::Attention::pages) `[pages, kv_heads, page, dim]`.
    pub k: RawTensor,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`, or a cache of as many entries, or as many pages.
    pub v: RawTensor,
    /// Output, `[batch, heads, seqlen_q, dim_v]`.
    pub o: RawTensor,
    /// Row log-sum-exp, `f32[batch, heads, seqlen_q]`, contiguous.
    pub lse: RawTensor<3>,
    /// Tensors of options.
    pub options: RawOptions,
}

impl RawForward {
    /// Row-major tensors at address 0: enough to [plan](crate::Attention::plan) a call whose tensors do not exist yet.
    pub fn row_major(problem: &Problem) -> Self {
        RawForward {
            q: RawTensor::row_major(problem.q_shape()),
            k: RawTensor::row_major(problem.k_shape()),
            v: RawTensor::row_major(problem.v_shape()),
            o: RawTensor::row_major(problem.o_shape()),
            lse: RawTensor::row_major(problem.lse_shape()),
            options: RawOptions::default(),
        }
    }
}
