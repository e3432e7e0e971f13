//! Which kernel computes the gradients of a problem.

use super::{RawBackward, hopper};
use crate::device::Facts;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::options;
use crate::plan::Entry;
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
    /// The same, of another crate.
    Custom(BackwardMain, Entry),
    /// By Hopper's instructions.
    Hopper(HopperBackward),
}

/// The faster way to compute dq, as measured on an H200: stored dS above head dim 64. Narrow heads have as much dS as wide
/// ones: there sums are faster. Sums in turns are faster only without a mask and with many heads, where key tiles wait
/// little for each other.
fn best_way(problem: &Problem, deterministic: bool) -> HopperWay {
    let takes_turns_well = !problem.causal && problem.batch * problem.kv_heads >= 8;
    let prefers_sums = problem.dim <= 64 && (!deterministic || takes_turns_well);
    match hopper::may_store(problem) && !prefers_sums {
        true => HopperWay::Stored,
        false => HopperWay::Sums,
    }
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
    let option = options::first(problem, &args.options);
    let with_options = BackwardMain::with_options(element, dim, facts.class());
    let mapped = [args.q, args.k, args.v, args.d_o].iter().all(has_map);
    let Some(name) = name else {
        if option.is_some() {
            return Ok(Main::Plain(with_options));
        }
        let way = best_way(problem, deterministic);
        let hopper = HopperBackward::of(way, element, problem.dim as u32, problem.causal);
        let runs = Target::Sm90a.runs_on(facts.compute_capability);
        let hopper = hopper.filter(|kernel| runs && mapped && facts.fits(kernel.shared_bytes()));
        return Ok(hopper.map_or(Main::Plain(plain), Main::Hopper));
    };
    let main = match named(name).map(|kernel| kernel.family) {
        Some(Family::Backward(Backward::Main(main))) => main,
        Some(Family::HopperBackward(kernel)) => {
            let obstacle = if let Some(option) = option {
                format!("computes no {option}")
            } else if kernel.dtype != element {
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
    let obstacle = if let Some(option) = option.filter(|_| !main.optional) {
        format!("computes no {option}")
    } else if main.dtype != element {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_ds_serves_where_sums_wait_or_heads_are_wide() {
        let way = |[batch, heads, seqlen, dim]: [usize; 4], causal, deterministic| {
            let shape = [batch, heads, seqlen, dim];
            let problem = Problem::new(shape, shape, shape, causal, None).expect("a valid problem");
            best_way(&problem, deterministic)
        };
        for causal in [false, true] {
            for deterministic in [false, true] {
                let wide = way([4, 16, 4096, 128], causal, deterministic);
                assert_eq!(wide, HopperWay::Stored);
                // dS of three heads would take 6 GB.
                let long = way([1, 4, 32768, 128], causal, deterministic);
                assert_eq!(long, HopperWay::Sums);
            }
            assert_eq!(way([4, 16, 4096, 64], causal, false), HopperWay::Sums);
        }
        assert_eq!(way([4, 16, 4096, 64], false, true), HopperWay::Sums);
        assert_eq!(way([4, 16, 4096, 64], true, true), HopperWay::Stored);
        assert_eq!(way([1, 1, 8192, 64], false, true), HopperWay::Stored);
    }
}
