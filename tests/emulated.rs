//! Tests for the emulator alone: every schedule of the warps is clean, and launches move what the algorithm moves.

use ferroattn::device::Emulator;
use ferroattn::emulator::{Counters, Options};
use ferroattn::internals::Steps;
use ferroattn::{Class, Device, Facts, RawTensor, Tensor, Window};
use kernels::abi::{PackParams, Sm90Params};
use kernels::catalog::{Dtype, Forward, KERNELS, Kernel, Loop};
use std::mem::offset_of;
use tests::{Case, Layout, Modifiers, Outcome, PASSED, Test, counting};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::emulator("copies_are_of_every_element", |_| {
            copies_are_of_every_element(&Device::emulator(Options::default())?)
        }),
        Test::emulator("copies_reach_far", |_| copies_reach_far()),
        Test::emulator("copies_move_no_more_than_needed", |_| {
            copies_move_no_more_than_needed()
        }),
    ];
    for kernel in KERNELS.iter() {
        let name = |test: &str| format!("{test}::{}", kernel.name);
        let Some(forward) = kernel.forward() else {
            continue;
        };
        // Their bf16 twins are the same text with other types: their schedules are the same.
        if forward.dtype != Dtype::F16 {
            continue;
        }
        // These tests of wide kernels would take minutes.
        if forward.kind.main_loop != Loop::Wide {
            tests.push(Test::emulator(name("every_schedule"), move |_| {
                every_schedule_is_clean(kernel, forward)
            }));
            let is_plain =
                !forward.is_latent() && !forward.kind.multiplies_e4m3() && !forward.reads_e4m3();
            if forward.kind.mask.serves(false) && is_plain {
                tests.push(Test::emulator(name("counters"), move |_| {
                    counters_follow_the_algorithm(kernel, forward)
                }));
            }
        }
        if kernel.takes_maps() {
            tests.push(Test::emulator(name("several_tiles"), move |_| {
                blocks_with_several_tiles(kernel, forward)
            }));
        }
        let has_own_rows =
            kernel.takes_maps() && !forward.kind.is_grouped() && !forward.kind.multiplies_e4m3();
        if has_own_rows && Sm90Params::stores_by_map(forward.dim) {
            tests.push(Test::emulator(name("o_lies_anywhere"), move |_| {
                o_lies_anywhere(kernel, forward)
            }));
        }
        if forward.kind.is_grouped() && !forward.reads_e4m3() {
            tests.push(Test::emulator(name("keys_are_read_once"), move |_| {
                packed_kernels_read_keys_once(kernel, forward)
            }));
        }
    }
    tests
}

/// A case of one head for a kernel, at its own head dim.
fn case(kernel: &Kernel, forward: &Forward, seqlen_q: u64, seqlen_kv: u64) -> Case {
    Case {
        dtype: forward.dtype.into(),
        seqlen_q: seqlen_q as usize,
        seqlen_kv: seqlen_kv as usize,
        dim: forward.dim as usize,
        causal: !forward.kind.mask.serves(false),
        kernel: Some(kernel.name.to_owned()),
        splits: 1,
        ..Case::default()
    }
    .as_served()
}

/// Schedules of each kernel: `docs/mutants.md` says how many a fault needs.
pub const SCHEDULES: u64 = 6;

fn every_schedule_is_clean(kernel: &Kernel, forward: &Forward) -> Outcome {
    case(kernel, forward, 130, 100).check_schedules(SCHEDULES, |seed| {
        let options = Options {
            seed,
            ..Options::default()
        };
        Device::emulator_of(kernel.class().into(), options)
    })
}

