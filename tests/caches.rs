//! Entries of the batch that read entries of a cache.

use ferroattn::{Attention, Device, Dtype, Error, Problem, RawForward, RawTensor, Sequences};
use proptest::prelude::*;
use tests::modifiers::Cache;
use tests::strategy::{cached, cases, check_few, few_queries, modified, scheduled, sequenced};
use tests::{Case, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("any", |device| check_few(device, cached(cases()))),
        Test::new("any_of_few_queries", |device| {
            check_few(device, cached(few_queries(cases())))
        }),
        Test::new("any_with_options", |device| {
            check_few(device, cached(modified(cases())))
        }),
        Test::new("any_padded_by_any_kernel", |device| {
            let cases = cached(padded(sequenced(modified(cases()))));
            check_few(device, scheduled(device, cases))
        }),
        Test::kernels("any_numbers", any_numbers),
        Test::new("wrong_numbers", wrong_numbers),
        Test::new("gradients", gradients),
        Test::kernels("wide", wide),
    ];
    Test::and_on_hopper(tests)
}

/// The case without packed sequences.
fn padded(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    cases.prop_filter("padded", |case| {
        !matches!(case.modifiers.sequences, Some(Sequences::Packed { .. }))
    })
}

/// Entries of any number, of which kernels take the nearest one: by kernels that decode, and by kernels with options.
fn any_numbers(device: &Device) -> Outcome {
    for (seqlen_q, sinks) in [(2, false), (150, false), (150, true)] {
        for of in [[i32::MIN, 1, i32::MAX], [-1, 3, 2]] {
            let case = Case {
                batch: 3,
                heads: 2,
                seqlen_q,
                modifiers: Modifiers {
                    sinks,
                    cache: Some(Cache {
                        entries: 3,
                        of: of.to_vec(),
                    }),
                    ..Modifiers::default()
                },
                ..Case::default()
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// Kernels for wide heads, from copies of a cache whose rows are not aligned, too.
fn wide(device: &Device) -> Outcome {
    for dim in [264, 500] {
        for layout in [Layout::Bhnd, Layout::OddRows] {
            let case = Case {
                batch: 2,
                seqlen_q: 3,
                dim,
                k: layout,
                v: layout,
                modifiers: Modifiers {
                    cache: Some(Cache {
                        entries: 4,
                        of: vec![3, 1],
                    }),
                    ..Modifiers::default()
                },
                ..Case::default()
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// A call of two batch entries on a cache of three.
fn call(entries: &[i32]) -> Case {
    Case {
        batch: entries.len(),
        modifiers: Modifiers {
            cache: Some(Cache {
                entries: 3,
                of: entries.to_vec(),
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    }
}

/// Numbers that no entry has are found where they are asked for, on the CPU always.
fn wrong_numbers(device: &Device) -> Outcome {
    let case = call(&[2, 3]);
    let problem = case.problem()?;
    let tensors = case.modifiers.tensors(device, &problem, 0)?;
    let attention = tensors.of(Attention::new()).check_lengths(true);
    let zeros = |shape| ferroattn::Tensor::<ferroattn::f16>::zeros(device, shape);
    let (q, kv) = (zeros(case.q_shape())?, zeros(case.kv_shape())?);
    let refused = attention.forward(&q, &kv, &kv).map(drop);
    let expected = Error::Entry {
        argument: "cache_entries",
        index: 1,
        value: 3,
        min: 0,
        max: 2,
    };
    assert_eq!(refused, Err(expected));
    // Three numbers for two entries of the batch, and caches of different sizes.
    let numbers = ferroattn::Tensor::new(device, [3], &[0, 1, 2])?;
    let attention = Attention::new().cache_entries(&numbers);
    let refused = attention.forward(&q, &kv, &kv).map(drop);
    assert!(matches!(
        refused,
        Err(Error::Shape {
            argument: "cache_entries",
            ..
        })
    ));
    let other = zeros([2, 1, 150, 64])?;
    let refused = attention.forward(&q, &kv, &other).map(drop);
    assert!(matches!(refused, Err(Error::Shape { argument: "v", .. })));
    let none = zeros([0, 1, 150, 64])?;
    let refused = attention.forward(&q, &none, &none).map(drop);
    assert!(matches!(refused, Err(Error::Zero(_))));
    PASSED
}

/// A cache has no gradients.
fn gradients(device: &Device) -> Outcome {
    let problem = Problem::new([2, 1, 5, 64], [2, 1, 7, 64], [2, 1, 7, 64], false, None)?;
    let mut args = ferroattn::RawBackward::row_major(&problem);
    args.options.cache_entries = Some(RawTensor::row_major([2]));
    let plan = Attention::new().backward_plan(device.facts(), Dtype::F16, &args);
    assert_eq!(plan.map(drop), Err(Error::ForwardOnly("cache_entries")));
    // The forward pass takes them, whose cache may have other entries than the batch.
    let mut args = RawForward::row_major(&problem);
    args.options.cache_entries = Some(RawTensor::row_major([2]));
    [args.k, args.v] = [RawTensor::row_major([9, 1, 7, 64]); 2];
    Attention::new().plan(device.facts(), Dtype::F16, &args)?;
    PASSED
}
