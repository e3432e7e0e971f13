//! Keys and values that all entries of a batch share, read once.

mod case;

use case::{PrefixCase, cases};
use ferroattn::{
    Attention, Class, Decoder, DecoderShape, Device, Dtype, Error, Facts, Problem, RawBackward,
    RawForward, RawPrefix, RawTensor, Result, Tensor, bf16, f16, merge,
};
use libtest_mimic::Failed;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::strategy::{check_each, few};
use tests::{Layout, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("any", |device| {
            let count = if device.is_emulator() { 40 } else { 150 };
            check_each(few(device, count), cases(), |case| case.check(device))
        }),
        Test::new("lengths", lengths),
        Test::new("many_queries", many_queries),
        Test::new("as_two_calls", as_two_calls),
        Test::new("latent", latent),
        Test::new("step_of_a_decoder", step_of_a_decoder),
        Test::cpu("in_f32", |device| {
            let dtype = Dtype::F32;
            check_each(60, cases(), |case| {
                PrefixCase { dtype, ..case }.check(device)
            })
        }),
        Test::kernels("any_numbers", any_numbers),
        Test::new("wrong_numbers", wrong_numbers),
        Test::new("refused", refused),
        Test::new("copies", copies),
    ];
    Test::and_on_hopper(tests)
}

/// Prefixes and own keys of no key, of one and of several tiles, by keys and by pages.
fn lengths(device: &Device) -> Outcome {
    for (prefix, lengths) in [
        (0_usize, vec![5, 0]),
        (1, vec![0, 1]),
        (1, vec![0; 3]),
        (2, vec![]),
        (300, vec![0, 200, 1]),
    ] {
        for page_log2 in [None, Some(0), Some(4)] {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                let case = PrefixCase {
                    dtype,
                    prefix,
                    // No entry's own: tensors without keys.
                    beyond: usize::from(!lengths.is_empty()),
                    lengths: match lengths.len() {
                        0 => vec![0; 2],
                        _ => lengths.clone(),
                    },
                    has_lengths: !lengths.is_empty(),
                    page_log2,
                    prefix_pages: page_log2.is_some(),
                    sinks: prefix == 300,
                    ..PrefixCase::default()
                };
                case.check(device)?;
            }
        }
    }
    PASSED
}

/// Several tiles of queries, of which a causal mask hides own keys alone.
fn many_queries(device: &Device) -> Outcome {
    for (q, causal) in [
        (Layout::Bnhd, true),
        (Layout::Bhnd, true),
        (Layout::OddRows, false),
    ] {
        let case = PrefixCase {
            seqlen_q: 70,
            lengths: vec![69, 100],
            dim: 128,
            dim_v: 128,
            causal,
            q,
            ..PrefixCase::default()
        };
        case.check(device)?;
    }
    PASSED
}

fn random(device: &Device, seed: u64, shape: [usize; 4]) -> Result<Tensor<f16>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let count = shape.iter().product();
    let numbers: Vec<_> = (0..count)
        .map(|_| f16::from_f32(rng.sample(StandardNormal)))
        .collect();
    Tensor::new(device, shape, &numbers)
}

/// The bits of a call on the prefix, whose one entry has the queries of all, a call on own keys, and a merge.
fn as_two_calls(device: &Device) -> Outcome {
    const BATCH: usize = 5;
    let q = random(device, 1, [BATCH, 4, 1, 64])?;
    let (k, v) = (
        random(device, 2, [BATCH, 2, 50, 64])?,
        random(device, 3, [BATCH, 2, 50, 64])?,
    );
    let (shared_k, shared_v) = (
        random(device, 4, [1, 2, 130, 64])?,
        random(device, 5, [1, 2, 130, 64])?,
    );
    let one = |numbers: &[i32]| Tensor::new(device, [numbers.len()], numbers);
    let (queries, keys) = (one(&[1; BATCH])?, one(&[50, 0, 1, 17, 49])?);
    let sinks = Tensor::new(device, [4], &[0.5, -1.0, 2.0, 0.0])?;
    let attention = Attention::new().softcap(20.0);
    let own = attention.padded(&queries, &keys);
    let with_sinks = own.sinks(&sinks);
    let call = with_sinks.prefix(&shared_k, &shared_v);
    let (o, lse) = call.forward(&q, &k, &v)?;

    let rows = q.view().transpose(0, 2)?;
    let first = attention.sinks(&sinks);
    let (first_o, first_lse) = first.forward(&rows, &shared_k, &shared_v)?;
    // `[heads, BATCH]` as `[BATCH, heads]`.
    let of_heads = first_lse.to_vec()?;
    let of_entries: Vec<f32> = (0..BATCH * 4)
        .map(|i| of_heads[i % 4 * BATCH + i / 4])
        .collect();
    let first_lse = Tensor::new(device, [BATCH, 4, 1], &of_entries)?;
    let first_o = first_o.view().transpose(0, 2)?;
    let second = own.forward(&q, &k, &v)?;
    let merged = merge((&first_o, &first_lse), (&second.0, &second.1))?;
    assert_eq!(o.to_vec()?, merged.0.to_vec()?);
    assert_eq!(lse.to_vec()?, merged.1.to_vec()?);
    PASSED
}

