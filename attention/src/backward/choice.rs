//! Which kernel computes the gradients of a problem.

use super::{RawBackward, hopper};
use crate::device::Facts;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::Dtype;
use crate::tensor_map::has_map;
use kernels::catalog::{
    Backward, BackwardMain, Family, HEAD_DIMS, HopperBackward, HopperWay, Spec as _, Target, named,
};

/// The kernel that computes dk and dv.
#[derive(Clone, Copy, Debug)]
pub(super) enum Main {
    /// By `mma.sync`, with sums of dq.
    Plain(BackwardMain),
    /// By Hopper's instructions.
    Hopper(HopperBackward),
}

/// The kernel of that name, or the best one, for a device with these facts.
///
/// # Errors
/// If there is none for the element type or the head dim, or says why the named one cannot compute the problem.
pub(super) fn resolve(
    name: Option<&str>,
    dtype: Dtype,
    problem: &Problem,
    facts: &Facts,
    args: &RawBackward,
    deterministic: bool,
) -> Result<Main> {
    let element = dtype.of_kernels()?;
    let mut dims = HEAD_DIMS.iter().copied();
    let dim = dims.find(|&dim| problem.dim <= dim as usize);
    let dim = dim.ok_or(Error::NoBackward(problem.dim))?;
    let plain = BackwardMain::of(element, dim, facts.class());
    let mapped = [args.q, args.k, args.v, args.d_o].iter().all(has_map);
    let Some(name) = name else {
        // Measured: stored dS wins, but narrow heads have as much dS as wide ones. Their sums win, in any order by 8 to 10 %,
        // and in turns, too, where no mask makes some key tiles wait long.
        let prefers_sums = problem.dim <= 64 && !(deterministic && problem.causal);
        let way = match hopper::may_store(problem) && !prefers_sums {
            true => HopperWay::Stored,
            false => HopperWay::Sums,
        };
        let hopper = HopperBackward::of(way, element, problem.dim as u32, problem.causal);
        let runs = Target::Sm90a.runs_on(facts.compute_capability);
        let hopper = hopper.filter(|kernel| runs && mapped && facts.fits(kernel.shared_bytes()));
        return Ok(hopper.map_or(Main::Plain(plain), Main::Hopper));
    };
    let main = match named(name).map(|kernel| kernel.family) {
        Some(Family::Backward(Backward::Main(main))) => main,
        Some(Family::HopperBackward(kernel)) => {
            let obstacle = if kernel.dtype != element {
                format!("is for dtype {}, not {}", kernel.dtype.name(), dtype.name())
            } else if (kernel.dim as usize) < problem.dim {
                format!("is for dims up to {}, not {}", kernel.dim, problem.dim)
            } else if kernel.causal != problem.causal {
                "is for the other mask".to_owned()
            } else if !facts.fits(kernel.shared_bytes()) {
                "needs more shared memory than a block has".to_owned()
            } else if !mapped {
                "loads by tensor maps, which cannot describe these strides".to_owned()
            } else {
                return Ok(Main::Hopper(kernel));
            };
            return Err(Error::unsuitable(name, obstacle));
        }
        _ => return Err(Error::unsuitable(name, "computes no gradients")),
    };
    let obstacle = if main.dtype != element {
        format!("is for dtype {}, not {}", main.dtype.name(), dtype.name())
    } else if main.dim < dim {
        format!("is for dims up to {}, not {}", main.dim, problem.dim)
    } else if !facts.fits(main.shared_bytes()) {
        let (needed, available) = (main.shared_bytes(), facts.shared.block);
        format!("needs {needed} bytes of shared memory, and a block has {available}")
    } else {
        return Ok(Main::Plain(main));
    };
    Err(Error::unsuitable(name, obstacle))
}
