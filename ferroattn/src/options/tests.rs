//! Calls with random options on the CPU, against plain loops and the checks.

use super::passes::Passes;
use super::samples::{Sample, samples};
use super::{RawOptions, Sequences};
use crate::attention::Attention;
use crate::backward::RawBackward;
use crate::device::Class;
use crate::device::{Device, Facts};
use crate::error::Error;
use crate::forward::{Problem, RawForward};
use crate::random;
use crate::tensor::{Dtype, Element, RawTensor, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;

/// o and lse by their definition, pair by pair.
fn by_definition(sample: &Sample, [q, k, v]: [&[f32]; 3]) -> (Vec<f64>, Vec<f64>) {
    let p = &sample.problem;
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    for row in 0..p.batch * p.heads * p.seqlen_q {
        let (b, h, i) = (
            row / p.seqlen_q / p.heads,
            row / p.seqlen_q % p.heads,
            row % p.seqlen_q,
        );
        let key = |j: usize| (b * p.kv_heads + p.kv_head(h)) * p.seqlen_kv + j;
        let dot = |j: usize| -> f64 {
            let products = q[row * p.dim..][..p.dim].iter().zip(&k[key(j) * p.dim..]);
            products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
        };
        let weights = (0..p.seqlen_kv).map(|j| match sample.sees([b, h, i, j]) {
            true => sample
                .score([b, h, i, j], f64::from(p.scale) * dot(j))
                .exp(),
            false => 0.0,
        });
        let weights: Vec<f64> = weights.collect();
        let sum = weights.iter().sum::<f64>() + sample.sink(h).exp();
        lse.push(sum.ln());
        for d in 0..p.dim_v {
            let visible = (0..p.seqlen_kv).filter(|&j| weights[j] > 0.0);
            let sums = visible.map(|j| weights[j] / sum * f64::from(v[key(j) * p.dim_v + d]));
            o.push(sums.sum());
        }
    }
    (o, lse)
}

/// Runs both passes in a type, and expects the checks to pass.
fn passes<T: Element>(sample: &Sample) -> Result<(), TestCaseError> {
    let passes = Passes::<T>::new(sample);
    let report = passes.forward();
    prop_assert!(report.passed(), "{}: {report}", T::DTYPE.name());
    let report = passes.expected_gradients().compare(&passes.as_backward());
    prop_assert!(report.passed(), "{}: {report}", T::DTYPE.name());
    Ok(())
}

/// o, dq, dk and dv of inputs q, k, v and d_o in f32.
fn results(sample: &Sample, [q, k, v, d_o]: [&[f32]; 4]) -> [Vec<f32>; 4] {
    let p = &sample.problem;
    let cpu = Device::cpu();
    let tensor = |shape, data: &[f32]| Tensor::new(&cpu, shape, data).expect("valid");
    let [q, k] = [tensor(p.q_shape(), q), tensor(p.k_shape(), k)];
    let [v, d_o] = [tensor(p.v_shape(), v), tensor(p.o_shape(), d_o)];
    let attention = sample.attention();
    let (o, lse) = attention.forward(&q, &k, &v).expect("valid");
    let gradients = attention.backward(&q, &k, &v, &o, &lse, &d_o);
    let (dq, dk, dv) = gradients.expect("valid");
    [o, dq, dk, dv].map(|tensor| tensor.to_vec().expect("on the CPU"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cpu_computes_the_definition(sample in samples()) {
        let p = &sample.problem;
        let [q, k, v] = random::inputs::<f32>(p, sample.seed);
        let cpu = Device::cpu();
        let tensor = |shape, data: &[f32]| Tensor::new(&cpu, shape, data).expect("valid");
        let (q_tensor, k_tensor, v_tensor) =
            (tensor(p.q_shape(), &q), tensor(p.k_shape(), &k), tensor(p.v_shape(), &v));
        let found = sample.attention().forward(&q_tensor, &k_tensor, &v_tensor);
        let (o, lse) = found.expect("valid");
        let (expected_o, expected_lse) = by_definition(&sample, [&q, &k, &v]);
        let tensors = [(o.to_vec(), expected_o), (lse.to_vec(), expected_lse)];
        for (found, expected) in tensors {
            for (found, expected) in found.expect("on the CPU").into_iter().zip(expected) {
                let close = (f64::from(found) - expected).abs() <= 1e-4 * (1.0 + expected.abs());
                prop_assert!(close || f64::from(found) == expected, "{found}, not {expected}");
            }
        }
    }

    /// A query or a key of the first head holds NaN: rows and keys that do not see it are as without.
    #[test]
    fn hidden_pairs_have_no_part(sample in samples(), in_query: bool, place: prop::sample::Index) {
        let p = &sample.problem;
        let [mut q, mut k, mut v] = random::inputs::<f32>(p, sample.seed);
        let mut d_o = random::output_gradient::<f32>(p, sample.seed);
        let right = results(&sample, [&q, &k, &v, &d_o]);
        let spoilt = match in_query {
            true => place.index(p.seqlen_q),
            false => place.index(p.seqlen_kv),
        };
        let tensors = if in_query { [&mut q, &mut d_o] } else { [&mut k, &mut v] };
        for (tensor, dim) in tensors.into_iter().zip([p.dim, p.dim_v]) {
            tensor[spoilt * dim..][..dim].fill(f32::NAN);
        }
        let found = results(&sample, [&q, &k, &v, &d_o]);
        // Rows of o and dq, and keys of dk and dv, that see none of what holds NaN.
        let row_is_clean = |row: usize| {
            let (head, i) = (row / p.seqlen_q, row % p.seqlen_q);
            match in_query {
                true => row != spoilt,
                false => head >= p.group() || !sample.sees([0, head, i, spoilt]),
            }
        };
        let key_is_clean = |key: usize| {
            let (head, j) = (key / p.seqlen_kv, key % p.seqlen_kv);
            let mut rows = (0..p.group()).flat_map(|h| (0..p.seqlen_q).map(move |i| (h, i)));
            head > 0 || match in_query {
                true => !sample.sees([0, 0, spoilt, j]),
                false => j != spoilt && !rows.any(|(h, i)| {
                    sample.sees([0, h, i, j]) && sample.sees([0, h, i, spoilt])
                }),
            }
        };
        let clean: [&dyn Fn(usize) -> bool; 4] =
            [&row_is_clean, &row_is_clean, &key_is_clean, &key_is_clean];
        let dims = [p.dim_v, p.dim, p.dim, p.dim_v];
        for ((right, found), (clean, dim)) in right.iter().zip(&found).zip(clean.into_iter().zip(dims)) {
            let rows = right.chunks(dim).zip(found.chunks(dim)).enumerate();
            for (number, (right, found)) in rows.filter(|(number, _)| clean(*number)) {
                for (right, found) in right.iter().zip(found) {
                    let close = (found - right).abs() <= 1e-3 * (1.0 + right.abs());
                    prop_assert!(close, "row {number}: {found}, not {right}");
                }
            }
        }
    }

    #[test]
    fn right_results_pass_the_checks(sample in samples()) {
        passes::<f32>(&sample)?;
        // The rule for 16 bits takes the largest error of a plain algorithm, which of few rows may be small by luck.
        if sample.problem.seqlen_q.min(sample.problem.seqlen_kv) > 16 {
            passes::<f16>(&sample)?;
            passes::<bf16>(&sample)?;
        }
    }
}

/// Tensors with gaps and in other orders give what contiguous ones do.
#[test]
fn tensors_may_lie_anyhow() {
    let cpu = Device::cpu();
    let problem = Problem::new([2, 4, 9, 8], [2, 2, 70, 8], [2, 2, 70, 8], false, None);
    let problem = problem.expect("valid");
    let [q, k, v] = random::inputs::<f32>(&problem, 0);
    let q = Tensor::new(&cpu, problem.q_shape(), &q).expect("valid");
    let [k, v] = [k, v].map(|data| Tensor::new(&cpu, problem.k_shape(), &data).expect("valid"));
    let numbers: Vec<f32> = (0..9 * 4 * 2 * 80)
        .map(|i| (i * 7 % 31) as f32 / 9.0 - 1.5)
        .collect();
    // [seqlen_q, heads, batch, keys with gaps].
    let bias = Tensor::new(&cpu, [9, 4, 2, 80], &numbers).expect("valid");
    let bias = bias.view().permute([2, 1, 0, 3]).expect("axes");
    let bias = bias.narrow(3, 5, 70).expect("inside");
    let words: Vec<u32> = (0..4 * 5 * 9)
        .map(|i: u32| i.wrapping_mul(0x9e37_79b9))
        .collect();
    let mask = Tensor::new(&cpu, [9, 4, 1, 5], &words).expect("valid");
    let mask = mask.view().permute([2, 1, 0, 3]).expect("axes");
    let mask = mask.narrow(3, 1, 3).expect("inside");
    let slopes = Tensor::new(&cpu, [4, 2], &numbers[..8]).expect("valid");
    let slopes = slopes.view().transpose(0, 1).expect("axes");
    let sinks = slopes.select(0, 1).expect("inside");

    let run = |attention: &Attention| {
        let (o, lse) = attention.forward(&q, &k, &v).expect("valid");
        (
            o.to_vec().expect("on the CPU"),
            lse.to_vec().expect("on the CPU"),
        )
    };
    let lying = Attention::new()
        .bias(&bias)
        .mask(&mask)
        .alibi(&slopes)
        .sinks(&sinks);
    let (bias, mask) = (
        bias.try_clone().expect("memory"),
        mask.try_clone().expect("memory"),
    );
    let (slopes, sinks) = (
        slopes.try_clone().expect("memory"),
        sinks.try_clone().expect("memory"),
    );
    let contiguous = Attention::new()
        .bias(&bias)
        .mask(&mask)
        .alibi(&slopes)
        .sinks(&sinks);
    assert_eq!(run(&lying), run(&contiguous));
    assert_ne!(
        run(&lying),
        run(&Attention::new().bias(&bias).mask(&mask).alibi(&slopes))
    );

    // An option of a raw call holds rather than the builder's.
    let other = Tensor::new(&cpu, [4], &[9.0, 8.0, 7.0, 6.0]).expect("valid");
    let mut o = Tensor::<f32>::zeros(&cpu, problem.q_shape()).expect("memory");
    let mut lse = Tensor::<f32, 3>::zeros(&cpu, problem.lse_shape()).expect("memory");
    let args = RawForward {
        q: q.as_raw(),
        k: k.as_raw(),
        v: v.as_raw(),
        o: o.as_raw_mut(),
        lse: lse.as_raw_mut(),
        options: RawOptions {
            sinks: Some(other.as_raw()),
            ..RawOptions::default()
        },
    };
    // SAFETY: all tensors live on, in host memory.
    unsafe { contiguous.forward_raw(&cpu, Dtype::F32, &args, std::ptr::null_mut()) }
        .expect("valid");
    let found = (
        o.to_vec().expect("on the CPU"),
        lse.to_vec().expect("on the CPU"),
    );
    assert_eq!(found, run(&lying.sinks(&other)));
}

/// Offsets or lengths on the CPU.
fn integers(numbers: &[i32]) -> Tensor<i32, 1> {
    Tensor::new(&Device::cpu(), [numbers.len()], numbers).expect("memory")
}

/// Rows of no sequence hold NaN: they get zeros, and nothing else changes.
#[test]
fn rows_of_no_sequence_have_no_part() {
    let problem = |rows| Problem::new([1, 2, rows, 8], [1, 1, 9, 8], [1, 1, 9, 8], true, None);
    // A sequence of 3 queries and 4 keys, and one without queries, between other rows.
    let (outer, inner) = (problem(5).expect("valid"), problem(3).expect("valid"));
    let [q, kv] = [[1, 4, 4], [2, 6, 8]].map(|offsets| integers(&offsets));
    let sinks = Tensor::new(&Device::cpu(), [2], &[0.5, f32::NEG_INFINITY]).expect("memory");
    let sample = Sample {
        sequences: Some(Sequences::Packed { q, kv }),
        sinks: Some(sinks),
        ..Sample::from(outer)
    };
    let [_, mut k, mut v] = random::inputs::<f32>(&outer, 3);
    let [q, ..] = random::inputs::<f32>(&inner, 3);
    let d_o = random::output_gradient::<f32>(&inner, 3);
    // Between rows of NaN.
    let widened = |rows: &[f32]| -> Vec<f32> {
        let heads = rows.chunks(24);
        let head = |head: &[f32]| [&[f32::NAN; 8], head, &[f32::NAN; 8]].concat();
        heads.flat_map(head).collect()
    };
    for tensor in [&mut k, &mut v] {
        tensor[..16].fill(f32::NAN);
        tensor[48..].fill(f32::NAN);
    }
    let [o, dq, dk, dv] = results(&sample, [&widened(&q), &k, &v, &widened(&d_o)]);
    let part = |tensor: &[f32]| tensor[16..48].to_vec();
    let alone = Problem {
        seqlen_q: 3,
        seqlen_kv: 4,
        ..outer
    };
    let sinks = sample.sinks;
    let alone = Sample {
        sinks,
        ..Sample::from(alone)
    };
    let [right_o, right_dq, right_dk, right_dv] = results(&alone, [&q, &part(&k), &part(&v), &d_o]);
    let zeros = |rows: Vec<f32>| -> Vec<f32> {
        let rows = widened(&rows).into_iter();
        rows.map(|x| if x.is_nan() { 0.0 } else { x }).collect()
    };
    let keys = |part: Vec<f32>| [&[0.0; 16][..], &part, &[0.0; 24]].concat();
    let right = [
        zeros(right_o),
        zeros(right_dq),
        keys(right_dk),
        keys(right_dv),
    ];
    for (found, right) in [o, dq, dk, dv].into_iter().zip(right) {
        // Zeros are exact.
        let mut pairs = found.iter().zip(&right);
        let close = pairs.all(|(found, right)| (found - right).abs() <= 1e-3 * right.abs());
        assert!(
            close && found.len() == right.len(),
            "{found:?}, not {right:?}"
        );
    }
}

/// First keys and entries of a cache: too many, too large and negative ones, and first keys of packed sequences.
#[test]
fn bad_numbers_of_entries_are_refused() {
    let cpu = Device::cpu();
    let q = Tensor::<f32>::zeros(&cpu, [2, 1, 3, 8]).expect("memory");
    let cache = Tensor::<f32>::zeros(&cpu, [4, 1, 9, 8]).expect("memory");
    let own = cache.view().narrow(0, 0, 2).expect("inside");
    for numbers in [&[0, 10][..], &[-1, 0], &[0], &[0, 1, 2]] {
        let numbers = Tensor::new(&cpu, [numbers.len()], numbers).expect("memory");
        let first_keys = Attention::new().first_keys(&numbers);
        let refused = first_keys.forward(&q, &own, &own).expect_err("refused");
        assert!(refused.to_string().starts_with("first_keys"), "{refused}");
        let entries = Attention::new().cache_entries(&numbers);
        let refused = entries.forward(&q, &cache, &cache).expect_err("refused");
        let message = refused.to_string();
        assert!(message.starts_with("cache_entries"), "{message}");
    }
    let offsets = Tensor::new(&cpu, [2], &[0, 3]).expect("memory");
    let first = Tensor::new(&cpu, [1], &[0]).expect("memory");
    let both = Attention::new()
        .packed(&offsets, &offsets)
        .first_keys(&first);
    let one = q.view().narrow(0, 0, 1).expect("inside");
    let refused = both.forward(&one, &one, &one).expect_err("refused");
    assert!(
        matches!(refused, Error::Excluded("first_keys", _)),
        "{refused}"
    );
}

#[test]
fn bad_sequences_are_refused() {
    let cpu = Device::cpu();
    let tensor = |shape| Tensor::<f32>::zeros(&cpu, shape).expect("memory");
    let refused = |batch: usize, call: Attention| {
        let (q, k) = (tensor([batch, 2, 7, 8]), tensor([batch, 1, 9, 8]));
        let error = call.forward(&q, &k, &k).expect_err("refused");
        let lse = Tensor::<f32, 3>::zeros(&cpu, [batch, 2, 7]).expect("memory");
        let backward = call.backward(&q, &k, &k, &q, &lse, &q);
        assert_eq!(backward.expect_err("refused"), error);
        let problem = call.problem(q.shape(), k.shape(), k.shape());
        let options = call.host_options(&problem.expect("valid"));
        assert_eq!(options.expect_err("refused"), error);
        error.to_string()
    };
    for (q, kv, message) in [
        (
            &[0, 7][..],
            &[0, 10][..],
            "offsets_kv[1] is 10; it must be from 0 to 9",
        ),
        (
            &[0, 8],
            &[0, 9],
            "offsets_q[1] is 8; it must be from 0 to 7",
        ),
        (
            &[-1, 7],
            &[0, 9],
            "offsets_q[0] is -1; it must be from 0 to 7",
        ),
        (
            &[8, 8],
            &[0, 9],
            "offsets_q[0] is 8; it must be from 0 to 7",
        ),
        (
            &[0, 7, 7],
            &[0, 5, 4],
            "offsets_kv[2] is 4; it must be from 5, the offset before it, to 9",
        ),
        (
            &[0, i32::MIN],
            &[0, 9],
            "offsets_q[1] is -2147483648; it must be from 0 to 7",
        ),
        (
            &[0],
            &[0],
            "offsets_q has 1 elements; it must have one more than there are sequences, 2 or more",
        ),
        (
            &[0, 7],
            &[0, 4, 9],
            "offsets_kv has shape [3]; it must be [2] to match the other tensors",
        ),
    ] {
        let [q, kv] = [q, kv].map(integers);
        assert_eq!(refused(1, Attention::new().packed(&q, &kv)), message);
    }
    for (q, kv, message) in [
        (
            &[7, 8][..],
            &[9, 9][..],
            "lengths_q[1] is 8; it must be from 0 to 7",
        ),
        (
            &[7, 7],
            &[-3, 9],
            "lengths_kv[0] is -3; it must be from 0 to 9",
        ),
        (
            &[7, 7],
            &[9],
            "lengths_kv has shape [1]; it must be [2] to match the other tensors",
        ),
        (
            &[7, 7, 7],
            &[9, 9],
            "lengths_q has shape [3]; it must be [2] to match the other tensors",
        ),
    ] {
        let [q, kv] = [q, kv].map(integers);
        assert_eq!(refused(2, Attention::new().padded(&q, &kv)), message);
        // The last one holds.
        let both = Attention::new().packed(&kv, &q).padded(&q, &kv);
        assert_eq!(refused(2, both), message);
    }
    for (kv, message) in [
        (&[9, -1][..], "lengths_kv[1] is -1; it must be from 0 to 9"),
        (
            &[9],
            "lengths_kv has shape [1]; it must be [2] to match the other tensors",
        ),
    ] {
        let kv = integers(kv);
        assert_eq!(refused(2, Attention::new().padded_keys(&kv)), message);
    }
    let whole = integers(&[0, 7]);
    assert_eq!(
        refused(2, Attention::new().packed(&whole, &whole)),
        "batch is 2; with packed sequences it must be 1"
    );
    let gaps = integers(&[0, 0, 7, 7]).reshape([2, 2]).expect("as many");
    let gaps = gaps.select(1, 0).expect("inside");
    assert_eq!(
        refused(1, Attention::new().packed(&gaps, &whole)),
        "offsets_q has stride 2 in its axis; it must be 1"
    );
}

#[test]
fn devices_have_kernels_with_options() {
    let cpu = Device::cpu();
    let pairs = [1, 1, 1, 3];
    let numbers = Tensor::<f32, 1>::zeros(&cpu, [2]).expect("memory");
    let bias = Tensor::<f16>::zeros(&cpu, pairs).expect("memory");
    let mask = Tensor::<u8>::zeros(&cpu, pairs).expect("memory");
    let length = integers(&[3]);
    let shape = [1, 2, 3, 64];
    let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
    let facts = Facts::emulated(Class::Sm80);
    // Of three rows; a tensor of all pairs takes kernels whose tiles have rows of one head.
    let (few, of_pairs) = ("decode_optional_f16_d64", "optional_f16_d64");
    for (call, kernel) in [
        (Attention::new().window(1, None), few),
        (Attention::new().softcap(1.0), few),
        (Attention::new().alibi(&numbers), few),
        (Attention::new().sinks(&numbers), few),
        (Attention::new().bias(&bias), of_pairs),
        (Attention::new().mask(&mask), of_pairs),
        (Attention::new().padded(&length, &length), few),
    ] {
        let raw = RawForward::row_major(&problem);
        let plan = call.plan(Some(&facts), Dtype::F16, &raw).expect("served");
        assert_eq!(plan.kernel, kernel);
        let raw = RawBackward::row_major(&problem);
        let plan = call.backward_plan(Some(&facts), Dtype::F16, &raw);
        assert_eq!(plan.expect("served").kernel, "backward_optional_f16_d64");
        let plain = call.kernel("forward_f16_d64");
        let raw = RawForward::row_major(&problem);
        let plan = plain.plan(Some(&facts), Dtype::F16, &raw);
        assert!(matches!(plan, Err(Error::UnsuitableKernel { .. })));
    }
}

#[test]
fn rows_of_v_have_kernels() {
    let problem = |heads: [usize; 2], seqlen_q, dim, dim_v| {
        let [q, k, v] = [
            [2, heads[0], seqlen_q, dim],
            [2, heads[1], 3000, dim],
            [2, heads[1], 3000, dim_v],
        ];
        Problem::new(q, k, v, true, None).expect("valid")
    };
    let plan = |class, problem: &Problem| {
        let (facts, raw) = (Facts::emulated(class), RawForward::row_major(problem));
        let plan = Attention::new()
            .causal(true)
            .splits(1)
            .plan(Some(&facts), Dtype::F16, &raw);
        let plan = plan.expect("served");
        (plan.kernel, plan.steps[0].blocks)
    };
    for (class, dim, dim_v, kernel, gradients) in [
        (
            Class::Sm80,
            192,
            128,
            "optional_f16_d192",
            Some("backward_optional_f16_d192_32x32"),
        ),
        (
            Class::Sm90,
            192,
            128,
            "hopper_optional_f16_d192",
            Some("backward_optional_f16_d192"),
        ),
        (
            Class::Sm90,
            64,
            128,
            "hopper_optional_f16_d128",
            Some("backward_hopper_stored_optional_f16_d128"),
        ),
        (
            Class::Sm90,
            64,
            40,
            "hopper_optional_f16_d64",
            Some("backward_hopper_optional_f16_d64"),
        ),
        (
            Class::Sm90,
            64,
            136,
            "hopper_optional_f16_d192",
            Some("backward_optional_f16_d192"),
        ),
        (Class::Sm90, 576, 512, "wide_optional_f16_d512", None),
        (Class::Sm90, 576, 520, "wide_optional_f16_d768", None),
        (Class::Sm80, 16, 264, "wide_optional_f16_d384", None),
    ] {
        let problem = problem([4, 2], 100, dim, dim_v);
        assert_eq!(plan(class, &problem).0, kernel);
        let raw = RawBackward::row_major(&problem);
        let facts = Facts::emulated(class);
        let plan = Attention::new()
            .causal(true)
            .backward_plan(Some(&facts), Dtype::F16, &raw);
        match gradients {
            Some(kernel) => assert_eq!(plan.expect("served").kernel, kernel),
            None => assert_eq!(
                plan.expect_err("too wide"),
                Error::NoBackward(dim.max(dim_v))
            ),
        }
    }
    // 64 heads with a query each, which share keys, are a tile.
    let (kernel, blocks) = plan(Class::Sm90, &problem([64, 1], 1, 576, 512));
    assert_eq!((kernel, blocks), ("wide_optional_f16_d512", 2));
}

/// Ranges of keys belong to gradients: one query on many keys takes one block of the launch that finds ranges.
#[test]
fn the_forward_pass_finds_ranges_of_queries_alone() {
    let (q, kv) = ([1, 1, 1, 64], [1, 1, 262_144, 64]);
    let problem = Problem::new(q, kv, kv, false, None).expect("valid");
    let mut args = RawForward::row_major(&problem);
    let offsets = || RawTensor::row_major([2]);
    args.options.sequences = Some(Sequences::Packed {
        q: offsets(),
        kv: offsets(),
    });
    let facts = Facts::emulated(Class::Sm80);
    let plan = Attention::new().plan(Some(&facts), Dtype::F16, &args);
    let steps = plan.expect("served").steps;
    let found = steps.iter().find(|step| step.entry.name == "ranges");
    assert_eq!(found.map(|step| step.blocks), Some(1));
}
