//! Head dims above 256: every property of the main kernels, on every class of devices.

use crate::emulated::SCHEDULES;
use crate::maxima::walks;
use crate::repeats::repeat;
use crate::special_values;
use ferroattn::emulator::Options;
use ferroattn::{Class, Device, Dtype, RawOptions, bf16, f16, kernel};
use proptest::prelude::*;
use tests::strategy::{
    cases, check_some, few, few_queries, modified, of_dims, scheduled, sequenced,
};
use tests::{Case, Outcome, PASSED, Test};

/// Random cases of each kind.
fn count(device: &Device) -> u32 {
    match device.is_emulator() {
        true => 9,
        false if device.is_cpu() => 30,
        false => 128,
    }
}

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let of_class = |&class: &Class| {
        let test = |name: &str, run: fn(&Device) -> Outcome| {
            Test::emulator(format!("{}::{name}", class.name()), move |_| {
                run(&Device::emulator_of(class, Options::default())?)
            })
        };
        [
            test("any", any),
            test("each_dim", each_dim),
            test("options", with_options),
        ]
    };
    let of_classes = Class::ALL.iter().flat_map(of_class);
    let kernels = [
        (
            "blocks_without_keys",
            blocks_without_keys as fn(&Device) -> Outcome,
        ),
        ("splits", |device| {
            check_some(device, count(device), scheduled(device, small()))
        }),
        ("few_queries", |device| {
            check_some(device, count(device), wide(few_queries(cases())))
        }),
        ("walks", |device| walks(device, count(device) / 2, small())),
        ("repeats", repeats),
    ];
    let kernels = kernels.map(|(name, run)| Test::kernels(name, run));
    let special = special_values::all().into_iter().map(|(name, special)| {
        Test::kernels(name, move |device| {
            special(device, &|case| variants(device, case))
        })
    });
    let schedules = Test::emulator("schedules", |_| schedules());
    let tests = of_classes.chain(kernels).chain(special);
    // The emulator's are those of a class.
    let of_cases = [
        Test::new("any", any).not_emulated(),
        Test::new("options", with_options).not_emulated(),
    ];
    tests.chain(of_cases).chain([schedules]).collect()
}

/// The cases with head dims above 256.
fn wide(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    of_dims(cases, 33..=128)
}

/// Cases of at most two tiles, two key/value heads, and two query heads for each.
fn small() -> impl Strategy<Value = Case> {
    wide(cases()).prop_map(|case| {
        let (group, kv_heads) = (case.heads / case.kv_heads, case.kv_heads.min(2));
        Case {
            batch: case.batch.min(2),
            kv_heads,
            heads: kv_heads * group.min(2),
            seqlen_q: case.seqlen_q.min(150),
            ..case
        }
    })
}

fn any(device: &Device) -> Outcome {
    check_some(device, count(device), small())
}

/// Random options and sequences.
fn with_options(device: &Device) -> Outcome {
    let cases = prop_oneof![
        wide(modified(few_queries(cases()))),
        wide(sequenced(modified(cases()))),
    ];
    check_some(device, few(device, count(device)), cases)
}

/// Only wide kernels and Hopper's serve these head dims, of which each has a kernel of its own or is the next one. The
/// default one runs: `kernels` has every one of them, by name, at these head dims.
fn each_dim(device: &Device) -> Outcome {
    for (i, dim) in [264, 384, 392, 512, 520, 768, 776, 1024]
        .into_iter()
        .enumerate()
    {
        let case = Case {
            dtype: [Dtype::F16, Dtype::Bf16][i % 2],
            dim,
            seqlen_q: 70,
            seqlen_kv: 300,
            causal: i % 3 == 0,
            ..Case::default()
        };
        let names = kernel::suitable(
            device.facts(),
            case.dtype,
            &case.problem()?,
            &RawOptions::default(),
        )?;
        assert!(names.iter().any(|name| name.starts_with("wide_")));
        for name in names {
            assert!(name.starts_with("wide_") || name.starts_with("hopper_"));
        }
        case.check(device)?;
    }
    PASSED
}

/// Both dtypes, causal or not, V whole and in slices, a head dim that is padded, several splits; each by every kernel of the
/// device that serves it.
fn variants(device: &Device, case: &Case) -> Vec<Case> {
    let variants = case.with_each([
        (Dtype::F16, false, 264, 1),
        (Dtype::Bf16, true, 512, 2),
        (Dtype::F16, true, 520, 1),
    ]);
    let by_each = |case: Case| {
        let problem = case.problem().expect("a valid case");
        let names = kernel::suitable(device.facts(), case.dtype, &problem, &RawOptions::default())
            .expect("a dtype of kernels");
        names.into_iter().map(move |name| Case {
            kernel: Some(name.to_owned()),
            ..case.clone()
        })
    };
    variants.into_iter().flat_map(by_each).collect()
}

/// A block none of whose rows sees a key stores zeros.
fn blocks_without_keys(device: &Device) -> Outcome {
    for dim in [264, 1000] {
        let case = Case {
            seqlen_q: 200,
            seqlen_kv: 15,
            dim,
            causal: true,
            ..Case::default()
        };
        case.check(device)?;
    }
    PASSED
}

fn repeats(device: &Device) -> Outcome {
    for case in variants(device, &Case::default()) {
        match case.dtype {
            Dtype::F16 => repeat::<f16>(device, &case)?,
            Dtype::Bf16 => repeat::<bf16>(device, &case)?,
            Dtype::F32 => repeat::<f32>(device, &case)?,
            other => unreachable!("no case is {}", other.name()),
        };
    }
    PASSED
}

/// In whatever order warps take turns, none reads what another has not written yet or overwrites what another
/// still reads: the emulator tells. Each order gives the same bits.
fn schedules() -> Outcome {
    for class in [Class::Sm80, Class::Sm86, Class::Sm90] {
        for (dim, causal) in [(512, false), (1024, true)] {
            let case = Case {
                seqlen_q: 70,
                // Several blocks of keys, and a ragged one.
                seqlen_kv: 300,
                dim,
                causal,
                splits: 1,
                ..Case::default()
            };
            case.check_schedules(SCHEDULES / 2, |seed| {
                let options = Options {
                    seed,
                    ..Options::default()
                };
                Device::emulator_of(class, options)
            })?;
        }
    }
    PASSED
}
