//! Safe calls with arguments of any numbers: each gives a result, a typed error, or the panic that its documentation names.

#![forbid(unsafe_code)]

use ferroattn::device::{Driver, Emulator, SharedMemory, Swizzle, TensorMap};
use ferroattn::emulator::{Finding, FindingKind, Options, Tally};
use ferroattn::internals::{Draft, Entry, MainKernel, Steps, has_map, ptx};
use ferroattn::{
    Attention, Class, Device, Dtype, Element, Error, Facts, Fp8, Gemm, GemmProblem, Problem,
    RawAppend, RawBackward, RawBias, RawCsrPages, RawForward, RawGemm, RawMask, RawMerge,
    RawMergeBackward, RawOptions, RawPart, RawPrefix, RawRotary, RawTensor, Sequences, Tensor,
    TensorView, Window, append_plan, backward, check, csr_pages_plan, f16, gemm, kernel,
    merge_backward_plan, merge_plan, random,
};
use kernels::catalog::named;
use proptest::prelude::*;
use proptest::sample::select;

/// Sizes at the ends of ranges, and ordinary ones.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        20 => 1..300_usize,
        1 => select(vec![0, 8, 1024, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, 1 << 63, usize::MAX]),
    ]
}

fn dim() -> impl Strategy<Value = usize> {
    prop_oneof![40 => (1..33_usize).prop_map(|n| 8 * n), 1 => size()]
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 1..300_u32, 1 => select(vec![0, 1 << 20, 1 << 31, u32::MAX])]
}

fn stride() -> impl Strategy<Value = isize> {
    prop_oneof![
        4 => -3000..3000_isize,
        1 => select(vec![0, 1, 1 << 39, 1 << 40, 1 << 61, isize::MAX / 2, isize::MAX, isize::MIN]),
    ]
}

fn any_float() -> impl Strategy<Value = f32> {
    let ends = vec![
        0.0,
        1e-38,
        1e30,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NAN,
    ];
    prop_oneof![20 => 0.1..9.0_f32, 1 => select(ends)]
}

fn window() -> impl Strategy<Value = Window> {
    (proptest::option::of(size()), proptest::option::of(size()))
        .prop_map(|(left, right)| Window { left, right })
}

/// Facts that no device has, beside ordinary ones.
fn facts() -> impl Strategy<Value = Facts> {
    let class = select(Class::ALL.to_vec());
    let numbers = [(); 4].map(|()| number());
    let changed = (
        proptest::array::uniform5(proptest::bool::weighted(0.05)),
        numbers,
        any::<(i32, i32)>(),
    );
    (class, changed, any::<bool>()).prop_map(
        |(class, (changed, numbers, capability), has_pools)| {
            let usual = Facts::emulated(class);
            let or = |which: usize, usual: u32| {
                if changed[which] {
                    numbers[which]
                } else {
                    usual
                }
            };
            let mut facts = usual;
            facts.multiprocessors = or(0, usual.multiprocessors);
            facts.l2_bytes = or(1, usual.l2_bytes);
            facts.shared = SharedMemory {
                block: or(2, usual.shared.block),
                multiprocessor: or(3, usual.shared.multiprocessor),
            };
            if changed[4] {
                facts.compute_capability = capability;
            }
            facts.has_pools = has_pools;
            facts
        },
    )
}

/// A problem, to change.
fn any_problem() -> Problem {
    let shape = [1, 1, 1, 8];
    Problem::new(shape, shape, shape, false, None).expect("valid")
}

/// Problems whose fields are not checked.
fn problem() -> impl Strategy<Value = Problem> {
    let sizes = (1..3_usize, 1..3_usize, size(), size(), 0..12_usize, size());
    (
        sizes,
        dim(),
        dim(),
        any::<bool>(),
        window(),
        any_float(),
        proptest::option::of(any_float()),
    )
        .prop_map(|(sizes, dim, dim_v, causal, window, scale, softcap)| {
            let (batch, kv_heads, seqlen_q, seqlen_kv, which, other) = sizes;
            let mut problem = any_problem();
            (problem.batch, problem.heads, problem.kv_heads) = (batch, 2 * kv_heads, kv_heads);
            (problem.seqlen_q, problem.seqlen_kv) = (seqlen_q, seqlen_kv);
            (problem.dim, problem.dim_v) = (dim, dim_v);
            (problem.causal, problem.window) = (causal, window);
            (problem.scale, problem.softcap) = (scale, softcap);
            match which {
                0 => problem.batch = other,
                1 => problem.heads = other,
                2 => problem.kv_heads = other,
                _ => (),
            }
            problem
        })
}