/// Checks that two results are near each other, in f16.
fn expect_near(found: &Tensor<f16>, expected: &Tensor<f16>) -> Outcome {
    for (found, expected) in found.to_vec()?.into_iter().zip(expected.to_vec()?) {
        let error = (found.to_f32() - expected.to_f32()).abs();
        if error.is_nan() || error > 4e-3 {
            return Err(format!("{found} for {expected}").into());
        }
    }
    PASSED
}

/// Pages whose keys hold the values, beside these keys in one piece; nothing of a last page behind the prefix is read.
fn latent(device: &Device) -> Outcome {
    const PAGE: usize = 16;
    let q = random(device, 1, [2, 4, 2, 576])?;
    let cache = random(device, 2, [7, 1, PAGE, 576])?.to_vec()?;
    let own: [(&[i32; 2], usize); 2] = [(&[5, 1], 20), (&[2, 9], 1)];
    let one = |numbers: &[i32]| Tensor::new(device, [numbers.len()], numbers);
    let (queries, lengths) = (one(&[2, 2])?, one(&[20, 1])?);
    let (shared, table) = ([6, 0, 3], Tensor::new(device, [2, 2], &[5, 1, 2, 9])?);
    for prefix in [48, 43, 33] {
        let mut cache = cache.clone();
        cache[(3 * PAGE + prefix - 32) * 576..4 * PAGE * 576].fill(f16::NAN);
        let row = |pages: &[i32], key: usize| {
            let first = pages[key / PAGE] as usize * PAGE + key % PAGE;
            cache[first * 576..][..576].to_vec()
        };
        let of_entry = |(pages, keys): (&[i32; 2], usize)| {
            let prefix = (0..prefix).flat_map(|key| row(&shared, key));
            let own = (0..keys).flat_map(|key| row(pages, key));
            let mut rows: Vec<_> = prefix.chain(own).collect();
            rows.resize(68 * 576, f16::NAN);
            rows
        };
        let joined = Tensor::new(device, [2, 1, 68, 576], &own.map(of_entry).concat())?;
        let all = one(&own.map(|(_, keys)| (prefix + keys) as i32))?;
        let cache = Tensor::new(device, [7, 1, PAGE, 576], &cache)?;

        let attention = Attention::new().causal(true);
        let (shared, values) = (one(&shared)?, cache.view().narrow(3, 0, 512)?);
        let call = attention.padded(&queries, &lengths).pages(&table);
        let call = call.prefix_pages(&shared, prefix);
        let (o, _) = call.forward(&q, &cache, &values)?;
        let values = joined.view().narrow(3, 0, 512)?;
        let whole = attention.padded(&queries, &all);
        expect_near(&o, &whole.forward(&q, &joined, &values)?.0)?;
    }
    PASSED
}

/// A layer of a decoder, whose sequences share pages: new keys go behind own ones, in memory that the decoder has.
fn step_of_a_decoder(device: &Device) -> Outcome {
    let (q, cache) = ([2, 4, 1, 64], [6, 2, 16, 64]);
    let shape = DecoderShape {
        q,
        k_cache: cache,
        v_cache: cache,
        pages: Some(2),
    };
    let (mut k, mut v) = (random(device, 1, cache)?, random(device, 2, cache)?);
    let [q, new] = [random(device, 3, q)?, random(device, 4, [2, 2, 1, 64])?];
    let shared = Tensor::new(device, [2], &[4, 1])?;
    let attention = Attention::new().prefix_pages(&shared, 32);
    let mut decoder = Decoder::<f16>::new(device, shape, &[&attention])?;
    decoder.lengths_mut().copy_from_slice(&[20, 0])?;
    let pages = decoder.pages_mut().expect("it has pages");
    pages.copy_from_slice(&[5, 0, 2, 3])?;
    let mut o = Tensor::zeros(device, [2, 4, 1, 64])?;
    decoder.layer(&attention, &q, [&new, &new], (&mut k, &mut v), &mut o)?;
    let table = Tensor::new(device, [2, 4], &[[4, 1, 5, 0], [4, 1, 2, 3]].concat())?;
    let one = |numbers: &[i32]| Tensor::new(device, [numbers.len()], numbers);
    let (queries, all) = (one(&[1, 1])?, one(&[32 + 21, 32 + 1])?);
    let whole = Attention::new().padded(&queries, &all).pages(&table);
    expect_near(&o, &whole.forward(&q, &k, &v)?.0)
}

