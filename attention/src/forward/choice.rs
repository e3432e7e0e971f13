//! Which kernel computes a problem.

use super::Problem;
use super::schedule::{group, request};
use crate::device::{Device, Facts};
use crate::error::{Error, Result};
use crate::gemm;
pub use crate::plan::CPU;
use crate::tensor::Dtype;
use kernels::abi::MAX_SEQLEN;
use kernels::catalog::select::{is_wide, select};
use kernels::catalog::{self, Family, Forward, KERNELS, Kernel, Kind};

/// Names of the kernels that can compute a [valid](Problem::validate) problem on a device, the
/// default one first.
///
/// # Errors
/// If the device computes with kernels, and there are none for the element type.
pub fn suitable(device: &Device, dtype: Dtype, problem: &Problem) -> Result<Vec<&'static str>> {
    let Some(facts) = device.facts() else {
        return Ok(vec![CPU]);
    };
    let dtype = dtype.of_kernels()?;
    let mut kernels: Vec<_> = KERNELS
        .iter()
        .filter(|kernel| obstacle(kernel, dtype, problem).is_none())
        .filter(|kernel| kernel.target().runs_on(facts.compute_capability))
        .filter(|kernel| fits(kernel, facts))
        .collect();
    let default = select(&request(dtype, problem, facts));
    kernels.sort_by_key(|&kernel| Some(kernel) != default);
    Ok(kernels.iter().map(|kernel| kernel.name).collect())
}

/// Checks that the kernel of that name can compute a problem on a device.
///
/// # Errors
/// If there is no such kernel (the error lists similar names), or says why it cannot.
pub fn check(device: &Device, name: &str, dtype: Dtype, problem: &Problem) -> Result<()> {
    match device.facts() {
        None => resolve_cpu(name, dtype, problem),
        Some(facts) => resolve(Some(name), dtype.of_kernels()?, problem, facts).map(|_| ()),
    }
}

/// The kernel of that name, or the best one, for a CUDA device or the emulator.
pub(crate) fn resolve(
    name: Option<&str>,
    dtype: catalog::Dtype,
    problem: &Problem,
    facts: &Facts,
) -> Result<&'static Kernel> {
    let kernel = match name {
        None => select(&request(dtype, problem, facts)).ok_or(Error::Dim(problem.dim))?,
        Some(CPU) => return Err(unsuitable(CPU, "runs on the CPU only")),
        Some(name) => {
            let kernel = find(name)?;
            if let Some(reason) = obstacle(kernel, dtype, problem) {
                return Err(unsuitable(name, reason));
            }
            kernel
        }
    };
    if fits(kernel, facts) {
        return Ok(kernel);
    }
    let counterpart = |forward: &Forward| {
        let counterpart = forward.counterpart(facts.class());
        catalog::kernel(Family::Forward(counterpart))
    };
    let instead = kernel.forward().map(counterpart);
    Err(Error::SharedMemory {
        kernel: kernel.name,
        needed: kernel.shared_bytes(),
        available: facts.shared.block,
        instead: instead
            .filter(|instead| fits(instead, facts))
            .map(|instead| instead.name),
    })
}

/// Whether a device has the shared memory for a kernel's blocks.
fn fits(kernel: &'static Kernel, facts: &Facts) -> bool {
    facts.fits(kernel.shared_bytes())
}

/// Checks that `name` is one that the CPU goes by; of another kernel, says first what it would lack on any
/// device.
pub(crate) fn resolve_cpu(name: &str, dtype: Dtype, problem: &Problem) -> Result<()> {
    if name == CPU {
        return Ok(());
    }
    let dtype = dtype.of_kernels()?;
    match obstacle(find(name)?, dtype, problem) {
        Some(reason) => Err(unsuitable(name, reason)),
        None => Err(Error::NotOnCpu {
            kernel: name.to_owned(),
        }),
    }
}

/// Looks a GPU kernel up by name.
fn find(name: &str) -> Result<&'static Kernel> {
    if [gemm::SIMPLE, gemm::MULTISTAGE].contains(&name) {
        return Err(multiplies(name));
    }
    match catalog::named(name).ok_or_else(|| unknown(name))? {
        kernel if kernel.gemm().is_some() => Err(multiplies(name)),
        kernel => Ok(kernel),
    }
}

/// No kernel has that name.
pub(crate) fn unknown(name: &str) -> Error {
    Error::UnknownKernel {
        name: name.to_owned(),
        near: near(name),
    }
}

/// Why a kernel cannot compute a problem.
fn obstacle(kernel: &Kernel, dtype: catalog::Dtype, problem: &Problem) -> Option<String> {
    let forward = match kernel.family {
        Family::Forward(forward) => forward,
        Family::Combine(_) => {
            return Some("combines what other kernels find on splits of the keys".to_owned());
        }
        Family::Pack(_) => return Some("copies what other kernels compute with".to_owned()),
        Family::Gemm(_) => return Some("multiplies matrices".to_owned()),
        Family::BulkCopy(_) => return Some("copies numbers".to_owned()),
    };
    let dim = problem.dim;
    if forward.dtype != dtype {
        let (needed, found) = (forward.dtype.name(), dtype.name());
        Some(format!("is for dtype {needed}, not {found}"))
    } else if !forward.kind.serves(problem.causal) {
        let mask = if problem.causal {
            "attention without a mask"
        } else {
            "causal attention only"
        };
        Some(format!("is for {mask}"))
    } else if (forward.dim as usize) < dim {
        Some(format!("serves dim up to {}, not {dim}", forward.dim))
    } else if forward.kind == Kind::Wide && !is_wide(dim as u32) {
        Some(format!("serves dim above 256, not {dim}"))
    } else if forward.kind.is_packed()
        && problem.seqlen_q as u128 * group(problem) as u128 > u128::from(MAX_SEQLEN)
    {
        let rows = "seqlen_q * heads / kv_heads";
        Some(format!("serves {rows} up to {MAX_SEQLEN}"))
    } else {
        None
    }
}

