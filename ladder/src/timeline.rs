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
        self, Dtype, Family, Feature, Forward, Instance, Kernel, Kind, Launch, Loop, MaskKind, Spec,
    };
    use std::sync::LazyLock;

    /// A kernel under watch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Timeline {
        /// [`Spec::name`]: the kernel's, and `timeline` in front.
        pub name: &'static str,
        /// [`Spec::module`].
        pub module: &'static str,
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
            Timeline {
                name: format!("timeline_{}", kernel.name).leak(),
                module: format!("timeline_{}", kernel.module).leak(),
                kernel,
            }
        });
        kernels.collect()
    });

    impl Spec for Timeline {
        fn name(&self) -> String {
            self.name.to_owned()
        }

        fn module(&self) -> String {
            self.module.to_owned()
        }

        fn features(&self) -> &'static [Feature] {
            self.kernel.features()
        }

        fn launch(&self) -> Launch {
            self.kernel.launch()
        }

        fn is_for(&self, class: Class) -> bool {
            self.kernel.is_for(class)
        }

        fn instance(&self) -> Instance {
            let instance = self.kernel.instance().with("Unwatched", "Stamps");
            Instance {
                params: "TimelineParams",
                module: format!("kernels::{}", instance.module),
                ..instance
            }
        }
    }
}
