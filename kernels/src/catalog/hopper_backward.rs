//! The backward pass on Hopper: dk and dv, and dq in one of two ways.

use super::kind::MaskKind;
use super::{Dtype, Feature, Instance, Launch, Spec};
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

/// Head dims of the kernels, ascending. Sums of dq of 256 columns would take more time than the products.
const DIMS: &[u32] = &[64, 128, 256];

impl HopperBackward {
    /// Keys of a tile, and queries of a tile of dq.
    pub const TILE: u32 = Sm90BackwardMemory::KEYS;

    /// The kernel of a way for a head dim, if there is one. With options narrow heads have sums alone, and wide ones have no
    /// registers for them.
    pub fn of(way: HopperWay, dtype: Dtype, dim: u32, mask: MaskKind) -> Option<Self> {
        let dim = *DIMS.iter().find(|&&largest| dim <= largest)?;
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

    /// Queries of a step (Br).
    pub const fn queries(&self) -> u32 {
        if self.dim > 64 { 64 } else { 128 }
    }

    /// Queries that a tile of keys visits at a time: more than a step's where dS is stored, which jobs of queries read.
    pub const fn visited(&self) -> u32 {
        match self.way {
            HopperWay::Sums => self.queries(),
            HopperWay::Stored => Self::TILE,
        }
    }

    /// Keys of a block that computes dk and dv. Boxes of k and v have as many rows.
    pub const fn keys(&self) -> u32 {
        match self.way {
            HopperWay::Stored if self.is_wide() => 64,
            _ => Self::TILE,
        }
    }

    /// Whether one warpgroup has dv, and the other dk.
    const fn is_wide(&self) -> bool {
        self.dim > 128
    }

    /// Stages of the jobs of dq.
    const fn stages(&self) -> u32 {
        match self.dim {
            64 => 4,
            128 => 3,
            _ => 2,
        }
    }
}

/// All kernels.
pub(super) fn all() -> impl Iterator<Item = HopperBackward> {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for &dim in DIMS {
            for way in [HopperWay::Sums, HopperWay::Stored] {
                let of = |mask| HopperBackward::of(way, dtype, dim, mask);
                kernels.extend([MaskKind::Full, MaskKind::Causal, MaskKind::Options].map(of));
            }
        }
    }
    kernels.into_iter().flatten()
}

impl Spec for HopperBackward {
    fn name(&self) -> String {
        self.module() + self.mask.suffix()
    }

    fn module(&self) -> String {
        let way = match self.way {
            HopperWay::Sums => "",
            HopperWay::Stored => "_stored",
        };
        let optional = if self.mask.has_options() {
            "_optional"
        } else {
            ""
        };
        let dtype = self.dtype.name();
        format!("backward_hopper{way}{optional}_{dtype}_d{}", self.dim)
    }

    fn features(&self) -> &'static [Feature] {
        &[Feature::TensorMaps, Feature::Wgmma]
    }

    /// Two warpgroups that consume, and one more.
    fn launch(&self) -> Launch {
        let bytes = match self.way {
            HopperWay::Stored if self.is_wide() => Sm90WideMemory::new(0, self.dim).bytes(),
            _ => Sm90BackwardMemory::new(0, self.queries(), self.dim).bytes(),
        };
        Launch::new(3 * 4, 1, bytes)
    }

    /// 504 registers a thread of each warpgroup: 24 and twice 240.
    fn instance(&self) -> Instance {
        let (dt, nt, s) = (self.dim / K, self.queries() / 16, self.stages());
        let generic = match self.way {
            HopperWay::Sums => generic! { sm90: DT = dt, NT = nt, QT = 4, GIVEN = 24, TAKEN = 240 },
            HopperWay::Stored => {
                generic! { sm90_stored: DT = dt, NT = nt, S = s, GIVEN = 24, TAKEN = 240 }
            }
        };
        let kernel = ("Sm90BackwardParams", "attention::backward");
        Instance::new(kernel, self.dtype, &self.mask.types(), generic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::class::Class;
    use crate::layout::sm90_backward::Sm90QueryMemory;

    #[test]
    fn kernels_fit_their_class() {
        for kernel in all() {
            assert!(kernel.is_for(Class::Sm90), "{}", kernel.name());
            assert_eq!(crate::abi::ROW_PADDING % kernel.queries(), 0);
        }
    }

    /// The number of the job lies behind the memory of either job: a job may write its memory before all have read it.
    #[test]
    fn jobs_of_queries_leave_the_number_of_the_job() {
        for kernel in all().filter(|kernel| kernel.way == HopperWay::Stored) {
            let (dim, queries) = (kernel.dim, kernel.queries());
            let bytes = Sm90QueryMemory::new(0, dim, queries, kernel.stages()).bytes();
            let number = match kernel.is_wide() {
                true => Sm90WideMemory::new(0, dim).job(),
                false => Sm90BackwardMemory::new(0, queries, dim).job(),
            };
            assert!(bytes <= number, "{}: {bytes} of {number}", kernel.name());
        }
    }
}
