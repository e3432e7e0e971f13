//! Which kernel computes the gradients of a problem.

use super::hopper;
use super::packed::Call;
use crate::device::Facts;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::options;
use crate::plan::EMPTY;
use crate::tensor::Dtype;
use crate::tensor_map::has_map;
use kernels::catalog::{
    self, Backward, BackwardMain, Family, HEAD_DIMS, HopperBackward, HopperWay, Kernel, MaskKind,
    named,
};

/// The kernel that computes dk and dv.
#[derive(Clone, Copy, Debug)]
pub(super) struct Main {
    /// Its specification.
    pub spec: MainSpec,
    /// How to launch it: it may be of another crate.
    pub entry: Entry,
}

/// The specification of the kernel that computes dk and dv.
#[derive(Clone, Copy, Debug)]
pub(super) enum MainSpec {
    /// By `mma.sync`, with sums of dq.
    Plain(BackwardMain),
    /// By Hopper's instructions.
    Hopper(HopperBackward),
}

impl From<&'static Kernel> for Main {
    /// A kernel that this crate's build compiled.
    ///
    /// # Panics
    /// If it is of another kind.
    fn from(kernel: &'static Kernel) -> Self {
        Main::new(kernel, kernel.into())
    }
}

impl Main {
    /// A kernel of the catalog, or what another crate made of it.
    ///
    /// # Panics
    /// If it is of another kind.
    pub fn new(kernel: &Kernel, entry: Entry) -> Self {
        let spec = match kernel.family {
            Family::Backward(Backward::Main(main)) => MainSpec::Plain(main),
            Family::HopperBackward(hopper) => MainSpec::Hopper(hopper),
            _ => unreachable!("it computes no dk and dv"),
        };
        Main { spec, entry }
    }
}

/// The kernels that compute a problem's dk and dv on a device, the best first.
pub(crate) fn candidates(
    dtype: catalog::Dtype,
    facts: &Facts,
    call: &Call,
) -> impl Iterator<Item = &'static Kernel> + use<> {
    let Call { problem, args, .. } = call;
    let is_mapped = [args.q, args.k, args.v, args.d_o].iter().all(has_map);
    // Memory may not hold dS, and sums are always there for head dims up to 128.
    let ways: &[HopperWay] = match best_way(call) {
        HopperWay::Stored => &[HopperWay::Stored, HopperWay::Sums],
        HopperWay::Sums => &[HopperWay::Sums],
    };
    let mask = match options::first(problem, &args.options) {
        Some(_) => MaskKind::Options,
        None => MaskKind::of(problem.causal),
    };
    let widest = problem.widest();
    let dims = HEAD_DIMS.iter().filter(move |&&dim| widest <= dim as usize);
    let hopper = dims.clone().flat_map(move |&dim| {
        let of = move |&way| HopperBackward::of(way, dtype, dim, mask);
        ways.iter().filter_map(of).map(Family::HopperBackward)
    });
    let class = facts.class().into();
    let sm80 = dims.filter_map(move |&dim| {
        let main = BackwardMain::of(dtype, dim, class, mask)?;
        Some(Family::Backward(Backward::Main(main)))
    });
    let compute_capability = facts.compute_capability;
    let kernels = hopper.chain(sm80).map(catalog::kernel);
    kernels.filter(move |kernel| {
        let runs = kernel.target.runs_on(compute_capability);
        runs && (is_mapped || !kernel.takes_maps())
    })
}

/// The faster way to compute dq, as measured on an H200: stored dS above head dim 64. Narrow heads have as much dS as wide
/// ones: there sums are faster. Sums in turns are faster only without a mask and with many heads, where key tiles wait
/// little for each other. Stored dS has a place for each pair, whatever sequences see.
fn best_way(call: &Call) -> HopperWay {
    let problem = &call.problem;
    // Whether dS has room depends on the batch.
    if call.args.options.batch_invariant {
        return HopperWay::Sums;
    }
    let takes_turns_well = !problem.causal && problem.batch * problem.kv_heads >= 8;
    let prefers_sums = problem.widest() <= 64 && (!call.deterministic || takes_turns_well);
    match hopper::may_store(problem) && !prefers_sums && call.spaced.is_none() {
        true => HopperWay::Stored,
        false => HopperWay::Sums,
    }
}

