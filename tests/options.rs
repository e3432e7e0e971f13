//! Windows, softcap, ALiBi, sinks, biases and masks, alone and together, against the reference.

use ferroattn::emulator::Options;
use ferroattn::{Attention, Class, Device, Dtype, Tensor, Window, f16, kernel};
use proptest::prelude::*;
use std::cell::Cell;
use tests::modifiers::Pairs;
use tests::strategy::{
    backward_of, cases, check_each, few, few_queries, modified, scheduled, sequenced,
};
use tests::{BackwardCase, Case, Layout, Modifiers, Outcome, PASSED, Test, counting};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let softcaps = Test::backward("softcaps_of_any_size", softcaps_of_any_size);
    let few_rows = Test::new("few_rows", few_rows);
    let of_classes = [Class::Sm86, Class::Sm90];
    let of_classes = of_classes.map(|class| few_rows.emulated_as(class));
    let of_hopper = softcaps.emulated_as(Class::Sm90).into_iter();
    let of_hopper = of_hopper.chain(of_classes.into_iter().flatten());
    let tests = vec![
        Test::new("any", |device| check_forward(device, 40, modified(cases()))),
        Test::new("by_any_kernel", |device| {
            check_forward(device, 20, scheduled(device, modified(cases())))
        }),
        Test::emulator("any_on_hopper", |_| {
            let device = Device::emulator_of(Class::Sm90, Options::default())?;
            check_forward(&device, 40, modified(cases()))
        }),
        Test::backward("any_gradient", |device| {
            let cases = backward_of(modified(cases()));
            check_each(few(device, 20), cases, |case| case.check(device))
        }),
        Test::new("a_window_that_sees_nothing", a_window_that_sees_nothing),
        Test::new("narrow_windows", narrow_windows),
        Test::new("combinations", combinations),
        Test::new("biases_and_masks", biases_and_masks),
        Test::new("masks_of_one_pair", masks_of_one_pair),
        Test::emulator("masks_of_one_pair_on_hopper", |_| {
            masks_of_one_pair(&Device::emulator_of(Class::Sm90, Options::default())?)
        }),
        Test::emulator("hidden_blocks_are_not_loaded", |_| {
            hidden_blocks_are_not_loaded()
        }),
        Test::new("value_dims", value_dims),
        Test::emulator("value_dims_on_hopper", |_| {
            value_dims(&Device::emulator_of(Class::Sm90, Options::default())?)
        }),
        softcaps,
        few_rows,
    ];
    tests.into_iter().chain(of_hopper).collect()
}

/// Softcaps far below the scores, and so far above them that there might be none.
fn softcaps_of_any_size(device: &Device) -> Outcome {
    for softcap in [1e-40, 1e-10, 0.01, 30.0, 100.0, 1e3, 1e5, 1e6, 1e20, 3e38] {
        for dim in [64, 128] {
            let case = Case {
                dim,
                scale: Some(0.5),
                modifiers: Modifiers {
                    softcap: Some(softcap),
                    ..Modifiers::default()
                },
                ..Case::default()
            };
            check_both(&case, device)?;
        }
    }
    PASSED
}

fn check_forward(device: &Device, count: u32, cases: impl Strategy<Value = Case>) -> Outcome {
    check_each(few(device, count), cases, |case| case.check(device))
}

