//! Random [cases](Case).

use crate::modifiers::{Cache, Pages, Pairs};
use crate::{BackwardCase, Case, Layout, Modifiers, Outcome, PASSED, harness};
use ferroattn::{Accumulation, Device, Dtype, RawForward, Sequences, Window, kernel};
use ladder::{Ladder, OStore, Rung, Swizzles};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngSeed, TestRunner};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Random cases: all head dims, ragged and unequal lengths, both masks, grouped heads, every layout, scales of
/// any sign. The default kernel computes them, with as many splits as it likes or a given number.
pub fn cases() -> impl Strategy<Value = Case> {
    let heads = (1..=3_usize, 1..=3_usize, 1..=4_usize);
    let sizes = (heads, seqlens(), seqlens(), dims());
    let options = (
        select(&[Dtype::F16, Dtype::Bf16][..]),
        any::<bool>(),
        scales(),
    );
    let layouts = (
        input_layouts(),
        input_layouts(),
        input_layouts(),
        select(Layout::OUTPUTS),
    );
    let splits = prop_oneof![2 => Just(0), 1 => 1..=6_u32];
    let seed = any::<u64>();
    (sizes, options, layouts, splits, seed).prop_map(|(sizes, options, layouts, splits, seed)| {
        let ((batch, kv_heads, group), seqlen_q, seqlen_kv, dim) = sizes;
        let (dtype, causal, scale) = options;
        let (q, k, v, o) = layouts;
        Case {
            dtype,
            batch,
            heads: kv_heads * group,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            causal,
            modifiers: Modifiers::default(),
            scale,
            kernel: None,
            ladder: None,
            splits,
            q,
            k,
            v,
            o,
            values_in_keys: false,
            seed,
        }
    })
}

