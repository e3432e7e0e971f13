//! Keys and values in pages that a table names.

use ferroattn::{
    Attention, Device, Dtype, Error, Problem, RawBackward, RawTensor, Result, Sequences, Tensor,
    Window, f16,
};
use tests::modifiers::Pages;
use tests::strategy::{cases, check_few, few_queries, modified, paged, scheduled, sequenced};
use tests::{Case, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("any", |device| check_few(device, paged(cases()))),
        Test::new("any_of_few_queries", |device| {
            check_few(device, paged(sequenced(few_queries(cases()))))
        }),
        Test::new("any_with_options", |device| {
            check_few(device, paged(sequenced(modified(cases()))))
        }),
        Test::new("any_by_any_kernel", |device| {
            let cases = paged(sequenced(modified(few_queries(cases()))));
            check_few(device, scheduled(device, cases))
        }),
        Test::new("sizes", sizes),
        Test::new("uneven", uneven),
        Test::kernels("any_numbers", any_numbers),
        Test::new("wrong_numbers", wrong_numbers),
        Test::new("wrong_pages", wrong_pages),
        Test::kernels("wide", wide),
    ];
    Test::and_on_hopper(tests)
}

/// A case of two entries of the batch, whose 9 pages lie in any order; the last two of each are behind its last key.
fn case(keys: usize) -> Case {
    let pages = Pages {
        count: 9,
        keys,
        of: [[8, 3, 0, 5, -1, 77], [2, 7, 3, 6, i32::MAX, -9]].concat(),
    };
    let lengths = vec![4 * keys as i32, 3 * keys as i32 + 1];
    Case {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        seqlen_q: 3,
        seqlen_kv: 6 * keys,
        causal: true,
        modifiers: Modifiers {
            sequences: Some(Sequences::Padded {
                q: vec![3, 2],
                kv: lengths,
            }),
            pages: Some(pages),
            ..Modifiers::default()
        },
        ..Case::default()
    }
}

/// Pages of each size, with few queries and with many, and heads inside and outside of the keys.
fn sizes(device: &Device) -> Outcome {
    for (log2, layout) in (0..8).zip([Layout::Bhnd, Layout::Bnhd].into_iter().cycle()) {
        for (seqlen_q, dim) in [(3, 64), (130, 128)] {
            let mut case = Case {
                seqlen_q,
                dim,
                k: layout,
                v: layout,
                ..case(1 << log2)
            };
            if let Some(Sequences::Padded { q, .. }) = &mut case.modifiers.sequences {
                *q = vec![seqlen_q as i32, 1];
            }
            case.check(device)?;
        }
    }
    PASSED
}

/// Many entries, of which the longest has half of all keys: blocks take parts of about one size.
fn uneven(device: &Device) -> Outcome {
    for (sinks, window) in [(false, None), (true, None), (true, Some(100))] {
        uneven_case(6, sinks, window).check(device)?;
    }
    uneven_case(12, false, None).check(device)?;
    even_case().check(device)?;
    let mut from_first_keys = even_case();
    from_first_keys.modifiers.sequences = None;
    from_first_keys.modifiers.first_keys = Some((0..40).map(|i| 36 * i).collect());
    from_first_keys.check(device)
}

/// [`uneven_case`] with about as many keys in each entry: units of more keys than the least.
pub fn even_case() -> Case {
    let mut case = uneven_case(2, false, None);
    if let Some(Sequences::Padded { kv, .. }) = &mut case.modifiers.sequences {
        *kv = (0..40).map(|i| 1400 - 5 * i).collect();
    }
    case
}

