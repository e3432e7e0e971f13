//! Kernels of the [ladder](kernels::ladder) by name and options.

use crate::error::{Error, Result};
use crate::kernel::{Chosen, unknown};
use crate::problem::Problem;
use crate::schedule::Facts;
use kernels::ladder::table::variants;
pub use kernels::ladder::{OStore, Rung, Swizzles};
use kernels::params::LadderParams;
use kernels::table::{Accumulation, Dtype, MAX_HEAD_DIM};
use std::fmt;
use std::str::FromStr;

/// A kernel of the ladder and its options, for [`Attention::ladder`](crate::Attention::ladder). What is not
/// asked for is what suits the kernel and the device best.
///
/// ```
/// use attention::Accumulation;
/// use attention::ladder::{Ladder, OStore, Rung, Swizzles};
///
/// let kernel = Ladder {
///     stages: Some(2),
///     swizzles: Some(Swizzles::Pad),
///     acc: Some(Accumulation::Single),
///     o_store: Some(OStore::Shuffle),
///     ..Ladder::new(Rung::SharedKv)
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// The kernel.
    pub rung: Rung,
    /// Buffers that tiles pass through: 1, 2 or 3. With one, nothing loads while something is computed.
    pub stages: Option<u32>,
    /// Which tiles are swizzled in shared memory.
    pub swizzles: Option<Swizzles>,
    /// What products are added up in: f16 for f16 inputs only.
    pub acc: Option<Accumulation>,
    /// How O is stored.
    pub o_store: Option<OStore>,
}

/// Most stages.
const MAX_STAGES: u32 = 3;

impl Ladder {
    /// A kernel with the options that suit it.
    #[must_use]
    pub const fn new(rung: Rung) -> Self {
        Ladder {
            rung,
            stages: None,
            swizzles: None,
            acc: None,
            o_store: None,
        }
    }

    /// What products are summed in, asked for or not.
    #[must_use]
    pub fn sums_in(&self) -> Accumulation {
        self.acc.unwrap_or_default()
    }

    /// The name of the kernel.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.rung.name()
    }

    /// The compiled kernel for a [valid](Problem::validate) problem, and what it is told.
    pub(crate) fn choose(&self, dtype: Dtype, problem: &Problem, facts: &Facts) -> Result<Chosen> {
        self.check(dtype, problem.dim)?;
        let fits = |stages| self.fitting(dtype, problem.dim, stages, facts);
        let found = match self.stages {
            Some(stages) => fits(stages),
            // As many blocks on a multiprocessor as its registers allow come first, then stages.
            None => (1..=MAX_STAGES).filter_map(fits).max_by_key(|chosen| {
                let resident = facts.shared.resident_blocks(chosen.shared_bytes);
                resident.min(chosen.kernel.tile.blocks_per_sm)
            }),
        };
        found.ok_or_else(|| {
            let stages = self.stages.unwrap_or(1);
            let (needed, available) = (self.needed(dtype, problem.dim, stages), facts.shared.block);
            let fewer = (1..stages).rev().find(|&stages| fits(stages).is_some());
            let other = Rung::ALL.iter().rev().map(|&rung| Ladder::new(rung));
            let other = other
                .filter(|other| other.check(dtype, problem.dim).is_ok())
                .find(|other| other.fitting(dtype, problem.dim, 1, facts).is_some());
            let instead = match (fewer, other) {
                (Some(1), _) => "; 1 stage would fit".to_owned(),
                (Some(fewer), _) => format!("; {fewer} stages would fit"),
                (None, Some(other)) => format!("; {} would fit", other.name()),
                (None, None) => String::new(),
            };
            self.unsuitable(format!(
                "needs {needed} bytes of shared memory for a block with {stages} {} at dim {}; the device \
                 has {available}{instead}",
                if stages == 1 { "stage" } else { "stages" },
                problem.dim,
            ))
        })
    }

    /// Whether there is such a kernel with such options.
    fn check(&self, dtype: Dtype, dim: usize) -> Result<()> {
        let options = [
            ("stages", self.stages.is_some()),
            ("swizzle", self.swizzles.is_some()),
            ("acc", self.acc.is_some()),
            ("o-store", self.o_store.is_some()),
        ];
        let names = |is_named: fn(Rung) -> bool| {
            let rungs = Rung::ALL.iter().filter(|&&rung| is_named(rung));
            rungs.map(|rung| rung.name()).collect::<Vec<_>>().join(", ")
        };
        if let Some((option, _)) = options.iter().find(|(_, asked)| *asked)
            && !self.rung.has_options()
        {
            let others = names(Rung::has_options);
            return Err(self.unsuitable(format!("has no option {option}; these have: {others}")));
        }
        if let Some(stages) = self
            .stages
            .filter(|stages| !(1..=MAX_STAGES).contains(stages))
        {
            return Err(self.unsuitable(format!("has 1 to {MAX_STAGES} stages, not {stages}")));
        }
        if self.sums_in() == Accumulation::Half && dtype != Dtype::F16 {
            return Err(self.unsuitable("sums in f16 for dtype f16 only; acc f32 serves bf16"));
        }
        if dim > self.rung.max_dim() as usize {
            let others = names(|rung| rung.max_dim() == MAX_HEAD_DIM);
            let most = self.rung.max_dim();
            return Err(self.unsuitable(format!(
                "serves dim up to {most}, not {dim}; {others} serve up to {MAX_HEAD_DIM}"
            )));
        }
        Ok(())
    }

    /// The kernel with so many stages, if a device has the shared memory.
    fn fitting(&self, dtype: Dtype, dim: usize, stages: u32, facts: &Facts) -> Option<Chosen> {
        let variants = self.variants(dtype, dim, stages);
        variants
            .into_iter()
            .flatten()
            .find(|chosen| facts.shared.resident_blocks(chosen.shared_bytes) > 0)
    }

    /// Bytes of shared memory that it needs at least with so many stages.
    fn needed(&self, dtype: Dtype, dim: usize, stages: u32) -> u32 {
        let variants = self.variants(dtype, dim, stages);
        let needs = variants
            .into_iter()
            .flatten()
            .map(|chosen| chosen.shared_bytes);
        needs.min().unwrap_or(0)
    }

    fn variants(&self, dtype: Dtype, dim: usize, stages: u32) -> [Option<Chosen>; 2] {
        let found = variants(self.rung, dtype, self.sums_in(), dim as u32, stages);
        let Some((kernel, variants)) = found else {
            return [None; 2];
        };
        let (swizzled, padding) = self.swizzles.unwrap_or_default().bits_and_padding();
        variants.map(|params| {
            let params = LadderParams {
                swizzled,
                padding,
                o_store: self.o_store.unwrap_or_default() as u32,
                ..params?
            };
            Some(Chosen::of_ladder(kernel, params, dim as u32))
        })
    }

    fn unsuitable(&self, reason: impl Into<String>) -> Error {
        Error::UnsuitableKernel {
            kernel: self.name().to_owned(),
            reason: reason.into(),
        }
    }
}

