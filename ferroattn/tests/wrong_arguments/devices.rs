//! Drivers, kernels and launches.

use super::panics;
use ferroattn::device::{Driver, Emulator, Swizzle, TensorMap};
use ferroattn::emulator::Options;
use ferroattn::internals::{Draft, Entry, MainKernel, Steps, ptx};
use ferroattn::{Attention, Class, Device, Dtype, Error, Facts, Problem, RawForward, Tensor, f16};
use kernels::catalog::named;

/// An emulated device of facts that no device has.
#[test]
fn devices_have_possible_facts() {
    let usual = Facts::emulated(Class::Sm80);
    for (multiprocessors, words) in [(0, "at least 1"), (u32::MAX, "at most 65536")] {
        let mut facts = usual;
        facts.multiprocessors = multiprocessors;
        let device = Device::with_driver(Emulator::new(facts, Options::default()));
        let message = device.expect_err("refused").to_string();
        assert!(
            message.contains(words) || message == Error::NotCompiled.to_string(),
            "{message}"
        );
    }
}

/// The emulated device, if there are kernels for it.
fn emulated(driver: Emulator) -> Option<Device> {
    match Device::with_driver(driver) {
        Err(Error::NotCompiled) => None,
        device => Some(device.expect("usual facts")),
    }
}

fn forward(device: &Device) -> Result<Vec<f16>, Error> {
    let x = Tensor::new(device, [1, 1, 3, 64], &[f16::ONE; 192])?;
    Attention::new().forward(&x, &x, &x)?.0.to_vec()
}

/// Entries that a program changed do not compile, and leave the device's kernels alone.
#[test]
fn plans_of_other_kernels_warm_nothing_up() {
    let driver = Emulator::new(Facts::emulated(Class::Sm80), Options::default());
    let Some(device) = emulated(driver) else {
        return;
    };
    let changes: [fn(&mut Entry); 4] = [
        |entry| entry.modules = None,
        |entry| entry.module = "none",
        |entry| entry.name = "none",
        |entry| entry.modules = Some(&[]),
    ];
    for change in changes {
        let mut entry = planned_entry();
        change(&mut entry);
        let texts = [entry.text(), entry.marked_text(), entry.whole_text()];
        assert_eq!(texts, [(); 3].map(|()| Err(Error::NotCompiled)));
        let mut steps = Steps::default();
        steps.launch(entry, 1, 0, &0_u64).expect("a grid");
        let plan = steps.finish(entry.name, 1);
        assert_eq!(device.warm_up(&[plan]), Err(Error::NotCompiled));
    }
    assert_eq!(forward(&device), Ok(vec![f16::ONE; 192]));
    assert_eq!(ptx::module("none"), None);
}

/// Plans in the making, of kernels that have 0 of something, on devices that no one has.
#[test]
fn drafts_of_other_kernels() {
    let shape = [1, 2, 300, 64];
    let problem = Problem::new(shape, shape, shape, true, None).expect("valid");
    let args = RawForward::row_major(&problem);
    let usual = Facts::emulated(Class::Sm90);
    let kernel = MainKernel::from(named("hopper_f16_d64").expect("in the catalog"));
    let draft = |kernel, facts: &Facts, splits| {
        let mut draft = Draft::new(kernel, &problem, facts, &args, splits)?;
        draft.reserve_partials(64)?;
        draft.launch_by_maps(&problem, 64, facts.multiprocessors)?;
        draft.launch(|params| params)?;
        draft.combine()?;
        Ok(draft.finish()?.steps.len())
    };
    for splits in [None, Some(0), Some(1), Some(u32::MAX)] {
        assert_eq!(draft(kernel, &usual, splits), Ok(3), "{splits:?}");
    }
    let mut none = usual;
    none.multiprocessors = 0;
    assert_eq!(
        draft(kernel, &none, None),
        Err(Error::Zero("multiprocessors"))
    );
    let changes: [fn(&mut MainKernel); 4] = [
        |kernel| kernel.q_rows = 0,
        |kernel| kernel.keys = 0,
        |kernel| kernel.slices = 0,
        |kernel| kernel.v_chunks = 0,
    ];
    for change in changes {
        let mut kernel = kernel;
        change(&mut kernel);
        assert!(panics(|| draft(kernel, &usual, None)), "{kernel:?}");
    }
    let mut small = Draft::new(kernel, &problem, &usual, &args, None).expect("a grid");
    assert!(small.reserve_partials(usize::MAX).is_err());
    let forward = planned_entry();
    let mut steps = Steps::default();
    for blocks in [1 << 31, u128::MAX] {
        let refused = steps
            .launch(forward, blocks, u32::MAX, &[0_u64; 4])
            .map(drop);
        assert!(matches!(refused, Err(Error::Grid { .. })), "{refused:?}");
    }
    assert!(steps.finish("none", 0).steps.is_empty());
}

