//! Every main kernel at its own head dim, by name on a device of its class, deterministic and with sums in any order.

use ferroattn::device::Emulator;
use ferroattn::emulator::Options;
use ferroattn::{Class, Device, Facts, Sequences, Window};
use kernels::catalog::{
    Backward, Dtype, Family, HopperBackward, HopperWay, KERNELS, Kernel, MaskKind,
};
use tests::modifiers::Pairs;
use tests::{BackwardCase, Case, Modifiers, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for kernel in KERNELS.iter() {
        if let Family::HopperBackward(hopper) = kernel.family
            && hopper.way == HopperWay::Stored
            && !is_twin(kernel)
        {
            let name = format!("{}_in_waves", kernel.name);
            tests.push(Test::emulator(name, move |_| in_waves(kernel, hopper)));
        }
    }
    for kernel in KERNELS.iter() {
        let dim = match kernel.family {
            Family::Backward(Backward::Main(main)) if main.mask.has_options() => main.dim,
            Family::HopperBackward(hopper) if hopper.mask.has_options() => hopper.dim,
            _ => continue,
        };
        if is_twin(kernel) {
            continue;
        }
        let name = format!("{}_with_options", kernel.name);
        tests.push(Test::emulator(name, move |_| {
            with_options(kernel, dim as usize)
        }));
    }
    tests.extend(KERNELS.iter().filter_map(|kernel| {
        let (dim, causal) = match kernel.family {
            Family::Backward(Backward::Main(main)) => (main.dim, true),
            Family::HopperBackward(hopper) => (hopper.dim, hopper.mask == MaskKind::Causal),
            _ => return None,
        };
        Some(Test::emulator(kernel.name, move |_| {
            check(kernel, dim as usize, causal)
        }))
    }));
    tests
}

/// Whether it is the text of another kernel with other types. Then it has the same schedules and options.
fn is_twin(kernel: &Kernel) -> bool {
    kernel.dtype() == Some(Dtype::Bf16)
}

/// Masks that leave tiles of both sides unseen, and scores that are not the products.
fn with_options(kernel: &Kernel, dim: usize) -> Outcome {
    let device = Device::emulator_of(kernel.class().into(), Options::default())?;
    let pairs = |of| {
        let repeats = [false, true, false];
        Some(Pairs { repeats, of })
    };
    let modifiers = [
        Modifiers {
            window: Window {
                left: Some(70),
                right: Some(9),
            },
            softcap: Some(1.5),
            sinks: true,
            ..Modifiers::default()
        },
        Modifiers {
            sequences: Some(Sequences::Packed {
                q: vec![0, 128, 128, 130, 280],
                kv: vec![5, 120, 260, 260, 390],
            }),
            alibi: true,
            bias: pairs(0),
            ..Modifiers::default()
        },
        Modifiers {
            mask: pairs(1),
            softcap: Some(1.5),
            bias: pairs(1),
            ..Modifiers::default()
        },
    ];
    for (i, modifiers) in modifiers.into_iter().enumerate() {
        // Sequences have tiles beyond those of one head.
        let kv_heads = if i == 1 { 2 } else { 1 };
        let case = Case {
            dtype: kernel.dtype().expect("it computes gradients of one").into(),
            heads: 2 * kv_heads,
            kv_heads,
            seqlen_q: 300,
            seqlen_kv: 400,
            dim: dim - 8 * i,
            causal: i == 1,
            kernel: Some(kernel.name.to_owned()),
            modifiers,
            ..Case::default()
        };
        // What turns count depends on the mask; sums in any order do not.
        for any_order in [false, true].into_iter().take(if i == 0 { 2 } else { 1 }) {
            let case = BackwardCase {
                any_order,
                ..BackwardCase::from(case.clone())
            };
            case.check(&device)?;
        }
    }
    PASSED
}

fn check(kernel: &Kernel, dim: usize, causal: bool) -> Outcome {
    let device = Device::emulator_of(kernel.class().into(), Options::default())?;
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
    let mut facts = Facts::emulated(Class::Sm90);
    facts.multiprocessors = 2;
    // Batch entries that share a bias alternate.
    let shared = Pairs {
        repeats: [true, false, false],
        of: 0,
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
            causal: hopper.mask == MaskKind::Causal,
            kernel: Some(kernel.name.to_owned()),
            modifiers: Modifiers {
                bias: hopper.mask.has_options().then_some(shared),
                ..Modifiers::default()
            },
            ..Case::default()
        });
        let mut first = None;
        for seed in 0..3 {
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
