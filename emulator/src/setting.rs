//! How a launch runs, and what its blocks share.

use crate::memory::Global;
use crate::shared::MAX_CLOCK;

/// How to run a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the order in which the warps of a block take turns, and blocks that change the same numbers.
    pub seed: u64,
    /// Instructions that a warp may execute; at most 2^26 - 2, the default. A kernel that needs more
    /// breaks [`Rule::Budget`](crate::Rule::Budget).
    pub instruction_budget: u64,
    /// Whether to count wavefronts, sectors and bytes, which takes a quarter more time.
    pub counters: bool,
    /// Shared memory that a block can have, static and dynamic together, in bytes. The default is
    /// 227 KB, the most that any device has.
    pub max_shared_bytes: u32,
    /// Blocks of a cluster, along x; 1 by default. They are resident at the same time.
    pub cluster: u32,
    /// Whether `wgmma` of FP8 keeps 14 bits of each product, as Hopper does, before sums in f16 are rounded; off by default.
    pub truncated_fp8_sums: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            instruction_budget: u64::from(MAX_CLOCK) - 1,
            counters: false,
            max_shared_bytes: 227 << 10,
            cluster: 1,
            truncated_fp8_sums: false,
        }
    }
}

/// The state that all blocks of a launch share, beside its kernel.
pub(crate) struct Setting {
    pub global: Global,
    /// What holds until a block has waited for the launches before, if the kernel does so itself: some global memory is out of reach.
    pub early: Option<Box<Setting>>,
    pub parameters: Vec<u8>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Static and dynamic.
    pub shared_bytes: u32,
    pub options: Options,
}

impl Setting {
    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Clusters of the grid.
    pub fn clusters(&self) -> [u32; 3] {
        self.cluster_of(self.grid)
    }

    /// The position of a block's cluster.
    pub fn cluster_of(&self, [x, y, z]: [u32; 3]) -> [u32; 3] {
        [x / self.options.cluster, y, z]
    }
}
