//! Keys and values of e4m3 beside queries of 16 bits: against the exact result of the numbers times their descales.

use crate::special_values;
use ferroattn::{
    Append, Attention, Class, Device, Dtype, Element, Error, F8E4M3, Result, Sequences, Tensor,
    Window, bf16, f16,
};
use proptest::prelude::*;
use tests::modifiers::{Descales, Pages};
use tests::strategy::{
    cached, cases, check_each, few, few_queries, modified, of_packed_queries, paged, sequenced,
};
use tests::{Case, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let mut everywhere = vec![
        Test::new("any", |device| check(device, few_queries(cases()))),
        Test::new("any_with_options", |device| {
            check(device, sequenced(modified(few_queries(cases()))))
        }),
        Test::new("any_in_caches", |device| {
            check(device, cached(few_queries(cases())))
        }),
        Test::new("any_in_pages", |device| {
            check(device, paged(sequenced(modified(few_queries(cases())))))
        }),
        Test::new("any_of_packed_queries", |device| {
            check(device, of_packed_queries(modified(few_queries(cases()))))
        }),
        Test::new("any_of_many_queries", |device| check(device, cases())),
        Test::new("lengths", lengths),
        Test::new("descales_of_pages", descales_of_pages),
        Test::new("any_descales", |device| {
            any_descales::<f16>(device, 1.0)?;
            any_descales::<bf16>(device, 3e-20)?;
            any_descales::<bf16>(device, 7e18)
        }),
        Test::new("every_number", |device| {
            every_number::<f16>(device)?;
            every_number::<bf16>(device)
        }),
        Test::new("appended", |device| {
            appended::<f16>(device, false)?;
            appended::<bf16>(device, true)
        }),
        Test::new("wrong_calls", wrong_calls),
    ];
    // An infinite number is 448 in e4m3.
    let special = special_values::all().into_iter();
    let lacking = [
        "every_score_minus_infinity",
        "infinity_in_v",
        "minus_infinity_in_v",
    ];
    let special = special.filter(|(name, _)| !lacking.contains(&name.as_str()));
    everywhere.extend(
        special.map(|(name, special)| Test::new(name, move |device| special(device, &variants))),
    );
    let emulated = everywhere.iter();
    let emulated = emulated.filter_map(|test| test.emulated_as(Class::Sm90));
    let mut tests: Vec<_> = emulated.collect();
    tests.extend(everywhere.into_iter().map(Test::not_emulated));
    tests.push(Test::emulator("elsewhere", elsewhere));
    tests
}

/// Random cases with descales of heads, and of pages where these are large enough.
fn check(device: &Device, cases: impl Strategy<Value = Case>) -> Outcome {
    let count = if device.is_emulator() { 12 } else { 40 };
    let cases = (cases, any::<bool>()).prop_map(|(case, of_pages)| {
        let large = |pages: &Pages| pages.keys >= 16;
        let of_pages = of_pages && case.modifiers.pages.as_ref().is_some_and(large);
        let descales = if of_pages {
            Descales::Pages
        } else {
            Descales::Heads
        };
        case.with_e4m3(descales)
    });
    check_each(few(device, count), cases, |case| case.check(device))
}

/// Both dtypes and all head dims, on one split and on several.
fn variants(case: &Case) -> Vec<Case> {
    let variants = case.with_each([
        (Dtype::F16, false, 64, 0),
        (Dtype::Bf16, true, 128, 2),
        (Dtype::F16, true, 256, 0),
    ]);
    variants
        .map(|case| case.with_e4m3(Descales::Heads))
        .to_vec()
}

/// Rows around tiles, and keys around steps and splits.
fn lengths(device: &Device) -> Outcome {
    for (i, (seqlen_q, group, seqlen_kv, splits)) in [
        (1, 1, 1, 0),
        (1, 8, 15, 1),
        (2, 8, 17, 2),
        (3, 5, 48, 1),
        (5, 7, 64, 3),
        (33, 1, 129, 0),
        (8, 4, 200, 7),
        (1, 16, 513, 4),
        (70, 2, 77, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            dtype: [Dtype::F16, Dtype::Bf16][i % 2],
            batch: 2,
            heads: 2 * group,
            kv_heads: 2,
            seqlen_q,
            seqlen_kv,
            splits,
            causal: i % 2 == 0,
            k: [Layout::Bhnd, Layout::Bnhd, Layout::Reversed][i % 3],
            ..Case::default()
        };
        for dim in [64, 128, 256, 16, 96] {
            let case = Case {
                dim,
                ..case.clone()
            };
            case.with_e4m3(Descales::Heads).check(device)?;
        }
    }
    PASSED
}

