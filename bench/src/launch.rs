//! `bench launch`: one call under a profiler.

use crate::args::Call;
use crate::bench::Bench;
use crate::shape::{Dtype, Pass};
use anyhow::Result;
use ferroattn::{Device, Element, bf16, f16};

/// Launches the call once, on the first CUDA device.
pub fn run(call: &Call) -> Result<()> {
    match call.shape.dtype {
        Dtype::F16 => launch::<f16>(call),
        Dtype::Bf16 => launch::<bf16>(call),
    }
}

fn launch<T: Element>(call: &Call) -> Result<()> {
    let device = Device::cuda(0)?;
    let attention = call
        .choice()
        .attention(&call.kernel, &call.shape, call.splits);
    let mut bench = match call.shape.pass {
        Pass::Forward => Bench::<T>::new(&device, &call.shape, 0)?,
        Pass::Backward => Bench::backward(&device, &call.shape, 0)?,
    };
    bench.launch(&attention)?;
    Ok(device.synchronize()?)
}
