//! Hopper's forward kernels under watch: they write when a block's roles passed each point of their work.

#[cfg(not(target_arch = "nvptx64"))]
pub use catalog::{TIMELINES, Timeline};
use kernels::abi::Sm90Params;

/// Places for blocks of keys, from the first one on. All blocks after the last place write there.
pub const BLOCKS: u32 = 256;

/// Places for the points of a block of keys.
pub const EVENTS: u32 = 16;

/// Arguments of a kernel under watch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TimelineParams {
    /// Arguments of the kernel.
    pub sm90: Sm90Params,
    /// Device address of `u32[warpgroups, BLOCKS, EVENTS]`: the clock at which each warpgroup of block 0, the producer's last,
    /// passed each [`Event`](kernels::abi::Event) of each block of keys.
    pub clocks: u64,
}

#[cfg(not(target_arch = "nvptx64"))]
mod catalog {
    use kernels::catalog::class::Class;
    use kernels::catalog::{
        self, Dtype, Family, Forward, Instance, Kernel, Kind, Loop, MaskKind, Spec,
    };
    use std::sync::LazyLock;

    /// A kernel under watch.
    #[derive(Clone, Debug)]
    pub struct Timeline {
        /// The specification: the kernel's, with `timeline` in front of its name.
        pub spec: Spec,
        /// The kernel.
        pub kernel: &'static Kernel,
    }

    /// The kernels under watch.
    pub static TIMELINES: LazyLock<Vec<Timeline>> = LazyLock::new(|| {
        // At D = 64 consumers have no register left for the place of their notes.
        let kernels = [128, 256].map(|dim| [false, true].map(|causal| (dim, causal)));
        let kernels = kernels.into_iter().flatten();
        let kernels = kernels.map(|(dim, causal)| {
            let kind = Kind::of_head(Loop::Hopper, MaskKind::of(causal));
            let forward = Forward::of(kind, Dtype::F16, dim, Class::Sm90);
            let kernel = catalog::kernel(Family::Forward(forward.expect("a kernel")));
            let instance = kernel.instance.clone().with("Unwatched", "Stamps");
            let instance = Instance {
                params: "TimelineParams, maps",
                module: format!("kernels::{}", instance.module),
                ..instance
            };
            let name = format!("timeline_{}", kernel.name);
            Timeline {
                spec: Spec::new(name, kernel.target, kernel.launch, instance),
                kernel,
            }
        });
        kernels.collect()
    });
}
