//! Windows, softcap, ALiBi, sinks, biases and masks, alone and together, against the reference.

use attention::emulator::Options;
use attention::{Class, Device, Dtype, Window};
use proptest::prelude::*;
use tests::modifiers::Pairs;
use tests::strategy::{backward_of, cases, check_each, few, modified, scheduled};
use tests::{BackwardCase, Case, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("any", |device| check_forward(device, 64, modified(cases()))),
        Test::new("by_any_kernel", |device| {
            check_forward(device, 32, scheduled(device, modified(cases())))
        }),
        Test::emulator("any_on_hopper", |_| {
            let device = Device::emulator_of(Class::Sm90, Options::default())?;
            check_forward(&device, 64, modified(cases()))
        }),
        Test::backward("any_gradient", |device| {
            let cases = backward_of(modified(cases()));
            check_each(few(device, 30), cases, |case| case.check(device))
        }),
        Test::new("a_window_that_sees_nothing", a_window_that_sees_nothing),
        Test::new("narrow_windows", narrow_windows),
        Test::new("combinations", combinations),
        Test::new("biases_and_masks", biases_and_masks),
        Test::new("value_dims", value_dims),
        Test::emulator("value_dims_on_hopper", |_| {
            value_dims(&Device::emulator_of(Class::Sm90, Options::default())?)
        }),
    ]
}

fn check_forward(device: &Device, count: u32, cases: impl Strategy<Value = Case>) -> Outcome {
    check_each(few(device, count), cases, |case| case.check(device))
}

/// The case, and its gradients.
fn check_both(case: &Case, device: &Device) -> Outcome {
    case.check(device)?;
    BackwardCase::from(case.clone()).check(device)
}

/// More queries than keys, so that the first ones see none, with sinks and without; and keys that no query sees.
fn a_window_that_sees_nothing(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv, sinks) in [
        (300, 40, false),
        (300, 40, true),
        (40, 300, false),
        (1, 300, true),
    ] {
        let case = Case {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            seqlen_q,
            seqlen_kv,
            modifiers: Modifiers {
                window: Window {
                    left: Some(3),
                    right: Some(0),
                },
                sinks,
                ..Modifiers::default()
            },
            ..Case::default()
        };
        check_both(&case, device)?;
    }
    PASSED
}

/// Windows of one key to some blocks of keys, at both edges of blocks, in many tiles.
fn narrow_windows(device: &Device) -> Outcome {
    for (left, right) in [
        (Some(0), Some(0)),
        (Some(63), Some(0)),
        (Some(64), Some(0)),
        (Some(0), Some(65)),
        (Some(130), Some(31)),
        (None, Some(70)),
        (Some(70), None),
    ] {
        let case = Case {
            heads: 2,
            seqlen_q: 450,
            seqlen_kv: 500,
            modifiers: Modifiers {
                window: Window { left, right },
                ..Modifiers::default()
            },
            ..Case::default()
        };
        check_both(&case, device)?;
    }
    PASSED
}

/// Ten combinations of all options.
fn combinations(device: &Device) -> Outcome {
    let window = Window {
        left: Some(50),
        right: Some(9),
    };
    for (i, (causal, windowed, softcap, alibi, sinks)) in [
        (true, false, true, false, false),
        (true, false, false, true, false),
        (true, false, false, false, true),
        (true, true, true, false, false),
        (false, true, false, true, false),
        (false, true, false, false, true),
        (false, false, true, true, false),
        (false, false, true, false, true),
        (true, false, true, true, true),
        (false, true, true, true, true),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            heads: 3,
            causal,
            dim: [64, 128, 40, 96, 256][i % 5],
            scale: (i == 6).then_some(-0.3),
            modifiers: Modifiers {
                window: if windowed { window } else { Window::NONE },
                softcap: softcap.then_some(1.5),
                alibi,
                sinks,
                ..Modifiers::default()
            },
            ..Case::default()
        };
        check_both(&case, device)?;
    }
    PASSED
}

/// Fewer and more elements in rows of v than of q: latent attention's, and panels, slices and windows that hold zeros alone.
fn value_dims(device: &Device) -> Outcome {
    for (i, (dim, dim_v)) in [
        (192, 128),
        (576, 512),
        (128, 8),
        (8, 128),
        (136, 256),
        (16, 512),
        (512, 16),
        (200, 776),
    ]
    .into_iter()
    .enumerate()
    {
        for splits in [1, 3] {
            let case = Case {
                heads: 4,
                kv_heads: 2,
                dtype: [Dtype::F16, Dtype::Bf16][i % 2],
                seqlen_q: 70,
                seqlen_kv: 210,
                dim,
                splits,
                causal: i % 3 > 0,
                v: [Layout::Bhnd, Layout::OddRows][i / 2 % 2],
                o: [Layout::Bhnd, Layout::Padded, Layout::OddRows][i % 3],
                modifiers: Modifiers {
                    dim_v: Some(dim_v),
                    ..Modifiers::default()
                },
                ..Case::default()
            };
            case.check(device)?;
            // A query of each head: heads that share keys share tiles.
            let decoding = Case {
                heads: 6,
                seqlen_q: 1,
                q: [Layout::Padded, Layout::OddRows][i % 2],
                modifiers: Modifiers {
                    softcap: (i == 2).then_some(1.5),
                    sinks: i == 3,
                    ..case.modifiers.clone()
                },
                ..case
            };
            decoding.check(device)?;
        }
    }
    PASSED
}

/// Each type of bias and of mask, with all axes and with few, in both passes.
fn biases_and_masks(device: &Device) -> Outcome {
    for of in 0..3 {
        let [all, few] =
            [[false; 3], [of == 0, of < 2, of > 0]].map(|repeats| Pairs { repeats, of });
        for (bias, mask) in [
            (Some(all), None),
            (Some(few), None),
            (None, Some(Pairs { of: of % 2, ..all })),
            (None, Some(Pairs { of: of % 2, ..few })),
            (
                Some(few),
                Some(Pairs {
                    of: 1 - of % 2,
                    ..all
                }),
            ),
        ] {
            let case = Case {
                batch: 2,
                heads: 4,
                kv_heads: 2,
                seqlen_q: 150,
                seqlen_kv: 333,
                dim: [64, 128, 32][of],
                causal: of == 1,
                modifiers: Modifiers {
                    bias,
                    mask,
                    ..Modifiers::default()
                },
                ..Case::default()
            };
            check_both(&case, device)?;
        }
    }
    PASSED
}
