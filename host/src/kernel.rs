//! Which kernel computes a problem.

use crate::device::{Backend, Device};
use crate::error::{Error, Result};
use kernels::table::{Arch, Dtype, KERNELS, Kernel, select};

/// The name that the CPU implementation goes by among the kernels.
pub const CPU: &str = "cpu";

/// Names of the kernels that can compute a problem on a device, the default one first.
#[must_use]
pub fn suitable(device: &Device, dtype: Dtype, dim: usize, causal: bool) -> Vec<&'static str> {
    match device.backend() {
        Backend::Cpu => vec![CPU],
        Backend::Cuda(_) | Backend::Emulator(_) => {
            let mut kernels: Vec<_> = KERNELS
                .iter()
                .filter(|kernel| obstacle(kernel, dtype, dim, causal).is_none())
                .filter(|kernel| runs_on(kernel, device))
                .collect();
            let default = select(dtype, dim as u32, causal);
            kernels.sort_by_key(|&kernel| Some(kernel) != default);
            kernels.iter().map(|kernel| kernel.name).collect()
        }
    }
}

/// Checks that the kernel of that name can compute a problem on a device.
///
/// # Errors
/// If there is no such kernel (the error lists similar names), or says why it cannot.
pub fn check(device: &Device, name: &str, dtype: Dtype, dim: usize, causal: bool) -> Result<()> {
    match device.backend() {
        Backend::Cpu => resolve_cpu(Some(name)),
        Backend::Cuda(_) | Backend::Emulator(_) => {
            resolve(Some(name), dtype, dim, causal).map(|_| ())
        }
    }
}

/// Whether the device executes the kernel's PTX.
fn runs_on(kernel: &Kernel, device: &Device) -> bool {
    match device.backend() {
        Backend::Cpu => false,
        Backend::Cuda(gpu) => kernel.arch.compute_capability() <= gpu.compute_capability(),
        Backend::Emulator(_) => kernel.arch == Arch::Sm80,
    }
}

/// The kernel of that name, or the best one, for a CUDA device or the emulator.
pub(crate) fn resolve(
    name: Option<&str>,
    dtype: Dtype,
    dim: usize,
    causal: bool,
) -> Result<&'static Kernel> {
    let Some(name) = name else {
        return select(dtype, dim as u32, causal).ok_or(Error::Dim(dim));
    };
    if name == CPU {
        return Err(unsuitable(name, "runs on the CPU only"));
    }
    let kernel = find(name)?;
    match obstacle(kernel, dtype, dim, causal) {
        None => Ok(kernel),
        Some(reason) => Err(unsuitable(name, reason)),
    }
}

/// Checks that `name` is one that the CPU goes by.
pub(crate) fn resolve_cpu(name: Option<&str>) -> Result<()> {
    match name {
        None | Some(CPU) => Ok(()),
        Some(name) => {
            find(name)?;
            Err(unsuitable(
                name,
                "runs on CUDA devices and the emulator, not on the CPU; the CPU's is cpu",
            ))
        }
    }
}

/// Looks a GPU kernel up by name.
fn find(name: &str) -> Result<&'static Kernel> {
    KERNELS
        .iter()
        .find(|kernel| kernel.name == name)
        .ok_or_else(|| Error::UnknownKernel {
            name: name.to_owned(),
            near: near(name),
        })
}

/// Why a kernel cannot compute a problem.
fn obstacle(kernel: &Kernel, dtype: Dtype, dim: usize, causal: bool) -> Option<String> {
    if kernel.dtype != dtype {
        let (needed, found) = (kernel.dtype.name(), dtype.name());
        Some(format!("is for dtype {needed}, not {found}"))
    } else if kernel.causal != causal {
        let mask = if kernel.causal {
            "causal attention only"
        } else {
            "attention without a mask"
        };
        Some(format!("is for {mask}"))
    } else if (kernel.head_dim as usize) < dim {
        Some(format!("serves dim up to {}, not {dim}", kernel.head_dim))
    } else {
        None
    }
}

fn unsuitable(name: &str, reason: impl Into<String>) -> Error {
    Error::UnsuitableKernel {
        kernel: name.to_owned(),
        reason: reason.into(),
    }
}

/// The names most similar to `name`, best first; none if none is similar.
fn near(name: &str) -> Vec<&'static str> {
    let names = KERNELS.iter().map(|kernel| kernel.name).chain([CPU]);
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
    use crate::error::Error;
    use kernels::table::Dtype;

    #[test]
    fn the_default_is_the_smallest_that_holds_the_dim() {
        let name = |dim, causal| resolve(None, Dtype::F16, dim, causal).unwrap().name;
        assert_eq!(name(40, false), "forward_f16_d64");
        assert_eq!(name(64, true), "forward_f16_d64_causal");
        assert_eq!(name(256, false), "forward_f16_d256");
    }

    #[test]
    fn a_named_kernel_must_serve_the_problem() {
        let resolve = |name| resolve(Some(name), Dtype::F16, 64, false);
        assert_eq!(
            resolve("forward_f16_d128").unwrap().name,
            "forward_f16_d128"
        );
        for name in [
            "forward_f16_d32",
            "forward_bf16_d64",
            "forward_f16_d64_causal",
            CPU,
        ] {
            let error = resolve(name).unwrap_err();
            assert!(
                matches!(error, Error::UnsuitableKernel { .. }),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn an_unknown_kernel_has_near_names() {
        let near = |name| match resolve_cpu(Some(name)) {
            Err(Error::UnknownKernel { near, .. }) => near,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(near("forward_f16_d46")[0], "forward_f16_d64");
        assert!(near("zzz").is_empty());
    }
}
