//! Kernels of the ladder by name and options.

use crate::catalog::{Kernel, variants};
use crate::options::{OStore, Rung, Swizzles};
use crate::params::Options;
use ferroattn::{Accumulation, Device, Error, Facts, Problem, Result};
use kernels::catalog::{Dtype, MAX_HEAD_DIM};
use std::fmt;
use std::str::FromStr;

/// A kernel of the ladder and its options, for [`Attention::planner`](ferroattn::Attention::planner). An option
/// that is `None` is what suits the kernel and the device best.
///
/// ```
/// use ferroattn::{Accumulation, Attention};
/// use ladder::{Ladder, OStore, Rung, Swizzles};
///
/// let attention = Attention::new().planner(Ladder {
///     stages: Some(2),
///     swizzles: Some(Swizzles::Pad),
///     acc: Some(Accumulation::Single),
///     o_store: Some(OStore::Shuffle),
///     ..Ladder::new(Rung::SharedKv)
/// });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// The kernel.
    pub rung: Rung,
    /// Buffers that tiles pass through: 1, 2 or 3. With one, nothing loads during a computation.
    pub stages: Option<u32>,
    /// Which tiles are swizzled in shared memory.
    pub swizzles: Option<Swizzles>,
    /// The type that products are summed in. f16 is for f16 inputs, with scores up to 45 000 and sums of 64 values up to
    /// 65 504; where O takes 128 registers, `P V` is summed in f32 all the same.
    pub acc: Option<Accumulation>,
    /// How O is stored.
    pub o_store: Option<OStore>,
}

/// The most stages of a kernel of the ladder.
pub const MAX_STAGES: u32 = 3;

/// A compiled kernel with the options of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub kernel: &'static Kernel,
    pub options: Options,
    /// Shared memory of a block.
    pub shared_bytes: u32,
}