fn dtype() -> impl Strategy<Value = Dtype> {
    select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32])
}

/// A tensor gets another stride or extent of an axis, or another address.
#[derive(Clone, Copy, Debug)]
enum Change {
    None,
    Stride(usize, isize),
    Extent(usize, usize),
    Address(u64),
}

impl Change {
    fn any() -> impl Strategy<Value = Self> {
        let address = select(vec![1, 2, 16, 1 << 40, u64::MAX - 1, u64::MAX]);
        prop_oneof![
            40 => Just(Change::None),
            1 => (0..4_usize, stride()).prop_map(|(axis, stride)| Change::Stride(axis, stride)),
            1 => (0..4_usize, size()).prop_map(|(axis, extent)| Change::Extent(axis, extent)),
            1 => address.prop_map(Change::Address),
        ]
    }

    fn of<const R: usize>(self, mut tensor: RawTensor<R>) -> RawTensor<R> {
        match self {
            Change::None => (),
            Change::Stride(axis, stride) => tensor.strides[axis % R] = stride,
            Change::Extent(axis, extent) => tensor.shape[axis % R] = extent,
            Change::Address(address) => tensor.address = address,
        }
        tensor
    }
}

/// Tensors of options, each there or not, of the right shapes before a change.
fn options(p: &Problem, there: [bool; 4], bits: bool, changes: [Change; 4]) -> RawOptions {
    let pairs = [p.batch, p.heads, p.seqlen_q, p.seqlen_kv];
    let words = [
        p.batch,
        p.heads,
        p.seqlen_q,
        p.seqlen_kv.div_ceil(if bits { 32 } else { 1 }),
    ];
    let repeated = |shape| RawTensor {
        address: 16,
        shape,
        strides: [0, 0, 0, 1],
    };
    let lengths = changes[3].of(RawTensor::row_major([p.batch]));
    let mut options = RawOptions::default();
    options.alibi = there[0].then(|| changes[0].of(RawTensor::row_major([p.batch, p.heads])));
    options.sinks = there[0].then(|| changes[0].of(RawTensor::row_major([p.heads])));
    options.bias = there[1].then(|| RawBias {
        dtype: Dtype::F16,
        tensor: changes[1].of(repeated(pairs)),
    });
    options.mask = there[2].then(|| RawMask {
        bits,
        tensor: changes[2].of(repeated(words)),
    });
    options.sequences = there[3].then_some(Sequences::Padded {
        q: lengths,
        kv: lengths,
    });
    options.check_lengths = bits;
    options
}

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

/// An emulated device of facts that no device has.
#[test]
fn devices_have_possible_facts() {
    let usual = Facts::emulated(Class::Sm80);
    for (multiprocessors, words) in [(0, "at least 1"), (u32::MAX, "at most 65536")] {
        let mut facts = usual;
        facts.multiprocessors = multiprocessors;
        let device = Device::with_driver(Emulator::new(facts, Options::default()));
        let message = device.expect_err("refused").to_string();
        assert!(
            message.contains(words) || message == Error::NotCompiled.to_string(),
            "{message}"
        );
    }
}

/// The emulated device, if there are kernels for it.
fn emulated(driver: Emulator) -> Option<Device> {
    match Device::with_driver(driver) {
        Err(Error::NotCompiled) => None,
        device => Some(device.expect("usual facts")),
    }
}

fn forward(device: &Device) -> Result<Vec<f16>, Error> {
    let x = Tensor::new(device, [1, 1, 3, 64], &[f16::ONE; 192])?;
    Attention::new().forward(&x, &x, &x)?.0.to_vec()
}

