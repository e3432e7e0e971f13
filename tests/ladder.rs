//! The kernels of the ladder: every property of the main kernels, with all options.

use crate::emulated::SCHEDULES;
use crate::maxima::walks;
use crate::repeats::repeat;
use crate::special_values;
use ferroattn::emulator::Options;
use ferroattn::{Accumulation, Class, Device, Dtype, bf16, f16};
use ladder::{Ladder, OStore, Rung, Swizzles};
use libtest_mimic::Completion;
use proptest::prelude::*;
use tests::strategy::{cases, check_some, first_fitting, of_dims, on_rung};
use tests::{Case, Layout, Outcome, PASSED, Test, counting};

/// Random cases of each kind; on the emulator fewer than elsewhere, for there are twelve kernels.
fn count(device: &Device) -> u32 {
    if device.is_emulator() { 12 } else { 128 }
}

/// Lengths are divided by it: the emulator takes each product of the naive kernel by itself.
fn shrink(rung: Rung) -> usize {
    if rung == Rung::Naive { 4 } else { 2 }
}

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let of_rungs = Rung::ALL.iter().flat_map(|&rung| of_rung(rung));
    of_rungs.collect()
}

fn of_rung(rung: Rung) -> Vec<Test> {
    let test = |name: &str, run: fn(&Device, Rung) -> Outcome| {
        Test::kernels(format!("{}::{name}", rung.name()), move |device| {
            with_device(device, rung, |device| run(device, rung))
        })
    };
    let mut tests = vec![
        test("any", |device, rung| {
            check_some(
                device,
                count(device),
                on_rung(device, rung, small(rung, cases())),
            )
        }),
        test("repeats", repeats),
    ];
    // The naive kernel has no running maximum to follow them.
    if rung != Rung::Naive {
        tests.push(test("walks", |device, rung| {
            walks(
                device,
                count(device) / 2,
                on_rung(device, rung, small(rung, cases())),
            )
        }));
    }
    if rung.max_dim() > 256 {
        tests.push(test("wide", |device, rung| {
            check_some(
                device,
                count(device),
                on_rung(device, rung, small(rung, wide())),
            )
        }));
    }
    if rung.has_options() {
        tests.push(test("options", options));
        tests.push(test("large_scores_in_f16", large_scores_in_f16));
        tests.push(test("like_keys_in_f16", like_keys_in_f16));
    }
    if rung != Rung::Naive {
        tests.push(test("blocks_without_keys", blocks_without_keys));
    }
    tests.push(Test::emulator(
        format!("{}::schedules", rung.name()),
        move |_| schedules(rung),
    ));
    if rung.has_options() {
        tests.push(Test::emulator(
            format!("{}::bank_conflicts", rung.name()),
            move |_| bank_conflicts(rung),
        ));
    }
    for (name, special) in special_values::all() {
        let variants = move |case: &Case| variants(rung, case);
        tests.push(Test::kernels(
            format!("{}::{name}", rung.name()),
            move |device| with_device(device, rung, |device| special(device, &variants)),
        ));
    }
    tests
}

/// Calls `run` with the device, or an emulated one that runs the rung; of GPUs only with one that does.
fn with_device(device: &Device, rung: Rung, run: impl Fn(&Device) -> Outcome) -> Outcome {
    let runs = |device: &Device| {
        let facts = device.facts().expect("it runs kernels");
        rung.target().runs_on(facts.compute_capability)
    };
    match device.is_emulator() {
        true => run(&emulated(rung, Options::default())?),
        false if runs(device) => run(device),
        false => Ok(Completion::ignored_with("its GPU is no Hopper")),
    }
}

/// An emulated GPU that runs the rung.
fn emulated(rung: Rung, options: Options) -> ferroattn::Result<Device> {
    match rung.is_for_hopper() {
        true => Device::emulator_of(Class::Sm90, options),
        false => Device::emulator(options),
    }
}

/// Cases of head dims beyond the range of the main kernels.
fn wide() -> impl Strategy<Value = Case> {
    of_dims(cases(), 33..=128)
}

