//! The backward pass on Hopper: dk and dv, and dq in one of two ways.

use super::kind::MaskKind;
use super::tile::{Tiles, of_dim};
use super::{Dtype, Family, Instance, Kernel, Launch, Spec, Target};
use crate::generic;
use crate::layout::element::K;
use crate::layout::sm90_backward::{Sm90BackwardMemory, Sm90WideMemory};

/// A kernel of the backward pass for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperBackward {
    /// How it computes dq.
    pub way: HopperWay,
    /// Element type.
    pub dtype: Dtype,
    /// Largest head dim.
    pub dim: u32,
    /// The mask that it is for; kernels for either there are none.
    pub mask: MaskKind,
}

/// How dq is computed on Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HopperWay {
    /// Each key tile adds its part of dq to f32 sums in device memory.
    Sums,
    /// dS is stored in device memory, in 16 bits, and multiplied by k.
    Stored,
}

/// Head dims of the kernels, with queries of a step (Br), and stages of the jobs of dq. Sums of dq of 256 columns would take more
/// time than the products.
const DIMS: Tiles<[u32; 2]> = &[(64, [128, 4]), (128, [64, 3]), (256, [64, 2])];

impl HopperBackward {
    /// Keys of a tile, and queries of a tile of dq.
    pub const TILE: u32 = Sm90BackwardMemory::KEYS;

    /// The kernel of a way for a head dim, if there is one. With options narrow heads have sums alone, and wide ones have no
    /// registers for them.
    pub fn of(way: HopperWay, dtype: Dtype, dim: u32, mask: MaskKind) -> Option<Self> {
        let (dim, _) = *DIMS.iter().find(|&&(largest, _)| dim <= largest)?;
        let serves = match (way, mask) {
            (HopperWay::Sums, _) => dim <= 128,
            (HopperWay::Stored, MaskKind::Options) => dim == 128,
            (HopperWay::Stored, _) => true,
        };
        serves.then_some(HopperBackward {
            way,
            dtype,
            dim,
            mask,
        })
    }

    /// Instructions that exchange vectors of a bias's gradient, of each half of a tile's rows.
    pub(super) fn shuffles_of_bias_gradient(&self) -> u32 {
        2 * 4 * self.queries() / 16
    }

    /// Queries of a step (Br), and stages of the jobs of dq.
    fn tile(&self) -> [u32; 2] {
        of_dim(self.dim, &[DIMS]).expect("one of the head dims")
    }

    /// Queries of a step (Br).
    pub fn queries(&self) -> u32 {
        self.tile()[0]
    }

    /// Queries that a tile of keys visits at a time: more than a step's where dS is stored, which jobs of queries read.
    pub fn visited(&self) -> u32 {
        match self.way {
            HopperWay::Sums => self.queries(),
            HopperWay::Stored => Self::TILE,
        }
    }

    /// Keys of a block that computes dk and dv. Boxes of k and v have as many rows.
    pub const fn keys(&self) -> u32 {
        if self.is_wide() { 64 } else { Self::TILE }
    }

    /// Whether one warpgroup has dv, and the other dk; then dS is stored.
    const fn is_wide(&self) -> bool {
        self.dim > 128
    }

    /// Registers of threads: 504 of each warpgroup, 24 and twice 240.
    fn kernel(self) -> Kernel {
        let (dim, dtype, mask) = (self.dim, self.dtype, self.mask);
        let (dt, [queries, s]) = (dim / K, self.tile());
        let nt = queries / 16;
        let generic = match self.way {
            HopperWay::Sums => generic! { sm90: DT = dt, NT = nt, QT = 4, GIVEN = 24, TAKEN = 240 },
            HopperWay::Stored => {
                generic! { sm90_stored: DT = dt, NT = nt, S = s, GIVEN = 24, TAKEN = 240 }
            }
        };
        let way = generic.0.trim_start_matches("sm90");
        let bytes = match self.is_wide() {
            true => Sm90WideMemory::new(0, dim).bytes(),
            false => Sm90BackwardMemory::new(0, queries, dim).bytes(),
        };
        // Two warpgroups consume, and one more produces.
        let launch = Launch::new(3 * 4, 1, bytes);
        let kernel = ("Sm90BackwardParams, maps", "attention::backward");
        let instance = Instance::new(kernel, dtype, &mask.types(), generic);
        let (element, [prefix, suffix]) = (dtype.name(), mask.affixes());
        let name = format!("backward_hopper{way}_{prefix}{element}_d{dim}{suffix}");
        let spec = Spec::new(name, Target::SM90A, launch, instance);
        let family = Family::HopperBackward(self);
        Kernel { family, spec }
    }
}

pub(super) fn all() -> impl Iterator<Item = Kernel> {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for &(dim, _) in DIMS {
            for way in [HopperWay::Sums, HopperWay::Stored] {
                let of = |mask| HopperBackward::of(way, dtype, dim, mask);
                kernels.extend([MaskKind::Full, MaskKind::Causal, MaskKind::Options].map(of));
            }
        }
    }
    kernels.into_iter().flatten().map(HopperBackward::kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::class::Class;
    use crate::layout::sm90_backward::Sm90QueryMemory;

    #[test]
    fn kernels_fit_their_class() {
        for kernel in all() {
            assert!(kernel.classes.contains(&Class::Sm90), "{}", kernel.name);
        }
        for &(_, [queries, _]) in DIMS {
            assert_eq!(crate::abi::ROW_PADDING % queries, 0);
        }
    }

    /// The number of the job lies behind the memory of either job: a job may write its memory before all have read it.
    #[test]
    fn jobs_of_queries_leave_the_number_of_the_job() {
        for &(dim, [queries, stages]) in DIMS {
            let stored = HopperBackward::of(HopperWay::Stored, Dtype::F16, dim, MaskKind::Full);
            let bytes = Sm90QueryMemory::new(0, dim, queries, stages).bytes();
            let number = match stored.expect("a kernel").is_wide() {
                true => Sm90WideMemory::new(0, dim).job(),
                false => Sm90BackwardMemory::new(0, queries, dim).job(),
            };
            assert!(bytes <= number, "{dim}: {bytes} of {number}");
        }
    }
}