/// Random backward passes of these forward passes: every layout, with and without a gradient of lse, in any order or in
/// one.
pub fn backward_of(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = BackwardCase> {
    let outputs = || select(Layout::OUTPUTS);
    let layouts = (input_layouts(), outputs(), outputs(), outputs());
    let options = (any::<bool>(), any::<bool>());
    (cases, layouts, options).prop_map(|(forward, (d_o, dq, dk, dv), (d_lse, any_order))| {
        BackwardCase {
            forward: Case {
                splits: 0,
                ..forward
            },
            d_o,
            dq,
            dk,
            dv,
            d_lse,
            any_order,
        }
    })
}

/// So many cases with random options; on a GPU, whose driver compiles kernels for each combination, a fifth of them.
#[must_use]
pub fn few(device: &Device, count: u32) -> u32 {
    let is_gpu = !device.is_cpu() && !device.is_emulator();
    if is_gpu { count / 5 } else { count }
}

/// The case with random options, at least one: each in half of the cases, and windows narrower and wider than a tile.
pub fn modified(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    let side = || prop_oneof![1 => Just(None), 2 => (0..=20_usize).prop_map(Some), 2 => (0..=300_usize).prop_map(Some)];
    let window = prop_oneof![
        Just(Window::NONE),
        (side(), side()).prop_map(|(left, right)| Window { left, right }),
    ];
    let softcap = option::of(prop_oneof![0.5..3.0_f32, 3.0..60.0_f32]);
    let pairs = |types: usize| {
        let pairs = (any::<[bool; 3]>(), 0..types).prop_map(|(repeats, of)| Pairs { repeats, of });
        option::weighted(0.3, pairs)
    };
    let options = (
        window,
        softcap,
        any::<bool>(),
        any::<bool>(),
        pairs(3),
        pairs(2),
        option::weighted(0.2, dims()),
    );
    (cases, options).prop_map(
        |(case, (window, softcap, alibi, sinks, bias, mask, dim_v))| {
            let mut modifiers = Modifiers {
                window,
                softcap,
                alibi,
                sinks,
                bias,
                mask,
                dim_v,
                ..Modifiers::default()
            };
            // Plain cases have their own tests.
            modifiers.sinks |= modifiers.are_off();
            Case { modifiers, ..case }
        },
    )
}

/// The case with sequences in it: up to 8 packed ones in a batch of 1, which may have slopes of their own, or padded ones, which
/// may be padded on the left, too. Some are empty, some lie beside rows of no sequence, and some have as many queries as keys.
pub fn sequenced(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    // Parts of all rows.
    let part = || prop_oneof![1 => Just(0.0), 1 => Just(1.0), 3 => 0.0..=1.0_f64];
    let parts = || vec(part(), 9);
    let sequences = (any::<bool>(), any::<bool>(), 1..=8_usize, parts(), parts());
    let first = option::weighted(0.4, parts());
    let more = (any::<bool>(), first);
    (cases, sequences, more).prop_map(|(case, sequences, (own_slopes, first))| {
        let (packed, alike, count, q, kv) = sequences;
        let kv = if alike { &q } else { &kv };
        let numbers = |parts: &[f64], count: usize, rows: usize| -> Vec<i32> {
            let parts = parts[..count].iter();
            parts
                .map(|part| (part * rows as f64).round() as i32)
                .collect()
        };
        let offsets = |parts, rows| {
            let mut offsets = numbers(parts, count + 1, rows);
            offsets.sort_unstable();
            offsets
        };
        let lengths = |parts: &[f64], rows| numbers(parts, case.batch, rows);
        let sequences = match packed {
            true => Sequences::Packed {
                q: offsets(&q, case.seqlen_q),
                kv: offsets(kv, case.seqlen_kv),
            },
            false => Sequences::Padded {
                q: lengths(&q, case.seqlen_q),
                kv: lengths(kv, case.seqlen_kv),
            },
        };
        let first_keys = first.filter(|_| !packed);
        let first_keys = first_keys.map(|first| numbers(&first, case.batch, case.seqlen_kv));
        Case {
            batch: if packed { 1 } else { case.batch },
            modifiers: Modifiers {
                sequences: Some(sequences),
                first_keys,
                own_slopes: own_slopes && packed && case.modifiers.alibi,
                ..case.modifiers
            },
            ..case
        }
    })
}

/// The case on a cache of up to 5 entries, of which some serve several entries of the batch and some none.
pub fn cached(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    let entries = (1..=5_usize, vec(any::<prop::sample::Index>(), 3));
    (cases, entries).prop_map(|(case, (entries, of))| {
        let of = of[..case.batch].iter();
        let of = of.map(|entry| entry.index(entries) as i32).collect();
        Case {
            modifiers: Modifiers {
                cache: Some(Cache { entries, of }),
                ..case.modifiers
            },
            ..case
        }
    })
}

/// The case on pages of 1 to 256 keys, of which some hold keys of several entries of the batch and some none. No entry has a page twice,
/// whose roundings would not be independent. Numbers of pages behind an entry's last key are any.
pub fn paged(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    let numbers = (any::<u64>(), 0..=12_usize, 0..=8_u32);
    (cases, numbers).prop_map(|(case, (seed, more, log2))| {
        in_pages(case, 1 << log2, more, &mut StdRng::seed_from_u64(seed))
    })
}

/// The case on pages of so many keys, of which so many more than an entry of `seqlen_kv` keys has.
fn in_pages(case: Case, keys: usize, more: usize, rng: &mut StdRng) -> Case {
    let most = case.seqlen_kv.div_ceil(keys);
    let count = most + more;
    let lengths = match &case.modifiers.sequences {
        Some(Sequences::Padded { kv, .. } | Sequences::PackedQueries { kv, .. }) => kv.clone(),
        _ => vec![i32::MAX; case.batch],
    };
    let mut pages: Vec<i32> = (0..count as i32).collect();
    let of = lengths.iter().flat_map(|&length| {
        pages.shuffle(rng);
        let number = |index| match index * keys < length.max(0) as usize {
            true => pages[index],
            false => [-1, i32::MIN, i32::MAX, count as i32][rng.random_range(0..4)],
        };
        (0..most).map(number).collect::<Vec<_>>()
    });
    let of: Vec<i32> = of.collect();
    Case {
        // Of packed queries the keys of all sequences.
        seqlen_kv: of.len() / case.batch * keys,
        modifiers: Modifiers {
            pages: Some(Pages { count, keys, of }),
            ..case.modifiers
        },
        ..case
    }
}

/// The case with packed queries of up to 6 sequences, which have slopes of their own where there are some, on [pages](paged). Some are
/// empty, some lie beside rows of no sequence, and some have more queries than keys. Options for each pair of query and key are off.
pub fn of_packed_queries(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    let part = || prop_oneof![1 => Just(0.0), 1 => Just(1.0), 3 => 0.0..=1.0_f64];
    let sequences = (vec(part(), 2..=7), vec(part(), 6), 0..=8_u32, any::<bool>());
    let cases = (cases, sequences).prop_map(|(case, (q, kv, log2, own_slopes))| {
        let count = q.len() - 1;
        let of = |parts: &[f64], rows: usize| -> Vec<i32> {
            let parts = parts.iter();
            parts
                .map(|part| (part * rows as f64).round() as i32)
                .collect()
        };
        let mut offsets = of(&q, case.seqlen_q);
        offsets.sort_unstable();
        let kv = of(&kv[..count], case.seqlen_kv);
        let modifiers = Modifiers {
            bias: None,
            mask: None,
            dim_v: None,
            own_slopes: own_slopes && case.modifiers.alibi,
            sequences: Some(Sequences::PackedQueries { q: offsets, kv }),
            ..case.modifiers
        };
        let page = 1 << log2;
        let case = Case {
            batch: 1,
            modifiers,
            ..case
        };
        (case, page)
    });
    (cases, any::<u64>(), 0..=12_usize).prop_map(|((case, keys), seed, more)| {
        in_pages(case, keys, more, &mut StdRng::seed_from_u64(seed))
    })
}

/// The case in one head with offsets, lengths or first keys of any value.
pub fn misnumbered(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    let number = || {
        prop_oneof![
            8 => 0..=300_i32,
            1 => select(&[i32::MIN, -1, 301, i32::MAX][..]),
            1 => any::<i32>(),
        ]
    };
    let numbers = || vec(number(), 9);
    let sequences = (prop::bool::weighted(0.8), 1..=8_usize, numbers(), numbers());
    let first = option::of(numbers());
    (cases, sequences, first).prop_map(|(case, (packed, count, q, kv), first_keys)| {
        let batch = if packed { 1 } else { case.batch.min(2) };
        let first = |numbers: Vec<i32>, count: usize| numbers[..count].to_vec();
        let sequences = match packed {
            true => Sequences::Packed {
                q: first(q, count + 1),
                kv: first(kv, count + 1),
            },
            false => Sequences::Padded {
                q: first(q, batch),
                kv: first(kv, batch),
            },
        };
        Case {
            batch,
            heads: 1,
            kv_heads: 1,
            modifiers: Modifiers {
                sequences: Some(sequences),
                first_keys: first_keys
                    .filter(|_| !packed)
                    .map(|keys| first(keys, batch)),
                own_slopes: packed && case.modifiers.alibi && count % 2 == 0,
                ..case.modifiers
            },
            ..case
        }
    })
}

/// Head dims from 1 to 256; most are multiples of 8.
fn dims() -> impl Strategy<Value = usize> {
    prop_oneof![3 => (1..=32_usize).prop_map(|n| 8 * n), 1 => 1..=256_usize]
}

/// Lengths from 1 to 300; half of them are at most 1 from the edge of a tile.
pub fn seqlens() -> impl Strategy<Value = usize> {
    let edges = (1..=18_usize, 0..=2_usize).prop_map(|(tiles, beside)| 16 * tiles + beside - 1);
    prop_oneof![1..=300_usize, edges]
}

/// A case with any suitable kernel of the device, and any number of splits: few, or more than there
/// are key blocks.
pub fn scheduled(
    device: &Device,
    cases: impl Strategy<Value = Case>,
) -> impl Strategy<Value = Case> {
    let device = device.clone();
    let splits = prop_oneof![4 => 1..=8_u32, 1 => 9..=40_u32, 1 => Just(u32::MAX)];
    (cases, any::<prop::sample::Index>(), splits).prop_map(move |(case, kernel, splits)| {
        let problem = case.problem().expect("a valid case");
        let options = case.modifiers.raw(&problem);
        let names = kernel::suitable(device.facts(), case.dtype, &problem, &options)
            .expect("a dtype of kernels");
        Case {
            kernel: Some(kernel.get(&names).to_string()),
            splits,
            ..case
        }
    })
}

/// A case by a kernel of the ladder, with any of its options for which the device has the memory.
pub fn on_rung(
    device: &Device,
    rung: Rung,
    cases: impl Strategy<Value = Case>,
) -> impl Strategy<Value = Case> {
    let device = device.clone();
    let options = (
        option::of(1..=3_u32),
        option::of(select(Swizzles::ALL)),
        option::of(select(Accumulation::ALL.to_vec())),
        option::of(select(OStore::ALL)),
    );
    (cases, options).prop_map(move |(case, (stages, swizzles, acc, o_store))| {
        let ladder = match rung.has_options() {
            true => Ladder {
                rung,
                stages,
                swizzles,
                acc,
                o_store,
            },
            false => Ladder::new(rung),
        };
        let dtype = match ladder.sums_in() {
            Accumulation::Half => Dtype::F16,
            Accumulation::Single => case.dtype,
        };
        let of = |stages, dim| Case {
            dtype,
            dim,
            ladder: Some(Ladder { stages, ..ladder }),
            ..case.clone()
        };
        let fewer = (1..=ladder.stages.unwrap_or(0)).rev().map(Some);
        let stages = fewer.chain([None]).map(|stages| of(stages, case.dim));
        // Some need more for the largest dims than some devices have.
        let dims = (1..case.dim / 8).rev().map(|slices| of(None, 8 * slices));
        first_fitting(&device, stages.chain(dims))
    })
}

/// The first case for whose kernel the device has the shared memory.
///
/// # Panics
/// If it has it for none.
pub fn first_fitting(device: &Device, mut cases: impl Iterator<Item = Case>) -> Case {
    let fits = |case: &Case| {
        let problem = case.problem().expect("a valid case");
        let (options, args) = (case.options(device), RawForward::row_major(&problem));
        options.plan(device.facts(), case.dtype, &args).is_ok()
    };
    cases.find(fits).expect("one fits")
}

/// The case with a head dim of 8 times a number from this range.
pub fn of_dims(
    cases: impl Strategy<Value = Case>,
    slices: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Case> {
    (cases, slices).prop_map(|(case, slices)| Case {
        dim: 8 * slices,
        ..case
    })
}

/// The case with up to 16 queries for each of up to 12 heads of a group, and up to 700 keys.
pub fn few_queries(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    let keys = prop_oneof![seqlens(), 1..=700_usize];
    (cases, 1..=16_usize, 1..=12_usize, keys).prop_map(|(case, seqlen_q, group, seqlen_kv)| Case {
        heads: case.kv_heads * group,
        seqlen_q,
        seqlen_kv,
        ..case
    })
}

fn scales() -> impl Strategy<Value = Option<f32>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(0.0)),
        3 => (-1.0..1.0_f32).prop_map(Some),
    ]
}

