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
        let gradients = self.0.backward([q, k, v], [o, &in_rows(d_o)?], false)?;
        let [dq, dk, dv] = gradients.inputs;
        // What candle does not track keeps no gradient.
        let tracked = |tensor: &Tensor, gradient| tensor.track_op().then_some(gradient);
        Ok((tracked(q, dq), tracked(k, dk), tracked(v, dv)))
    }
}
