//! Packed queries on keys in pages.

use ferroattn::{
    Attention, Device, Dtype, Error, Problem, RawBackward, RawTensor, Result, Sequences, Tensor,
    Window, f16,
};
use tests::modifiers::Pages;
use tests::strategy::{cases, check_few, few_queries, modified, of_packed_queries, scheduled};
use tests::{Case, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("any", |device| {
            check_few(device, of_packed_queries(cases()))
        }),
        Test::new("any_of_few_queries", |device| {
            check_few(device, of_packed_queries(few_queries(cases())))
        }),
        Test::new("any_with_options", |device| {
            check_few(device, of_packed_queries(modified(cases())))
        }),
        Test::new("any_by_any_kernel", |device| {
            let cases = of_packed_queries(modified(few_queries(cases())));
            check_few(device, scheduled(device, cases))
        }),
        Test::new("sizes", sizes),
        Test::new("options", options),
        Test::new("many", many),
        Test::kernels("any_numbers", any_numbers),
        Test::kernels("falling_offsets", falling_offsets),
        Test::kernels("wide", wide),
        Test::new("as_calls_of_each", as_calls_of_each),
        Test::new("shared_prefix", shared_prefix),
        Test::new("wrong_numbers", wrong_numbers),
        Test::new("wrong_arguments", wrong_arguments),
    ];
    Test::and_on_hopper(tests)
}