/// The kernel of a small call on an A100.
fn planned_entry() -> Entry {
    let shape = [1, 1, 3, 64];
    let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
    let (facts, args) = (
        Facts::emulated(Class::Sm80),
        RawForward::row_major(&problem),
    );
    let plan = Attention::new()
        .plan(Some(&facts), Dtype::F16, &args)
        .expect("a kernel");
    plan.steps[0].entry
}

/// Texts that are no PTX, or no kernel's, in a kernel's place.
#[test]
fn other_texts_are_refused() {
    for text in ["", "no PTX", ".version 7.0 .target sm_80 .address_size 64"] {
        let driver = Emulator::new(Facts::emulated(Class::Sm80), Options::default());
        let Some(device) = emulated(driver.with_ptx("decode_f16_d64", text)) else {
            return;
        };
        let found = forward(&device);
        assert!(matches!(found, Err(Error::Emulator(_))), "{found:?}");
    }
}

#[test]
fn drivers_take_any_arguments() {
    let driver = Emulator::new(Facts::emulated(Class::Sm90), Options::default());
    assert!(driver.allocate(usize::MAX).is_err() && driver.allocate(0).is_ok());
    assert!(driver.load("kernel", c"no PTX", &mut []).is_err());
    let map = TensorMap {
        address: u64::MAX,
        sizes: [u64::MAX; 4],
        strides: [u64::MAX; 3],
        box_sizes: [0; 4],
        swizzle: Swizzle::B64,
    };
    // A kernel that uses it breaks a rule.
    assert!(driver.tensor_map(&map).is_ok());
}

/// Budgets of instructions that the emulator does not take, and too small ones.
#[test]
fn options_of_the_emulator_are_checked() {
    for instruction_budget in [0, 1, u64::MAX] {
        let options = Options {
            instruction_budget,
            ..Options::default()
        };
        for class in Class::ALL {
            match Device::emulator_of(*class, options) {
                Err(Error::NotCompiled) => (),
                device => {
                    let found = forward(&device.expect("a class"));
                    assert!(matches!(found, Err(Error::Emulator(_))), "{found:?}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "events of two devices")]
fn events_of_two_devices() {
    let facts = Facts::emulated(Class::Sm80);
    let Some(device) = emulated(Emulator::new(facts, Options::default())) else {
        panic!("events of two devices, of which there is one");
    };
    let [here, there] = [Device::cpu(), device].map(|device| device.event().expect("an event"));
    let _ = here.since(&there);
}

/// An event before the start of its interval.
#[test]
fn time_does_not_run_backwards() {
    let facts = Facts::emulated(Class::Sm80);
    for device in [
        Some(Device::cpu()),
        emulated(Emulator::new(facts, Options::default())),
    ] {
        let Some(device) = device else { continue };
        let [first, second] = [(); 2].map(|()| device.event().expect("an event"));
        assert_eq!(
            first.since(&second).expect("one device"),
            std::time::Duration::ZERO
        );
    }
}

#[test]
fn no_such_gpu() {
    for index in [1 << 20, 1 << 32, usize::MAX] {
        assert!(Device::cuda(index).is_err(), "{index}");
    }
}