/// Whether the best kernel is to be chosen, or the named one takes short sequences as packed ones.
pub(super) fn takes_packed(name: Option<&str>) -> bool {
    let Some(name) = name else { return true };
    match named(name).map(|kernel| kernel.family) {
        Some(Family::Backward(Backward::Main(main))) => main.mask.has_options(),
        Some(Family::HopperBackward(kernel)) => {
            kernel.mask.has_options() && kernel.way == HopperWay::Sums
        }
        _ => false,
    }
}

/// The kernel of that name, or the best one, for a device with these facts.
///
/// # Errors
/// If there is none for the element type or the head dim, or says why the named one cannot compute the problem.
pub(super) fn resolve(
    name: Option<&str>,
    dtype: Dtype,
    facts: &Facts,
    call: &Call,
) -> Result<Main> {
    let Call { problem, args, .. } = call;
    let element = dtype.of_kernels()?;
    let mut dims = HEAD_DIMS.iter().copied();
    let dim = dims.find(|&dim| problem.widest() <= dim as usize);
    let dim = dim.ok_or(Error::NoBackward(problem.widest()))?;
    let Some(name) = name else {
        let mut candidates = candidates(element, facts, call);
        let fitting = candidates.find(|kernel| facts.fits(kernel.launch.shared_bytes));
        return Ok(fitting.ok_or(Error::NoBackward(problem.widest()))?.into());
    };
    let kernel = of_gradients(name)?;
    let main = Main::from(kernel);
    let (mask, of, most) = match main.spec {
        MainSpec::Plain(main) => (main.mask, main.dtype, main.dim),
        MainSpec::Hopper(kernel) => (kernel.mask, kernel.dtype, kernel.dim),
    };
    let option = options::first(problem, &args.options);
    let obstacle = if let Some(option) = option.filter(|_| !mask.has_options()) {
        format!("computes no {option}")
    } else if of != element {
        format!("is for dtype {}, not {}", of.name(), dtype.name())
    } else if most < dim {
        format!("is for dims up to {most}, not {}", problem.widest())
    } else if !mask.serves(problem.causal) {
        "is for the other mask".to_owned()
    } else if !facts.fits(kernel.launch.shared_bytes) {
        let (needed, available) = (kernel.launch.shared_bytes, facts.shared.block);
        format!("needs {needed} bytes of shared memory, and a block has {available}")
    } else if kernel.takes_maps() && ![args.q, args.k, args.v, args.d_o].iter().all(has_map) {
        "loads by tensor maps, which cannot describe these strides".to_owned()
    } else {
        return Ok(main);
    };
    Err(Error::unsuitable(name, obstacle))
}

/// Checks the name of a kernel in a call that has nothing to compute.
pub(super) fn expect_gradients(name: &str) -> Result<()> {
    match name {
        EMPTY => Ok(()),
        name => of_gradients(name).map(drop),
    }
}

/// The kernel of that name, which computes dk and dv.
fn of_gradients(name: &str) -> Result<&'static Kernel> {
    let is_main = |kernel: &&'static Kernel| {
        let family = kernel.family;
        matches!(
            family,
            Family::Backward(Backward::Main(_)) | Family::HopperBackward(_)
        )
    };
    let found = named(name).filter(is_main);
    found.ok_or_else(|| Error::unsuitable(name, "computes no gradients"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawBackward;
    use crate::forward::Problem;

    #[test]
    fn stored_ds_serves_where_sums_wait_or_heads_are_wide() {
        let way = |[batch, heads, seqlen, dim]: [usize; 4], causal, deterministic| {
            let shape = [batch, heads, seqlen, dim];
            let problem = Problem::new(shape, shape, shape, causal, None).expect("a valid problem");
            let args = RawBackward::row_major(&problem);
            best_way(&Call::new(&problem, &args, deterministic))
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
