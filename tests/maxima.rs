//! Scores that grow and shrink along the keys: the forward kernels must raise the maxima of rows at any step.
//! With normally distributed inputs the first block nearly always holds the maximum.
//!
//! Kernels take keys from the last to the first, so growing scores grow towards key 0. A kernel raises a
//! row's maximum when a lane's probabilities in a block sum to more than 2^14.

use crate::special_values::variants;
use ferroattn::Device;
use ndarray::s;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tests::strategy::{cases, check_each, scheduled};
use tests::{Case, Layout, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("growing", growing),
        Test::new("growing_negative_scale", growing_negative_scale),
        Test::new("shrinking", shrinking),
        Test::new("tiny_before_large", tiny_before_large),
        Test::new("some_rows", some_rows),
        Test::new("one_row_at_a_time", one_row_at_a_time),
        Test::new("some_columns", some_columns),
        Test::new("equal_and_huge", equal_and_huge),
        Test::new("sums_at_the_threshold", sums_at_the_threshold),
        Test::new("nan_midway", |device| spoilt_midway(device, f32::NAN)),
        Test::new("infinity_midway", |device| {
            spoilt_midway(device, f32::INFINITY)
        }),
        Test::new("minus_infinity_midway", |device| {
            spoilt_midway(device, f32::NEG_INFINITY)
        }),
        Test::new("any", any),
    ]
}

/// The most keys that a kernel takes a step; every other Bc divides it. So scores that are constant in
/// such a run of keys are constant in every kernel's blocks.
const RUN: usize = 64;

/// Rows of three warps, and keys of several runs; the mask may cut the first and the last.
fn ragged() -> Vec<Case> {
    let case = Case {
        seqlen_q: 70,
        seqlen_kv: 6 * RUN + 17,
        ..Case::default()
    };
    variants(&case)
}

/// A key's run, counted in the order of processing.
fn run(case: &Case, key: usize) -> usize {
    (case.seqlen_kv - 1) / RUN - key / RUN
}

/// Checks a case in which all queries have the same scores.
fn check(device: &Device, case: &Case, score: impl Fn(usize) -> f32) -> Outcome {
    let (case, inputs) = case.with_scores(1, |_| 0, |_, key| score(key));
    case.run(device, &inputs)
        .map_err(|failed| format!("{case}: {}", failed.message().unwrap_or_default()))?;
    PASSED
}

/// Places in [`ragged`] of the cases that the emulator computes with all values: one of each main loop, both masks and both
/// dtypes.
const WHOLE: [usize; 4] = [0, 7, 13, 19];

/// Calls `check` with each ragged case and each value. On the emulator most cases take one value, another for each: the main
/// loops are [few](WHOLE), and all of them take all values.
fn each<T: Copy>(device: &Device, values: &[T], check: impl Fn(&Case, T) -> Outcome) -> Outcome {
    for (number, case) in ragged().into_iter().enumerate() {
        let all = !device.is_emulator() || WHOLE.contains(&number);
        let single = number % values.len();
        let values = if all {
            values
        } else {
            &values[single..=single]
        };
        for &value in values {
            check(&case, value)?;
        }
    }
    PASSED
}

/// Growth from run to run: below the threshold for many steps, just below and just above it (9.75 is 14.07
/// binary digits), beyond the range of an `f16`, and enough to make all earlier keys vanish.
const STEPS: [f32; 6] = [2.5, 9.6875, 9.75, 11.25, 13.0, 300.0];

fn growing(device: &Device) -> Outcome {
    each(device, &STEPS, |case, step| {
        check(device, case, |key| step * run(case, key) as f32)
    })
}

/// The smallest product becomes the largest score.
fn growing_negative_scale(device: &Device) -> Outcome {
    each(device, &[2.5, 9.75, 300.0], |case, step| {
        let case = Case {
            scale: Some(-1.0),
            ..case.clone()
        };
        check(device, &case, |key| step * run(&case, key) as f32 - 20.0)
    })
}