/// Blocks that take several tiles each: long and short ones, without keys, with the end of a head between them, under a
/// negative scale, padded, and in splits.
fn blocks_with_several_tiles(kernel: &Kernel, forward: &Forward) -> Outcome {
    let mut facts = Facts::emulated(Class::Sm90);
    facts.multiprocessors = 2;
    for (seed, (seqlen_q, seqlen_kv, padding, scale, splits)) in [
        (300, 200, 0, None, 1),
        (70, 300, 0, Some(-0.2), 1),
        (513, 65, 8, None, 1),
        (200, 513, 8, None, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let options = Options {
            seed: seed as u64,
            ..Options::default()
        };
        let device = Device::with_driver(Emulator::new(facts, options))?;
        let alone = case(kernel, forward, seqlen_q, seqlen_kv);
        let case = Case {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            dim: alone.dim - padding,
            scale,
            splits,
            ..alone
        }
        .as_served();
        case.check(&device)?;
        if forward.kind.mask.has_options() {
            // Tiles that begin behind the first keys.
            let modifiers = Modifiers {
                window: Window {
                    left: Some(70),
                    right: Some(5),
                },
                sinks: !forward.is_latent(),
                ..case.modifiers.clone()
            };
            Case { modifiers, ..case }.check(&device)?;
        }
    }
    PASSED
}

/// O leaves by tensor stores where a map describes it, and from registers elsewhere. Blocks take several tiles, of which some
/// begin before row 0, and rows may see no key; head dims end inside a box, at its end, and before it.
fn o_lies_anywhere(kernel: &Kernel, forward: &Forward) -> Outcome {
    let mut facts = Facts::emulated(Class::Sm90);
    facts.multiprocessors = 3;
    let layouts = [
        (Layout::Bhnd, 128, true),
        (Layout::Bnhd, 104, true),
        (Layout::Padded, 88, true),
        (Layout::Bhnd, 72, true),
        (Layout::Padded, 64, true),
        (Layout::Shifted, 128, false),
        (Layout::OddRows, 128, false),
        (Layout::OddHeads, 104, false),
        (Layout::OddBatches, 104, false),
        (Layout::Reversed, 128, false),
        (Layout::OddReversed, 128, false),
    ];
    for (seed, (o, dim, by_map)) in layouts.into_iter().enumerate() {
        let options = Options {
            seed: seed as u64,
            ..counting()
        };
        let device = Device::with_driver(Emulator::new(facts, options))?;
        Case {
            batch: 2,
            heads: 3,
            dim,
            o,
            ..case(kernel, forward, 250, 130)
        }
        .check(&device)?;
        let launches = device.counters();
        let stores = launches.iter().map(|(_, counters)| {
            let stores = counters.total_of("cp.async.bulk.tensor.4d.global");
            stores.executed
        });
        assert_eq!(stores.sum::<u64>() > 0, by_map, "{o:?}, {dim}");
    }
    PASSED
}

/// A device whose splits have a launch of their own that combines them, always.
pub fn without_clusters(facts: Facts) -> Facts {
    let mut others = facts;
    others.compute_capability = Facts::emulated(Class::Sm80).compute_capability;
    others
}

/// The counters of a case's launches.
fn counters(kernel: &Kernel, case: &Case) -> Result<Vec<Counters>, libtest_mimic::Failed> {
    let mut facts = Facts::emulated(kernel.class().into());
    if kernel.target.is_portable {
        facts = without_clusters(facts);
    }
    let device = Device::with_driver(Emulator::new(facts, counting()))?;
    case.check(&device)?;
    let launches = device.counters().into_iter();
    Ok(launches.map(|(_, counters)| counters).collect())
}

/// Every query tile reads the keys that it sees once, and no sector moves in part.
fn counters_follow_the_algorithm(kernel: &Kernel, forward: &Forward) -> Outcome {
    // A multiple of the rows of every tile.
    const LENGTH: u64 = 384;
    let dim = u64::from(forward.dim);
    // Whole blocks in each of two splits.
    let keys = LENGTH.next_multiple_of(2 * u64::from(forward.tile.keys));
    for splits in [1, 2] {
        let case = Case {
            splits: splits as u32,
            ..case(kernel, forward, LENGTH, keys)
        };
        let launches = counters(kernel, &case)?;
        let total = launches[0].total();
        // Each slice of O has scores of its own.
        let slices = u64::from(forward.slices());
        assert_eq!(total.flops, 2 * (slices + 1) * LENGTH * keys * dim);
        if !kernel.takes_maps() {
            assert_eq!(launches[0].mma(), total.flops / 4096);
        }
        let lines = launches[0].lines.iter();
        let of_kernels = lines
            .filter(|line| {
                ["ldmatrix", "wgmma"]
                    .iter()
                    .any(|op| line.opcode.starts_with(op))
            })
            .all(|line| {
                let source = line.source.as_ref();
                source.is_some_and(|source| source.file.starts_with("kernels/src/"))
            });
        assert!(of_kernels, "source lines of the kernels");
        assert_eq!(launches[0].bank_conflicts().count(), 0);
        assert_eq!(total.extra_sectors(), 0);
        // In 16 bits; the partial results have 32.
        let (tensor, kv_tensor) = (2 * LENGTH * dim, 2 * keys * dim);
        let q_tiles = LENGTH.div_ceil(u64::from(forward.tile.q_rows));
        // Each side of a block copies Q.
        let q = splits * slices * u64::from(forward.sides());
        let (k, v) = (q_tiles * slices, q_tiles);
        assert_eq!(total.bytes_read, q * tensor + (k + v) * kv_tensor);
        let Some(combined) = launches.get(1) else {
            assert_eq!(total.bytes_written, tensor + 4 * LENGTH);
            continue;
        };
        assert_eq!(total.bytes_written, splits * (2 * tensor + 8 * LENGTH));
        let total = combined.total();
        assert_eq!(total.bytes_written, tensor + 4 * LENGTH);
        // The maxima are read once more, and by both warps of a row.
        let warps = dim.div_ceil(128).next_power_of_two();
        let softmax = 2 * warps * splits * 8 * LENGTH;
        assert_eq!(total.bytes_read, splits * 2 * tensor + softmax);
    }
    PASSED
}

/// All heads of a group read their keys and values once.
fn packed_kernels_read_keys_once(kernel: &Kernel, forward: &Forward) -> Outcome {
    // Whole blocks in each of three splits.
    let keys = 3 * 192_u64.next_multiple_of(forward.tile.keys.into());
    let case = Case {
        heads: 8,
        splits: 3,
        ..case(kernel, forward, 4, keys)
    };
    let launches = counters(kernel, &case)?;
    let (total, dim) = (launches[0].total(), u64::from(forward.dim));
    // Bytes of a key and its value, and their elements in products.
    let (of_key, in_products) = match forward.is_latent() {
        true => (2 * dim, dim + 512),
        false => (2 * 2 * dim, 2 * dim),
    };
    let q = total.bytes_read - keys * of_key;
    // 32 rows exist; a warpgroup of Hopper reads the first one in place of others, unless values are in keys.
    let least = match kernel.takes_maps() && !forward.is_latent() {
        true => 64,
        false => 32,
    };
    assert_eq!(q % (least * 2 * dim), 0);
    let sides = u64::from(forward.sides());
    assert!(
        q / (least * 2 * dim) <= 3 * sides,
        "Q for each split and side"
    );
    // Only the warps with rows compute; or all, where warps share them.
    let rows = match forward.tile.team {
        1 if !forward.is_latent() => least,
        _ => u64::from(forward.tile.q_rows),
    };
    assert_eq!(total.flops, 2 * rows * keys * in_products);
    PASSED
}

/// A tensor, read through the pack kernel.
fn packed(device: &Device, from: RawTensor) -> Result<Vec<u16>, libtest_mimic::Failed> {
    let mut copy = Tensor::<u16>::zeros(device, from.shape)?;
    let mut steps = Steps::default();
    steps.pack(from)?;
    let mut plan = steps.finish("pack", 1);
    plan.workspace_bytes = 0;
    // To memory that can be read, in place of a workspace.
    let (step, to) = (&mut plan.steps[0], offset_of!(PackParams, copy));
    step.params[to..to + 8].copy_from_slice(&copy.address_mut().to_ne_bytes());
    step.places.clear();
    // SAFETY: the step has its kernel's own parameters; the tensor behind `from` and the copy live.
    unsafe { plan.run(device, std::ptr::null_mut())? };
    Ok(copy.to_vec()?)
}

/// Every element, wherever rows start, in either direction and repeated, at edges of tiles and chunks; and
/// nothing read beside the tensor.
pub fn copies_are_of_every_element(device: &Device) -> Outcome {
    for (shape, strides) in [
        ([1, 1, 1, 8], [0, 0, 0]),
        ([2, 3, 5, 8], [141, 47, 9]),
        ([2, 3, 64, 40], [1, 7, 51]),
        ([3, 2, 65, 64], [-9999, 4444, -67]),
        ([2, 2, 63, 256], [257, -300, 1]),
        ([1, 2, 70, 256], [1, 17921, 256]),
    ] {
        let [batch, heads, rows, dim] = shape;
        let index = |b: usize, h: usize, i: usize| {
            b as isize * strides[0] + h as isize * strides[1] + i as isize * strides[2]
        };
        let corners: Vec<isize> = (0..8)
            .map(|c| {
                let last = |bit: usize, extent: usize| (c >> bit & 1) * (extent - 1);
                index(last(0, batch), last(1, heads), last(2, rows))
            })
            .collect();
        let (low, high) = (corners.iter().min(), corners.iter().max());
        let (low, high) = low.zip(high).expect("corners");
        // The buffer begins one element before the tensor and ends with it.
        let elements = (high - low) as usize + dim + 1;
        let data: Vec<u16> = (0..elements).map(|n| ((n * 40503) >> 3) as u16).collect();
        let buffer = Tensor::new(device, [elements], &data)?;
        let [batch_stride, head_stride, row_stride] = strides;
        let from = RawTensor {
            address: buffer.address() + 2 + 2 * low.unsigned_abs() as u64,
            shape,
            strides: [batch_stride, head_stride, row_stride, 1],
        };
        let copy = packed(device, from)?;
        for (n, copied) in copy.chunks(dim).enumerate() {
            let (b, h, i) = (n / rows / heads, n / rows % heads, n % rows);
            let start = (index(b, h, i) - low) as usize + 1;
            if copied != &data[start..start + dim] {
                return Err(format!("{shape:?}, row {:?} of the copy is wrong", (b, h, i)).into());
            }
        }
    }
    PASSED
}

/// Rows, heads and batches farther apart than 32 bits can say: each lies in a buffer of its own.
fn copies_reach_far() -> Outcome {
    let device = Device::emulator(Options::default())?;
    let rows: [Vec<u16>; 2] = [(0..16).collect(), (16..32).collect()];
    let [first, second] = [&rows[0], &rows[1]].map(|row| Tensor::new(&device, [16], row));
    let (first, second) = (first?, second?);
    let apart = (second.address() as isize - first.address() as isize) / 2;
    assert!(apart > 1 << 32);
    for axis in 0..3 {
        let mut shape = [1, 1, 1, 16];
        shape[axis] = 2;
        for (from, apart, order) in [(&first, apart, [0, 1]), (&second, -apart, [1, 0])] {
            let mut strides = [8, 8, 8, 1];
            strides[axis] = apart;
            let from = RawTensor {
                address: from.address(),
                shape,
                strides,
            };
            let expected = order.map(|n| rows[n].clone()).concat();
            assert_eq!(packed(&device, from)?, expected, "axis {axis}");
        }
    }
    PASSED
}

/// Neighbouring lanes read neighbouring elements and write neighbouring chunks, with no conflict between.
fn copies_move_no_more_than_needed() -> Outcome {
    for dim in [8, 40, 128] {
        let device = Device::emulator(counting())?;
        let buffer = Tensor::new(&device, [256 * dim + 1], &vec![1_u16; 256 * dim + 1])?;
        let from = RawTensor {
            address: buffer.address() + 2,
            shape: [1, 2, 128, dim],
            strides: [1, 128 * dim as isize, dim as isize, 1],
        };
        packed(&device, from)?;
        let launches = device.counters();
        let (_, counters) = &launches[0];
        let bytes = 2 * 256 * dim as u64;
        assert_eq!(counters.total().bytes_read, bytes);
        assert_eq!(counters.total().bytes_written, bytes);
        assert_eq!(counters.bank_conflicts().count(), 0);
        // 64 bytes an element off a multiple of 32 touch a third sector; stores are whole.
        assert_eq!(
            counters.total_of("ld.global").sectors,
            bytes / 64 * 3,
            "{dim}"
        );
        assert_eq!(counters.total_of("st.global").extra_sectors(), 0);
    }
    PASSED
}
