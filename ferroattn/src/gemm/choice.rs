//! Which kernel computes a matrix product.

use super::{Accumulation, Gemm, GemmProblem};
use crate::device::Facts;
use crate::error::{Error, Result};
use crate::plan::CPU;
use crate::tensor::Dtype;
use kernels::catalog::{self, GemmKind, KERNELS, Kernel};
use std::collections::BTreeSet;

/// The name of the kernel without shared memory.
pub const SIMPLE: &str = "gemm-simple";

/// The name of the pipelined kernels, of which the tile that suits the problem is taken.
pub const MULTISTAGE: &str = "gemm-multistage";

/// The name of the kernels for Hopper (compute capability 9.0).
pub const HOPPER: &str = "gemm-hopper";

impl Gemm {
    /// Names of all kernels that can compute with these options on a device with these facts, whatever kernel the
    /// options name; on the CPU, which is `None`, its own.
    ///
    /// # Errors
    /// If there is none for the number of stages or the accumulation, or no device has these facts.
    pub fn suitable(&self, facts: Option<&Facts>, dtype: Dtype) -> Result<Vec<&'static str>> {
        self.expect_accumulation(dtype)?;
        let Some(facts) = facts else {
            return Ok(vec![CPU]);
        };
        facts.validate()?;
        dtype.of_kernels()?;
        let candidates = self.candidates(None, dtype)?;
        let running = candidates.iter().filter(|kernel| runs(kernel, facts));
        Ok(running.map(|kernel| kernel.name).collect())
    }

    /// Names of the families ([`SIMPLE`], [`MULTISTAGE`], [`HOPPER`]) that have [such](Self::suitable) a kernel.
    ///
    /// # Errors
    /// The conditions of [`suitable`](Self::suitable).
    pub fn families(&self, facts: Option<&Facts>, dtype: Dtype) -> Result<Vec<&'static str>> {
        let suitable = self.suitable(facts, dtype)?;
        if facts.is_none() {
            return Ok(suitable);
        }
        let of = |family: &&str| {
            kernels()
                .any(|(kernel, gemm)| family_of(gemm) == *family && suitable.contains(&kernel.name))
        };
        Ok(FAMILIES.into_iter().filter(of).collect())
    }

    /// The kernel for a device with these facts, and inputs that have tensor maps or not. The CPU has neither facts nor
    /// a kernel; it has no stages and adds up in f32.
    pub(super) fn resolve(
        &self,
        dtype: Dtype,
        problem: &GemmProblem,
        facts: Option<&Facts>,
        has_maps: bool,
    ) -> Result<Option<&'static Kernel>> {
        self.expect_accumulation(dtype)?;
        let Some(facts) = facts else {
            return match self.kernel.as_deref() {
                None | Some(CPU) => Ok(None),
                Some(name) => {
                    self.candidates(Some(name), dtype)?;
                    Err(Error::NotOnCpu(name.to_owned()))
                }
            };
        };
        dtype.of_kernels()?;
        let family = |name| self.candidates(Some(name), dtype);
        // Where the device and the options have a Hopper kernel, it is the fastest at all sizes.
        let hopper = family(HOPPER).is_ok_and(|kernels| kernels.iter().all(|k| runs(k, facts)));
        let fastest = if hopper { HOPPER } else { MULTISTAGE };
        let name = self.kernel.as_deref().unwrap_or(fastest);
        let mut candidates = family(name)?;
        if !has_maps && candidates[0].takes_maps() {
            candidates = family(MULTISTAGE)?;
        }
        let best = |kernels: &[&'static Kernel]| {
            let fits = |kernel: &&Kernel| facts.fits(kernel.launch.shared_bytes);
            let fitting = kernels.iter().copied().filter(fits);
            fitting.min_by(|a, b| time(a, problem, facts).total_cmp(&time(b, problem, facts)))
        };
        if let Some(kernel) = best(&candidates) {
            return Ok(Some(kernel));
        }
        Err(Error::SharedMemory {
            kernel: candidates[0].name,
            needed: candidates[0].launch.shared_bytes,
            available: facts.shared.block,
            instead: best(&family(MULTISTAGE).unwrap_or_default()).map(|kernel| kernel.name),
        })
    }

    /// The kernels that go by a name, or all, as far as the other options allow them: at least one.
    fn candidates(&self, name: Option<&str>, dtype: Dtype) -> Result<Vec<&'static Kernel>> {
        let named: Vec<_> = kernels()
            .filter(|(kernel, gemm)| match name {
                None => true,
                Some(name) => [kernel.name, family_of(gemm)].contains(&name),
            })
            .collect();
        let name = name.unwrap_or("all");
        if named.is_empty() {
            let names = kernels().map(|(kernel, _)| kernel.name);
            let names = [SIMPLE, MULTISTAGE, HOPPER]
                .into_iter()
                .chain(names)
                .chain([CPU]);
            return Err(match name {
                CPU => Error::unsuitable(CPU, "runs on the CPU only"),
                _ => Error::unknown_kernel(name, names),
            });
        }
        let has_types = |gemm: &catalog::Gemm| {
            Dtype::from(gemm.dtype) == dtype && gemm.accumulation == self.accumulation.of_kernels()
        };
        let typed: Vec<_> = named.iter().filter(|(_, gemm)| has_types(gemm)).collect();
        if typed.is_empty() {
            let shown = |dtype: Dtype, sums: Accumulation| {
                format!("{} with accumulation in {}", dtype.name(), sums.name())
            };
            let takes = named
                .iter()
                .map(|(_, gemm)| shown(gemm.dtype.into(), gemm.accumulation.into()));
            let takes = Vec::from_iter(BTreeSet::from_iter(takes)).join(", ");
            let given = shown(dtype, self.accumulation);
            let reason = format!("is not for {given}; it takes {takes}");
            return Err(Error::unsuitable(name, reason));
        }
        let staged: Vec<_> = typed
            .iter()
            .filter(|(_, gemm)| self.stages.is_none_or(|stages| stages == gemm.tile.stages))
            .map(|(kernel, _)| *kernel)
            .collect();
        if staged.is_empty() {
            let stages = BTreeSet::from_iter(typed.iter().map(|(_, gemm)| gemm.tile.stages));
            let listed = Vec::from_iter(stages.iter().map(u32::to_string)).join(", ");
            let reason = match stages.last() {
                Some(0) => "has no stages to choose".to_owned(),
                _ => format!("comes with stages {listed}"),
            };
            return Err(Error::unsuitable(name, reason));
        }
        Ok(staged)
    }

    fn expect_accumulation(&self, dtype: Dtype) -> Result<()> {
        match (dtype, self.accumulation) {
            (Dtype::F16, _) | (_, Accumulation::Single) => Ok(()),
            _ => Err(Error::Accumulation),
        }
    }
}