/// The first block has the maximum; later keys weigh little or nothing.
fn shrinking(device: &Device) -> Outcome {
    each(device, &[2.5, 9.75, 300.0], |case, step| {
        check(device, case, |key| -step * run(case, key) as f32)
    })
}

/// The first maximum is the lowest possible score or -inf, and weighs nothing once a larger one comes.
fn tiny_before_large(device: &Device) -> Outcome {
    let [low, infinite] = [(-60_000.0, 60_000.0), (f32::NEG_INFINITY, -100.0)];
    let values = [1, 3, 5].map(|runs| [(low, runs), (infinite, runs)]);
    each(
        device,
        values.as_flattened(),
        |case, ((before, after), runs)| {
            let late = |key| run(case, key) >= runs;
            check(device, case, |key| if late(key) { after } else { before })
        },
    )
}

/// The maxima of some rows of a warp rise, the others must stay.
fn some_rows(device: &Device) -> Outcome {
    let rows: [fn(usize) -> bool; 4] = [
        |row| row == 37,
        |row| row % 2 == 0,
        |row| row % 16 >= 8,
        |row| row / 16 == 1,
    ];
    each(device, &rows, |case, grows| {
        let (case, inputs) = case.with_scores(
            2,
            |row| usize::from(grows(row)),
            |kind, key| match kind {
                0 => -3.0 * run(case, key) as f32,
                _ => 30.0 * run(case, key) as f32,
            },
        );
        case.run(device, &inputs)?;
        PASSED
    })
}

/// Neighbouring rows of a warp raise their maxima at different steps.
fn one_row_at_a_time(device: &Device) -> Outcome {
    let kinds = 7;
    each(device, &[9.75, 200.0], |case, height| {
        let (case, inputs) = case.with_scores(
            kinds,
            |row| row % kinds,
            |kind, key| {
                if run(case, key) >= kind { height } else { 0.0 }
            },
        );
        case.run(device, &inputs)?;
        PASSED
    })
}

/// One lane's columns, or a single key, raise the maximum for all lanes of the row.
fn some_columns(device: &Device) -> Outcome {
    each(device, &[0, 1, 2, 3], |case, lane| {
        check(device, case, |key| {
            let grows = key % 8 / 2 == lane;
            if grows {
                40.0 * run(case, key) as f32
            } else {
                -1.0
            }
        })
    })?;
    each(device, &[0, 65, 130, 255, 300], |case, single| {
        check(device, case, |key| if key == single { 150.0 } else { 0.0 })
    })
}

fn equal_and_huge(device: &Device) -> Outcome {
    each(device, &[60_000.0, -60_000.0], |case, score| {
        check(device, case, |_| score)
    })
}

/// Equal scores in the later blocks: a lane's 4, 8, 16 or 32 probabilities, in a block of 16 to 128 keys, sum
/// to just below or just above the threshold.
fn sums_at_the_threshold(device: &Device) -> Outcome {
    const GRAIN: f32 = 1.0 / 32.0;
    let heights = [4.0, 8.0, 16.0, 32.0].map(|probabilities| {
        let exact = (16384.0_f32 / probabilities).ln();
        let below = (exact / GRAIN).floor() * GRAIN;
        [below, below + GRAIN]
    });
    each(device, heights.as_flattened(), |case, height| {
        check(
            device,
            case,
            |key| {
                if run(case, key) > 1 { height } else { 0.0 }
            },
        )
    })
}