/// Entries that a program changed do not compile, and leave the device's kernels alone.
#[test]
fn plans_of_other_kernels_warm_nothing_up() {
    let driver = Emulator::new(Facts::emulated(Class::Sm80), Options::default());
    let Some(device) = emulated(driver) else {
        return;
    };
    let changes: [fn(&mut Entry); 4] = [
        |entry| entry.modules = None,
        |entry| entry.module = "none",
        |entry| entry.name = "none",
        |entry| entry.modules = Some(&[]),
    ];
    for change in changes {
        let mut entry = planned_entry();
        change(&mut entry);
        let texts = [entry.text(), entry.marked_text(), entry.whole_text()];
        assert_eq!(texts, [(); 3].map(|()| Err(Error::NotCompiled)));
        let mut steps = Steps::default();
        steps.launch(entry, 1, 0, &0_u64).expect("a grid");
        let plan = steps.finish(entry.name, 1);
        assert_eq!(device.warm_up(&[plan]), Err(Error::NotCompiled));
    }
    assert_eq!(forward(&device), Ok(vec![f16::ONE; 192]));
    assert_eq!(ptx::module("none"), None);
}

/// Plans in the making, of kernels that have 0 of something, on devices that no one has.
#[test]
fn drafts_of_other_kernels() {
    let shape = [1, 2, 300, 64];
    let problem = Problem::new(shape, shape, shape, true, None).expect("valid");
    let args = RawForward::row_major(&problem);
    let usual = Facts::emulated(Class::Sm90);
    let kernel = MainKernel::from(named("hopper_f16_d64").expect("in the catalog"));
    let draft = |kernel, facts: &Facts, splits| {
        let mut draft = Draft::new(kernel, &problem, facts, &args, splits)?;
        draft.reserve_partials(64)?;
        draft.launch_by_maps(&problem, 64, facts.multiprocessors)?;
        draft.launch(|params| params)?;
        draft.combine()?;
        Ok(draft.finish()?.steps.len())
    };
    for splits in [None, Some(0), Some(1), Some(u32::MAX)] {
        assert_eq!(draft(kernel, &usual, splits), Ok(3), "{splits:?}");
    }
    let mut none = usual;
    none.multiprocessors = 0;
    assert_eq!(
        draft(kernel, &none, None),
        Err(Error::Zero("multiprocessors"))
    );
    let changes: [fn(&mut MainKernel); 4] = [
        |kernel| kernel.q_rows = 0,
        |kernel| kernel.keys = 0,
        |kernel| kernel.slices = 0,
        |kernel| kernel.v_chunks = 0,
    ];
    for change in changes {
        let mut kernel = kernel;
        change(&mut kernel);
        assert!(panics(|| draft(kernel, &usual, None)), "{kernel:?}");
    }
    let mut small = Draft::new(kernel, &problem, &usual, &args, None).expect("a grid");
    assert!(small.reserve_partials(usize::MAX).is_err());
    let forward = planned_entry();
    let mut steps = Steps::default();
    for blocks in [1 << 31, u128::MAX] {
        let refused = steps
            .launch(forward, blocks, u32::MAX, &[0_u64; 4])
            .map(drop);
        assert!(matches!(refused, Err(Error::Grid { .. })), "{refused:?}");
    }
    assert!(steps.finish("none", 0).steps.is_empty());
}

/// The kernel of a small call on an A100.
fn planned_entry() -> Entry {
    let shape = [1, 1, 3, 64];
    let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
    let (facts, args) = (
        Facts::emulated(Class::Sm80),
        RawForward::row_major(&problem),
    );
    let plan = Attention::new()
        .plan(Some(&facts), Dtype::F16, &args)
        .expect("a kernel");
    plan.steps[0].entry
}

/// Texts that are no PTX, or no kernel's, in a kernel's place.
#[test]
fn other_texts_are_refused() {
    for text in ["", "no PTX", ".version 7.0 .target sm_80 .address_size 64"] {
        let driver = Emulator::new(Facts::emulated(Class::Sm80), Options::default());
        let Some(device) = emulated(driver.with_ptx("decode_f16_d64", text)) else {
            return;
        };
        let found = forward(&device);
        assert!(matches!(found, Err(Error::Emulator(_))), "{found:?}");
    }
}

#[test]
fn drivers_take_any_arguments() {
    let driver = Emulator::new(Facts::emulated(Class::Sm90), Options::default());
    assert!(driver.allocate(usize::MAX).is_err() && driver.allocate(0).is_ok());
    assert!(driver.load("kernel", c"no PTX", &mut []).is_err());
    let map = TensorMap {
        address: u64::MAX,
        sizes: [u64::MAX; 4],
        strides: [u64::MAX; 3],
        box_sizes: [0; 4],
        swizzle: Swizzle::B64,
    };
    // A kernel that uses it breaks a rule.
    assert!(driver.tensor_map(&map).is_ok());
}