/// The names that stand for several kernels, the fastest first.
pub const FAMILIES: [&str; 3] = [HOPPER, MULTISTAGE, SIMPLE];

fn family_of(gemm: &catalog::Gemm) -> &'static str {
    match gemm.kind {
        GemmKind::Simple => SIMPLE,
        GemmKind::Multistage => MULTISTAGE,
        GemmKind::Hopper => HOPPER,
    }
}

/// Every matrix product of the catalog: of equally fast ones the better first.
fn kernels() -> impl Iterator<Item = (&'static Kernel, &'static catalog::Gemm)> {
    let kernels = KERNELS.iter();
    kernels.filter_map(|kernel| Some((kernel, kernel.gemm()?)))
}

/// Whether a device with these facts runs a kernel.
fn runs(kernel: &Kernel, facts: &Facts) -> bool {
    facts.fits(kernel.launch.shared_bytes) && kernel.target.runs_on(facts.compute_capability)
}

/// Blocks of a kernel that a multiprocessor holds at once.
pub(super) fn resident_blocks(kernel: &Kernel, facts: &Facts) -> u32 {
    let launch = kernel.launch;
    facts.resident_blocks(launch.blocks_per_sm, launch.shared_bytes)
}

/// A measure of the time that a kernel takes, beside others of its family: the number of its waves, of as many blocks as
/// the GPU holds, times the elements of a wave. Small tiles wait more for shared memory, and on Hopper for the L2 cache.
fn time(kernel: &'static Kernel, problem: &GemmProblem, facts: &Facts) -> f64 {
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let (rows, columns) = (tile.rows as usize, tile.columns as usize);
    let blocks = problem.m.div_ceil(rows) as f64 * problem.n.div_ceil(columns) as f64;
    let resident = f64::from(resident_blocks(kernel, facts));
    let waves = (blocks / (f64::from(facts.multiprocessors) * resident)).ceil();
    let slowness = match (rows, columns) {
        (64, _) => 1.5,
        (_, 192) => 1.05,
        _ => 1.0,
    };
    waves * resident * (rows * columns) as f64 * slowness
}

#[cfg(test)]
mod tests {
    use super::{Accumulation, FAMILIES, Gemm, HOPPER, MULTISTAGE, SIMPLE};
    use crate::device::Facts;
    use crate::device::{Class, SharedMemory};
    use crate::error::Error;
    use crate::gemm::{GemmProblem, RawGemm};
    use crate::plan::CPU;
    use crate::tensor::Dtype;

    const H100: Facts = Facts::emulated(Class::Sm90);