/// Numbers of the prefix's pages that no page has stand for the nearest one.
fn any_numbers(device: &Device) -> Outcome {
    let q = random(device, 1, [3, 4, 1, 64])?;
    let cache = random(device, 2, [4, 2, 16, 64])?;
    let table = Tensor::new(device, [3, 1], &[0, 1, 2])?;
    let bits = |numbers: [i32; 3]| -> Result<_> {
        let shared = Tensor::new(device, [3], &numbers)?;
        let call = Attention::new().pages(&table).prefix_pages(&shared, 40);
        let (o, lse) = call.forward(&q, &cache, &cache)?;
        Ok((o.to_vec()?, lse.to_vec()?))
    };
    assert_eq!(bits([i32::MIN, 4, i32::MAX])?, bits([0, 3, 3])?);
    PASSED
}

/// Pages that do not exist, and queries that would see a part of the prefix, are found where they are asked for, on the CPU always.
fn wrong_numbers(device: &Device) -> Outcome {
    let (q, cache) = (
        random(device, 1, [2, 2, 3, 64])?,
        random(device, 2, [4, 2, 8, 64])?,
    );
    let one = |numbers: &[i32]| Tensor::new(device, [numbers.len()], numbers);
    let table = Tensor::new(device, [2, 1], &[0, 1])?;
    let refused = |shared: i32, keys: [i32; 2]| -> Result<Error, Failed> {
        let (shared, keys, queries) = (one(&[2, shared])?, one(&keys)?, one(&[3, 2])?);
        let call = Attention::new().causal(true).pages(&table);
        let call = call.padded(&queries, &keys).prefix_pages(&shared, 16);
        match call.check_lengths(true).forward(&q, &cache, &cache) {
            Err(error) => Ok(error),
            Ok(_) => Err("it was allowed".into()),
        }
    };
    for value in [4, -1] {
        let expected = Error::Entry {
            argument: "prefix_pages",
            index: 1,
            value,
            min: 0,
            max: 3,
        };
        assert_eq!(refused(value, [2, 1])?, expected);
    }
    let own_keys = |entry, queries, keys| Error::OwnKeys {
        entry,
        queries,
        keys,
    };
    assert_eq!(refused(3, [1, 1])?, own_keys(0, 3, 1));
    assert_eq!(refused(3, [2, 0])?, own_keys(1, 2, 0));
    assert_eq!(
        refused(3, [2, 0])?.to_string(),
        "entry 1 has 2 queries and 0 keys; with causal and a prefix it must have 1 keys or more"
    );
    assert!(refused(3, [2, 1]).is_err());
    PASSED
}