/// Budgets of instructions that the emulator does not take, and too small ones.
#[test]
fn options_of_the_emulator_are_checked() {
    for instruction_budget in [0, 1, u64::MAX] {
        let options = Options {
            instruction_budget,
            ..Options::default()
        };
        for class in Class::ALL {
            match Device::emulator_of(*class, options) {
                Err(Error::NotCompiled) => (),
                device => {
                    let found = forward(&device.expect("a class"));
                    assert!(matches!(found, Err(Error::Emulator(_))), "{found:?}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "events of two devices")]
fn events_of_two_devices() {
    let facts = Facts::emulated(Class::Sm80);
    let Some(device) = emulated(Emulator::new(facts, Options::default())) else {
        panic!("events of two devices, of which there is one");
    };
    let [here, there] = [Device::cpu(), device].map(|device| device.event().expect("an event"));
    let _ = here.since(&there);
}

/// An event before the start of its interval.
#[test]
fn time_does_not_run_backwards() {
    let facts = Facts::emulated(Class::Sm80);
    for device in [
        Some(Device::cpu()),
        emulated(Emulator::new(facts, Options::default())),
    ] {
        let Some(device) = device else { continue };
        let [first, second] = [(); 2].map(|()| device.event().expect("an event"));
        assert_eq!(
            first.since(&second).expect("one device"),
            std::time::Duration::ZERO
        );
    }
}

#[test]
fn no_such_gpu() {
    for index in [1 << 20, 1 << 32, usize::MAX] {
        assert!(Device::cuda(index).is_err(), "{index}");
    }
}

/// Random numbers of tensors without elements.
#[test]
fn random_tensors_may_be_empty() {
    let shapes = [
        [0, 1, 1, 1],
        [1, 0, 1, 1],
        [1, 1, 0, 1],
        [1, 1, 1, 0],
        [0; 4],
    ];
    for shape in shapes {
        assert!(random::bias::<f16>(shape, 0).is_empty());
        assert!(random::mask(shape, 0).is_empty(), "{shape:?}");
    }
    let [a, b] = random::matrices::<f32>(&GemmProblem { m: 0, n: 3, k: 0 }, 0);
    assert!(a.is_empty() && b.is_empty());
    assert!(ferroattn::alibi_slopes(0).is_empty());
}

/// Samples end, of few rows and of as many as there are.
#[test]
fn samples_of_any_size() {
    let shape = [1, 2, 1, 8];
    let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
    for count in [0, 1, 2, 3, usize::MAX] {
        for extent in [0, 1, 2, 63, 64, 65, 1 << 31] {
            if count <= extent || extent < 100 {
                assert!(
                    gemm::check::sample(extent, count.min(100), 0)
                        .iter()
                        .all(|&row| row < extent)
                );
            }
        }
        assert!(
            check::sample_rows(&problem, count, 0)
                .iter()
                .all(|&row| row < 2)
        );
        assert!(
            backward::check::sample_keys(&problem, count, 0)
                .iter()
                .all(|&key| key < 2)
        );
    }
}

/// Whether a call panics, as its documentation says of tensors of other sizes.
fn panics<T>(call: impl FnOnce() -> T) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
}

/// The checks with tensors that are too short, rows that are not there, and options of a smaller problem.
#[test]
fn checks_of_other_sizes_panic() {
    let [small, large] = [[1, 1, 2, 8], [2, 2, 70, 8]]
        .map(|shape| Problem::new(shape, shape, shape, false, None).expect("valid"));
    let data = [0.5_f32; 2240];
    let (alibi, sinks) = (
        Tensor::new(&Device::cpu(), [1], &[0.5]),
        Tensor::new(&Device::cpu(), [1], &[0.5]),
    );
    let bias = Tensor::new(&Device::cpu(), [1, 1, 2, 2], &[0.5; 4]).expect("memory");
    let mask = Tensor::new(&Device::cpu(), [1, 1, 2, 2], &[1_u8; 4]).expect("memory");
    let lengths = Tensor::new(&Device::cpu(), [1], &[2]).expect("memory");
    let (alibi, sinks) = (alibi.expect("memory"), sinks.expect("memory"));
    let calls = [
        Attention::new().alibi(&alibi),
        Attention::new().sinks(&sinks),
        Attention::new().bias(&bias),
        Attention::new().mask(&mask),
        Attention::new().padded(&lengths, &lengths),
    ];
    let no_options = Attention::new();
    let of = |problem, call: &Attention, len: usize, rows: &[usize]| {
        let options = call
            .host_options(&small)
            .expect("tensors of the small problem");
        let (data, lse) = (&data[..len], &data[..280]);
        let forward = check::Forward {
            problem,
            options,
            q: data,
            k: data,
            v: data,
            o: data,
            lse,
            acc: ferroattn::Accumulation::Single,
        };
        let backward = backward::check::Backward {
            problem,
            options,
            q: data,
            k: data,
            v: data,
            d_o: data,
            d_lse: None,
            dq: data,
            dk: data,
            dv: data,
            d_sinks: None,
            d_bias: None,
        };
        [
            panics(|| check::check(&forward, rows)),
            panics(|| backward::check::check(&backward, rows, rows)),
        ]
    };
    for call in &calls {
        assert_eq!(of(&small, call, 16, &[0, 1]), [false; 2]);
        assert_eq!(of(&large, call, 2240, &[279]), [true; 2], "{call:?}");
    }
    assert_eq!(of(&large, &no_options, 2240, &[0, 279]), [false; 2]);
    assert_eq!(of(&large, &no_options, 2239, &[279]), [true; 2]);
    assert_eq!(of(&large, &no_options, 2240, &[280]), [true; 2]);
    assert_eq!(of(&large, &no_options, 2240, &[usize::MAX]), [true; 2]);
    assert_eq!(of(&large, &no_options, 2240, &[]), [true; 2]);
    let product = gemm::check::Product {
        problem: GemmProblem { m: 3, n: 3, k: 3 },
        accumulation: ferroattn::Accumulation::Single,
        a: &data[..9],
        b: &data[..9],
        c: &data[..8],
    };
    assert!(panics(|| gemm::check::check(&product, &[2], &[2])));
    assert!(panics(|| gemm::check::check(&product, &[3], &[0])));
}

#[test]
fn slices_of_two_lengths_panic() {
    let mut wide = [0.0_f32; 3];
    let mut narrow = [f16::ZERO; 2];
    assert!(panics(|| f16::to_f32_slice(&[f16::ONE; 2], &mut wide)));
    assert!(panics(|| f32::to_f32_slice(&[1.0; 4], &mut wide)));
    assert!(panics(|| f16::from_f32_slice(&[1.0; 3], &mut narrow)));
    assert!(panics(|| f32::from_f32_slice(&[1.0; 2], &mut wide)));
}

/// Elements without bytes, of which there may be as many as numbers.
#[test]
fn elements_without_bytes() {
    let buffer = Device::cpu().upload(&[(); usize::MAX]).expect("no memory");
    let whole = TensorView::from_buffer(&buffer, 0, [0], [1]).expect("empty");
    assert_eq!(whole.to_vec().expect("no elements").len(), 0);
    assert!(TensorView::from_buffer(&buffer, usize::MAX, [1], [1]).is_err());
    let some = Tensor::<(), 2>::zeros(&Device::cpu(), [3, 1 << 40]).expect("no memory");
    assert_eq!(
        some.narrow(1, 5, 7)
            .expect("inside")
            .to_vec()
            .expect("no memory")
            .len(),
        21
    );
}

/// Counters of a launch that a program made.
#[test]
fn counters_of_any_numbers() {
    let tally = Tally {
        ideal_wavefronts: 9,
        ideal_sectors: u64::MAX,
        ..Tally::default()
    };
    assert_eq!((tally.bank_conflicts(), tally.extra_sectors()), (0, 0));
    for bytes in [0, 129, u32::MAX] {
        assert!(panics(|| Tally::default().count_shared(
            u32::MAX,
            &[u64::MAX; 32],
            bytes
        )));
    }
    let finding = Finding {
        kind: FindingKind::BankConflict,
        opcode: String::new(),
        lines: vec![],
        sources: vec![],
        actual: 0,
        ideal: 1,
    };
    assert_eq!(finding.extra(), 0);
}
