//! Which kernel computes a matrix product.

use super::{Accumulation, Gemm, GemmProblem};
use crate::device::{Device, Facts};
use crate::error::{Error, Result};
use crate::plan::CPU;
use crate::tensor::Dtype;
use kernels::catalog::{self, KERNELS, Kernel};
use std::collections::BTreeSet;

/// The name of the kernel without shared memory.
pub const SIMPLE: &str = "gemm-simple";

/// The name of the pipelined kernels, of which the tile that suits the problem is taken.
pub const MULTISTAGE: &str = "gemm-multistage";

impl Gemm {
    /// Names of all kernels that can compute with these options on a device, whatever kernel the
    /// options name.
    ///
    /// # Errors
    /// If there is none for the number of stages or the accumulation.
    pub fn suitable(&self, device: &Device, dtype: Dtype) -> Result<Vec<&'static str>> {
        self.expect_accumulation(dtype)?;
        let Some(facts) = device.facts() else {
            return Ok(vec![CPU]);
        };
        dtype.of_kernels()?;
        let candidates = self.candidates(None, dtype)?;
        let fits = |kernel: &&&Kernel| facts.fits(kernel.shared_bytes());
        let fitting = candidates.iter().filter(fits);
        Ok(fitting.map(|kernel| kernel.name).collect())
    }

    /// The kernel for a device with these facts. The CPU has neither facts nor a kernel; it has no stages and adds
    /// up in f32.
    pub(super) fn resolve(
        &self,
        dtype: Dtype,
        problem: &GemmProblem,
        facts: Option<&Facts>,
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
        let name = self.kernel.as_deref().unwrap_or(MULTISTAGE);
        let candidates = self.candidates(Some(name), dtype)?;
        let best = |kernels: &[&'static Kernel]| {
            let fits = |kernel: &&Kernel| facts.fits(kernel.shared_bytes());
            let fitting = kernels.iter().copied().filter(fits);
            fitting.min_by(|a, b| time(a, problem, facts).total_cmp(&time(b, problem, facts)))
        };
        if let Some(kernel) = best(&candidates) {
            return Ok(Some(kernel));
        }
        let others = self.candidates(Some(MULTISTAGE), dtype).unwrap_or_default();
        Err(Error::SharedMemory {
            kernel: candidates[0].name,
            needed: candidates[0].shared_bytes(),
            available: facts.shared.block,
            instead: best(&others).map(|kernel| kernel.name),
        })
    }

    /// The kernels that go by a name, or all, as far as the other options allow them: at least one.
    fn candidates(&self, name: Option<&str>, dtype: Dtype) -> Result<Vec<&'static Kernel>> {
        let named: Vec<_> = kernels()
            .filter(|(kernel, gemm)| match name {
                None => true,
                Some(SIMPLE) => gemm.tile.stages == 0,
                Some(MULTISTAGE) => gemm.tile.stages > 0,
                Some(name) => kernel.name == name,
            })
            .collect();
        let name = name.unwrap_or("all");
        if named.is_empty() {
            let names = kernels().map(|(kernel, _)| kernel.name);
            let names = [SIMPLE, MULTISTAGE].into_iter().chain(names).chain([CPU]);
            return Err(match name {
                CPU => Error::unsuitable(CPU, "runs on the CPU only"),
                _ => Error::unknown_kernel(name, names),
            });
        }
        let has_types = |gemm: &catalog::Gemm| {
            Dtype::from(gemm.dtype) == dtype && gemm.accumulation == self.accumulation
        };
        let typed: Vec<_> = named.iter().filter(|(_, gemm)| has_types(gemm)).collect();
        if typed.is_empty() {
            let shown = |dtype: Dtype, sums: Accumulation| {
                format!("{} with accumulation in {}", dtype.name(), sums.name())
            };
            let takes = named
                .iter()
                .map(|(_, gemm)| shown(gemm.dtype.into(), gemm.accumulation));
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

/// Every matrix product of the catalog: of equally fast ones the better first.
fn kernels() -> impl Iterator<Item = (&'static Kernel, &'static catalog::Gemm)> {
    let kernels = KERNELS.iter();
    kernels.filter_map(|kernel| Some((kernel, kernel.gemm()?)))
}

/// Blocks of a kernel that a multiprocessor holds at once.
pub(super) fn resident_blocks(kernel: &Kernel, facts: &Facts) -> u32 {
    facts.resident_blocks(kernel.blocks_per_sm(), kernel.shared_bytes())
}

/// A measure of the time that a kernel takes: the number of its waves, of as many blocks as the GPU holds, times
/// the elements of a wave. Small tiles wait more for shared memory.
fn time(kernel: &'static Kernel, problem: &GemmProblem, facts: &Facts) -> f64 {
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let (rows, columns) = (tile.rows as usize, tile.columns as usize);
    let blocks = problem.m.div_ceil(rows) as f64 * problem.n.div_ceil(columns) as f64;
    let resident = f64::from(resident_blocks(kernel, facts));
    let waves = (blocks / (f64::from(facts.multiprocessors) * resident)).ceil();
    let slowness = if rows * columns < 128 * 128 { 1.5 } else { 1.0 };
    waves * resident * (rows * columns) as f64 * slowness
}
