//! The launches of a call, as data.
//!
//! A plan is made from [`Facts`](crate::Facts), without a device: the kernels with their grids and parameter
//! blocks, and the bytes of the workspace that they share. [`Plan::run`] launches it on any driver.

use crate::device::driver::Launch;
use crate::device::memory;
use crate::device::{Device, Gpu, RawStream};
use crate::error::{Error, Result};
pub use crate::forward::plan::{Draft, MainKernel, Waves};
use crate::ptx::{self, Modules};
pub use crate::tensor_map::{Swizzle, TensorMap, has_map};
use bytemuck::NoUninit;
use kernels::abi::Switches;
use kernels::catalog::{Kernel, Target};
use kernels::text;

/// Blocks that a grid can have along x.
pub const MAX_BLOCKS: u32 = i32::MAX as u32;

/// The name that the CPU implementation goes by among the kernels.
pub const CPU: &str = "cpu";

/// The name of what a call without queries or keys takes in place of a kernel.
pub const EMPTY: &str = "empty";

/// The launches of one call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// Name of the kernel that does the work; [`CPU`], and no steps, on the CPU.
    pub kernel: &'static str,
    /// Splits of the keys; 1 where nothing is split.
    pub splits: u32,
    /// Launches, in order.
    pub steps: Vec<Step>,
    /// Bytes of memory that the steps share while they run: of a [workspace](RawWorkspace), if the caller brings it.
    pub workspace_bytes: usize,
    /// Parts of the workspace that are zeros before the first step: their offsets and bytes.
    #[doc(hidden)]
    pub zeros: Vec<(u64, usize)>,
    /// Outputs of a call that has nothing to compute.
    #[doc(hidden)]
    pub fills: Vec<Fill>,
}

/// Memory that is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Device address, a multiple of 4 unless the word is 0.
    pub address: u64,
    /// Bytes, not 0: a multiple of 4 unless the word is 0.
    pub bytes: usize,
    /// The word that each four of them hold.
    pub word: u32,
}

/// One launch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The kernel.
    #[doc(hidden)]
    pub entry: Entry,
    /// Blocks of the grid.
    pub blocks: u32,
    /// Bytes of a block's dynamic shared memory.
    pub shared_bytes: u32,
    /// The kernel's parameter block.
    #[doc(hidden)]
    pub params: Vec<u8>,
    /// Offsets in `params` of the addresses that count from the start of the workspace.
    #[doc(hidden)]
    pub places: Vec<usize>,
    /// Tensor maps in `params`.
    #[doc(hidden)]
    pub maps: Vec<MapPlace>,
}

/// A tensor map in a parameter block, as the driver encodes it.
#[derive(Clone, Copy, Debug)]
pub struct MapPlace {
    /// Offset in the block.
    pub place: usize,
    /// The tensor and its boxes.
    pub map: TensorMap,
    /// Whether the tensor's address counts from the start of the workspace.
    pub in_workspace: bool,
}

/// A kernel as its launches know it, whatever crate it was compiled from.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The entry point's symbol, unlike all others of its crate.
    pub name: &'static str,
    /// The PTX module it lives in.
    pub module: &'static str,
    /// The target that the module was compiled for.
    pub target: Target,
    /// Threads of a block.
    pub threads: u32,
    /// The modules of its crate.
    pub modules: Modules,
    /// The switches that are on in the text that the driver compiles.
    pub switches: Switches,
}

impl Entry {
    /// The PTX text that a driver compiles: this kernel alone, with its switches on and without what never runs.
    ///
    /// # Errors
    /// If the program was built without it, or it lacks a switch.
    ///
    /// # Panics
    /// If its modules are not what a build script wrote.
    pub fn text(&self) -> Result<String> {
        let module = ptx::text(self.modules, self.module);
        Ok(text::prune(&self.alone(module)?))
    }

    /// The [text](Self::text), with [marks](kernels::text::lines) that name the source lines of its instructions.
    ///
    /// # Errors
    /// If the program was built without it, or it lacks a switch.
    ///
    /// # Panics
    /// If its modules are not what a build script wrote.
    pub fn marked_text(&self) -> Result<String> {
        Ok(text::prune(&self.whole_text()?))
    }

