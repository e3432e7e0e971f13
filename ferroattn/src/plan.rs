//! The launches of a call, as data.
//!
//! A plan is made from [`Facts`](crate::Facts), without a device: the kernels with their grids and parameter
//! blocks, and the bytes of the workspace that they share. [`Plan::run`] launches it on any driver.

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::tensor_map::TensorMap;
pub use crate::tensor_map::has_map;
use bytemuck::NoUninit;

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
    /// Bytes of memory that the steps share while they run: of a [workspace](crate::RawWorkspace), if the caller brings it.
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
    /// Blocks of a cluster; 1 where each is alone.
    pub cluster: u32,
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
            cluster: 1,
            shared_bytes,
            params: bytemuck::bytes_of(params).to_vec(),
            places: places.to_vec(),
            maps: Vec::new(),
        })
    }

    /// The parameter block for a workspace at this address.
    pub(crate) fn params_at(&self, workspace: u64) -> Vec<u8> {
        let mut params = self.params.clone();
        for &place in &self.places {
            let bytes = &mut params[place..place + size_of::<u64>()];
            let mut address = u64::from_ne_bytes((&*bytes).try_into().expect("eight bytes"));
            // Of a part of a call, it may lie before the workspace.
            address = address.wrapping_add(workspace);
            bytes.copy_from_slice(&address.to_ne_bytes());
        }
        params
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

    /// Where the next part of the workspace will begin.
    ///
    /// # Errors
    /// If the size of the workspace overflows.
    pub(crate) fn end(&mut self) -> Result<u64> {
        self.reserve([0; 3])
    }

    /// Adds the launches of a plan without fills, with its workspace at the [end](Self::end) of this one.
    ///
    /// # Errors
    /// If the size of the workspace overflows.
    pub(crate) fn append(&mut self, plan: Plan) -> Result<()> {
        debug_assert!(plan.fills.is_empty(), "outputs of a part are computed");
        let start = self.reserve([plan.workspace_bytes, 1, 1])?;
        let zeros = plan.zeros.into_iter();
        self.zeros
            .extend(zeros.map(|(offset, bytes)| (start + offset, bytes)));
        self.steps.extend(plan.steps.into_iter().map(|mut step| {
            step.params = step.params_at(start);
            for MapPlace {
                map, in_workspace, ..
            } in &mut step.maps
            {
                if *in_workspace {
                    map.address = map.address.wrapping_add(start);
                }
            }
            step
        }));
        Ok(())
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
