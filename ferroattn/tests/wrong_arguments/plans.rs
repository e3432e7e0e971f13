//! Plans of calls: no device is there.

use super::strategies::{Change, any_problem, dim, dtype, facts, number, options, problem, size};
use ferroattn::internals::has_map;
use ferroattn::{
    Attention, Class, Device, Dtype, Error, Fp8, Gemm, GemmProblem, Problem, RawAppend,
    RawBackward, RawCsrPages, RawForward, RawGemm, RawMerge, RawMergeBackward, RawOptions, RawPart,
    RawPrefix, RawRotary, RawTensor, Sequences, Tensor, Window, append_plan, csr_pages_plan,
    kernel, merge_backward_plan, merge_plan,
};
use proptest::prelude::*;

/// A call of the options of a problem.
fn call(p: &Problem, splits: u32) -> Attention<'static> {
    let mut attention = Attention::new()
        .causal(p.causal)
        .window(p.window.left, p.window.right);
    attention = attention.scale(p.scale).splits(splits);
    match p.softcap {
        Some(softcap) => attention.softcap(softcap),
        None => attention,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans(
        p in problem(), facts in facts(), dtype in dtype(), splits in number(), of_keys in proptest::bool::weighted(0.2),
        invariant in proptest::bool::weighted(0.2), bits in any::<bool>(), changes in proptest::array::uniform9(Change::any()),
        there in proptest::array::uniform4(proptest::bool::weighted(0.3)),
        of_options in proptest::array::uniform4(Change::any()), any_order in any::<bool>(),
    ) {
        let attention = match of_keys {
            false => call(&p, splits),
            true => call(&p, 0).split_keys(splits),
        };
        let attention = attention.batch_invariant(invariant).deterministic(!any_order);
        // Often beside no other option, with which it does not go.
        let fp8 = bits && !there.contains(&true);
        let attention = attention.fp8(fp8.then(Fp8::new));
        let options = options(&p, there, bits, of_options);
        let [q, k, v, o, d_o, dq, dk, dv, rows] = changes;
        let (forward, backward) = (RawForward::row_major(&p), RawBackward::row_major(&p));
        let (q, k, v, o) = (q.of(forward.q), k.of(forward.k), v.of(forward.v), o.of(forward.o));
        let lse = rows.of(forward.lse);
        let _ = [q, k, v, o].map(|tensor| has_map(&tensor));
        let forward = RawForward { q, k, v, o, lse, options };
        let gradients = [dq.of(backward.dq), dk.of(backward.dk), dv.of(backward.dv)];
        let mut backward = RawBackward::new(&forward, d_o.of(backward.d_o), gradients);
        backward.d_sinks = options.sinks;
        backward.d_bias = options.bias.map(|bias| RawTensor::row_major(bias.tensor.shape));
        for facts in [Some(&facts), None] {
            let planned = attention.plan(facts, dtype, &forward);
            let gradients = attention.backward_plan(facts, dtype, &backward);
            prop_assert!(p.validate().is_ok() || planned.is_err() && gradients.is_err());
        }
    }

    #[test]
    fn plans_of_matrices(
        m in size(), n in size(), k in size(), facts in facts(), dtype in dtype(), stages in number(),
        changes in proptest::array::uniform3(Change::any()),
    ) {
        let problem = GemmProblem { m, n, k };
        let args = RawGemm::row_major(problem);
        let [a, b, c] = changes;
        let args = RawGemm { a: a.of(args.a), b: b.of(args.b), c: c.of(args.c) };
        prop_assert!(problem.flops() >= 0.0);
        for gemm in [Gemm::new(), Gemm::new().stages(stages), Gemm::new().kernel("gemm-multistage")] {
            for facts in [Some(&facts), None] {
                let _ = gemm.plan(facts, dtype, &args);
            }
        }
    }

    #[test]
    fn plans_of_merges(
        sizes in proptest::array::uniform3(prop_oneof![3 => 0..40_usize, 1 => size()]), dim in dim(), facts in facts(),
        dtype in dtype(), changes in proptest::array::uniform9(Change::any()),
    ) {
        let [batch, heads, seqlen] = sizes;
        let shape = [batch, heads, seqlen, dim];
        let (merged, backward) = (RawMerge::row_major(shape), RawMergeBackward::row_major(shape));
        let [o1, lse1, o2, lse2, o, lse, d_o, d_o1, d_lse] = changes;
        let part = |part: RawPart, o: Change, lse: Change| RawPart { o: o.of(part.o), lse: lse.of(part.lse) };
        let (first, second) = (part(merged.first, o1, lse1), part(merged.second, o2, lse2));
        let merged = RawMerge { first, second, merged: part(merged.merged, o, lse) };
        let backward = RawMergeBackward {
            first,
            second,
            d_o: d_o.of(backward.d_o),
            d_lse: Some(d_lse.of(backward.first.lse)),
            d_first: part(backward.d_first, d_o1, lse),
            d_second: part(backward.d_second, o, d_lse),
        };
        for facts in [Some(&facts), None] {
            let _ = merge_plan(facts, dtype, &merged);
            let _ = merge_backward_plan(facts, dtype, &backward);
        }
    }

    #[test]
    fn plans_of_appends(
        sizes in proptest::array::uniform5(prop_oneof![3 => 0..40_usize, 1 => size()]), dim in dim(), facts in facts(),
        dtype in dtype(), changes in proptest::array::uniform9(Change::any()), there in any::<[bool; 7]>(),
    ) {
        let [batch, heads, rows, entries, keys] = sizes;
        let [k, v, k_cache, v_cache, q, rotated, pages, lengths, slots] = changes;
        let new = RawTensor::row_major([batch, heads, rows, dim]);
        let cache = RawTensor::row_major([entries, heads, keys, dim]);
        let mut args = RawAppend::new([k.of(new), v.of(new)], [k_cache.of(cache), v_cache.of(cache)]);
        let one = |there: bool| there.then(|| lengths.of(RawTensor::row_major([batch])));
        let of_rows = |there: bool| there.then(|| slots.of(RawTensor::row_major([batch, rows])));
        args.q = there[0].then(|| [q.of(new), rotated.of(new)]);
        args.pages = there[1].then(|| pages.of(RawTensor::row_major([batch, 3])));
        (args.lengths, args.new_lengths, args.cache_entries) = (one(there[2]), one(there[2]), one(there[3]));
        (args.slots, args.positions) = (of_rows(there[4]), of_rows(there[5]));
        let table = slots.of(RawTensor::row_major([keys, dim / 2]));
        args.rotary = there[6].then_some(RawRotary {
            dtype: Dtype::F32,
            cos: table,
            sin: table,
            interleaved: there[0],
            q_at_first: there[1],
        });
        for facts in [Some(&facts), None] {
            let _ = append_plan(facts, dtype, &args);
        }
        let mut forward = RawForward { k: cache, v: cache, ..RawForward::row_major(&any_problem()) };
        forward.options.pages = args.pages;
        for tensor in [&mut forward.q, &mut forward.o] {
            *tensor = new;
        }
        forward.lse = RawTensor::row_major([batch, heads, rows]);
        let _ = Attention::new().plan(Some(&facts), dtype, &forward);
    }

    #[test]
    fn plans_of_prefixes(
        sizes in proptest::array::uniform6(prop_oneof![3 => 0..40_usize, 1 => size()]), dims in [dim(), dim()], facts in facts(),
        dtypes in [dtype(), dtype()], changes in proptest::array::uniform8(Change::any()), there in any::<[bool; 5]>(),
        window in proptest::option::weighted(0.1, size()), of_last in prop_oneof![3 => 0..3_usize, 1 => size()],
    ) {
        let [batch, heads, queries, keys, shared, pages] = sizes;
        let [dim, dim_v] = dims;
        let [q, k, v, o, prefix_k, prefix_v, table, lengths] = changes;
        let entries = if there[0] { pages } else { batch };
        let kv = |entries, keys, dim| RawTensor::row_major([entries, heads, keys, dim]);
        let numbers = lengths.of(RawTensor::row_major([batch]));
        let mut args = RawForward::row_major(&any_problem());
        args.q = q.of(RawTensor::row_major([batch, 2 * heads.min(1 << 20), queries, dim]));
        (args.k, args.v) = (k.of(kv(entries, keys, dim)), v.of(kv(entries, keys, dim_v)));
        args.o = o.of(RawTensor::row_major([batch, 2 * heads.min(1 << 20), queries, dim_v]));
        args.lse = RawTensor::row_major([batch, 2 * heads.min(1 << 20), queries]);
        args.options.pages = there[0].then(|| table.of(RawTensor::row_major([batch, 3])));
        args.options.sequences = there[1].then_some(Sequences::Padded { q: numbers, kv: numbers });
        args.options.sinks = there[2].then(|| RawTensor::row_major([2 * heads.min(1 << 20)]));
        args.options.prefix = Some(match there[3] {
            true => RawPrefix::Pages { table: table.of(RawTensor::row_major([shared])), keys: shared.saturating_mul(keys).saturating_sub(of_last) },
            false => RawPrefix::Keys {
                dtype: dtypes[0],
                k: prefix_k.of(kv(1, shared, dim)),
                v: prefix_v.of(kv(1, shared, dim_v)),
            },
        });
        let attention = Attention::new().causal(there[4]).window(window, None);
        for facts in [Some(&facts), None] {
            let _ = attention.plan(facts, dtypes[1], &args);
        }
    }

    #[test]
    fn plans_of_packed_queries(
        sizes in proptest::array::uniform5(prop_oneof![4 => 1..40_usize, 1 => size()]), dims in [dim(), dim()], log2 in 0..70_u32,
        batch in prop_oneof![9 => Just(1_usize), 1 => size()], is_causal in any::<bool>(), facts in facts(),
        changes in proptest::array::uniform6(Change::any()),
    ) {
        let [heads, queries, sequences, most, pages] = sizes;
        let [dim, dim_v] = dims;
        let [q, k, v, table, offsets, lengths] = changes;
        let (heads, page) = (heads.min(1 << 20), 1_usize.checked_shl(log2).unwrap_or(12));
        let mut args = RawForward::row_major(&any_problem());
        args.q = q.of(RawTensor::row_major([batch, 2 * heads, queries, dim]));
        args.k = k.of(RawTensor::row_major([pages, heads, page, dim]));
        args.v = v.of(RawTensor::row_major([pages, heads, page, dim_v]));
        args.o = RawTensor::row_major([batch, 2 * heads, queries, dim_v]);
        args.lse = RawTensor::row_major([batch, 2 * heads, queries]);
        args.options.pages = Some(table.of(RawTensor::row_major([sequences, most])));
        args.options.sequences = Some(Sequences::PackedQueries {
            q: offsets.of(RawTensor::row_major([sequences.saturating_add(1)])),
            kv: lengths.of(RawTensor::row_major([sequences])),
        });
        for facts in [Some(&facts), None] {
            let _ = Attention::new().causal(is_causal).plan(facts, Dtype::F16, &args);
            let _ = kernel::suitable(facts, Dtype::F16, &any_problem(), &args.options);
        }
    }

    #[test]
    fn plans_of_csr_pages(
        sizes in proptest::array::uniform3(prop_oneof![3 => 0..40_usize, 1 => size()]), log2 in 0..70_u32, facts in facts(),
        changes in proptest::array::uniform5(Change::any()),
    ) {
        let [batch, most, count] = sizes;
        let [indptr, indices, last_page, table, lengths] = changes;
        let one = |change: Change, count: usize| change.of(RawTensor::row_major([count]));
        let inputs = [one(indptr, batch.saturating_add(1)), one(indices, count), one(last_page, batch)];
        let outputs = (table.of(RawTensor::row_major([batch, most])), one(lengths, batch));
        let args = RawCsrPages::new(1_usize.checked_shl(log2).unwrap_or(12), inputs, outputs);
        for facts in [Some(&facts), None] {
            let _ = csr_pages_plan(facts, &args);
        }
    }

    #[test]
    fn facts_alone(facts in facts(), bytes in number(), blocks in number()) {
        let blocks = facts.resident_blocks(blocks, bytes);
        prop_assert!(blocks > 0);
        prop_assert!(!facts.fits(bytes) || facts.shared.block >= bytes);
        prop_assert!(Class::ALL.contains(&facts.class()));
    }

    /// A problem whose fields are wrong is refused where it is used.
    #[test]
    fn problems_of_any_fields(p in problem(), row in size()) {
        let is_valid = p.validate().is_ok();
        let options = RawOptions::default();
        prop_assert_eq!(kernel::suitable(None, Dtype::F16, &p, &options).is_ok(), is_valid);
        if !is_valid {
            let checked = kernel::check(None, kernel::CPU, Dtype::F16, &p, &options);
            let host = Attention::new().host_options(&p).map(drop);
            // A scale of NaN is not equal to itself.
            let message = |result: Result<(), Error>| result.map_err(|error| error.to_string());
            prop_assert_eq!(message(checked), message(p.validate()));
            prop_assert_eq!(message(host), message(p.validate()));
        }
        let keys = p.keys(row);
        prop_assert!(keys.start <= keys.end && keys.end <= p.seqlen_kv);
        if p.seqlen_q < 1 << 32 && p.window == Window::NONE {
            prop_assert!(p.flops() >= 0.0 && p.backward_flops() >= 0.0);
        }
    }
}

/// A repeated mask of more pairs than a number holds, which the host's views could not have.
#[test]
fn repeated_masks_can_be_counted() {
    let words = Tensor::<u32>::zeros(&Device::cpu(), [1, 1, 1, 1 << 25]).expect("memory");
    let shape = [64, 64, 1 << 30, 8];
    let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
    let options = Attention::new().mask(&words).host_options(&problem);
    assert_eq!(options.err(), Some(Error::Overflow("mask")));
}
