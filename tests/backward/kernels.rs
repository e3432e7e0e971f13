//! Every main kernel at its own head dim, by name on a device of its class, deterministic and with sums in any order.

use attention::device::Emulator;
use attention::emulator::Options;
use attention::{Class, Device, Facts};
use kernels::catalog::{Backward, Family, HopperBackward, HopperWay, KERNELS, Kernel};
use tests::{BackwardCase, Case, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for kernel in KERNELS.iter() {
        if let Family::HopperBackward(hopper) = kernel.family
            && hopper.way == HopperWay::Stored
        {
            let name = format!("{}_in_waves", kernel.name);
            tests.push(Test::emulator(name, move |_| in_waves(kernel, hopper)));
        }
    }
    tests.extend(KERNELS.iter().filter_map(|kernel| {
        let (dim, causal) = match kernel.family {
            Family::Backward(Backward::Main(main)) => (main.dim, true),
            Family::HopperBackward(hopper) => (hopper.dim, hopper.causal),
            _ => return None,
        };
        Some(Test::emulator(kernel.name, move |_| {
            check(kernel, dim as usize, causal)
        }))
    }));
    tests
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

/// Heads in more waves than memory holds dS of: jobs overwrite dS that others have read. The result has the same bits in each
/// schedule.
fn in_waves(kernel: &Kernel, hopper: HopperBackward) -> Outcome {
    let facts = Facts {
        multiprocessors: 2,
        ..Facts::emulated(Class::Sm90)
    };
    for (heads, kv_heads, seqlen_q, seqlen_kv) in [(7, 7, 70, 100), (12, 6, 130, 200)] {
        let case = BackwardCase::from(Case {
            dtype: hopper.dtype.into(),
            batch: 2,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim: hopper.dim as usize - 8,
            causal: hopper.causal,
            kernel: Some(kernel.name.to_owned()),
            ..Case::default()
        });
        let mut first = None;
        for seed in 0..2 {
            let options = Options {
                seed,
                ..Options::default()
            };
            let device = Device::with_driver(Emulator::new(facts, options))?;
            let found = case.run(&device, &case.inputs())?;
            assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{case}");
        }
    }
    PASSED
}