/// A kernel of matrix products.
fn multiplies(name: &str) -> Error {
    Error::Multiplies {
        kernel: name.to_owned(),
    }
}

fn unsuitable(name: &str, reason: impl Into<String>) -> Error {
    Error::UnsuitableKernel {
        kernel: name.to_owned(),
        reason: reason.into(),
    }
}

/// The names of kernels most similar to `name`, best first; none if none is similar.
fn near(name: &str) -> Vec<&'static str> {
    let names = KERNELS.iter().map(|kernel| kernel.name);
    let others = [CPU, gemm::SIMPLE, gemm::MULTISTAGE];
    nearest(name, names.chain(others))
}

/// Of some names the three most similar to `name`, best first; none if none is similar.
#[must_use]
pub fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut near: Vec<_> = names
        .map(|known| (strsim::jaro_winkler(known, name), known))
        .filter(|&(similarity, _)| similarity > 0.7)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().take(3).map(|(_, known)| known).collect()
}

#[cfg(test)]
mod tests {
    use super::{CPU, resolve, resolve_cpu};
    use crate::device::Facts;
    use crate::error::{Error, Result};
    use crate::forward::Problem;
    use kernels::catalog::Dtype;
    use kernels::catalog::class::{Class, SharedMemory};

    const H100: Facts = Facts::emulated(Class::Sm90);

    fn resolved(name: Option<&str>, q: [usize; 4], kv: [usize; 4]) -> Result<&'static str> {
        resolved_on(&H100, name, q, kv)
    }

    fn resolved_on(
        facts: &Facts,
        name: Option<&str>,
        q: [usize; 4],
        kv: [usize; 4],
    ) -> Result<&'static str> {
        let problem = Problem::new(q, kv, kv, false, None).expect("valid");
        resolve(name, Dtype::F16, &problem, facts).map(|kernel| kernel.name)
    }

    fn named(name: &str) -> Result<&'static str> {
        resolved(Some(name), [1, 2, 500, 64], [1, 2, 500, 64])
    }

    #[test]
    fn the_default_is_the_smallest_that_holds_the_dim() {
        let name = |rows, dim| resolved(None, [1, 2, rows, dim], [1, 1, 90, dim]);
        assert_eq!(name(500, 40), Ok("forward_f16_d64"));
        assert_eq!(name(500, 256), Ok("forward_f16_d256"));
        assert_eq!(name(3, 40), Ok("decode_f16_d64"));
        assert_eq!(name(50, 40), Ok("packed_f16_d64"));
    }

    #[test]
    fn a_named_kernel_must_serve_the_problem() {
        for name in ["forward_f16_d128", "packed_f16_d64", "decode_f16_d64"] {
            assert_eq!(named(name), Ok(name));
        }
        for name in [
            "forward_f16_d32",
            "forward_bf16_d64",
            "forward_f16_d64_causal",
            "decode_f16_d32",
            "combine_f16",
            "pack",
            CPU,
        ] {
            let error = named(name).expect_err("unsuitable");
            assert!(
                matches!(error, Error::UnsuitableKernel { .. }),
                "{name}: {error}"
            );
        }
        let (q, kv) = ([1, 4, 1 << 30, 8], [1, 1, 1, 8]);
        for name in ["packed_f16_d32", "decode_f16_d32"] {
            let error = resolved(Some(name), q, kv).expect_err("too many rows");
            assert!(error.to_string().contains("up to"), "{error}");
        }
    }

    #[test]
    fn a_kernel_must_fit_the_device() {
        let shape = [1, 2, 500, 128];
        let on = |class, name: &str| resolved_on(&Facts::emulated(class), Some(name), shape, shape);
        for class in [Class::Sm80, Class::Sm90] {
            assert_eq!(
                on(class, "forward_f16_d256_128x32"),
                Ok("forward_f16_d256_128x32")
            );
        }
        // One block of 64 KB fits, if not as many as it is meant for.
        assert_eq!(on(Class::Sm86, "forward_f16_d128"), Ok("forward_f16_d128"));
        let error = on(Class::Sm86, "forward_f16_d256_128x32").expect_err("too large");
        assert_eq!(
            error.to_string(),
            "kernel forward_f16_d256_128x32 needs 131072 bytes of shared memory for a block; \
             the device has 101376; forward_f16_d256_128x16 would fit"
        );
        // Less than any class: no other name helps, and the default says so too.
        let tiny = Facts {
            shared: SharedMemory {
                block: 40 << 10,
                multiprocessor: 64 << 10,
            },
            ..H100
        };
        for name in [None, Some("forward_f16_d128")] {
            let error = resolved_on(&tiny, name, shape, shape).expect_err("too large");
            assert!(
                matches!(
                    error,
                    Error::SharedMemory {
                        instead: None,
                        available: 40960,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unknown_kernel_has_near_names() {
        let shape = [1, 2, 500, 64];
        let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
        let near = |name| match resolve_cpu(name, Dtype::F16.into(), &problem) {
            Err(Error::UnknownKernel { near, .. }) => near,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(near("forward_f16_d46")[0], "forward_f16_d64");
        assert!(near("zzz").is_empty());
    }
}