/// The case with up to two batches, two key/value heads and two query heads for each.
fn small(rung: Rung, cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    cases.prop_map(move |case| {
        let group = case.heads / case.kv_heads;
        let kv_heads = case.kv_heads.min(2);
        // Edges of tiles stay what they are, up to the length of a tile or two.
        let length = |length: usize| match rung {
            Rung::Naive => length.div_ceil(4),
            _ if case.dim > 256 => length.min(150),
            _ => length,
        };
        Case {
            batch: case.batch.min(2),
            kv_heads,
            heads: kv_heads * group.min(2),
            seqlen_q: length(case.seqlen_q),
            seqlen_kv: length(case.seqlen_kv),
            ..case
        }
    })
}

/// Both dtypes, causal or not, and sums in f16, each with other options.
fn variants(rung: Rung, case: &Case) -> Vec<Case> {
    let ladder = Ladder::new(rung);
    let wide = if rung.max_dim() > 256 { 264 } else { 104 };
    let of = |dtype, causal, dim, splits, ladder| Case {
        seqlen_q: case.seqlen_q.div_ceil(shrink(rung)),
        seqlen_kv: case.seqlen_kv.div_ceil(shrink(rung)),
        dtype,
        causal,
        dim,
        splits,
        ladder: Some(ladder),
        ..case.clone()
    };
    if !rung.has_options() {
        // `naive` and `fa1` do not split.
        let splits = if rung.is_for_hopper() { 2 } else { 1 };
        return vec![
            of(Dtype::F16, false, wide, 1, ladder),
            of(Dtype::Bf16, true, 64, splits, ladder),
        ];
    }
    let one = Ladder {
        stages: Some(1),
        o_store: Some(OStore::Direct),
        ..ladder
    };
    let half = Ladder {
        acc: Some(Accumulation::Half),
        swizzles: Some(Swizzles::Pad),
        o_store: Some(OStore::Shuffle),
        ..ladder
    };
    vec![
        of(Dtype::F16, false, wide, 1, ladder),
        of(Dtype::Bf16, true, 64, 2, one),
        of(Dtype::F16, true, 96, 1, half),
    ]
}

/// All options with each other, on ragged tiles; on the emulator every two of them.
fn options(device: &Device, rung: Rung) -> Outcome {
    for (i, &swizzle) in Swizzles::ALL.iter().enumerate() {
        for (stages, &o_store) in (1..=3).flat_map(|n| OStore::ALL.iter().map(move |o| (n, o))) {
            for acc in Accumulation::ALL {
                let turn = i + stages as usize;
                let is_next =
                    o_store == OStore::ALL[turn % 3] && acc == Accumulation::ALL[turn % 2];
                if device.is_emulator() && !is_next {
                    continue;
                }
                let layout = [Layout::Bhnd, Layout::OddRows][stages as usize % 2];
                let case = Case {
                    seqlen_q: 37,
                    seqlen_kv: 150,
                    dim: [40, 64, 96, 120, 128][turn % 5],
                    causal: stages == 2,
                    splits: 1 + stages % 2,
                    v: layout,
                    o: layout,
                    ladder: Some(Ladder {
                        rung,
                        stages: Some(stages),
                        swizzles: Some(swizzle),
                        acc: Some(acc),
                        o_store: Some(o_store),
                    }),
                    ..Case::default()
                };
                // Of the head dims, the largest for which there is the shared memory.
                let dims = (1..=case.dim / 8).rev().map(|n| Case {
                    dim: 8 * n,
                    ..case.clone()
                });
                let case = first_fitting(device, dims);
                case.check(device)?;
            }
        }
    }
    PASSED
}

/// A block none of whose rows sees a key stores zeros, over what it may have begun to load.
fn blocks_without_keys(device: &Device, rung: Rung) -> Outcome {
    let all = (1..=3).flat_map(|n| OStore::ALL.iter().map(move |o| (Some(n), Some(*o))));
    let options: Vec<_> = match rung.has_options() {
        true => all.collect(),
        false => vec![(None, None)],
    };
    for (stages, o_store) in options {
        for dim in [64, 136] {
            let case = Case {
                seqlen_q: 300,
                seqlen_kv: 15,
                dim,
                causal: true,
                splits: 1,
                ladder: Some(Ladder {
                    stages,
                    o_store,
                    ..Ladder::new(rung)
                }),
                ..Case::default()
            };
            let dims = [dim, 32].map(|dim| Case {
                dim,
                ..case.clone()
            });
            first_fitting(device, dims.into_iter()).check(device)?;
        }
    }
    PASSED
}

