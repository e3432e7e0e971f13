//! Every main kernel at its own head dim, by name on a device of its class, with dq in its order and in any.

use attention::emulator::Options;
use attention::{Class, Device};
use kernels::catalog::{Backward, Family, HopperPart, KERNELS, Kernel};
use tests::{BackwardCase, Case, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    let tests = KERNELS.iter().filter_map(|kernel| {
        let (dim, causal) = match kernel.family {
            Family::Backward(Backward::Main(main)) => (main.dim, true),
            // The kernel of keys is launched with the kernel of queries.
            Family::HopperBackward(hopper) if hopper.part != HopperPart::Queries => {
                (hopper.dim, hopper.causal)
            }
            _ => return None,
        };
        Some(Test::emulator(kernel.name, move |_| {
            check(kernel, dim as usize, causal)
        }))
    });
    tests.collect()
}

fn check(kernel: &Kernel, dim: usize, causal: bool) -> Outcome {
    let mut classes = Class::ALL.iter();
    let class = classes.find(|&&class| kernel.is_for(class));
    let device = Device::emulator_of(*class.expect("of some class"), Options::default())?;
    for any_order in [false, true] {
        let case = BackwardCase {
            any_order,
            ..BackwardCase::from(Case {
                dtype: kernel.dtype().expect("it computes gradients of one").into(),
                heads: 2,
                seqlen_q: 100,
                seqlen_kv: 150,
                dim,
                causal,
                kernel: Some(kernel.name.to_owned()),
                ..Case::default()
            })
        };
        case.check(&device)?;
        assert!(
            device
                .counters()
                .iter()
                .any(|(name, _)| *name == kernel.name)
        );
    }
    PASSED
}