/// Few queries, of heads that share tiles: with all options but tensors of pairs, with lengths and packed sequences, and without.
fn few_rows(device: &Device) -> Outcome {
    let few_rows = || {
        let cases = modified(few_queries(cases()));
        cases.prop_map(|mut case| {
            let modifiers = &mut case.modifiers;
            (modifiers.bias, modifiers.mask, modifiers.dim_v) = (None, None, None);
            modifiers.sinks |= modifiers.are_off();
            case
        })
    };
    let count = if device.is_emulator() { 20 } else { 60 };
    let decoded = Cell::new(0);
    let cases = prop_oneof![few_rows(), sequenced(few_rows())];
    check_each(few(device, count), cases, |case| {
        let problem = case.problem()?;
        let options = case.modifiers.raw(&problem);
        let names = kernel::suitable(device.facts(), case.dtype, &problem, &options)?;
        let is_decoded = names[0].starts_with("decode_optional");
        decoded.set(decoded.get() + u32::from(is_decoded));
        case.check(device)
    })?;
    assert!(
        device.is_cpu() || 2 * decoded.get() > few(device, count),
        "{} decoded",
        decoded.get()
    );
    PASSED
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
            heads: 1,
            seqlen_q: 280,
            seqlen_kv: 330,
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

/// Masks that show one pair: at the edges of tiles and blocks, in any split, of bytes and of bits. All other rows see nothing.
fn masks_of_one_pair(device: &Device) -> Outcome {
    let (rows, keys, dim) = (300, 777, 64);
    let q = Tensor::new(device, [1, 1, rows, dim], &vec![f16::ONE; rows * dim])?;
    let k = Tensor::new(device, [1, 1, keys, dim], &vec![f16::ONE; keys * dim])?;
    let values: Vec<_> = (0..keys * dim)
        .map(|i| f16::from_f32((i / dim) as f32))
        .collect();
    let v = Tensor::new(device, [1, 1, keys, dim], &values)?;
    for (i, (query, key)) in [
        (0, 0),
        (63, 63),
        (64, 64),
        (127, 95),
        (128, 96),
        (129, 128),
        (299, 776),
        (43, 768),
        (44, 383),
        (299, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut bytes = vec![0_u8; rows * keys];
        bytes[query * keys + key] = 7;
        let bytes = Tensor::new(device, [1, 1, rows, keys], &bytes)?;
        let words = keys.div_ceil(32);
        let mut bits = vec![0_u32; rows * words];
        bits[query * words + key / 32] = 1 << (key % 32);
        let bits = Tensor::new(device, [1, 1, rows, words], &bits)?;
        let call = Attention::new().splits([1, 3][i % 2]);
        for call in [call.mask(&bytes), call.mask(&bits)] {
            let (o, lse) = call.forward(&q, &k, &v)?;
            for (row, (o, lse)) in o.to_vec()?.chunks(dim).zip(lse.to_vec()?).enumerate() {
                let (value, score) = match row == query {
                    true => (key as f32, 8.0),
                    false => (0.0, f32::NEG_INFINITY),
                };
                assert!(
                    o.iter().all(|o| o.to_f32() == value),
                    "row {row}, key {key}"
                );
                assert_eq!(lse, score, "row {row}, key {key}");
            }
        }
    }
    PASSED
}

/// A mask that shows an eighth of the keys to each query: both passes read an eighth of what they step over, k and v or q
/// and d_o.
fn hidden_blocks_are_not_loaded() -> Outcome {
    let (rows, keys, dim) = (256, 4096, 64);
    for class in [Class::Sm80, Class::Sm90] {
        let device = Device::emulator_of(class, counting())?;
        let tensor =
            |rows: usize| Tensor::new(&device, [1, 1, rows, dim], &vec![f16::ONE; rows * dim]);
        let (few, many) = (tensor(rows)?, tensor(keys)?);
        // Of the main kernel.
        let read = || {
            let launches = device.counters();
            let main = launches.iter().find(|(name, _)| name.contains("optional"));
            main.expect("launched").1.total().bytes_read
        };
        let bytes = |seen: usize| -> ferroattn::Result<[u64; 2]> {
            let sees: Vec<u8> = (0..keys).map(|key| u8::from(key < seen)).collect();
            let mask = Tensor::new(&device, [1, 1, 1, keys], &sees)?;
            let call = Attention::new().splits(1).mask(&mask);
            call.forward(&few, &many, &many)?;
            let forward = read();
            let each = |row: usize| vec![sees[row]; rows];
            let columns: Vec<u8> = (0..keys).flat_map(each).collect();
            let columns = Tensor::new(&device, [1, 1, keys, rows], &columns)?;
            let call = Attention::new().mask(&columns);
            let (o, lse) = call.forward(&many, &few, &few)?;
            device.counters();
            call.backward(&many, &few, &few, &o, &lse, &many)?;
            Ok([forward, read()])
        };
        let (all, eighth) = (bytes(keys)?, bytes(keys / 8)?);
        for (all, eighth) in all.into_iter().zip(eighth) {
            assert!(eighth < all / 4, "{class:?}: {eighth} of {all}");
        }
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
            if splits == 1 && dim.max(dim_v) <= 256 {
                BackwardCase::from(case.clone()).check(device)?;
            }
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
        let mut vectors = of == 1;
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
            // Rows of whole vectors, or of an odd length.
            vectors = !vectors;
            let case = Case {
                batch: 2,
                heads: 2,
                kv_heads: 1,
                seqlen_q: 150,
                seqlen_kv: if vectors { 336 } else { 333 },
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
            // Its gradient does not take the slope of the bound.
            if case.modifiers.bias.is_some() {
                let mut bounded = case;
                bounded.modifiers.softcap = Some(1.5);
                BackwardCase::from(bounded).check(device)?;
            }
        }
    }
    PASSED
}