/// Scores at the end of what f16 holds, in base 2, where one rounding changes a weight by a factor of
/// thousands: like keys still weigh the same.
fn large_scores_in_f16(device: &Device, rung: Rung) -> Outcome {
    for causal in [false, true] {
        for score in [45_000.0, -45_000.0] {
            let case = Case {
                causal,
                seqlen_kv: 200,
                ladder: Some(Ladder {
                    acc: Some(Accumulation::Half),
                    ..Ladder::new(rung)
                }),
                ..Case::default()
            };
            let (case, inputs) = case.with_scores(
                1,
                |_| 0,
                |_, key| match key % 2 {
                    0 => score,
                    _ => score - 256.0,
                },
            );
            case.run(device, &inputs)?;
        }
    }
    PASSED
}

/// All keys are one, and all their scores off by the same.
fn like_keys_in_f16(device: &Device, rung: Rung) -> Outcome {
    Case {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        seqlen_kv: 95,
        dim: 104,
        scale: Some(-0.68),
        k: Layout::OneRow,
        ladder: Some(Ladder {
            acc: Some(Accumulation::Half),
            ..Ladder::new(rung)
        }),
        ..Case::default()
    }
    .check(device)
}

/// In whatever order warps take turns, with any number of buffers, none reads what another has not written
/// yet or overwrites what another still reads: the emulator tells. Each order gives the same bits.
fn schedules(rung: Rung) -> Outcome {
    let stages: &[_] = match rung.has_options() {
        true => &[Some(1), Some(2), Some(3)],
        false => &[None],
    };
    for causal in [false, true] {
        for (i, &stages) in stages.iter().enumerate() {
            let o_store = OStore::ALL[(i + usize::from(causal)) % 3];
            let case = Case {
                seqlen_q: 100 / shrink(rung),
                // Several blocks of keys of every kernel, and a ragged one.
                seqlen_kv: 600 / shrink(rung),
                dim: 128,
                causal,
                splits: 1,
                ladder: Some(Ladder {
                    stages,
                    o_store: stages.map(|_| o_store),
                    ..Ladder::new(rung)
                }),
                ..Case::default()
            };
            let dims = [128, 64].map(|dim| Case {
                dim,
                ..case.clone()
            });
            let of_seed = |seed| {
                let options = Options {
                    seed,
                    ..Options::default()
                };
                emulated(rung, options)
            };
            let case = first_fitting(&of_seed(0)?, dims.into_iter());
            case.check_schedules(SCHEDULES / 2, of_seed)?;
        }
    }
    PASSED
}

/// Every tile that is swizzled takes conflicts away from `ldmatrix`; with all of them there are none, nor if
/// rows are a chunk further apart, whatever the rows' length.
fn bank_conflicts(rung: Rung) -> Outcome {
    let device = Device::emulator(counting())?;
    let wide = (rung.max_dim() > 256).then_some(264);
    for dim in [32, 64, 96, 128].into_iter().chain(wide) {
        let conflicts = |swizzles| -> Result<u64, libtest_mimic::Failed> {
            let case = Case {
                seqlen_q: 64,
                seqlen_kv: 256,
                dim,
                splits: 1,
                ladder: Some(Ladder {
                    stages: Some(1),
                    swizzles: Some(swizzles),
                    o_store: Some(OStore::Direct),
                    ..Ladder::new(rung)
                }),
                ..Case::default()
            };
            case.check(&device)?;
            let (_, counters) = device.counters().pop().expect("a kernel ran");
            let reads = counters.total_of("ldmatrix");
            assert!(reads.wavefronts > 0);
            Ok(reads.bank_conflicts())
        };
        let none = conflicts(Swizzles::None)?;
        let q = conflicts(Swizzles::Q)?;
        let qk = conflicts(Swizzles::Qk)?;
        assert!(none > q && q > qk && qk > 0, "dim {dim}: {none}, {q}, {qk}");
        assert_eq!(conflicts(Swizzles::Qkv)?, 0, "dim {dim}");
        assert_eq!(conflicts(Swizzles::Pad)?, 0, "dim {dim}");
    }
    PASSED
}

/// Results are the same to the last bit in every run.
fn repeats(device: &Device, rung: Rung) -> Outcome {
    for case in variants(rung, &Case::default()) {
        match case.dtype {
            Dtype::F16 => repeat::<f16>(device, &case)?,
            Dtype::Bf16 => repeat::<bf16>(device, &case)?,
            Dtype::F32 => repeat::<f32>(device, &case)?,
            other => unreachable!("no case is {}", other.name()),
        };
    }
    PASSED
}
