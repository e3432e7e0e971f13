//! Tensors of a backward pass by address.

use crate::forward::{Problem, RawForward};
use crate::options::RawOptions;
use crate::tensor::RawTensor;

/// Tensors of a backward pass by address, for [`Attention::backward_raw`](crate::Attention::backward_raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawBackward {
    /// Queries, `[batch, heads, seqlen_q, dim]`; like all tensors of four axes, with stride 1 in dim.
    pub q: RawTensor,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: RawTensor,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: RawTensor,
    /// Output of the forward pass, `[batch, heads, seqlen_q, dim_v]`.
    pub o: RawTensor,
    /// Row log-sum-exp of the forward pass, `f32[batch, heads, seqlen_q]`, contiguous.
    pub lse: RawTensor<3>,
    /// Gradient of o, `[batch, heads, seqlen_q, dim_v]`.
    pub d_o: RawTensor,
    /// Gradient of lse, `f32[batch, heads, seqlen_q]`, contiguous; zeros if there is none.
    pub d_lse: Option<RawTensor<3>>,
    /// Gradient of q, `[batch, heads, seqlen_q, dim]`.
    pub dq: RawTensor,
    /// Gradient of k, `[batch, kv_heads, seqlen_kv, dim]`.
    pub dk: RawTensor,
    /// Gradient of v, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub dv: RawTensor,
    /// Tensors of options, as in the forward pass.
    pub options: RawOptions,
    /// Gradient of [sinks](crate::Attention::sinks), `f32[heads]`.
    pub d_sinks: Option<RawTensor<1>>,
    /// Gradient of the [bias](crate::Attention::bias), `f32[batch, heads, seqlen_q, seqlen_kv]`, with stride 1 in
    /// `seqlen_kv`; summed over each other axis whose extent is 1 instead.
    pub d_bias: Option<RawTensor>,
}

impl RawBackward {
    /// The tensors of a pass behind the forward pass of these, and `gradients` dq, dk and dv. d_lse and gradients of options
    /// are none.
    pub fn new(forward: &RawForward, d_o: RawTensor, gradients: [RawTensor; 3]) -> Self {
        let &RawForward {
            q,
            k,
            v,
            o,
            lse,
            options,
        } = forward;
        let [dq, dk, dv] = gradients;
        RawBackward {
            q,
            k,
            v,
            o,
            lse,
            d_o,
            d_lse: None,
            dq,
            dk,
            dv,
            options,
            d_sinks: None,
            d_bias: None,
        }
    }

    /// Row-major tensors at address 0, without d_lse: enough to [plan](crate::Attention::backward_plan) a call whose
    /// tensors do not exist yet.
    pub fn row_major(problem: &Problem) -> Self {
        let forward = RawForward::row_major(problem);
        Self::new(&forward, forward.o, [forward.q, forward.k, forward.v])
    }
}