/// One key in the middle is not finite; maxima rise before and after it.
fn spoilt_midway(device: &Device, value: f32) -> Outcome {
    each(device, &[150, 200], |case, key| {
        let (spoilt, mut inputs) = case.with_scores(
            2,
            |row| row % 2,
            |kind, key| [0.0, 12.0][kind] * run(case, key) as f32,
        );
        // In an element that is 0 in every query: 0 times it is NaN for all rows.
        inputs.k[[0, 0, key, 5]] = value;
        let result = spoilt.run(device, &inputs)?;
        let sees_it = |row| !case.causal || row + case.seqlen_kv >= key + case.seqlen_q;
        for row in 0..case.seqlen_q {
            let o = result.o.slice(s![.., .., row, ..]);
            assert_eq!(o.iter().all(|o| o.is_nan()), sees_it(row), "{spoilt}");
        }

        // In the element that makes the scores it is a maximum, or a weight of 0.
        let (spoilt, mut inputs) =
            case.with_scores(1, |_| 0, |_, key| 12.0 * run(case, key) as f32);
        inputs.k[[0, 0, key, 0]] = value;
        spoilt.run(device, &inputs)?;
        PASSED
    })
}

/// How the scores of several kinds of rows change from run to run, and for which keys of a run.
#[derive(Clone, Debug)]
struct Walk {
    /// Change of the score, by run and kind of row.
    steps: Vec<[f32; Walk::KINDS]>,
    /// The kind of each of 16 rows, repeated.
    kinds: Vec<usize>,
    columns: Columns,
}

/// The keys of a run that follow the walk; the others stay below.
#[derive(Clone, Copy, Debug)]
enum Columns {
    All,
    OfLane(usize),
    Single(usize),
}

impl Walk {
    const KINDS: usize = 4;

    fn any() -> impl Strategy<Value = Walk> {
        let steps = [
            0.0, 0.0, 0.0, 0.25, -0.25, 6.9375, 9.6875, 9.75, 11.25, 13.0, 100.0, 300.0, -9.75,
            -300.0,
        ];
        let columns = prop_oneof![
            2 => Just(Columns::All),
            1 => (0..4_usize).prop_map(Columns::OfLane),
            1 => (0..RUN).prop_map(Columns::Single),
        ];
        let step = prop::array::uniform4(select(steps.to_vec()));
        let kind = prop_oneof![2 => Just(0), 1 => 0..Walk::KINDS];
        (vec(step, 12), vec(kind, 16), columns).prop_map(|(steps, kinds, columns)| Walk {
            steps,
            kinds,
            columns,
        })
    }

    fn score(&self, case: &Case, kind: usize, key: usize) -> f32 {
        let steps = &self.steps[..=run(case, key)];
        let height: f32 = steps.iter().map(|step| step[kind]).sum();
        let follows = match self.columns {
            Columns::All => true,
            Columns::OfLane(lane) => key % 8 / 2 == lane,
            Columns::Single(single) => key % RUN == single,
        };
        if follows {
            height
        } else {
            height.min(0.0) - 5.0
        }
    }
}

/// Any walk, by any kernel, on any number of splits.
fn any(device: &Device) -> Outcome {
    let is_gpu = !device.is_cpu() && !device.is_emulator();
    let count = if is_gpu { 128 } else { 56 };
    walks(device, count, scheduled(device, cases()))
}

/// Random walks in `count` cases, on one to three splits.
pub fn walks(device: &Device, count: u32, cases: impl Strategy<Value = Case>) -> Outcome {
    let lengths = (1..=100_usize, 1..=700_usize, 1..=3_u32);
    let cases = (cases, lengths).prop_map(|(case, (seqlen_q, seqlen_kv, splits))| Case {
        seqlen_q,
        seqlen_kv,
        splits,
        q: Layout::Bhnd,
        k: Layout::Bhnd,
        ..case
    });
    check_each(count, (cases, Walk::any()), |(case, walk)| {
        let kind = |row: usize| walk.kinds[row % walk.kinds.len()];
        let score = |kind, key| walk.score(&case, kind, key);
        let (case, inputs) = case.with_scores(Walk::KINDS, kind, score);
        case.run(device, &inputs)?;
        PASSED
    })
}
