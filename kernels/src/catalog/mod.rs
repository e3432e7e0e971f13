//! The catalog: which kernels exist, each declared once, by the axes of its family.
//!
//! A family's function `kernel` makes a [`Spec`] of them: name, target, launch bounds, shared memory, the instance of a generic
//! kernel that the entry point calls, and what its machine code must contain. Builder, library and tools read nothing else.
//!
//! | module | what it holds |
//! |---|---|
//! | `target` | PTX targets, and which devices run them |
//! | [`class`] | classes of devices, told apart by what decides tiles |
//! | `instance` | the instance of a generic kernel that an entry point calls |
//! | `kind` | attention: its axes, which are main loop, rows and mask |
//! | `forward` | attention: what follows from the axes, and the list |
//! | `sm80`, `decode`, `wide`, `hopper`, `latent`, `fp8` | attention: the tiles of each main loop, losers included |
//! | `roles` | attention on Hopper: what warpgroups do |
//! | `backward`, `hopper_backward`, `gemm`, `auxiliary` | the other families |
//! | `custom` | kernels with scores and masks of other crates |
//! | [`select`](mod@select) | which kernel serves a request |

mod auxiliary;
mod backward;
pub mod class;
pub mod custom;
mod decode;
mod forward;
mod fp8;
mod gemm;
mod hopper;
mod hopper_backward;
mod instance;
mod kind;
mod latent;
mod roles;
pub mod select;
mod sm80;
mod target;
mod tile;
mod wide;

pub use auxiliary::Auxiliary;
pub use backward::{Backward, BackwardMain, BackwardTile};
pub use forward::{Forward, HEAD_DIMS, MAX_HEAD_DIM, WIDE_DIMS};
pub use gemm::{Gemm, GemmKind, GemmTile};
pub use hopper_backward::{HopperBackward, HopperWay};
pub use instance::{Generic, Instance};
pub use kind::{Kind, Levels, Loop, MaskKind, Rows};
pub use target::Target;
pub use tile::Tile;

use class::Class;
use foldhash::fast::FixedState;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Deref;
use std::sync::LazyLock;

/// Element type of q, k, v and o.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// All element types.
    pub const ALL: [Self; 2] = [Dtype::F16, Dtype::Bf16];

    /// The name used in kernel names and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// Type that products are summed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// IEEE binary16.
    Half,
    /// IEEE binary32.
    #[default]
    Single,
}

impl Accumulation {
    /// The name used in kernel names, on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Accumulation::Half => "f16",
            Accumulation::Single => "f32",
        }
    }
}

/// What a launch of a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that should fit on one multiprocessor: bounds the registers (`.minnctapersm`).
    pub blocks_per_sm: u32,
    /// Dynamic shared memory of a block, in bytes; the least, where a launch may ask for more.
    pub shared_bytes: u32,
}

impl Launch {
    /// A launch of blocks of whole warps.
    pub const fn new(warps: u32, blocks_per_sm: u32, shared_bytes: u32) -> Self {
        Launch {
            threads: 32 * warps,
            blocks_per_sm,
            shared_bytes,
        }
    }
}

/// What the machine code of a kernel may be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// How many `shfl.sync` it leaves out of the kernel that it is [counted as](Spec::counted_as).
    pub shuffles_left_out: u32,
    /// How many `wgmma` the assembler removes where no boolean mask is on.
    pub products_of_masks: u32,
    /// Whether compilers make different numbers of copies: in loops that they unroll as they like.
    pub copies_vary: bool,
    /// Whether the compiler may share an instruction of whole warps with which both arms of a branch begin.
    pub may_share: bool,
    /// Bytes that a thread may spill, stores and loads together.
    pub most_spills: u32,
}

/// The specification of a kernel, of whatever family and crate: its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The entry point's symbol in the PTX and the name on the command line.
    pub name: &'static str,
    /// The PTX module that the kernel lives in, with the one for the causal mask: all are for the same devices.
    pub module: &'static str,
    /// PTX target.
    pub target: Target,
    /// The classes of devices on which the library may take the kernel, in the order of [`Class::ALL`].
    pub classes: Vec<Class>,
    /// What a launch needs.
    pub launch: Launch,
    /// What the entry point calls.
    pub instance: Instance,
    /// The kernel whose instructions of whole warps this one has, but for [some](Code::shuffles_left_out).
    pub counted_as: &'static str,
    /// What its machine code may be like.
    pub code: Code,
}