fn input_layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![8 => select(Layout::OUTPUTS), 1 => select(Layout::BROADCASTS)]
}

/// Checks random cases on a device: as many as `PROPTEST_CASES` says, or 128; on the CPU 50, on the emulator 40 with fewer heads.
///
/// # Errors
/// Names the simplest case found that fails.
pub fn check_random(device: &Device, cases: impl Strategy<Value = Case>) -> Outcome {
    match device.is_emulator() {
        true => check_some(device, 40, cases.prop_map(with_fewer_heads)),
        false => check_some(device, if device.is_cpu() { 50 } else { 128 }, cases),
    }
}

/// A case of many heads with at most two batch entries and two key/value heads; query heads share them as before.
fn with_fewer_heads(case: Case) -> Case {
    if case.batch * case.heads <= 12 {
        return case;
    }
    let kv_heads = case.kv_heads.min(2);
    Case {
        batch: case.batch.min(2),
        heads: case.heads / case.kv_heads * kv_heads,
        kv_heads,
        ..case
    }
}

/// Checks `count` random cases on a device, or as many as `PROPTEST_CASES` says.
///
/// # Errors
/// The conditions of [`check_random`].
pub fn check_some(device: &Device, count: u32, cases: impl Strategy<Value = Case>) -> Outcome {
    check_each(count, cases, |case| case.check(device))
}