    /// The kernel of row-major f16 matrices, changed by `change`.
    fn kernel(
        gemm: &Gemm,
        facts: &Facts,
        [m, n, k]: [usize; 3],
        change: fn(&mut RawGemm),
    ) -> &'static str {
        let mut args = RawGemm::row_major(GemmProblem { m, n, k });
        change(&mut args);
        let plan = gemm.plan(Some(facts), Dtype::F16, &args);
        plan.expect("a kernel").kernel
    }

    #[test]
    fn hopper_kernels_serve_hopper() {
        let of = |facts: Facts, size| kernel(&Gemm::new(), &facts, size, |_| {});
        let large = [8192, 8192, 8192];
        assert_eq!(of(H100, large), "gemm_hopper_f16_f32_128x256x64x4");
        for class in [Class::Sm80, Class::Sm86, Class::Sm100] {
            let name = of(Facts::emulated(class), large);
            assert!(name.starts_with("gemm_f16_f32"), "{name}");
        }
        // A device of that generation with less shared memory.
        let small = SharedMemory {
            block: 163 << 10,
            multiprocessor: 164 << 10,
        };
        let name = of(
            Facts {
                shared: small,
                ..H100
            },
            large,
        );
        assert!(name.starts_with("gemm_f16_f32"), "{name}");
    }

    /// The fastest on an H200 (`docs/diary.md`).
    #[test]
    fn tiles_leave_little_of_the_gpu_idle() {
        for (tile, sizes) in [
            (
                "128x256x64x4",
                [
                    [8192, 8192, 8192],
                    [2048, 2048, 2048],
                    [512, 8192, 8192],
                    [81_920, 256, 256],
                ],
            ),
            (
                "128x192x64x4",
                [
                    [3072, 3072, 3072],
                    [1536, 1536, 4096],
                    [384, 8192, 8192],
                    [768, 8192, 8192],
                ],
            ),
            (
                "64x128x64x8",
                [
                    [1, 1, 1],
                    [1024, 1024, 1024],
                    [256, 8192, 8192],
                    [8192, 128, 8192],
                ],
            ),
        ] {
            for size in sizes {
                let name = kernel(&Gemm::new(), &H100, size, |_| {});
                assert_eq!(name, format!("gemm_hopper_f16_f32_{tile}"), "{size:?}");
            }
        }
    }

    #[test]
    fn what_has_no_tensor_map_goes_to_a_multistage_kernel() {
        let size = [8192, 8192, 8192];
        for gemm in [Gemm::new(), Gemm::new().kernel(HOPPER)] {
            let of = |size, change| kernel(&gemm, &H100, size, change);
            for name in [
                of(size, |args| args.a.strides[0] = -8192),
                of(size, |args| args.b.strides[0] = 0),
                of(size, |args| args.b.strides[0] = 1 << 39),
                of([8192, 8192, 0], |_| {}),
            ] {
                assert!(name.starts_with("gemm_f16_f32"), "{name}");
            }
            // A copy has a map, and so has one row, whatever its stride.
            for name in [
                of(size, |args| args.a.strides[0] = -8193),
                of(size, |args| args.b.address = 2),
                of([1, 8192, 8192], |args| args.a.strides[0] = -8),
            ] {
                assert!(name.starts_with("gemm_hopper"), "{name}");
            }
        }
    }

    #[test]
    fn options_decide_among_families() {
        let of = |gemm: Gemm| kernel(&gemm, &H100, [8192, 8192, 8192], |_| {});
        let half = Accumulation::Half;
        assert!(of(Gemm::new().accumulation(half)).starts_with("gemm_f16_f16"));
        assert!(of(Gemm::new().stages(3)).starts_with("gemm_f16_f32"));
        assert_eq!(of(Gemm::new().stages(8)), "gemm_hopper_f16_f32_64x128x64x8");
        assert!(of(Gemm::new().kernel(MULTISTAGE)).starts_with("gemm_f16_f32"));
        let refused = |gemm: Gemm| {
            let args = RawGemm::row_major(GemmProblem { m: 1, n: 1, k: 1 });
            gemm.plan(Some(&H100), Dtype::F16, &args)
                .expect_err("refused")
        };
        let sums = refused(Gemm::new().kernel(HOPPER).accumulation(half));
        assert!(matches!(sums, Error::UnsuitableKernel { .. }), "{sums}");
        let stages = refused(Gemm::new().stages(7)).to_string();
        assert!(stages.contains("stages 3, 4, 5"), "{stages}");
    }

    #[test]
    fn device_and_options_decide_the_families() {
        let of = |class, gemm: Gemm| gemm.families(Some(&Facts::emulated(class)), Dtype::F16);
        assert_eq!(of(Class::Sm90, Gemm::new()), Ok(FAMILIES.to_vec()));
        assert_eq!(Gemm::new().families(None, Dtype::F16), Ok(vec![CPU]));
        let older = of(Class::Sm80, Gemm::new());
        assert_eq!(older, Ok(vec![MULTISTAGE, SIMPLE]));
        let half = of(Class::Sm90, Gemm::new().accumulation(Accumulation::Half));
        assert_eq!(half, Ok(vec![MULTISTAGE, SIMPLE]));
        assert_eq!(
            of(Class::Sm90, Gemm::new().stages(4)),
            Ok(vec![HOPPER, MULTISTAGE])
        );
    }
}