/// Forty entries of so many heads on two, of which the longest has half of all keys. One has no key, and one no query.
pub fn uneven_case(heads: usize, sinks: bool, window: Option<usize>) -> Case {
    const PAGES: i32 = 88;
    let keys = (0..40).map(|i| (1400 / (1 + i * 7 % 40)) * i32::from(i != 3));
    let queries = (0..40).map(|i| 2 - i % 3 % 2 - i32::from(i == 7));
    Case {
        batch: 40,
        heads,
        kv_heads: 2,
        seqlen_q: 2,
        seqlen_kv: 16 * PAGES as usize,
        dim: 40,
        causal: true,
        modifiers: Modifiers {
            sinks,
            window: Window {
                left: window,
                right: None,
            },
            sequences: Some(Sequences::Padded {
                q: queries.collect(),
                kv: keys.collect(),
            }),
            pages: Some(Pages {
                count: 40 * PAGES as usize,
                keys: 16,
                of: (0..40 * PAGES).map(|n| n * 1567 % (40 * PAGES)).collect(),
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    }
}

/// Numbers of any value, of which kernels take the nearest one: by kernels that decode, and by kernels of many rows.
fn any_numbers(device: &Device) -> Outcome {
    for (seqlen_q, keys) in [(2, 16), (150, 16), (150, 64)] {
        wild_case(seqlen_q, keys).check(device)?;
    }
    PASSED
}

/// A [`case`] of so many queries, with numbers that no page has.
pub fn wild_case(seqlen_q: usize, keys: usize) -> Case {
    let mut case = Case {
        seqlen_q,
        ..case(keys)
    };
    if let Some(pages) = &mut case.modifiers.pages {
        pages.of[..4].copy_from_slice(&[i32::MIN, 9, i32::MAX, -1]);
    }
    case
}

/// Kernels for wide heads, from copies of pages whose rows are not aligned, too.
fn wide(device: &Device) -> Outcome {
    for dim in [264, 500] {
        for layout in [Layout::Bhnd, Layout::OddRows] {
            let case = Case {
                dim,
                k: layout,
                v: layout,
                ..case(16)
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// Numbers that no page has are found where they are asked for, on the CPU always; behind the last key they may be any.
fn wrong_numbers(device: &Device) -> Outcome {
    let mut case = case(8);
    let problem = case.problem()?;
    let forward = |case: &Case| -> Result<()> {
        let zeros = |shape| Tensor::<f16>::zeros(device, shape);
        let (q, kv) = (zeros(case.q_shape())?, zeros(case.kv_shape())?);
        let tensors = case.modifiers.tensors(device, &problem, 0)?;
        let attention = tensors.of(Attention::new()).check_lengths(true);
        attention.forward(&q, &kv, &kv).map(drop)
    };
    forward(&case)?;
    for value in [9, -1] {
        if let Some(pages) = &mut case.modifiers.pages {
            pages.of[9] = value;
        }
        let expected = Error::PageNumber {
            entry: 1,
            index: 3,
            value,
            max: 8,
            keys: 25,
        };
        assert_eq!(forward(&case), Err(expected));
    }
    PASSED
}

/// Pages of a wrong size, tables of a wrong shape, and calls that have no pages.
fn wrong_pages(device: &Device) -> Outcome {
    let zeros = |shape| Tensor::<f16>::zeros(device, shape);
    let q = zeros([2, 1, 1, 64])?;
    let table = |shape: [usize; 2]| Tensor::<i32, 2>::zeros(device, shape);
    let forward = |table: &Tensor<i32, 2>, k: &Tensor<f16>, v: &Tensor<f16>| {
        let attention = Attention::new().pages(table);
        attention.forward(&q, k, v).map(drop)
    };
    let kv = zeros([3, 1, 16, 64])?;
    let odd = zeros([3, 1, 12, 64])?;
    assert_eq!(forward(&table([2, 2])?, &odd, &odd), Err(Error::Page(12)));
    let none = zeros([3, 1, 0, 64])?;
    assert_eq!(forward(&table([2, 2])?, &none, &none), Err(Error::Page(0)));
    let refused = forward(&table([1, 2])?, &kv, &kv);
    assert!(
        matches!(
            refused,
            Err(Error::Shape {
                argument: "pages",
                ..
            })
        ),
        "{refused:?}"
    );
    let refused = forward(&table([2, 2])?, &kv, &zeros([2, 1, 16, 64])?);
    assert!(
        matches!(refused, Err(Error::Shape { argument: "v", .. })),
        "{refused:?}"
    );
    // No page of an entry: no key.
    forward(&table([2, 0])?, &kv, &kv)?;
    let numbers = Tensor::<i32, 1>::zeros(device, [2])?;
    let both = table([2, 2])?;
    let both = Attention::new().cache_entries(&numbers).pages(&both);
    let refused = both.forward(&q, &kv, &kv).map(drop);
    assert_eq!(refused, Err(Error::Excluded("cache_entries", "pages")));
    let problem = Problem::new([2, 1, 5, 64], [2, 1, 8, 64], [2, 1, 8, 64], false, None)?;
    let mut args = RawBackward::row_major(&problem);
    args.options.pages = Some(RawTensor::row_major([2, 1]));
    let plan = Attention::new().backward_plan(device.facts(), Dtype::F16, &args);
    assert_eq!(plan.map(drop), Err(Error::ForwardOnly("pages")));
    PASSED
}