/// Checks 40 random cases on a device, and 8 on the emulator.
///
/// # Errors
/// The conditions of [`check_random`].
pub fn check_few(device: &Device, cases: impl Strategy<Value = Case>) -> Outcome {
    let count = if device.is_emulator() { 8 } else { 40 };
    check_some(device, few(device, count), cases)
}

/// Checks a property for `count` random values, or for as many as `PROPTEST_CASES` says: the same ones in every run of a test.
///
/// # Errors
/// Names the simplest value found that fails.
pub fn check_each<S: Strategy>(
    count: u32,
    values: S,
    check: impl Fn(S::Value) -> Outcome,
) -> Outcome {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = count;
    }
    // Other cases for each test, and others for each `PROPTEST_RNG_SEED`.
    let drawn = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => 0,
    };
    config.rng_seed = RngSeed::Fixed(drawn ^ harness::seed());
    // The simplest failing value is printed whole: no file of seeds is needed.
    config.failure_persistence = None;
    let check = |value| {
        let failed = |failed: libtest_mimic::Failed| {
            TestCaseError::fail(failed.message().unwrap_or_default().to_owned())
        };
        check(value).map(drop).map_err(failed)
    };
    TestRunner::new(config)
        .run(&values, check)
        .map_err(|error| error.to_string())?;
    PASSED
}