/// The name, and what is asked for: `shared-kv:stages=2:swizzle=pad`.
impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())?;
        if let Some(stages) = self.stages {
            write!(f, ":stages={stages}")?;
        }
        if let Some(swizzles) = self.swizzles {
            write!(f, ":swizzle={}", swizzles.name())?;
        }
        if let Some(acc) = self.acc {
            write!(f, ":acc={}", acc.name())?;
        }
        if let Some(o_store) = self.o_store {
            write!(f, ":o-store={}", o_store.name())?;
        }
        Ok(())
    }
}

/// Reads what [`Display`](fmt::Display) writes.
impl FromStr for Ladder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let mut ladder = named(name).ok_or_else(|| unknown(name))?;
        for part in parts {
            let option = part.split_once('=').unwrap_or((part, ""));
            let read = match option {
                ("stages", value) => value.parse().ok().map(|n| ladder.stages = Some(n)),
                ("swizzle", value) => {
                    by_name(Swizzles::ALL, Swizzles::name, value).map(|s| ladder.swizzles = Some(s))
                }
                ("acc", value) => Accumulation::named(value).map(|a| ladder.acc = Some(a)),
                ("o-store", value) => {
                    by_name(OStore::ALL, OStore::name, value).map(|o| ladder.o_store = Some(o))
                }
                _ => None,
            };
            read.ok_or_else(|| ladder.unsuitable(format!("has no option {part}")))?;
        }
        Ok(ladder)
    }
}

fn by_name<T: Copy>(all: &[T], name: fn(T) -> &'static str, value: &str) -> Option<T> {
    all.iter().copied().find(|&one| name(one) == value)
}

/// The kernel of that name.
pub(crate) fn named(name: &str) -> Option<Ladder> {
    let mut rungs = Rung::ALL.iter();
    let rung = rungs.find(|rung| rung.name() == name)?;
    Some(Ladder::new(*rung))
}

/// The kernels for head dims beyond those of the main kernels, the best first.
pub(crate) const WIDE: [Ladder; 2] = [Ladder::new(Rung::TiledQkv), Ladder::new(Rung::TiledQk)];
