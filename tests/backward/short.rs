//! Dense batches of many short sequences, which tiles share where memory allows it.

use ferroattn::device::Emulator;
use ferroattn::emulator::Options;
use ferroattn::{Device, Dtype, Sequences, Window};
use ndarray::{Axis, s};
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tests::strategy::{check_each, few};
use tests::{BackwardCase, Case, Layout, Modifiers, Outcome, PASSED, Test};

/// Multiprocessors of emulated devices here: more key/value heads share tiles.
const MULTIPROCESSORS: u32 = 23;

/// The device or, if it is emulated, one with few multiprocessors under a schedule of this seed.
fn of_few(device: &Device, seed: u64) -> ferroattn::Result<Device> {
    let (true, Some(&(mut facts))) = (device.is_emulator(), device.facts()) else {
        return Ok(device.clone());
    };
    facts.multiprocessors = MULTIPROCESSORS;
    let options = Options {
        seed,
        ..Options::default()
    };
    Device::with_driver(Emulator::new(facts, options))
}

/// Key/value heads that share tiles.
fn enough(device: &Device) -> usize {
    let most = device
        .facts()
        .map_or(MULTIPROCESSORS, |facts| facts.multiprocessors);
    most as usize + 1
}

pub fn tests() -> Vec<Test> {
    vec![
        Test::backward("each_length", each_length),
        Test::backward("any", |device| {
            let device = of_few(device, 0)?;
            let count = if device.is_emulator() { 10 } else { 25 };
            check_each(few(&device, count), cases(enough(&device)), |case| {
                case.check(&device)
            })
        }),
        Test::backward("bits_repeat", bits_repeat),
        Test::backward("neighbours_keep_their_bits", neighbours_keep_their_bits),
    ]
}

/// The case with all tensors in a layout.
fn laid_out(case: Case, layout: Layout) -> BackwardCase {
    BackwardCase {
        d_o: layout,
        dq: layout,
        dk: layout,
        dv: layout,
        ..BackwardCase::from(Case {
            q: layout,
            k: layout,
            v: layout,
            o: layout,
            ..case
        })
    }
}

/// A case of these heads and lengths, with so many key/value heads in all, or more.
fn many(all: usize, [kv_heads, group]: [usize; 2], [seqlen_q, seqlen_kv]: [usize; 2]) -> Case {
    Case {
        batch: all.div_ceil(kv_heads),
        heads: kv_heads * group,
        kv_heads,
        seqlen_q,
        seqlen_kv,
        dim: 32,
        ..Case::default()
    }
}

/// Lengths around those of tiles, both masks, and heads one after another or beside each other.
fn each_length(device: &Device) -> Outcome {
    let device = of_few(device, 0)?;
    for (number, length) in [1, 3, 4, 17, 32, 33, 64].into_iter().enumerate() {
        for (causal, layout) in [(false, Layout::Bhnd), (true, Layout::Bnhd)] {
            let heads = [[1, 1], [3, 1], [2, 2]][(number + usize::from(causal)) % 3];
            let case = many(enough(&device), heads, [length; 2]);
            laid_out(Case { causal, ..case }, layout).check(&device)?;
        }
    }
    PASSED
}

/// A length for each entry of a batch of so many queries and keys each.
fn lengths(case: &Case) -> Sequences<Vec<i32>> {
    let mut rng = StdRng::seed_from_u64(case.seed);
    let [q, kv] = [case.seqlen_q, case.seqlen_kv].map(|rows| {
        let lengths = (0..case.batch).map(|_| rng.random_range(0..=rows as i32));
        lengths.collect()
    });
    Sequences::Padded { q, kv }
}