/// Pages in any order, of `16 << i` keys with descales of their own, with lengths that end inside them.
pub fn paged_case(i: usize, dim: usize) -> Case {
    let keys = 16 << i;
    let case = Case {
        dtype: [Dtype::F16, Dtype::Bf16][i % 2],
        batch: 2,
        heads: 6,
        kv_heads: 2,
        seqlen_q: 2,
        seqlen_kv: 6 * keys,
        dim,
        causal: true,
        splits: [0, 3][i % 2],
        modifiers: Modifiers {
            window: Window {
                left: [None, Some(keys)][i % 2],
                right: None,
            },
            sequences: Some(Sequences::Padded {
                q: vec![2, 1],
                kv: vec![4 * keys as i32, 3 * keys as i32 + 1],
            }),
            pages: Some(Pages {
                count: 9,
                keys,
                of: [[8, 3, 0, 5, -1, 77], [2, 7, 3, 6, i32::MAX, -9]].concat(),
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    };
    case.with_e4m3(Descales::Pages)
}

/// Pages of each size.
fn descales_of_pages(device: &Device) -> Outcome {
    for (i, dim) in (0..4).flat_map(|i| [64, 128, 256].map(|dim| (i, dim))) {
        paged_case(i, dim).check(device)?;
    }
    PASSED
}

/// Numbers `[2, 2, 40, 64]` of a seed, none of them NaN.
fn numbers(seed: u32) -> Vec<F8E4M3> {
    let of = |i: u32| {
        let bits = (i.wrapping_mul(2_654_435_761) ^ seed).wrapping_mul(0x9e37_79b1) >> 24;
        // Below 16.
        F8E4M3::from_bits(bits as u8 & 0xdf)
    };
    (0..2 * 2 * 40 * 64).map(of).collect()
}

/// Descales that are no powers of two, some of them negative, of any size: beside the CPU's result in f32.
fn any_descales<T: Element>(device: &Device, size: f32) -> Outcome {
    let shape = [2, 2, 40, 64];
    let (k, v) = (numbers(1), numbers(2));
    let q: Vec<f32> = (0..2 * 4 * 3 * 64)
        .map(|i| T::from_f32(f32::sin(i as f32)).to_f32())
        .collect();
    let k_descales = [0.3, -1.7, 0.01, 1.1].map(|descale: f32| descale / size);
    let v_descales = [1.9, 0.7, -0.3, 1e-3].map(|descale: f32| descale * size);
    let scale = 0.02 * size;
    let run = |device: &Device, result: &mut Vec<f32>, in_f32: bool| -> Result<()> {
        let [k, v] = [&k, &v].map(|numbers| Tensor::new(device, shape, numbers));
        let [of_k, of_v] = [k_descales, v_descales].map(|of| Tensor::new(device, [2, 2], &of));
        let (k, v, of_k, of_v) = (k?, v?, of_k?, of_v?);
        let attention = Attention::new().scale(scale).cache_descales(&of_k, &of_v);
        *result = match in_f32 {
            true => {
                let q = Tensor::new(device, [2, 4, 3, 64], &q)?;
                attention.forward_e4m3_cache(&q, &k, &v)?.0.to_vec()?
            }
            false => {
                let q: Vec<T> = q.iter().map(|&x| T::from_f32(x)).collect();
                let q = Tensor::new(device, [2, 4, 3, 64], &q)?;
                let (o, _) = attention.forward_e4m3_cache(&q, &k, &v)?;
                o.to_vec()?.into_iter().map(T::to_f32).collect()
            }
        };
        Ok(())
    };
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    run(&Device::cpu(), &mut expected, true)?;
    run(device, &mut found, false)?;
    let unit = if T::DTYPE == Dtype::F16 { 2e-3 } else { 1e-2 };
    for (row, (expected, found)) in expected.chunks(64).zip(found.chunks(64)).enumerate() {
        // Rows of a head, of which two share a key/value head; values stay below 16.
        let descale = v_descales[row / 6].abs();
        for (expected, found) in expected.iter().zip(found) {
            let error = (expected - found).abs();
            assert!(
                error <= unit * 16.0 * descale,
                "{row}: {expected} and {found}"
            );
        }
    }
    // The CPU's own result, of what the numbers stand for.
    let of = |numbers: &[F8E4M3], descales: &[f32; 4]| -> Vec<f32> {
        let heads = numbers.chunks(40 * 64).zip(descales);
        heads
            .flat_map(|(head, &descale)| head.iter().map(move |x| x.to_f32() * descale))
            .collect()
    };
    let cpu = Device::cpu();
    let k = Tensor::new(&cpu, shape, &of(&k, &k_descales))?;
    let v = Tensor::new(&cpu, shape, &of(&v, &v_descales))?;
    let q = Tensor::new(&cpu, [2, 4, 3, 64], &q)?;
    let (plain, _) = Attention::new().scale(scale).forward(&q, &k, &v)?;
    assert_eq!(plain.to_vec()?, expected);
    PASSED
}

/// A key, and a value, of each of the 256 numbers: NaN reaches what sees it, and nothing else.
fn every_number<T: Element>(device: &Device) -> Outcome {
    // One key for each query: o is the value.
    let shape = [1, 1, 16, 16];
    let all: Vec<F8E4M3> = (0..=255).map(F8E4M3::from_bits).collect();
    let zeros = Tensor::new(device, shape, &vec![F8E4M3::from_bits(0); 256])?;
    let v = Tensor::new(device, shape, &all)?;
    let q = Tensor::new(device, shape, &[T::from_f32(1.0); 256])?;
    let alone = Attention::new().window(0, 0).scale(0.5);
    let (o, _) = alone.forward_e4m3_cache(&q, &zeros, &v)?;
    for (found, number) in o.to_vec()?.into_iter().zip(&all) {
        let (found, expected) = (found.to_f32(), number.to_f32());
        let is_same = found == expected || found.is_nan() && expected.is_nan();
        assert!(is_same, "value {number:?}: {found}");
    }
    // lse is the one score: each key has one number, and another query picks it.
    let queries: Vec<T> = (0..256)
        .map(|i| T::from_f32(f32::from(u8::from(i / 16 == i % 16))))
        .collect();
    let q = Tensor::new(device, shape, &queries)?;
    for first in (0..256).step_by(16) {
        let mut keys = vec![F8E4M3::from_bits(0); 256];
        for i in 0..16 {
            keys[17 * i] = all[first + i];
        }
        let k = Tensor::new(device, shape, &keys)?;
        let (_, lse) = alone.forward_e4m3_cache(&q, &k, &zeros)?;
        for (found, number) in lse.to_vec()?.into_iter().zip(&all[first..]) {
            let expected = 0.5 * number.to_f32();
            let is_near = (found - expected).abs() <= 1e-5 * expected.abs();
            assert!(
                is_near || found.is_nan() && expected.is_nan(),
                "key {number:?}: {found}"
            );
        }
    }
    PASSED
}

/// Rows that are appended, by pages, and read back; keys rotated by a half turn where `rotates`, which negates them. Other rows stay.
fn appended<T: Element>(device: &Device, rotates: bool) -> Outcome {
    const ROWS: usize = 20;
    let (rows, cache) = ([2, 2, ROWS, 48], [5, 2, 16, 48]);
    let of = |seed: usize| -> Vec<T> {
        let number = |i: usize| f32::sin((i * seed) as f32) * f32::powi(4.0, i as i32 % 9 - 4);
        (0..2 * 2 * ROWS * 48)
            .map(|i| T::from_f32(number(i)))
            .collect()
    };
    let (k, v) = (of(7), of(11));
    let [k_rows, v_rows] = [&k, &v].map(|of| Tensor::new(device, rows, of));
    let (k_rows, v_rows) = (k_rows?, v_rows?);
    let poison = vec![F8E4M3::from_bits(0x7f); cache.iter().product()];
    let [k_cache, v_cache] = [(); 2].map(|()| Tensor::new(device, cache, &poison));
    let (mut k_cache, mut v_cache) = (k_cache?, v_cache?);
    // Of the first entry keys 7 to 26, of the second 0 to 19; page 1 is of none.
    let pages = [[3, 0], [4, 2_usize]];
    let before = [7, 0];
    let table: Vec<i32> = pages
        .as_flattened()
        .iter()
        .map(|&page| page as i32)
        .collect();
    let table = Tensor::new(device, [2, 2], &table)?;
    let lengths = Tensor::new(device, [2], &before.map(|keys: usize| keys as i32))?;
    let descale = |tensor: usize, page: usize, head: usize| {
        0.03 * (1 + tensor) as f32 + 0.4 * page as f32 - 0.7 * head as f32
    };
    let descales = |tensor| {
        let places = (0..5).flat_map(|page| [0, 1].map(|head| descale(tensor, page, head)));
        Tensor::new(device, [5, 2], &places.collect::<Vec<_>>())
    };
    let (k_descales, v_descales) = (descales(0)?, descales(1)?);
    let cos = Tensor::new(device, [40, 12], &[-1.0_f32; 480])?;
    let sin = Tensor::new(device, [40, 12], &[0.0_f32; 480])?;
    let mut append = Append::new()
        .pages(&table)
        .lengths(&lengths)
        .page_descales(&k_descales, &v_descales);
    if rotates {
        append = append.rotary(&cos, &sin);
    }
    append.run_e4m3(&k_rows, &v_rows, &mut k_cache, &mut v_cache)?;
    let mut expected = [poison.clone(), poison];
    for (tensor, (rows, expected)) in [&k, &v].into_iter().zip(&mut expected).enumerate() {
        for (i, x) in rows.iter().enumerate() {
            let (column, row) = (i % 48, i / 48 % ROWS);
            let (head, entry) = (i / 48 / ROWS % 2, i / 48 / ROWS / 2);
            let key = before[entry] + row;
            let page = pages[entry][key / 16];
            let is_turned = rotates && tensor == 0 && column < 24;
            let sign = if is_turned { -1.0 } else { 1.0 };
            let factor = 1.0 / descale(tensor, page, head);
            let place = ((page * 2 + head) * 16 + key % 16) * 48 + column;
            expected[place] = F8E4M3::from_f32(sign * x.to_f32() * factor);
        }
    }
    for (found, expected) in [k_cache, v_cache].into_iter().zip(expected) {
        for (place, (found, expected)) in found.to_vec()?.into_iter().zip(expected).enumerate() {
            let same = found.to_bits() == expected.to_bits();
            assert!(
                same,
                "{place}: {} for {}",
                found.to_f32(),
                expected.to_f32()
            );
        }
    }
    PASSED
}

/// What does not go with such a cache is an error that names it.
fn wrong_calls(device: &Device) -> Outcome {
    let q = Tensor::<f16>::zeros(device, [2, 2, 1, 64])?;
    let cache = Tensor::<F8E4M3>::zeros(device, [2, 1, 16, 64])?;
    let forward = |attention: &Attention, q: &Tensor<f16>, cache: &Tensor<F8E4M3>| {
        attention.forward_e4m3_cache(q, cache, cache).map(drop)
    };
    let plain = Attention::new();
    forward(&plain, &q, &cache)?;
    let narrow = Tensor::<f16>::zeros(device, [2, 2, 1, 24])?;
    let narrow_cache = Tensor::<F8E4M3>::zeros(device, [2, 1, 16, 24])?;
    let refused = forward(&plain, &narrow, &narrow_cache);
    assert_eq!(refused, Err(Error::E4m3Rows("k")));
    let shifted = Tensor::<F8E4M3, 1>::zeros(device, [2 * 16 * 64 + 8])?.into_buffer();
    let strides = [16 * 64, 16 * 64, 64, 1];
    let shifted = Tensor::from_buffer(shifted, 8, [2, 1, 16, 64], strides)?;
    let refused = forward(&plain, &q, &shifted);
    assert_eq!(refused, Err(Error::E4m3Rows("k")));
    let refused = forward(&plain.clone().batch_invariant(true), &q, &cache);
    let excluded = Error::Excluded("e4m3_cache", "batch_invariant");
    assert_eq!(refused, Err(excluded));
    let bias = Tensor::<f32>::zeros(device, [1, 1, 1, 16])?;
    let refused = forward(&plain.bias(&bias), &q, &cache);
    assert_eq!(refused, Err(Error::Excluded("e4m3_cache", "bias")));
    let descales = Tensor::<f32, 2>::zeros(device, [2, 1])?;
    let of_pages = plain.page_descales(&descales, &descales);
    let refused = forward(&of_pages, &q, &cache);
    assert_eq!(refused, Err(Error::Needs("descales of pages", "pages")));
    let table = Tensor::new(device, [2, 1], &[1, 0])?;
    forward(&of_pages.pages(&table), &q, &cache)?;
    let small = Tensor::<F8E4M3>::zeros(device, [2, 1, 8, 64])?;
    let refused = forward(&of_pages.pages(&table), &q, &small);
    assert_eq!(refused, Err(Error::E4m3Page(8)));
    let other = Tensor::<f32, 2>::zeros(device, [3, 1])?;
    let refused = forward(&plain.cache_descales(&descales, &other), &q, &cache);
    let is_shape = matches!(
        refused,
        Err(Error::Shape {
            argument: "v_descales",
            ..
        })
    );
    assert!(is_shape, "{refused:?}");
    // Descales of no e4m3.
    let plain_cache = Tensor::<f16>::zeros(device, [2, 1, 16, 64])?;
    let with_descales = plain.cache_descales(&descales, &descales);
    let refused = with_descales.forward(&q, &plain_cache, &plain_cache);
    let expected = Error::Needs("cache_descales", "e4m3_cache");
    assert_eq!(refused.map(drop), Err(expected));
    PASSED
}

/// Other devices have no kernel for it, and say so.
fn elsewhere(device: &Device) -> Outcome {
    let q = Tensor::<f16>::zeros(device, [1, 1, 1, 64])?;
    let cache = Tensor::<F8E4M3>::zeros(device, [1, 1, 16, 64])?;
    let refused = Attention::new().forward_e4m3_cache(&q, &cache, &cache);
    assert_eq!(refused.map(drop), Err(Error::NoOption("e4m3_cache")));
    PASSED
}