/// Shapes and types of a prefix, and options that do not go with one.
fn refused(device: &Device) -> Outcome {
    let zeros = |shape: [usize; 4]| Tensor::<f16>::zeros(device, shape);
    let (q, kv) = (zeros([2, 4, 3, 64])?, zeros([2, 2, 5, 64])?);
    let prefix = zeros([1, 2, 7, 64])?;
    let refused = |call: &Attention| -> Result<Error, Failed> {
        match call.forward(&q, &kv, &kv) {
            Err(error) => Ok(error),
            Ok(_) => Err("it was allowed".into()),
        }
    };
    let with = |call: &Attention| refused(&call.prefix(&prefix, &prefix));
    let excluded = |option| Error::Excluded("prefix", option);
    assert_eq!(with(&Attention::new().window(5, None))?, excluded("window"));
    let slopes = Tensor::new(device, [4], &[0.5_f32; 4])?;
    assert_eq!(with(&Attention::new().alibi(&slopes))?, excluded("alibi"));
    let bias = zeros([1, 1, 1, 5])?;
    assert_eq!(with(&Attention::new().bias(&bias))?, excluded("bias"));
    let mask = Tensor::<u8>::zeros(device, [1, 1, 1, 5])?;
    assert_eq!(with(&Attention::new().mask(&mask))?, excluded("mask"));
    let first = Tensor::<i32, 1>::zeros(device, [2])?;
    let found = with(&Attention::new().first_keys(&first))?;
    assert_eq!(found, excluded("first_keys"));
    let found = refused(&Attention::new().prefix_pages(&first, 2))?;
    assert_eq!(found, Error::Needs("prefix_pages", "pages"));
    // Three pages of 5 keys are none; of 8, they hold 17 to 24.
    let three = Tensor::<i32, 1>::zeros(device, [3])?;
    let none = Tensor::<i32, 1>::zeros(device, [0])?;
    let own = Tensor::<i32, 2>::zeros(device, [2, 1])?;
    let in_pages = Attention::new().pages(&own);
    let found = refused(&in_pages.prefix_pages(&three, 17))?;
    assert_eq!(found, Error::Page(5));
    let cache = zeros([4, 2, 8, 64])?;
    for (table, pages, keys, range) in [
        (&three, 3, 16, "from 17 to 24"),
        (&three, 3, 25, "from 17 to 24"),
        (&three, 3, usize::MAX, "from 17 to 24"),
        (&none, 0, 1, "from 0 to 0"),
    ] {
        let call = in_pages.prefix_pages(table, keys);
        let page = 8;
        let expected = Error::PrefixKeys { keys, page, pages };
        assert!(expected.to_string().ends_with(range), "{expected}");
        assert_eq!(call.forward(&q, &cache, &cache).map(drop), Err(expected));
    }
    for (argument, k, v) in [
        ("the prefix's k", [2, 2, 7, 64], [1, 2, 7, 64]),
        ("the prefix's k", [1, 4, 7, 64], [1, 2, 7, 64]),
        ("the prefix's k", [1, 2, 7, 56], [1, 2, 7, 64]),
        ("the prefix's v", [1, 2, 7, 64], [1, 2, 8, 64]),
    ] {
        let (k, v) = (zeros(k)?, zeros(v)?);
        let found = refused(&Attention::new().prefix(&k, &v))?;
        let is_named = matches!(found, Error::Shape { argument: name, .. } if name == argument);
        assert!(is_named, "{found:?}");
    }
    let other = Tensor::<bf16>::zeros(device, [1, 2, 7, 64])?;
    let found = refused(&Attention::new().prefix(&other, &other))?;
    let (bf16, f16) = (Dtype::Bf16, Dtype::F16);
    let of_type = Error::PrefixDtype {
        found: bf16,
        dtype: f16,
    };
    assert_eq!(found, of_type);
    let few = zeros([2, 2, 1, 64])?;
    let causal = Attention::new().causal(true).prefix(&prefix, &prefix);
    let found = causal.forward(&q, &few, &few).map(drop);
    let (entry, queries, keys) = (0, 3, 1);
    assert_eq!(
        found,
        Err(Error::OwnKeys {
            entry,
            queries,
            keys
        })
    );
    let problem = Problem::new([2, 4, 3, 64], [2, 2, 5, 64], [2, 2, 5, 64], false, None)?;
    let mut args = RawBackward::row_major(&problem);
    let k = RawTensor::row_major([1, 2, 7, 64]);
    args.options.prefix = Some(RawPrefix::Keys {
        dtype: f16,
        k,
        v: k,
    });
    let plan = Attention::new().backward_plan(device.facts(), f16, &args);
    assert_eq!(plan.map(drop), Err(Error::ForwardOnly("prefix")));
    PASSED
}

/// Queries are copied only where their strides do not make them the rows of one entry; the launches are those of two calls, and a merge.
fn copies(_: &Device) -> Outcome {
    for (layout, seqlen_q, copied) in [
        (Layout::Bhnd, 1, false),
        (Layout::Bnhd, 1, false),
        (Layout::Bnhd, 4, false),
        (Layout::Bhnd, 4, true),
    ] {
        let (q, kv) = ([8, 4, seqlen_q, 64], [8, 2, 70, 64]);
        let problem = Problem::new(q, kv, kv, false, None)?;
        let mut args = RawForward::row_major(&problem);
        args.q.strides = layout.strides(q);
        let k = RawTensor::row_major([1, 2, 500, 64]);
        args.options.prefix = Some(RawPrefix::Keys {
            dtype: Dtype::F16,
            k,
            v: k,
        });
        for class in [Class::Sm80, Class::Sm90] {
            let facts = Facts::emulated(class);
            let plan = Attention::new().plan(Some(&facts), Dtype::F16, &args)?;
            let names: Vec<_> = plan.steps.iter().map(|step| step.kernel()).collect();
            assert_eq!(names.contains(&"pack"), copied, "{names:?}");
            assert_eq!(names.last(), Some(&"merge_f16"));
        }
    }
    PASSED
}

/// Runs that show faults of the merge of parts whose lse lies in different orders.
pub fn runs() -> [impl Fn(&Device) -> Outcome; 1] {
    [|device: &Device| PrefixCase::default().check(device)]
}