    /// The [marked text](Self::marked_text) with what never runs.
    ///
    /// # Errors
    /// If the program was built without it, or it lacks a switch.
    ///
    /// # Panics
    /// If its modules are not what a build script wrote.
    pub fn whole_text(&self) -> Result<String> {
        self.alone(ptx::marked(self.modules, self.module))
    }

    /// This kernel of its module, with its switches on.
    fn alone(&self, module: Option<String>) -> Result<String> {
        let kernel = module.and_then(|module| text::entry(&module, self.name));
        let written = self.switches.written(kernel.ok_or(Error::NotCompiled)?);
        written.map_err(|switch| Error::Switch {
            kernel: self.name,
            switch: switch.name(),
        })
    }
}

/// Memory of the caller that a call runs in, for [`Plan::run_in`].
///
/// Its bytes are the call's until its work is done, and hold nothing before or after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawWorkspace {
    /// Device address, a multiple of 256.
    pub address: u64,
    /// Bytes: at least [`Plan::workspace_bytes`].
    pub bytes: usize,
}

/// The giver of a call's workspace, asked when the call knows the bytes: 0 if it needs none.
pub(crate) type Allocate<'a> = dyn FnMut(usize) -> Result<RawWorkspace> + 'a;

impl RawWorkspace {
    /// The multiple that addresses must be.
    pub const ALIGNMENT: u64 = 256;
}

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
                map.address += if in_workspace { start } else { 0 };
                let encoded = gpu.tensor_map(&map)?;
                params[place..][..encoded.len()].copy_from_slice(&encoded);
            }
            let launch = Launch {
                name: entry.name,
                function,
                blocks: step.blocks,
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

impl Step {
    /// Name of the kernel.
    pub fn kernel(&self) -> &'static str {
        self.entry.name
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.entry.threads
    }

    /// A launch of a grid with a parameter block.
    ///
    /// # Errors
    /// If there are more blocks than a launch can have.
    pub(crate) fn new<P: NoUninit>(
        entry: Entry,
        blocks: u128,
        shared_bytes: u32,
        params: &P,
        places: &[usize],
    ) -> Result<Self> {
        Ok(Step {
            entry,
            blocks: grid(entry.name, blocks)?,
            shared_bytes,
            params: bytemuck::bytes_of(params).to_vec(),
            places: places.to_vec(),
            maps: Vec::new(),
        })
    }

    /// The parameter block for a workspace at this address.
    fn params_at(&self, workspace: u64) -> Vec<u8> {
        let mut params = self.params.clone();
        for &place in &self.places {
            let bytes = &mut params[place..place + size_of::<u64>()];
            let mut address = u64::from_ne_bytes((&*bytes).try_into().expect("eight bytes"));
            address += workspace;
            bytes.copy_from_slice(&address.to_ne_bytes());
        }
        params
    }
}

impl From<&'static Kernel> for Entry {
    /// A kernel that this crate's build compiled.
    fn from(kernel: &'static Kernel) -> Self {
        Entry {
            name: kernel.name,
            module: kernel.module,
            target: kernel.target(),
            threads: kernel.threads(),
            modules: ptx::COMPILED_MODULES,
            switches: Switches::NONE,
        }
    }
}

/// The number of blocks, if a launch can have so many.
pub(crate) fn grid(kernel: &'static str, blocks: u128) -> Result<u32> {
    match u32::try_from(blocks) {
        Ok(blocks) if blocks <= MAX_BLOCKS => Ok(blocks),
        _ => Err(Error::Grid {
            kernel,
            blocks,
            max: MAX_BLOCKS,
        }),
    }
}

/// A plan in the making: its steps, and how they share the workspace.
#[derive(Debug, Default)]
pub struct Steps {
    /// Launches so far, in order.
    pub(crate) steps: Vec<Step>,
    /// [Places](Step::places) in the parameter block of the launches to come.
    pub(crate) places: Vec<usize>,
    /// Bytes of the workspace so far.
    bytes: usize,
    zeros: Vec<(u64, usize)>,
}

