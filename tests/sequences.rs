//! Packed and padded sequences, alone and with other options, against the reference.

use ferroattn::{Class, Device, Sequences, Window};
use ndarray::s;
use proptest::prelude::*;
use tests::strategy::{
    backward_of, cases, check_each, few, misnumbered, modified, of_dims, scheduled, sequenced,
};
use tests::{BackwardCase, Case, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let numbers = [
        Test::kernels("any_numbers", any_numbers),
        Test::kernels("any_numbers_of_gradients", any_numbers_of_gradients),
    ];
    let of_hopper = numbers.each_ref().map(|test| test.emulated_as(Class::Sm90));
    let tests = vec![
        Test::new("any", |device| check_forward(device, sequenced(cases()))),
        Test::new("any_with_options", |device| {
            check_forward(device, sequenced(modified(cases())))
        }),
        Test::new("by_any_kernel", |device| {
            check_forward(device, scheduled(device, sequenced(modified(cases()))))
        }),
        Test::backward("any_gradient", |device| {
            let cases = backward_of(sequenced(modified(cases())));
            check_each(few(device, 25), cases, |case| case.check(device))
        }),
        Test::backward("gradients_repeat", gradients_repeat),
        Test::backward("sinks_of_no_sequence", sinks_of_no_sequence),
        Test::new("of_all_sizes", of_all_sizes),
        Test::new("at_edges_of_tiles", at_edges_of_tiles),
        Test::new("without_keys_or_queries", without_keys_or_queries),
        Test::new("lengths_of_keys_alone", lengths_of_keys_alone),
        Test::backward("gradients_by_lengths_of_keys_alone", |device| {
            BackwardCase::from(of_all_queries(130)).check(device)
        }),
    ];
    let of_hopper = of_hopper.into_iter().flatten();
    tests.into_iter().chain(numbers).chain(of_hopper).collect()
}

fn check_forward(device: &Device, cases: impl Strategy<Value = Case>) -> Outcome {
    check_each(few(device, 40), cases, |case| case.check(device))
}

/// Offsets and lengths of any value, which kernels of every target move to what is allowed: a call ends, inside its tensors.
/// `PROPTEST_CASES` may be ten thousand.
fn any_numbers(device: &Device) -> Outcome {
    let plain = misnumbered(of_dims(cases(), 1..=8));
    let modified = misnumbered(modified(of_dims(cases(), 1..=8)));
    let cases = scheduled(device, prop_oneof![plain, modified]);
    check_each(few(device, 125), cases, |case| case.check(device))
}

/// The gradients of such calls, by kernels of Hopper and of `sm_80`.
fn any_numbers_of_gradients(device: &Device) -> Outcome {
    let plain = misnumbered(of_dims(cases(), 1..=8));
    let modified = misnumbered(modified(of_dims(cases(), 1..=8)));
    let cases = (backward_of(prop_oneof![plain, modified]), any::<bool>());
    let cases = cases.prop_map(|(case, hopper)| {
        let Case { dtype, dim, .. } = case.forward;
        let of_sm80 = format!(
            "backward_optional_{}_d{}",
            dtype.name(),
            dim.next_multiple_of(32)
        );
        let forward = Case {
            kernel: (!hopper).then_some(of_sm80),
            modifiers: Modifiers {
                dim_v: None,
                ..case.forward.modifiers
            },
            ..case.forward
        };
        BackwardCase { forward, ..case }
    });
    check_each(few(device, 125), cases, |case| case.check(device))
}

/// Rows of no sequence have no part in any gradient, whatever their d_o and d_lse.
fn sinks_of_no_sequence(device: &Device) -> Outcome {
    let packed = Sequences::Packed {
        q: vec![5, 60, 60, 140],
        kv: vec![0, 0, 30, 150],
    };
    let padded = Sequences::Padded {
        q: vec![100],
        kv: vec![90],
    };
    for (sequences, queries) in [(packed, 5..140), (padded, 0..100)] {
        let case = BackwardCase {
            d_lse: true,
            ..BackwardCase::from(Case {
                heads: 2,
                modifiers: Modifiers {
                    sinks: true,
                    sequences: Some(sequences),
                    ..Modifiers::default()
                },
                ..Case::default()
            })
        };
        let mut inputs = case.inputs();
        let others: Vec<usize> = (0..150).filter(|row| !queries.contains(row)).collect();
        for row in others {
            inputs.d_o.slice_mut(s![.., .., row, ..]).fill(f32::NAN);
            inputs.d_lse.slice_mut(s![.., .., row]).fill(7.0);
        }
        case.run(device, &inputs)?;
    }
    PASSED
}

