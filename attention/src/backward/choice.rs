//! Which kernel computes the gradients of a problem.

use crate::device::Facts;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::Dtype;
use kernels::catalog::{Backward, BackwardMain, Family, HEAD_DIMS, named};

/// The kernel of that name, or the best one, for a device with these facts.
///
/// # Errors
/// If there is none for the element type or the head dim, or says why the named one cannot compute the problem.
pub(super) fn resolve(
    name: Option<&str>,
    dtype: Dtype,
    problem: &Problem,
    facts: &Facts,
) -> Result<BackwardMain> {
    let element = dtype.of_kernels()?;
    let mut dims = HEAD_DIMS.iter().copied();
    let dim = dims.find(|&dim| problem.dim <= dim as usize);
    let dim = dim.ok_or(Error::NoBackward(problem.dim))?;
    let best = BackwardMain::of(element, dim, facts.class());
    let Some(name) = name else {
        return Ok(best);
    };
    let Some(Family::Backward(Backward::Main(main))) = named(name).map(|kernel| kernel.family)
    else {
        return Err(Error::unsuitable(name, "computes no gradients"));
    };
    let obstacle = if main.dtype != element {
        format!("is for dtype {}, not {}", main.dtype.name(), dtype.name())
    } else if main.dim < dim {
        format!("is for dims up to {}, not {}", main.dim, problem.dim)
    } else if !facts.fits(main.shared_bytes()) {
        let (needed, available) = (main.shared_bytes(), facts.shared.block);
        format!("needs {needed} bytes of shared memory, and a block has {available}")
    } else {
        return Ok(main);
    };
    Err(Error::unsuitable(name, obstacle))
}