/// Sequences of so many queries and keys each, in pages of `page` keys, of which the table has one more than the longest has. Pages lie
/// in any order, and numbers behind a sequence's last page are no page's.
fn case_of(lengths: &[[usize; 2]], page: usize) -> Case {
    let most = lengths.iter().map(|[_, kv]| kv.div_ceil(page)).max();
    let most = most.unwrap_or(0) + 1;
    let used: usize = lengths.iter().map(|[_, kv]| kv.div_ceil(page)).sum();
    // 7 is prime to each count that is no multiple of it.
    let count = (used + 2).next_multiple_of(7) + 1;
    let mut next = (0..).map(|n| (7 * n % count) as i32);
    let rows = lengths.iter().flat_map(|[_, kv]| {
        let own: Vec<i32> = next.by_ref().take(kv.div_ceil(page)).collect();
        let none = [-1, i32::MAX, i32::MIN, count as i32];
        let behind = none.into_iter().cycle().take(most - own.len());
        own.into_iter().chain(behind)
    });
    let of: Vec<i32> = rows.collect();
    let ends = lengths.iter().scan(0, |end, [q, _]| {
        *end += *q as i32;
        Some(*end)
    });
    let q: Vec<i32> = [0].into_iter().chain(ends).collect();
    Case {
        batch: 1,
        heads: 4,
        kv_heads: 2,
        seqlen_q: q[lengths.len()] as usize,
        seqlen_kv: of.len() * page,
        causal: true,
        modifiers: Modifiers {
            sequences: Some(Sequences::PackedQueries {
                q,
                kv: lengths.iter().map(|[_, kv]| *kv as i32).collect(),
            }),
            pages: Some(Pages {
                count,
                keys: page,
                of,
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    }
}

/// A chunk of a prompt behind other ones, sequences that decode, one of two queries, one without keys, one without queries, and a prompt.
const MIXED: [[usize; 2]; 7] = [
    [1, 77],
    [70, 190],
    [1, 1],
    [2, 0],
    [0, 33],
    [2, 130],
    [19, 19],
];

/// Pages of each size, by kernels of many queries and of few, with head dims of all kinds of kernels, and heads inside and outside of
/// the keys.
fn sizes(device: &Device) -> Outcome {
    let layouts = [Layout::Bhnd, Layout::Bnhd].into_iter().cycle();
    for (page, layout) in [1, 16, 64].into_iter().zip(layouts) {
        for (lengths, dim) in [
            (&MIXED[..], 64),
            (&MIXED[..], 128),
            (&MIXED[2..6], 128),
            (&MIXED[2..], 256),
        ] {
            let case = Case {
                dim,
                k: layout,
                v: layout,
                ..case_of(lengths, page)
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// Each option that goes with pages, by kernels of many queries and of few, on one split and on several.
fn options(device: &Device) -> Outcome {
    let window = Window {
        left: Some(20),
        right: Some(3),
    };
    let set: [fn(&mut Modifiers, Window); 5] = [
        |modifiers, window| modifiers.window = window,
        |modifiers, _| modifiers.softcap = Some(2.0),
        |modifiers, _| modifiers.alibi = true,
        |modifiers, _| (modifiers.alibi, modifiers.own_slopes) = (true, true),
        |modifiers, _| modifiers.sinks = true,
    ];
    for (n, set) in set.into_iter().enumerate() {
        for (lengths, splits) in [(&MIXED[..], 0), (&MIXED[..], 3), (&MIXED[2..6], 2)] {
            let mut case = Case {
                splits,
                causal: n % 2 == 1,
                ..case_of(lengths, 16)
            };
            set(&mut case.modifiers, window);
            case.check(device)?;
        }
    }
    PASSED
}

/// More sequences than a warp has lanes, which the tiles of all heads are divided among.
fn many(device: &Device) -> Outcome {
    for queries in [1, 4, 9] {
        many_case(queries).check(device)?;
    }
    PASSED
}

/// 70 sequences of up to so many queries.
pub fn many_case(queries: usize) -> Case {
    let of = |i: usize| [(1 + i * 5 % queries) * usize::from(i != 40), i * 13 % 50];
    let lengths: Vec<_> = (0..70).map(of).collect();
    case_of(&lengths, 4)
}

/// Chunks of prompts and sequences that decode, in pages of so many keys.
pub fn mixed_case(page: usize) -> Case {
    case_of(&MIXED, page)
}

/// Sequences of few queries, which kernels that decode compute.
pub fn decoding_case() -> Case {
    Case {
        dim: 128,
        ..case_of(&MIXED[2..6], 16)
    }
}

/// Numbers from -1 to 1 of a tensor.
fn numbers(shape: [usize; 4], seed: usize) -> Vec<f16> {
    let number = |i: usize| ((i * 37 + seed) * 2654435761 % 1000) as f32 / 500.0 - 1.0;
    let count = shape.iter().product();
    (0..count).map(|i| f16::from_f32(number(i))).collect()
}

/// Offsets that fall are moved to between others, for ranges and for tiles alike: the results are those of offsets that are there already.
fn falling_offsets(device: &Device) -> Outcome {
    const FALLING: [i32; 8] = [0, 1000, 64, 100, 192, 192, 192, 192];
    const RISING: [i32; 8] = [0, 64, 64, 100, 192, 192, 192, 192];
    let lengths = [300, 40, 36, 500, 9, 0, 30].map(|keys| [0, keys]);
    for window in [None, Some(10)] {
        let results = [FALLING, RISING].map(|offsets| -> Result<_> {
            let mut case = Case {
                dim: 128,
                seqlen_q: 192,
                ..case_of(&lengths, 16)
            };
            if let Some(Sequences::PackedQueries { q, .. }) = &mut case.modifiers.sequences {
                *q = offsets.to_vec();
            }
            let pages = case.modifiers.pages.as_ref().map_or(0, |pages| pages.count);
            let tensors = case.modifiers.tensors(device, &case.problem()?, 0)?;
            let [q, k, v] = [[1, 4, 192, 128], [pages, 2, 16, 128], [pages, 2, 16, 128]];
            let [q, k, v] = [(q, 1), (k, 2), (v, 3)]
                .map(|(shape, seed)| Tensor::new(device, shape, &numbers(shape, seed)));
            let attention = tensors.of(Attention::new().causal(true).window(window, None));
            let (o, lse) = attention.forward(&q?, &k?, &v?)?;
            Ok((o.to_vec()?, lse.to_vec()?))
        });
        let [found, expected] = results;
        assert!(found? == expected?, "window {window:?}");
    }
    PASSED
}

/// Numbers of any value, of which kernels take the nearest ones that are allowed: the first and last offsets, lengths and pages.
fn any_numbers(device: &Device) -> Outcome {
    for lengths in [&MIXED[..], &MIXED[2..6]] {
        wild_case(lengths).check(device)?;
    }
    PASSED
}

/// A case whose first and last rows are of no sequence, with lengths and numbers of pages that are not allowed.
fn wild_case(lengths: &[[usize; 2]]) -> Case {
    let mut case = case_of(lengths, 16);
    if let Some(Sequences::PackedQueries { q, kv }) = &mut case.modifiers.sequences {
        q[0] = 1;
        let last = q.len() - 1;
        q[last] -= 1;
        (kv[0], kv[1]) = (i32::MAX, -5);
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
                ..case_of(&MIXED[2..], 16)
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// Results of a call are those of a call for each sequence, whose keys lie in one piece. What no sequence owns is NaN: queries before the
/// first and behind the last, and keys.
fn as_calls_of_each(device: &Device) -> Outcome {
    let (heads, dim, page) = (4, 64, 16);
    let mut case = case_of(&MIXED, page);
    let before = 3;
    case.seqlen_q += 2 * before;
    if let Some(Sequences::PackedQueries { q, .. }) = &mut case.modifiers.sequences {
        q.iter_mut().for_each(|offset| *offset += before as i32);
    }
    let problem = case.problem()?;
    let tensors = case.modifiers.tensors(device, &problem, 0)?;
    let (Some(pages), Some(sequences)) = (&case.modifiers.pages, &case.modifiers.sequences) else {
        unreachable!("the case has both");
    };
    let q_shape = [1, heads, problem.seqlen_q, dim];
    let kv_shape = [pages.count, 2, page, dim];
    let [q, k, v] =
        [(q_shape, 1), (kv_shape, 2), (kv_shape, 3)].map(|(of, seed)| (of, numbers(of, seed)));
    let (mut q, mut k, mut v) = (q, k, v);
    for (row, numbers) in q.1.chunks_mut(dim).enumerate() {
        let own = before..problem.seqlen_q - before;
        if !own.contains(&(row % problem.seqlen_q)) {
            numbers.fill(f16::NAN);
        }
    }
    let read = case.modifiers.read(&problem).expect("pages");
    for (row, [k, v]) in
        k.1.chunks_mut(dim)
            .zip(v.1.chunks_mut(dim))
            .map(|(k, v)| [k, v])
            .enumerate()
    {
        if !read.contains(&[row / page / 2, row % page]) {
            k.fill(f16::NAN);
            v.fill(f16::NAN);
        }
    }
    let tensor = |(shape, numbers): &([usize; 4], Vec<f16>)| Tensor::new(device, *shape, numbers);
    let attention = tensors.of(Attention::new().causal(true));
    let (o, lse) = attention.forward(&tensor(&q)?, &tensor(&k)?, &tensor(&v)?)?;
    let (o, lse) = (o.to_vec()?, lse.to_vec()?);
    let most = pages.of.len() / MIXED.len();
    let mut first = before;
    for (s, [queries, keys]) in sequences.lengths().into_iter().enumerate() {
        let place = |head: usize, row: usize| (head * problem.seqlen_q + first + row) * dim;
        let own_q = (0..heads * queries).flat_map(|i| {
            let at = place(i / queries, i % queries);
            q.1[at..at + dim].to_vec()
        });
        let own = |all: &[f16]| -> Vec<f16> {
            let rows = (0..2 * keys).flat_map(|i| {
                let (head, key) = (i / keys, i % keys);
                let page_number = pages.of[s * most + key / page] as usize;
                let at = ((page_number * 2 + head) * page + key % page) * dim;
                all[at..at + dim].to_vec()
            });
            rows.collect()
        };
        let own_q = ([1, heads, queries, dim], own_q.collect());
        let [own_k, own_v] = [&k, &v].map(|(_, all)| ([1, 2, keys, dim], own(all)));
        let alone = Attention::new().causal(true);
        let (own_o, own_lse) =
            alone.forward(&tensor(&own_q)?, &tensor(&own_k)?, &tensor(&own_v)?)?;
        let (own_o, own_lse) = (own_o.to_vec()?, own_lse.to_vec()?);
        for i in 0..heads * queries {
            let at = place(i / queries, i % queries);
            for d in 0..dim {
                let [found, expected] = [o[at + d], own_o[i * dim + d]].map(f32::from);
                assert!(
                    (found - expected).abs() <= 2e-3,
                    "o of sequence {s}, row {i}: {found} for {expected}"
                );
            }
            let (found, expected) = (lse[at / dim], own_lse[i]);
            assert!(
                found == expected || (found - expected).abs() <= 1e-3,
                "lse of sequence {s}, row {i}: {found} for {expected}"
            );
        }
        first += queries;
    }
    let of_none =
        (0..heads).flat_map(|head| [0, before - 1, first].map(|row| head * problem.seqlen_q + row));
    for row in of_none {
        assert_eq!(lse[row], f32::NEG_INFINITY, "lse of a query of no sequence");
        assert!(o[row * dim..][..dim].iter().all(|&o| o == f16::ZERO));
    }
    PASSED
}

/// Pages that all sequences share before their own: as if each had them in its row of the table.
fn shared_prefix(device: &Device) -> Outcome {
    let (page, keys) = (16, 48);
    let mut case = case_of(&MIXED, page);
    // Causal sequences of fewer keys than queries would see a part of the prefix.
    if let Some(Sequences::PackedQueries { kv, .. }) = &mut case.modifiers.sequences {
        kv[3] = 1;
    }
    let problem = case.problem()?;
    let own = case.modifiers.pages.as_mut().expect("pages");
    let most = own.of.len() / MIXED.len();
    own.of[3 * most] = own.of[most];
    let shared: Vec<i32> = (0..keys / page).map(|n| (own.count + n) as i32).collect();
    let count = own.count + shared.len();
    let mut joined = case.clone();
    let pages = joined.modifiers.pages.as_mut().expect("pages");
    let rows = pages.of.chunks(most);
    pages.of = rows.flat_map(|row| [&shared[..], row].concat()).collect();
    joined.seqlen_kv = pages.of.len() * page;
    if let Some(Sequences::PackedQueries { kv, .. }) = &mut joined.modifiers.sequences {
        kv.iter_mut().for_each(|length| *length += keys as i32);
    }
    let tensor = |shape: [usize; 4], seed: usize| {
        let number = |i: usize| ((i * 37 + seed) * 2654435761 % 1000) as f32 / 500.0 - 1.0;
        let numbers = (0..shape.iter().product()).map(|i| f16::from_f32(number(i)));
        Tensor::new(device, shape, &numbers.collect::<Vec<_>>())
    };
    let q = tensor([1, 4, problem.seqlen_q, 64], 1)?;
    let [k, v] = [
        tensor([count, 2, page, 64], 2)?,
        tensor([count, 2, page, 64], 3)?,
    ];
    let table = Tensor::new(device, [shared.len()], &shared)?;
    let call = || Attention::new().causal(true).check_lengths(true);
    let tensors = case.modifiers.tensors(device, &problem, 0)?;
    let of_joined = joined.modifiers.tensors(device, &joined.problem()?, 0)?;
    let found = tensors
        .of(call())
        .prefix_pages(&table, keys)
        .forward(&q, &k, &v)?;
    let expected = of_joined.of(call()).forward(&q, &k, &v)?;
    let numbers = |(o, lse): (Tensor<f16>, Tensor<f32, 3>)| -> Result<Vec<f32>> {
        let o = o.to_vec()?.into_iter().map(f32::from);
        Ok(o.chain(lse.to_vec()?).collect())
    };
    for (found, expected) in numbers(found)?.into_iter().zip(numbers(expected)?) {
        assert!((found - expected).abs() <= 4e-3, "{found} for {expected}");
    }
    PASSED
}

/// Offsets that fall, lengths beyond the pages, and numbers that no page has are found where they are asked for, on the CPU always.
fn wrong_numbers(device: &Device) -> Outcome {
    let forward = |case: &Case, problem: &Problem| -> Result<()> {
        let zeros = |shape| Tensor::<f16>::zeros(device, shape);
        let (q, kv) = (zeros(case.q_shape())?, zeros(case.kv_shape())?);
        let tensors = case.modifiers.tensors(device, problem, 0)?;
        let attention = tensors.of(Attention::new()).check_lengths(true);
        attention.forward(&q, &kv, &kv).map(drop)
    };
    let case = case_of(&MIXED, 16);
    let problem = case.problem()?;
    forward(&case, &problem)?;
    let numbers = |argument, index, value, [min, max]: [usize; 2]| Error::Entry {
        argument,
        index,
        value,
        min: min as i32,
        max,
    };
    let most = problem.seqlen_kv / MIXED.len();
    for (index, is_q, value, expected) in [
        (3, true, 5, numbers("offsets_q", 3, 5, [71, 95])),
        (7, true, 96, numbers("offsets_q", 7, 96, [76, 95])),
        (0, true, -1, numbers("offsets_q", 0, -1, [0, 95])),
        (
            1,
            false,
            most as i32 + 1,
            numbers("lengths_kv", 1, most as i32 + 1, [0, most]),
        ),
        (6, false, -1, numbers("lengths_kv", 6, -1, [0, most])),
    ] {
        let mut wrong = case.clone();
        if let Some(Sequences::PackedQueries { q, kv }) = &mut wrong.modifiers.sequences {
            match is_q {
                true => q[index] = value,
                false => kv[index] = value,
            }
        }
        assert_eq!(forward(&wrong, &problem), Err(expected));
    }
    let mut wrong = case;
    let pages = wrong.modifiers.pages.as_mut().expect("pages");
    let row = pages.of.len() / MIXED.len();
    pages.of[5 * row + 8] = -1;
    let expected = Error::PageNumber {
        entry: 5,
        index: 8,
        value: -1,
        max: pages.count - 1,
        keys: 130,
    };
    assert_eq!(forward(&wrong, &problem), Err(expected));
    PASSED
}

/// Packed queries without pages, tables and numbers of wrong shapes, options that do not go with them, and gradients.
fn wrong_arguments(device: &Device) -> Outcome {
    let zeros = |shape| Tensor::<f16>::zeros(device, shape);
    let numbers = |count| Tensor::<i32, 1>::zeros(device, [count]);
    let table = |shape: [usize; 2]| Tensor::<i32, 2>::zeros(device, shape);
    let (q, kv) = (zeros([1, 2, 5, 64])?, zeros([6, 2, 16, 64])?);
    let (offsets, lengths, pages) = (numbers(4)?, numbers(3)?, table([3, 2])?);
    let call = Attention::new().packed_queries(&offsets, &lengths);
    let refused = |call: &Attention| call.forward(&q, &kv, &kv).map(drop);
    assert_eq!(refused(&call.pages(&pages)), Ok(()));
    let own = zeros([1, 2, 16, 64])?;
    let found = call.forward(&q, &own, &own).map(drop);
    assert_eq!(found, Err(Error::Needs("packed_queries", "pages")));
    let shape = |argument: &'static str, expected: &[usize], found: &[usize]| Error::Shape {
        argument,
        expected: expected.to_vec(),
        found: found.to_vec(),
    };
    let few = table([2, 2])?;
    assert_eq!(
        refused(&call.pages(&few)),
        Err(shape("pages", &[3, 2], &[2, 2]))
    );
    let long = numbers(4)?;
    let wrong = Attention::new().packed_queries(&offsets, &long);
    assert_eq!(
        refused(&wrong.pages(&pages)),
        Err(shape("lengths_kv", &[3], &[4]))
    );
    let one = numbers(1)?;
    let wrong = Attention::new().packed_queries(&one, &lengths);
    assert_eq!(refused(&wrong.pages(&pages)), Err(Error::Offsets(1)));
    let two = zeros([2, 2, 5, 64])?;
    let found = call.pages(&pages).forward(&two, &kv, &kv).map(drop);
    assert_eq!(found, Err(Error::PackedBatch(2)));
    let call = call.pages(&pages);
    let excluded = |option| Err(Error::Excluded(option, "packed_queries"));
    let bias = zeros([1, 1, 5, 96])?;
    assert_eq!(refused(&call.bias(&bias)), excluded("bias"));
    let mask = Tensor::<u8>::zeros(device, [1, 1, 5, 96])?;
    assert_eq!(refused(&call.mask(&mask)), excluded("mask"));
    let first = numbers(1)?;
    let expected = Err(Error::Excluded("first_keys", "packed sequences"));
    assert_eq!(refused(&call.first_keys(&first)), expected);
    let fp8 = call.fp8(Some(ferroattn::Fp8::new()));
    assert!(matches!(refused(&fp8), Err(Error::Excluded("fp8", _))));
    let problem = Problem::new([1, 2, 5, 64], [1, 2, 96, 64], [1, 2, 96, 64], false, None)?;
    let mut args = RawBackward::row_major(&problem);
    args.options.pages = Some(RawTensor::row_major([3, 2]));
    args.options.sequences = Some(Sequences::PackedQueries {
        q: RawTensor::row_major([4]),
        kv: RawTensor::row_major([3]),
    });
    let plan = Attention::new().backward_plan(device.facts(), Dtype::F16, &args);
    assert_eq!(plan.map(drop), Err(Error::ForwardOnly("pages")));
    PASSED
}
