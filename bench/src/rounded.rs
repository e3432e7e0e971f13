//! The main kernel of calls in FP8: k and v are rounded already.

use crate::bench::Bench;
use anyhow::Result;
use ferroattn::{Attention, Device, Element, Plan, RawWorkspace, Tensor};
use std::ptr::null_mut;

/// A call in FP8 without the launches that round.
pub struct Rounded {
    device: Device,
    /// Its last launch.
    plan: Plan,
    /// What the others left.
    workspace: Tensor<u8, 1>,
}

impl Rounded {
    /// Runs the call once; none on the CPU, which rounds in the call.
    pub fn new<T: Element>(
        bench: &mut Bench<T>,
        device: &Device,
        attention: &Attention<'static>,
    ) -> Result<Option<Self>> {
        let mut plan = attention.plan(device.facts(), T::DTYPE, &bench.args())?;
        let workspace = Tensor::zeros(device, [plan.workspace_bytes])?;
        // SAFETY: the plan's tensors are those of the bench, which outlives it in `Calls`, and the workspace has its bytes.
        unsafe { plan.run_in(device, raw_workspace(&workspace), null_mut())? };
        let Some(last) = plan.steps.pop() else {
            return Ok(None);
        };
        plan.steps = vec![last];
        Ok(Some(Rounded {
            device: device.clone(),
            plan,
            workspace,
        }))
    }

    /// Its name, and its splits.
    pub fn name(&self) -> (String, Option<u32>) {
        (format!("{}:rounded", self.plan.kernel), Some(1))
    }

    /// Queues its launch.
    pub fn launch(&self) -> Result<()> {
        let workspace = raw_workspace(&self.workspace);
        // SAFETY: as in `new`; nothing else uses the workspace.
        unsafe { self.plan.run_in(&self.device, workspace, null_mut())? };
        Ok(())
    }
}

fn raw_workspace(workspace: &Tensor<u8, 1>) -> RawWorkspace {
    let raw = workspace.as_raw();
    RawWorkspace {
        address: raw.address,
        bytes: raw.shape[0],
    }
}
