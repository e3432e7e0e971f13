//! Launching a plan.

use crate::device::driver::Launch;
use crate::device::{Device, Gpu, RawStream, memory};
use crate::error::{Error, Result};
use crate::plan::{MapPlace, Plan};
use crate::workspace::RawWorkspace;

/// The giver of a call's workspace, asked when the call knows the bytes: 0 if it needs none.
pub(crate) type Allocate<'a> = dyn FnMut(usize) -> Result<RawWorkspace> + 'a;

impl Plan {
    /// Queues all steps on a stream; on the emulator, runs them. Their workspace is allocated and freed in the order of the stream.
    ///
    /// # Errors
    /// If the device cannot run a kernel, has too little memory, or reports a failure.
    ///
    /// # Safety
    /// - Each step has its kernel's own parameter block and grid.
    /// - All memory that the parameters name, the workspace aside, is valid until the work is done.
    /// - `stream` is null or a live stream of the device's primary context.
    pub unsafe fn run(&self, device: &Device, stream: RawStream) -> Result<()> {
        let Some(gpu) = self.gpu(device)? else {
            return Ok(());
        };
        // It is freed in the order of the stream, after all steps are queued or one has failed to be.
        let workspace = match self.workspace_bytes {
            0 => None,
            // SAFETY: the stream is the caller's word.
            bytes => Some(unsafe { memory::Workspace::new(gpu, bytes, stream)? }),
        };
        let start = workspace.as_ref().map_or(0, memory::Workspace::address);
        // SAFETY: the caller's word; the workspace has the plan's bytes.
        unsafe { self.launch(gpu, start, stream) }
    }

    /// Like [`run`](Self::run), in memory of the caller: nothing is allocated on the device, once its kernels are
    /// [loaded](Device::warm_up).
    ///
    /// # Errors
    /// If the workspace is too small or not aligned, the device cannot run a kernel, or reports a failure.
    ///
    /// # Safety
    /// - The conditions of [`run`](Self::run).
    /// - The workspace is memory of the device, valid until the work is done, and nothing else touches it until then.
    pub unsafe fn run_in(
        &self,
        device: &Device,
        workspace: RawWorkspace,
        stream: RawStream,
    ) -> Result<()> {
        let Some(gpu) = self.gpu(device)? else {
            return Ok(());
        };
        let needed = self.workspace_bytes;
        if workspace.bytes < needed {
            return Err(Error::Workspace {
                needed,
                found: workspace.bytes,
            });
        }
        if needed > 0 && !workspace.address.is_multiple_of(RawWorkspace::ALIGNMENT) {
            return Err(Error::WorkspaceAddress(workspace.address));
        }
        // SAFETY: the caller's word; the workspace was compared with the plan.
        unsafe { self.launch(gpu, workspace.address, stream) }
    }

    /// [Runs](Self::run_in) in the workspace or, if there is none, in [its own](Self::run).
    ///
    /// # Safety
    /// The conditions of the one or the other.
    pub(crate) unsafe fn run_on(
        &self,
        device: &Device,
        workspace: Option<&mut Allocate>,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            match workspace {
                None => self.run(device, stream),
                Some(allocate) => self.run_in(device, allocate(self.workspace_bytes)?, stream),
            }
        }
    }

    /// The device that launches the steps; none on the CPU, whose plans are empty.
    fn gpu<'d>(&self, device: &'d Device) -> Result<Option<&'d Gpu>> {
        match (device.gpu(), self.steps.first()) {
            (None, Some(_)) => Err(Error::NotOnCpu(self.kernel.to_owned())),
            (gpu, _) => Ok(gpu.map(|gpu| &**gpu)),
        }
    }

    /// Queues the steps in the workspace that begins at `start`.
    ///
    /// # Safety
    /// The conditions of [`run_in`](Self::run_in).
    unsafe fn launch(&self, gpu: &Gpu, start: u64, stream: RawStream) -> Result<()> {
        for fill in &self.fills {
            // SAFETY: the outputs and the stream are the caller's word.
            unsafe {
                match fill.word {
                    0 => gpu.driver().zero(fill.address, fill.bytes, stream)?,
                    word => gpu.driver().fill(fill.address, fill.bytes, word, stream)?,
                }
            }
        }
        for &(offset, bytes) in &self.zeros {
            // SAFETY: the part lies in the workspace; the stream is the caller's word.
            unsafe { gpu.driver().zero(start + offset, bytes, stream)? };
        }
        gpu.driver().begin();
        for step in &self.steps {
            let entry = step.entry;
            let function = gpu.function(&entry)?;
            let mut params = step.params_at(start);
            for &MapPlace {
                place,
                mut map,
                in_workspace,
            } in &step.maps
            {
                if in_workspace {
                    map.address = map.address.wrapping_add(start);
                }
                let encoded = gpu.tensor_map(&map)?;
                params[place..][..encoded.len()].copy_from_slice(&encoded);
            }
            let launch = Launch {
                name: entry.name,
                function,
                blocks: step.blocks,
                cluster: step.cluster,
                threads: entry.threads,
                shared_bytes: step.shared_bytes,
                argument: &params,
                stream,
            };
            // SAFETY: the caller's word; the addresses that `places` names lie in the workspace, and the module
            // stays loaded as long as the device.
            unsafe { gpu.driver().launch(&launch)? };
        }
        Ok(())
    }
}
