//! Attention in candle's graph, with gradients of q, k and v.

use crate::call::Call;
use crate::memory::{Host, Placed};
use crate::tensors::in_rows;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

/// The name that candle's errors have for attention.
pub(crate) const NAME: &str = "ferroattn";

/// Attention of q, k and v.
pub(crate) struct Op(pub Call);

impl CustomOp3 for Op {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        let inputs = inputs.map(|(storage, layout)| Placed { storage, layout });
        self.0.forward(&Host, inputs)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let inputs = [(q, q_layout), (k, k_layout), (v, v_layout)];
        let inputs = inputs.map(|(storage, layout)| Placed { storage, layout });
        self.0.forward(&crate::memory::Cuda::new(&q.device), inputs)
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let inputs = [q, k, v];
        let gradients = self.0.backward(inputs, [o, &in_rows(d_o)?], false)?;
        Ok(tracked(inputs, gradients.inputs).into())
    }
}

/// The gradients of tensors that candle tracks: others keep none.
pub(crate) fn tracked(tensors: [&Tensor; 3], gradients: [Tensor; 3]) -> [Option<Tensor>; 3] {
    let mut gradients = gradients.map(Some);
    for (tensor, gradient) in tensors.into_iter().zip(&mut gradients) {
        gradient.take_if(|_| !tensor.track_op());
    }
    gradients
}