impl Chosen {
    /// Blocks that a multiprocessor holds at once.
    pub fn resident_blocks(&self, facts: &Facts) -> u32 {
        facts.resident_blocks(self.kernel.shape.tile().blocks_per_sm, self.shared_bytes)
    }
}

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

    /// The kernel of this name, with the options that suit it.
    ///
    /// # Errors
    /// If there is none; lists similar names.
    pub fn named(name: &str) -> Result<Self> {
        let rungs = || Rung::ALL.iter().map(|rung| rung.name());
        let rung = Rung::ALL.iter().find(|rung| rung.name() == name);
        let rung = rung.ok_or_else(|| Error::unknown_kernel(name, rungs()));
        Ok(Ladder::new(*rung?))
    }

    /// The type that products are summed in, by choice or by default.
    #[must_use]
    pub fn sums_in(&self) -> Accumulation {
        self.acc.unwrap_or_default()
    }

    /// The name of the kernel.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.rung.name()
    }

    /// Checks that the kernel can compute a [valid](Problem::validate) problem on a device, with these
    /// options.
    ///
    /// # Errors
    /// Says why it cannot, and what would.
    pub fn check(&self, device: &Device, dtype: ferroattn::Dtype, problem: &Problem) -> Result<()> {
        let computes = || self.unsuitable(format!("computes f16 and bf16, not {}", dtype.name()));
        let dtype = dtype.of_kernels().map_err(|_| computes())?;
        self.choose(dtype, problem, device.facts())?;
        self.check_compiled()
    }

    /// That this program has the kernels of the ladder.
    pub(crate) fn check_compiled(&self) -> Result<()> {
        match cfg!(feature = "ptx") {
            true => Ok(()),
            false => Err(self.unsuitable(format!(
                "is of the ladder, which this program is built without; type: cargo run -p host \
                 --release --features ladder -- --kernel {}",
                self.name()
            ))),
        }
    }

    /// The compiled kernel for a [valid](Problem::validate) problem, and its options.
    pub(crate) fn choose<'a>(
        &self,
        dtype: Dtype,
        problem: &Problem,
        facts: Option<&'a Facts>,
    ) -> Result<(Chosen, &'a Facts)> {
        self.check_options(dtype, problem.dim)?;
        let facts = facts.ok_or_else(|| Error::NotOnCpu(self.name().to_owned()))?;
        if !self.runs_on(facts) {
            let (major, minor) = facts.compute_capability;
            return Err(self.unsuitable(format!(
                "is for compute capability 9.0 (Hopper); the device has {major}.{minor}"
            )));
        }
        let fits = |stages| self.fitting(dtype, problem.dim, stages, facts);
        let found = match self.stages {
            Some(stages) => fits(stages),
            // The options that suit the kernel best come first, then blocks on a multiprocessor, then stages.
            None => {
                let resident = |chosen: &Chosen| chosen.resident_blocks(facts);
                let best = |stages| {
                    let [best, _] = self.variants(dtype, problem.dim, stages);
                    best.filter(|best| facts.fits(best.shared_bytes))
                };
                let best = (1..=MAX_STAGES).filter_map(best).max_by_key(resident);
                best.or_else(|| (1..=MAX_STAGES).filter_map(fits).max_by_key(resident))
            }
        };
        let found = found.ok_or_else(|| {
            let stages = self.stages.unwrap_or(1);
            let (needed, available) = (self.needed(dtype, problem.dim, stages), facts.shared.block);
            let counted = |stages| match stages {
                1 => "1 stage".to_owned(),
                stages => format!("{stages} stages"),
            };
            let fewer = (1..stages).rev().find(|&stages| fits(stages).is_some());
            let others = Rung::ALL.iter().rev().map(|&rung| match rung.has_options() {
                true => Ladder { rung, ..*self },
                false => Ladder::new(rung),
            });
            let mut others = others.filter(|other| {
                other.runs_on(facts) && other.check_options(dtype, problem.dim).is_ok()
            });
            let other = others.find_map(|other| {
                let most = other.stages.unwrap_or(1);
                let fits = |&n: &u32| other.fitting(dtype, problem.dim, n, facts).is_some();
                Some((other, (1..=most).rev().find(fits)?))
            });
            let instead = match (fewer, other) {
                (Some(fewer), _) => format!("; {} would fit", counted(fewer)),
                (None, Some((other, fewer))) if fewer < stages && other.stages.is_some() => {
                    format!("; {} with {} would fit", other.name(), counted(fewer))
                }
                (None, Some((other, _))) => format!("; {} would fit", other.name()),
                (None, None) => String::new(),
            };
            self.unsuitable(format!(
                "needs {needed} bytes of shared memory for a block with {} at dim {}; the device has \
                 {available}{instead}",
                counted(stages),
                problem.dim,
            ))
        })?;
        Ok((found, facts))
    }

    /// Whether a device has the instructions.
    fn runs_on(&self, facts: &Facts) -> bool {
        self.rung.target().runs_on(facts.compute_capability)
    }

    /// Whether there is such a kernel with such options.
    fn check_options(&self, dtype: Dtype, dim: usize) -> Result<()> {
        let options = [
            ("stages", self.stages.is_some()),
            ("swizzle", self.swizzles.is_some()),
            ("acc", self.acc.is_some()),
            ("o-store", self.o_store.is_some()),
        ];
        if let Some((option, _)) = options.iter().find(|(_, asked)| *asked)
            && !self.rung.has_options()
        {
            let others = with_options();
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
            .find(|chosen| facts.fits(chosen.shared_bytes))
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
        let found = variants(self.rung, dtype, self.sums_in().into(), dim as u32, stages);
        let Some((kernel, variants)) = found else {
            return [None; 2];
        };
        let (swizzled, padding) = self.swizzles.unwrap_or_default().bits_and_padding();
        variants.map(|options| {
            let options = Options {
                swizzled,
                padding,
                o_store: self.o_store.unwrap_or_default() as u32,
                ..options?
            };
            let shared_bytes = kernel.shape.shared_bytes_with(&options, dim as u32);
            Some(Chosen {
                kernel,
                options,
                shared_bytes,
            })
        })
    }

    fn unsuitable(&self, reason: impl Into<String>) -> Error {
        Error::unsuitable(self.name(), reason)
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
        let mut ladder = Ladder::named(name)?;
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

/// The names of the kernels with options, for a message.
#[must_use]
pub fn with_options() -> String {
    names(Rung::has_options)
}

fn names(is_named: fn(Rung) -> bool) -> String {
    let rungs = Rung::ALL.iter().filter(|&&rung| is_named(rung));
    rungs.map(|rung| rung.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Chosen, Ladder, Rung, Swizzles};
    use ferroattn::device::SharedMemory;
    use ferroattn::{Accumulation, Class, Facts, Problem, Result};
    use kernels::catalog::Dtype;

    fn problem(dim: usize) -> Problem {
        let shape = [1, 2, 300, dim];
        Problem::new(shape, shape, shape, false, None).expect("valid")
    }

    fn chosen(ladder: Ladder, dtype: Dtype, dim: usize, class: Class) -> Result<Chosen> {
        ladder
            .choose(dtype, &problem(dim), Some(&Facts::emulated(class)))
            .map(|(chosen, _)| chosen)
    }

    fn refused(ladder: Ladder, dtype: Dtype, dim: usize, class: Class) -> String {
        let error = chosen(ladder, dtype, dim, class).expect_err("refused");
        let message = error.to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        message
    }

    /// Whatever is chosen fits, holds the head dim, and has the dtype and the sums that were asked for.
    #[test]
    fn what_is_chosen_fits() {
        for (&class, &rung) in Class::ALL
            .iter()
            .flat_map(|c| Rung::ALL.iter().map(move |r| (c, r)))
        {
            for dim in (8..=rung.max_dim() as usize).step_by(8) {
                for (dtype, acc) in [
                    (Dtype::F16, None),
                    (Dtype::Bf16, None),
                    (Dtype::F16, Some(Accumulation::Half)),
                ] {
                    let acc = acc.filter(|_| rung.has_options());
                    let ladder = Ladder {
                        acc,
                        ..Ladder::new(rung)
                    };
                    let available = Facts::emulated(class).shared.block;
                    if !rung
                        .target()
                        .runs_on(Facts::emulated(class).compute_capability)
                    {
                        let message = refused(ladder, dtype, dim, class);
                        let (major, minor) = Facts::emulated(class).compute_capability;
                        assert!(
                            message.contains("is for compute capability 9.0"),
                            "{message}"
                        );
                        assert!(
                            message.ends_with(&format!("has {major}.{minor}")),
                            "{message}"
                        );
                        continue;
                    }
                    match chosen(ladder, dtype, dim, class) {
                        Ok(chosen) => {
                            assert!(chosen.shared_bytes <= available, "{ladder:?}, {dim}");
                            assert!(chosen.kernel.shape.dim() as usize >= dim);
                            assert_eq!(chosen.kernel.shape.dtype, dtype);
                        }
                        // Only for want of memory, and never where the tiles are meant to be small.
                        Err(error) => {
                            println!("{} {rung:?} {dim} {acc:?}: {error}", class.name());
                            assert!(error.to_string().contains("shared memory"), "{error}");
                            assert!(rung != Rung::TiledQkv && rung.has_options(), "{error}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn as_many_stages_as_leave_room_for_other_blocks() {
        let buffers = |rung, dim, class| {
            let ladder = Ladder::new(rung);
            chosen(ladder, Dtype::F16, dim, class).map(|chosen| chosen.options.buffers)
        };
        assert_eq!(buffers(Rung::SharedKv, 64, Class::Sm86), Ok(3));
        assert_eq!(buffers(Rung::SplitQ, 64, Class::Sm90), Ok(6));
        // Two blocks of one stage, two of two, and one block, which two stages do not make smaller.
        assert_eq!(buffers(Rung::SplitQ, 256, Class::Sm80), Ok(2));
        assert_eq!(buffers(Rung::SplitQ, 256, Class::Sm90), Ok(4));
        assert_eq!(buffers(Rung::SplitQ, 256, Class::Sm86), Ok(4));
        // Asked for, they are as many or refused.
        for stages in 1..=3 {
            let ladder = Ladder {
                stages: Some(stages),
                ..Ladder::new(Rung::SplitQ)
            };
            match chosen(ladder, Dtype::F16, 256, Class::Sm86) {
                Ok(chosen) => assert_eq!(chosen.options.buffers, 2 * stages),
                Err(error) => assert!(error.to_string().contains("would fit"), "{error}"),
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let ladder = Ladder {
            stages: Some(3),
            ..Ladder::new(Rung::SplitQ)
        };
        let message = refused(ladder, Dtype::F16, 256, Class::Sm86);
        for words in [
            "kernel split-q needs",
            "3 stages at dim 256",
            "has 101376",
            "fit",
        ] {
            assert!(message.contains(words), "{message}");
        }
        let message = refused(Ladder::new(Rung::TiledQk), Dtype::F16, 1024, Class::Sm86);
        assert!(
            message.contains("1 stage at") && message.contains("tiled-qkv would fit"),
            "{message}"
        );
        // The number of stages that was asked for need not fit the other kernel either.
        let staged = |stages| Ladder {
            stages: Some(stages),
            ..Ladder::new(Rung::TiledQk)
        };
        for (stages, suffix) in [
            (1, "; tiled-qkv would fit"),
            (3, "; tiled-qkv with 1 stage would fit"),
        ] {
            let message = refused(staged(stages), Dtype::F16, 1024, Class::Sm86);
            assert!(message.ends_with(suffix), "{message}");
        }
        // Nothing fits a device with less than any class.
        let mut tiny = Facts::emulated(Class::Sm80);
        tiny.shared = SharedMemory {
            block: 10 << 10,
            multiprocessor: 11 << 10,
        };
        let error = Ladder::new(Rung::SharedKv).choose(Dtype::F16, &problem(64), Some(&tiny));
        let message = error.expect_err("refused").to_string();
        assert!(message.ends_with("naive would fit"), "{message}");
    }

    /// Rows a chunk apart take more memory: a rung may fit with a swizzle and not with padding.
    #[test]
    fn padding_counts() {
        for (&rung, dim) in Rung::ALL
            .iter()
            .zip([64; 8])
            .filter(|(rung, _)| rung.has_options())
        {
            let bytes = |swizzles| {
                let ladder = Ladder {
                    swizzles: Some(swizzles),
                    stages: Some(1),
                    ..Ladder::new(rung)
                };
                let chosen = chosen(ladder, Dtype::F16, dim, Class::Sm90).expect("fits");
                chosen.shared_bytes
            };
            assert!(bytes(Swizzles::Pad) > bytes(Swizzles::None), "{rung:?}");
            assert_eq!(bytes(Swizzles::Qkv), bytes(Swizzles::None), "{rung:?}");
        }
    }

    #[test]
    fn options_that_are_not_there_are_refused() {
        let class = Class::Sm90;
        let stages = |rung, stages| Ladder {
            stages: Some(stages),
            ..Ladder::new(rung)
        };
        for rung in [Rung::Naive, Rung::Fa1, Rung::Tma] {
            let message = refused(stages(rung, 3), Dtype::F16, 64, class);
            assert!(
                message.contains("has no option stages") && message.contains("split-q"),
                "{message}"
            );
        }
        for wrong in [0, 4, u32::MAX] {
            let message = refused(stages(Rung::SharedKv, wrong), Dtype::F16, 64, class);
            assert!(
                message.contains(&format!("1 to 3 stages, not {wrong}")),
                "{message}"
            );
        }
        let half = Ladder {
            acc: Some(Accumulation::Half),
            ..Ladder::new(Rung::SharedKv)
        };
        let message = refused(half, Dtype::Bf16, 64, class);
        assert!(
            message.contains("f16 for dtype f16 only; acc f32"),
            "{message}"
        );
        let message = refused(Ladder::new(Rung::SplitQ), Dtype::F16, 264, class);
        assert!(
            message.contains("up to 256, not 264; naive, tiled-qk, tiled-qkv serve up to 1024"),
            "{message}"
        );
    }
}