impl Spec {
    /// A kernel for all devices that run the target and have the shared memory. Its name stays for the rest of the program.
    pub fn new(name: String, target: Target, launch: Launch, instance: Instance) -> Self {
        let name: &'static str = name.leak();
        let classes = Class::ALL.iter().copied().filter(|class| {
            let fits = launch.shared_bytes <= class.shared_memory().block;
            fits && target.runs_on(class.compute_capability())
        });
        Spec {
            name,
            module: name.trim_end_matches("_causal"),
            target,
            classes: classes.collect(),
            launch,
            instance,
            counted_as: name,
            code: Code::default(),
        }
    }

    /// The first class of devices that the kernel is for: others may lack the shared memory.
    ///
    /// # Panics
    /// If it is for none.
    pub fn class(&self) -> Class {
        self.classes[0]
    }

    /// Element type; kernels that serve all types have none.
    pub fn dtype(&self) -> Option<Dtype> {
        self.instance.element
    }

    /// Whether the parameter block starts with tensor maps.
    pub fn takes_maps(&self) -> bool {
        self.instance.params.ends_with(", maps")
    }
}

/// The axes of a kernel, by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Attention.
    Forward(Forward),
    /// The backward pass of attention.
    Backward(Backward),
    /// The backward pass on Hopper.
    HopperBackward(HopperBackward),
    /// Matrix products.
    Gemm(Gemm),
    /// Sums of partial results, and copies.
    Auxiliary(Auxiliary),
}

/// A kernel of the catalog: its axes, and the specification that follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The axes.
    pub family: Family,
    /// The specification.
    pub spec: Spec,
}

impl Kernel {
    /// The axes of a kernel that computes attention.
    pub fn forward(&self) -> Option<&Forward> {
        match &self.family {
            Family::Forward(forward) => Some(forward),
            _ => None,
        }
    }

    /// The axes of a matrix product.
    pub fn gemm(&self) -> Option<&Gemm> {
        match &self.family {
            Family::Gemm(gemm) => Some(gemm),
            _ => None,
        }
    }
}

/// A kernel answers as its specification.
impl Deref for Kernel {
    type Target = Spec;

    fn deref(&self) -> &Spec {
        &self.spec
    }
}

/// Kernels, of equal ones the first.
fn distinct<T: Copy + Eq + Hash>(kernels: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let mut found = HashSet::new();
    { kernels.into_iter() }.filter(move |kernel| found.insert(*kernel))
}

/// Every kernel.
pub static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let forward = forward::all().chain(auxiliary::all());
    let backward = backward::all().chain(hopper_backward::all());
    let others = gemm::all().chain([auxiliary::bulk_copy()]);
    forward.chain(backward).chain(others).collect()
});

/// Every kernel by its axes: plans look up several.
static BY_FAMILY: LazyLock<HashMap<Family, &Kernel, FixedState>> = LazyLock::new(|| {
    let kernels = KERNELS.iter();
    kernels.map(|kernel| (kernel.family, kernel)).collect()
});

/// The kernel of these axes.
///
/// # Panics
/// If the catalog lacks it.
pub fn kernel(family: Family) -> &'static Kernel {
    let found = BY_FAMILY.get(&family);
    found.unwrap_or_else(|| panic!("no kernel is {family:?}"))
}

/// The kernel of a name.
pub fn named(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: HashSet<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
        assert_eq!(names.len(), KERNELS.len());
    }

    /// Names stand in results, docs and other programs.
    #[test]
    fn names_are_known() {
        for name in [
            "forward_f16_d64",
            "forward_bf16_d256_128x32_causal",
            "packed_f16_d128_128x16",
            "decode_bf16_d96_64x32x3",
            "combine_f16",
            "merge_backward_bf16",
            "pack",
            "backward_f16_prepare",
            "backward_bf16_d128",
            "backward_f16_d256_32x32",
            "gemm_simple_f16_f16",
            "gemm_bf16_f32_256x128x64x3",
            "gemm_hopper_bf16_f32_128x256x64x4",
        ] {
            assert!(named(name).is_some(), "{name}");
        }
    }

    /// Loading a module compiles no kernel that the device will not use.
    #[test]
    fn a_module_is_for_the_same_devices() {
        for kernel in KERNELS.iter() {
            for other in KERNELS.iter().filter(|k| k.module == kernel.module) {
                assert_eq!(kernel.target, other.target);
                assert_eq!(kernel.classes, other.classes, "{}", other.name);
            }
        }
    }
}