/// The case with each mask, with sinks and without, and its gradients.
fn check_masks(device: &Device, case: &Case, sequences: &Sequences<Vec<i32>>) -> Outcome {
    let narrow = Window {
        left: Some(20),
        right: Some(3),
    };
    for (causal, window, sinks) in [
        (false, Window::NONE, false),
        (true, Window::NONE, true),
        (false, narrow, true),
    ] {
        let case = Case {
            causal,
            modifiers: Modifiers {
                window,
                alibi: sinks,
                sinks,
                sequences: Some(sequences.clone()),
                ..Modifiers::default()
            },
            ..case.clone()
        };
        case.check(device)?;
        BackwardCase::from(case).check(device)?;
    }
    PASSED
}

/// Offsets of sequences with these lengths after `first` rows of no sequence.
fn offsets(first: i32, lengths: &[i32]) -> Vec<i32> {
    let mut offsets = vec![first];
    offsets.extend(lengths.iter().scan(first, |end, length| {
        *end += length;
        Some(*end)
    }));
    offsets
}

/// Few queries and many, which all count.
fn lengths_of_keys_alone(device: &Device) -> Outcome {
    for seqlen_q in [3, 130] {
        of_all_queries(seqlen_q).check(device)?;
    }
    PASSED
}

/// Padded sequences of so many queries each.
fn of_all_queries(seqlen_q: usize) -> Case {
    Case {
        batch: 3,
        heads: 4,
        kv_heads: 2,
        seqlen_q,
        seqlen_kv: 200,
        causal: true,
        modifiers: Modifiers {
            sequences: Some(Sequences::Padded {
                q: vec![seqlen_q as i32; 3],
                kv: vec![200, 0, 77],
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    }
}

/// Sequences of a row, of a tile, and of several, in one call: self-attention, and each with other keys.
fn of_all_sizes(device: &Device) -> Outcome {
    let lengths = [1, 200, 0, 1, 64, 3, 128, 53];
    let case = Case {
        heads: 1,
        seqlen_q: 450,
        seqlen_kv: 450,
        ..Case::default()
    };
    let q = offsets(0, &lengths);
    let kv = q.clone();
    check_masks(device, &case, &Sequences::Packed { q: q.clone(), kv })?;
    let kv = offsets(0, &[130, 1, 70, 0, 65, 128, 2, 54]);
    check_masks(device, &case, &Sequences::Packed { q, kv })?;
    let case = Case {
        batch: 5,
        heads: 4,
        kv_heads: 2,
        seqlen_q: 140,
        seqlen_kv: 200,
        ..Case::default()
    };
    let [q, kv] = [vec![140, 1, 0, 128, 65], vec![200, 129, 64, 0, 1]];
    check_masks(device, &case, &Sequences::Padded { q, kv })
}

/// Gradients of sequences of many key tiles, which take turns, bit for bit.
fn gradients_repeat(device: &Device) -> Outcome {
    for dim in [64, 128] {
        let q = offsets(2, &[300, 0, 1, 130]);
        let kv = offsets(0, &[500, 10, 140, 80]);
        let case = BackwardCase::from(Case {
            heads: 2,
            seqlen_q: 440,
            seqlen_kv: 740,
            dim,
            causal: true,
            modifiers: Modifiers {
                sequences: Some(Sequences::Packed { q, kv }),
                ..Modifiers::default()
            },
            ..Case::default()
        });
        let inputs = case.inputs();
        let first = case.run(device, &inputs)?;
        // The emulator's schedule comes from its seed.
        for _ in 0..if device.is_emulator() { 1 } else { 3 } {
            assert_eq!(first, case.run(device, &inputs)?);
        }
    }
    PASSED
}

/// Sequences that begin and end beside edges of tiles, between rows of no sequence.
fn at_edges_of_tiles(device: &Device) -> Outcome {
    let case = Case {
        heads: 1,
        seqlen_q: 400,
        seqlen_kv: 400,
        ..Case::default()
    };
    for first in [0, 1, 63, 64, 127] {
        let q = offsets(first, &[65, 63, 128]);
        let kv = offsets(128 - first, &[1, 127, 129]);
        check_masks(device, &case, &Sequences::Packed { q, kv })?;
    }
    PASSED
}

/// Calls of which no query, or none of an entry, sees a key.
fn without_keys_or_queries(device: &Device) -> Outcome {
    let case = Case {
        seqlen_q: 130,
        seqlen_kv: 70,
        ..Case::default()
    };
    for (q, kv) in [
        (vec![0, 130], vec![0, 0]),
        (vec![0, 0], vec![0, 70]),
        (vec![130, 130], vec![70, 70]),
        (vec![0, 130, 130], vec![35, 35, 70]),
        (vec![5, 5, 5, 5], vec![9, 9, 9, 9]),
    ] {
        check_masks(device, &case, &Sequences::Packed { q, kv })?;
    }
    for (q, kv) in [
        (vec![130, 130], vec![0, 70]),
        (vec![0, 130], vec![70, 70]),
        (vec![0, 0], vec![0, 0]),
    ] {
        let case = Case {
            batch: 2,
            ..case.clone()
        };
        check_masks(device, &case, &Sequences::Padded { q, kv })?;
    }
    PASSED
}