impl Steps {
    pub(crate) const OVERFLOW: Error = Error::Overflow("the workspace");

    /// Reserves as many bytes as the product says. Gives their offset in the workspace: a multiple of 256.
    ///
    /// # Errors
    /// If the size overflows.
    pub(crate) fn reserve(&mut self, bytes: [usize; 3]) -> Result<u64> {
        let start = self.bytes.checked_next_multiple_of(256);
        let bytes = bytes.into_iter().try_fold(1, usize::checked_mul);
        let end = start
            .zip(bytes)
            .and_then(|(start, bytes)| start.checked_add(bytes));
        self.bytes = end.ok_or(Self::OVERFLOW)?;
        Ok(start.ok_or(Self::OVERFLOW)? as u64)
    }

    /// Reserves bytes that are zeros before the first step.
    ///
    /// # Errors
    /// The conditions of [`reserve`](Self::reserve).
    pub(crate) fn reserve_zeros(&mut self, bytes: usize) -> Result<u64> {
        let before = self.bytes as u64;
        let offset = self.reserve([bytes, 1, 1])?;
        match self.zeros.last_mut() {
            // One call zeros neighbours, and the bytes between.
            Some((start, len)) if *start + *len as u64 == before => {
                *len = (offset - *start) as usize + bytes;
            }
            _ => self.zeros.push((offset, bytes)),
        }
        Ok(offset)
    }

    /// Adds a launch, and gives it.
    ///
    /// # Errors
    /// If there are more blocks than a launch can have.
    pub fn launch<P: NoUninit>(
        &mut self,
        entry: Entry,
        blocks: u128,
        shared_bytes: u32,
        params: &P,
    ) -> Result<&mut Step> {
        let step = Step::new(entry, blocks, shared_bytes, params, &self.places)?;
        Ok(self.steps.push_mut(step))
    }

    /// The plan, whose work the kernel of this name does.
    pub fn finish(self, kernel: &'static str, splits: u32) -> Plan {
        Plan {
            kernel,
            splits,
            steps: self.steps,
            workspace_bytes: self.bytes,
            zeros: self.zeros,
            fills: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, MAX_BLOCKS, Step, Steps};
    use crate::error::Error;
    use kernels::abi::Switches;
    use kernels::catalog::Target;

    const ENTRY: Entry = Entry {
        name: "kernel",
        module: "module",
        target: Target::SM80,
        threads: 32,
        modules: None,
        switches: Switches::NONE,
    };

    #[test]
    fn workspaces_are_shared_out() {
        let mut steps = Steps::default();
        let places = [[3, 5, 2], [1, 0, 7], [1, 1, 256], [2, 2, 2]];
        let places = places.map(|bytes| steps.reserve(bytes));
        assert_eq!(places, [Ok(0), Ok(256), Ok(256), Ok(512)]);
        assert_eq!(steps.bytes, 520);
        for bytes in [[1 << 40, 1 << 40, 1], [usize::MAX, 1, 1], [1 << 62, 2, 2]] {
            assert_eq!(steps.reserve(bytes), Err(Steps::OVERFLOW));
            assert_eq!(steps.bytes, 520);
        }
    }

    #[test]
    fn places_alone_move_with_the_workspace() {
        let step = Step::new(ENTRY, 7, 0, &[1_u64, 2, 3], &[8]).expect("a small grid");
        let params: Vec<u64> = bytemuck::pod_collect_to_vec(&step.params_at(1 << 40));
        assert_eq!(params, [1, 2 + (1 << 40), 3]);
    }

    #[test]
    fn grids_have_a_limit() {
        let blocks = |blocks| Step::new(ENTRY, blocks, 0, &0_u64, &[]).map(|step| step.blocks);
        assert_eq!(blocks(u128::from(MAX_BLOCKS)), Ok(MAX_BLOCKS));
        for refused in [u128::from(MAX_BLOCKS) + 1, 1 << 33, u128::MAX] {
            assert!(matches!(blocks(refused), Err(Error::Grid { .. })));
        }
    }
}
