//! `--grid host`: how long a call takes on the host, which queues work for a GPU and does not wait.

use crate::failure::Failure;
use crate::shape::{Dtype, Pass, Shape};
use crate::terminal::print;
use crate::{grid, stats, table};
use anyhow::{Context, Result};
use cudarc::driver::CudaContext;
use ferroattn::{Attention, Device, RawBackward, RawForward, RawTensor, RawWorkspace, Tensor, f16};
use std::ptr::null_mut;
use std::time::Instant;

/// Calls that are queued one after another: fewer launches than the driver's queue holds.
const CALLS: usize = 50;
/// How often they are.
const ROUNDS: usize = 40;

/// Passes whose work takes less time on the GPU than on the host.
fn cases() -> Vec<Shape> {
    let shape = |dim, pass, causal| Shape {
        pass,
        ..grid::shape((1, 2, 512), dim, Dtype::F16, causal)
    };
    let [forward, backward] = [Pass::Forward, Pass::Backward];
    vec![
        shape(128, forward, false),
        shape(128, forward, true),
        shape(64, backward, true),
        shape(128, backward, true),
    ]
}

/// Times all cases, and prints microseconds: in a thread without a context, then in one that has the device's, as threads of
/// frameworks have.
///
/// # Errors
/// If there is no GPU, or a call fails.
pub fn run() -> Result<(), Failure> {
    let device = Device::cuda(0).map_err(anyhow::Error::from)?;
    table_of(&device)?;
    let context = CudaContext::new(0).context("the device's context");
    context.and_then(|context| Ok(context.bind_to_thread()?))?;
    print("With the device's context current:");
    table_of(&device)
}

fn table_of(device: &Device) -> Result<(), Failure> {
    let ways = [
        "call",
        "kernel",
        "plan us",
        "call us",
        "in workspace us",
        "kept plan us",
    ];
    let mut rows = table::empty(&ways, [2, 3, 4, 5]);
    for shape in cases() {
        let [kernel, times @ ..] = row(device, &shape).map_err(Failure::Run)?;
        let [plan, call, within, kept] = times;
        rows.add_row([shape.to_string(), kernel, plan, call, within, kept]);
    }
    print(rows);
    Ok(())
}

/// A call's tensors, one for each of so many parts of memory.
struct Memory {
    parts: Vec<Tensor<f16>>,
    rows: Tensor<f32, 3>,
}

impl Memory {
    fn part(&mut self, number: usize) -> RawTensor {
        self.parts[number].as_raw_mut()
    }
}

/// The kernel of a case, and microseconds of its ways.
fn row(device: &Device, shape: &Shape) -> Result<[String; 5]> {
    let (attention, problem) = (shape.attention(), shape.problem()?);
    let tensor = || Tensor::zeros(device, problem.q_shape());
    let parts: ferroattn::Result<_> = (0..8).map(|_| tensor()).collect();
    let mut memory = Memory {
        parts: parts?,
        rows: Tensor::zeros(device, problem.lse_shape())?,
    };
    let [q, k, v, o, d_o, dq, dk, dv] = [0, 1, 2, 3, 4, 5, 6, 7].map(|part| memory.part(part));
    let lse = memory.rows.as_raw_mut();
    let forward = RawForward {
        q,
        k,
        v,
        o,
        lse,
        ..RawForward::row_major(&problem)
    };
    let backward = RawBackward::new(&forward, d_o, [dq, dk, dv]);
    match shape.pass {
        Pass::Forward => times(device, &attention, &forward),
        Pass::Backward => times(device, &attention, &backward),
    }
}

/// A pass by its arguments.
trait Call {
    fn plan(&self, attention: &Attention, device: &Device) -> ferroattn::Result<ferroattn::Plan>;

    /// # Safety
    /// The tensors live until the work is done, and the workspace, too, if it is not the library's own.
    unsafe fn queue(
        &self,
        attention: &Attention,
        device: &Device,
        workspace: Option<RawWorkspace>,
    ) -> ferroattn::Result<()>;
}

macro_rules! call {
    ($args:ty, $plan:ident, $raw:ident, $raw_in:ident) => {
        impl Call for $args {
            fn plan(
                &self,
                attention: &Attention,
                device: &Device,
            ) -> ferroattn::Result<ferroattn::Plan> {
                attention.$plan(device.facts(), ferroattn::Dtype::F16, self)
            }

            unsafe fn queue(
                &self,
                attention: &Attention,
                device: &Device,
                workspace: Option<RawWorkspace>,
            ) -> ferroattn::Result<()> {
                let (dtype, stream) = (ferroattn::Dtype::F16, null_mut());
                // SAFETY: the caller's word; null is the default stream.
                unsafe {
                    match workspace {
                        None => attention.$raw(device, dtype, self, stream),
                        Some(memory) => attention.$raw_in(device, dtype, self, memory, stream),
                    }
                }
            }
        }
    };
}

call!(RawForward, plan, forward_raw, forward_raw_in);
call!(RawBackward, backward_plan, backward_raw, backward_raw_in);

/// The kernel of a call, and microseconds: to plan it, to call it, to call it in a workspace, and to run a plan in one.
fn times(device: &Device, attention: &Attention, call: &impl Call) -> Result<[String; 5]> {
    let plan = call.plan(attention, device)?;
    let mut memory = Tensor::<u8, 1>::zeros(device, [plan.workspace_bytes.max(1)])?;
    let workspace = RawWorkspace {
        address: memory.as_raw_mut().address,
        bytes: plan.workspace_bytes,
    };
    let ways: [&dyn Fn() -> ferroattn::Result<()>; 4] = [
        &|| call.plan(attention, device).map(drop),
        // SAFETY: tensors live until the device was waited for.
        &|| unsafe { call.queue(attention, device, None) },
        // SAFETY: tensors and workspace live until then.
        &|| unsafe { call.queue(attention, device, Some(workspace)) },
        // SAFETY: as above, and the plan is of this call.
        &|| unsafe { plan.run_in(device, workspace, null_mut()) },
    ];
    let mut row = [(); 5].map(|()| plan.kernel.to_owned());
    for (time, way) in row[1..].iter_mut().zip(ways) {
        *time = format!("{:.2}", 1e6 * seconds(device, way).context(plan.kernel)?);
    }
    Ok(row)
}

/// Median seconds of a call, of rounds that do not wait for the device.
fn seconds(device: &Device, call: &dyn Fn() -> ferroattn::Result<()>) -> Result<f64> {
    let mut samples = Vec::new();
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        (0..CALLS).try_for_each(|_| call())?;
        samples.push(start.elapsed().as_secs_f64() / CALLS as f64);
    }
    device.synchronize()?;
    Ok(stats::median(&samples))
}

#[cfg(test)]
mod tests {
    use super::{cases, row};
    use ferroattn::Device;

    #[test]
    fn each_way_is_timed() {
        for mut shape in cases() {
            shape.seqlen = 20;
            let [kernel, times @ ..] = row(&Device::cpu(), &shape).expect("served");
            assert_eq!(kernel, "cpu");
            for time in times {
                assert!(time.parse::<f64>().expect("a number") >= 0.0, "{time}");
            }
        }
    }
}
