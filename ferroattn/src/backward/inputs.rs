//! Inputs of a backward pass.

use crate::tensor::{Element, Storage, TensorBase, TensorView};

/// Inputs of a backward pass: q, k and v, what the forward pass made of them, and the gradients of that.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, BackwardInputs, Tensor};
///
/// let q = Tensor::from_vec([1, 1, 1, 8], vec![0.0_f32; 8])?;
/// let k = Tensor::from_vec([1, 1, 2, 8], [[1.0; 8], [3.0; 8]].concat())?;
/// let attention = Attention::new().scale(1.0);
/// let (o, lse) = attention.forward(&q, &k, &k)?;
///
/// // The loss is lse: each key weighs 1/2.
/// let d_o = Tensor::zeros(&q.device(), o.shape())?;
/// let d_lse = Tensor::from_vec([1, 1, 1], vec![1.0])?;
/// let inputs = BackwardInputs::new(&q, &k, &k, &o, &lse, &d_o).d_lse(&d_lse);
/// assert_eq!(attention.backward_all(&inputs)?.dq.to_vec()?, [2.0; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BackwardInputs<'a, T> {
    /// Queries, `[batch, heads, seqlen_q, dim]`; like all tensors of four axes, of any strides with stride 1 in dim.
    pub q: TensorView<'a, T>,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: TensorView<'a, T>,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: TensorView<'a, T>,
    /// Output of the forward pass, `[batch, heads, seqlen_q, dim_v]`.
    pub o: TensorView<'a, T>,
    /// Row log-sum-exp of the forward pass, `[batch, heads, seqlen_q]`, contiguous.
    pub lse: TensorView<'a, f32, 3>,
    /// Gradient of o, `[batch, heads, seqlen_q, dim_v]`.
    pub d_o: TensorView<'a, T>,
    /// Gradient of lse, `[batch, heads, seqlen_q]`, contiguous, for a loss that depends on it; zeros if there is none.
    pub d_lse: Option<TensorView<'a, f32, 3>>,
}

impl<'a, T: Element> BackwardInputs<'a, T> {
    /// The tensors of a pass whose loss does not depend on lse.
    pub fn new(
        q: &'a TensorBase<impl Storage<Item = T>>,
        k: &'a TensorBase<impl Storage<Item = T>>,
        v: &'a TensorBase<impl Storage<Item = T>>,
        o: &'a TensorBase<impl Storage<Item = T>>,
        lse: &'a TensorBase<impl Storage<Item = f32>, 3>,
        d_o: &'a TensorBase<impl Storage<Item = T>>,
    ) -> Self {
        BackwardInputs {
            q: q.view(),
            k: k.view(),
            v: v.view(),
            o: o.view(),
            lse: lse.view(),
            d_o: d_o.view(),
            d_lse: None,
        }
    }

    /// With the gradient of lse: `delta = rowsum(d_o * o) - d_lse`.
    #[must_use]
    pub fn d_lse(mut self, d_lse: &'a TensorBase<impl Storage<Item = f32>, 3>) -> Self {
        self.d_lse = Some(d_lse.view());
        self
    }
}
