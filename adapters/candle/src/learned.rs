//! Attention in candle's graph, with gradients of bias and sinks, too.
//!
//! Candle's operations take three tensors, and two of them make one of five. The first takes q, k and v and gives a number that stands
//! for them. The second takes this number, bias and sinks, and computes. In the backward pass it leaves the gradients of q, k and v to
//! the first.

use crate::call::Call;
use crate::memory::{Host, Locked, Memory};
use crate::op::{NAME, tracked};
use crate::tensors::in_rows;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// Gradients of q, k and v between the two operations.
#[derive(Clone, Default)]
struct Left(Arc<Mutex<Option<[Tensor; 3]>>>);

impl Left {
    fn set(&self, gradients: [Tensor; 3]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradients);
    }

    fn take(&self) -> Option<[Tensor; 3]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Attention of q, k and v with tensors of the call that candle tracks.
pub(crate) fn apply(inputs: [&Tensor; 3], call: Call) -> Result<Tensor> {
    let tensors = call.tensors.clone();
    let left = Left::default();
    let [q, k, v] = inputs;
    let number = q.apply_op3(k, v, Inputs(left.clone()))?;
    let call = Call {
        tensors: tensors.detached(),
        ..call
    };
    let op = Learned {
        call,
        inputs: inputs.map(Tensor::detach),
        left,
    };
    // The number stands in for a tensor that the call lacks.
    let [bias, sinks] = [&tensors.bias, &tensors.sinks].map(|tensor| tensor.as_ref());
    number.apply_op3(bias.unwrap_or(&number), sinks.unwrap_or(&number), op)
}

/// The number that stands for q, k and v.
struct Inputs(Left);

impl CustomOp3 for Inputs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((Host.alloc(DType::F32, 1)?, 1.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let memory = crate::memory::Cuda::new(&q.device);
        Ok((memory.alloc(DType::F32, 1)?, 1.into()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        match self.0.take() {
            Some(gradients) => Ok(tracked([q, k, v], gradients).into()),
            None => candle_core::bail!("{NAME} has no gradients of q, k and v"),
        }
    }
}

/// Attention of what a number stands for.
struct Learned {
    call: Call,
    inputs: [Tensor; 3],
    left: Left,
}

impl Learned {
    fn forward<M: Memory>(&self, memory: &M) -> Result<(M::Storage, Shape)> {
        let [q, k, v] = self.inputs.each_ref().map(Locked::new);
        let inputs = [q.placed()?, k.placed()?, v.placed()?];
        self.call.forward(memory, inputs)
    }
}

impl CustomOp3 for Learned {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward(&Host)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        number: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward(&crate::memory::Cuda::new(&number.device))
    }

    fn bwd(
        &self,
        number: &Tensor,
        bias: &Tensor,
        sinks: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let inputs = self.inputs.each_ref();
        let gradients = self.call.backward(inputs, [o, &in_rows(d_o)?], true)?;
        let of_number = match number.track_op() {
            true => {
                self.left.set(gradients.inputs);
                Some(number.zeros_like()?)
            }
            false => None,
        };
        let of_option = |option: &Tensor, gradient: Option<Tensor>| {
            let gradient = gradient.filter(|_| option.track_op());
            gradient
                .map(|gradient| gradient.to_dtype(option.dtype()))
                .transpose()
        };
        let d_bias = of_option(bias, gradients.bias)?;
        Ok((of_number, d_bias, of_option(sinks, gradients.sinks)?))
    }
}