/// Random lengths, heads, layouts and options.
fn cases(all: usize) -> impl Strategy<Value = BackwardCase> {
    let length = || prop_oneof![select(&[1, 3, 4, 17, 32][..]), 1..=24_usize];
    let heads = (1..=3_usize, 1..=3_usize, length(), length(), 1..=10_usize);
    let layouts = || select(&[Layout::Bhnd, Layout::Bnhd, Layout::Shifted, Layout::Padded][..]);
    let side = || proptest::option::of(0..=20_usize);
    let modifiers = (
        side(),
        side(),
        any::<[bool; 3]>(),
        proptest::option::of(1.0..30.0_f32),
    );
    let options = (any::<[bool; 5]>(), layouts(), layouts(), any::<u64>());
    (heads, modifiers, options).prop_map(move |(heads, modifiers, options)| {
        let (kv_heads, group, seqlen_q, seqlen_kv, slices) = heads;
        let (left, right, [window, alibi, sinks], softcap) = modifiers;
        let ([causal, bf16, d_lse, any_order, padded], layout, o, seed) = options;
        let mut case = Case {
            dtype: if bf16 { Dtype::Bf16 } else { Dtype::F16 },
            dim: 8 * slices,
            causal,
            modifiers: Modifiers {
                window: if window {
                    Window { left, right }
                } else {
                    Window::NONE
                },
                softcap,
                alibi,
                sinks,
                ..Modifiers::default()
            },
            seed,
            ..many(all, [kv_heads, group], [seqlen_q, seqlen_kv])
        };
        case.modifiers.sequences = padded.then(|| lengths(&case));
        let case = BackwardCase {
            d_lse,
            any_order,
            ..laid_out(case, layout)
        };
        // One tensor may lie otherwise.
        BackwardCase {
            forward: Case {
                o: if seed % 8 == 0 { o } else { layout },
                ..case.forward
            },
            ..case
        }
    })
}

/// Gradients of rows to which two key tiles add, without turns, bit for bit: on the emulator under another schedule.
fn bits_repeat(device: &Device) -> Outcome {
    let [first, second] = [of_few(device, 0)?, of_few(device, 1)?];
    let [shared, two_tiles] = [
        many(enough(&first), [2, 1], [17, 17]),
        many(1, [1, 1], [200; 2]),
    ];
    for (dim, case) in [(64, &shared), (128, &shared), (64, &two_tiles)] {
        let case = Case {
            dim,
            causal: true,
            ..case.clone()
        };
        let case = laid_out(case, Layout::Bnhd);
        let inputs = case.inputs();
        assert_eq!(case.run(&first, &inputs)?, case.run(&second, &inputs)?);
    }
    PASSED
}

/// One entry's infinities and NaN reach no gradient of the others, which share its tiles.
fn neighbours_keep_their_bits(device: &Device) -> Outcome {
    let device = of_few(device, 0)?;
    let spoilt = 10;
    for (value, layout) in [(f32::NAN, Layout::Bhnd), (f32::INFINITY, Layout::Bnhd)] {
        let case = many(enough(&device), [1, 1], [4, 5]);
        let case = BackwardCase {
            d_lse: true,
            ..laid_out(case, layout)
        };
        let mut inputs = case.inputs();
        let right = case.run(&device, &inputs)?;
        let forward = &mut inputs.forward;
        for tensor in [
            &mut forward.q,
            &mut forward.k,
            &mut forward.v,
            &mut inputs.d_o,
        ] {
            tensor.index_axis_mut(Axis(0), spoilt).fill(value);
        }
        inputs.d_lse.index_axis_mut(Axis(0), spoilt).fill(value);
        let found = case.run(&device, &inputs)?;
        for (found, right) in [
            (found.dq, right.dq),
            (found.dk, right.dk),
            (found.dv, right.dv),
        ] {
            for others in [s![..spoilt, .., .., ..], s![spoilt + 1.., .., .., ..]] {
                assert_eq!(found.slice(others), right.slice(others), "{case}");
            }
            let of_entry = found.index_axis(Axis(0), spoilt);
            assert!(of_entry.iter().all(|x| !x.is_finite()), "{case}");
        }
    }
    PASSED
}
