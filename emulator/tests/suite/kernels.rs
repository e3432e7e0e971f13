//! Every kernel of the table on the emulator: no rule broken, and the result of plain attention.

use crate::attention::{Failure, Modules, Problem, check, forward, launch_pack, module, pack};
use ::kernels::abi::TensorRef;
use ::kernels::catalog::{KERNELS, Kernel};
use emulator::{Counters, Memory, Options, Source};

/// The kernels that compute attention; the others run before and after these.
fn kernels() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().filter(|kernel| kernel.forward().is_some())
}

fn run(kernel: &Kernel, p: &Problem, options: &Options) -> (Counters, Option<Counters>) {
    check(kernel, &Modules::of(kernel), p, options).unwrap_or_else(|failure| match failure {
        Failure::Error(error) => panic!("{p:?}: {error}"),
        Failure::Wrong(wrong) => panic!("{}, {p:?}: {wrong}", kernel.name),
    })
}

/// Runs every kernel on a few problems of its own head dim.
fn run_all(problems: impl Fn(u32) -> Vec<Problem>) {
    for kernel in kernels() {
        for p in problems(forward(kernel).dim) {
            run(kernel, &p, &Options::default());
        }
    }
}

/// One head with these numbers of queries and keys.
fn lengths(dim: u32, seqlen_q: u32, seqlen_kv: u32) -> Problem {
    Problem {
        seqlen_q,
        seqlen_kv,
        ..Problem::square(0, dim)
    }
}

#[test]
fn ragged_lengths() {
    let pairs = [(1, 1), (17, 130), (129, 33), (70, 257)];
    run_all(|dim| pairs.map(|(q, kv)| lengths(dim, q, kv)).to_vec());
}

#[test]
fn no_keys_or_more_queries_than_keys() {
    run_all(|dim| vec![lengths(dim, 5, 0), lengths(dim, 140, 3)]);
}

#[test]
fn grouped_heads_and_batches() {
    run_all(|dim| {
        vec![Problem {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            seed: 2,
            ..lengths(dim, 40, 72)
        }]
    });
}

#[test]
fn aligned_and_odd_strides() {
    let of_gap = |dim, gap| Problem {
        gap,
        heads: 2,
        ..lengths(dim, 67, 90)
    };
    run_all(|dim| vec![of_gap(dim, 8), of_gap(dim, 3), of_gap(dim, 1)]);
}

#[test]
fn head_dims_below_the_kernels() {
    run_all(|dim| {
        [dim - 8, 8]
            .map(|small| Problem::square(50, small))
            .to_vec()
    });
}

#[test]
fn scales_of_any_sign() {
    let of_scale = |dim, scale| Problem {
        scale,
        ..lengths(dim, 33, 65)
    };
    run_all(|dim| vec![of_scale(dim, -0.3), of_scale(dim, 0.0)]);
}

/// By less and by more than the kernels bear before they raise the maxima.
#[test]
fn scores_that_rise() {
    run_all(|dim| {
        [0.03, 0.25]
            .map(|rise| Problem {
                rise,
                ..lengths(dim, 70, 300)
            })
            .to_vec()
    });
}

#[test]
fn every_schedule_is_clean() {
    for kernel in kernels() {
        let modules = Modules::of(kernel);
        for seed in 0..20 {
            let p = Problem {
                seed,
                ..lengths(forward(kernel).dim, 130, 100)
            };
            let options = Options {
                seed,
                ..Options::default()
            };
            if let Err(failure) = check(kernel, &modules, &p, &options) {
                panic!("{}, seed {seed}: {failure:?}", kernel.name);
            }
        }
    }
}

#[test]
fn splits_of_the_keys() {
    let of_splits = |dim, splits| Problem {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        splits,
        causal: splits % 2 == 0,
        ..lengths(dim, 40, 300)
    };
    run_all(|dim| [2, 3, 100].map(|splits| of_splits(dim, splits)).to_vec());
    // The first rows see no key at all, and the others not those of all splits.
    run_all(|dim| {
        vec![Problem {
            causal: true,
            splits: 3,
            gap: 3,
            ..lengths(dim, 300, 290)
        }]
    });
}

/// Every query tile reads the keys that it sees once, and no sector moves in part.
#[test]
fn counters_are_those_of_the_algorithm() {
    // A multiple of every tile, and of two splits.
    const LENGTH: u64 = 384;
    let full = |kernel: &&Kernel| forward(kernel).kind.serves(false);
    for (kernel, splits) in kernels().filter(full).flat_map(|k| [(k, 1), (k, 2)]) {
        let (dim, tile_rows) = (forward(kernel).dim, forward(kernel).tile.q_rows);
        let options = Options {
            counters: true,
            ..Options::default()
        };
        let p = Problem {
            splits,
            ..Problem::square(LENGTH as u32, dim)
        };
        let (counters, combined) = run(kernel, &p, &options);
        let total = counters.total();
        let flops = 4 * LENGTH * LENGTH * u64::from(dim);
        assert_eq!(total.flops, flops, "{}", kernel.name);
        assert_eq!(counters.mma(), total.flops / 4096);
        let loads = counters
            .lines
            .iter()
            .filter(|line| line.opcode.starts_with("ldmatrix"));
        let sources: Vec<_> = loads.map(|line| line.source.as_ref()).collect();
        let is_kernels = |source: &Source| source.file.starts_with("kernels/src/");
        assert!(
            sources.iter().all(|s| s.is_some_and(is_kernels)),
            "{sources:?}"
        );
        let conflicts: Vec<_> = counters.bank_conflicts().collect();
        assert!(conflicts.is_empty(), "{}: {conflicts:?}", kernel.name);
        assert_eq!(total.extra_sectors(), 0, "{}", kernel.name);
        // The wide kernels read Q again for each block of keys.
        if dim > 256 {
            continue;
        }
        // In 16 bits; the partial results have 32.
        let tensor = 2 * LENGTH * u64::from(dim);
        let (q_tiles, parts) = (LENGTH / u64::from(tile_rows), u64::from(splits));
        assert_eq!(total.bytes_read, parts * tensor + 2 * q_tiles * tensor);
        let Some(combined) = combined else {
            assert_eq!(total.bytes_written, tensor + 4 * LENGTH);
            continue;
        };
        let partial = parts * (2 * tensor + 8 * LENGTH);
        assert_eq!(total.bytes_written, partial);
        let total = combined.total();
        assert_eq!(total.bytes_written, tensor + 4 * LENGTH);
        // The maxima are read once more, and by both warps of a row.
        let warps = u64::from(dim.div_ceil(128));
        let softmax = 2 * warps * parts * 8 * LENGTH;
        assert_eq!(total.bytes_read, parts * 2 * tensor + softmax);
    }
}

/// Heads that share query tiles: rows of several in a tile, a ragged one, with and without the mask.
#[test]
fn heads_share_tiles() {
    for kernel in kernels().filter(|kernel| forward(kernel).kind.is_packed()) {
        for (causal, splits) in [(false, 1), (true, 1), (true, 3)] {
            let p = Problem {
                batch: 2,
                heads: 14,
                kv_heads: 2,
                causal,
                splits,
                gap: splits,
                ..lengths(forward(kernel).dim, 25, 200)
            };
            run(kernel, &p, &Options::default());
        }
    }
}

/// All heads of a group read their keys and values once.
#[test]
fn packed_kernels_read_keys_once() {
    // Whole blocks of every kernel in each split.
    const KEYS: u64 = 3 * 192;
    for kernel in kernels().filter(|kernel| forward(kernel).kind.is_packed()) {
        let options = Options {
            counters: true,
            ..Options::default()
        };
        let dim = forward(kernel).dim;
        let p = Problem {
            heads: 8,
            splits: 3,
            ..lengths(dim, 4, KEYS as u32)
        };
        let (counters, _) = run(kernel, &p, &options);
        let row = 2 * u64::from(dim);
        let splits = counters.total().bytes_read - 2 * KEYS * row;
        assert_eq!(splits % (32 * row), 0);
        assert!(
            splits / (32 * row) <= 3,
            "{}: Q for each split",
            kernel.name
        );
        // Only the warps with rows compute, 32 of them; or all, where warps share them.
        let rows = match forward(kernel).tile.team {
            1 => 32,
            _ => u64::from(forward(kernel).tile.q_rows),
        };
        assert_eq!(counters.total().flops, 4 * rows * KEYS * u64::from(dim));
    }
}

/// Reads a tensor whose element `[b, h, i, d]` lies at `from + 2 * (strides of b, h and i + d)`
/// through the pack kernel.
fn packed(
    memory: &Memory,
    shape: [u32; 4],
    from: TensorRef,
    options: &Options,
) -> (Vec<u16>, Counters) {
    let mut copy = vec![0_u16; shape.iter().product::<u32>() as usize];
    let to = memory.allocate(2 * copy.len());
    let counters = launch_pack(memory, &module(pack()), shape, from, to, options);
    let counters = counters.unwrap_or_else(|error| panic!("{shape:?}, {from:?}: {error}"));
    memory
        .read(to, bytemuck::cast_slice_mut(&mut copy))
        .unwrap();
    (copy, counters)
}

/// Every element, wherever rows start, in either direction and repeated, at edges of tiles and
/// chunks; and nothing read beside the tensor.
#[test]
fn copies_are_of_every_element() {
    for (shape, strides) in [
        ([1, 1, 1, 8], [0, 0, 0]),
        ([2, 3, 5, 8], [141, 47, 9]),
        ([2, 3, 64, 40], [1, 7, 51]),
        ([3, 2, 65, 64], [-9999, 4444, -67]),
        ([2, 2, 129, 136], [0, 0, 137]),
        ([2, 2, 63, 256], [257, -300, 0]),
        ([1, 2, 70, 256], [0, 17921, 256]),
    ] {
        let [batch, heads, rows, dim] = shape;
        let index = |b: u32, h: u32, i: u32| {
            i64::from(b) * strides[0] + i64::from(h) * strides[1] + i64::from(i) * strides[2]
        };
        let corners: Vec<i64> = (0..8)
            .map(|c| {
                index(
                    (c & 1) * (batch - 1),
                    (c >> 1 & 1) * (heads - 1),
                    (c >> 2) * (rows - 1),
                )
            })
            .collect();
        let (low, high) = (corners.iter().min().unwrap(), corners.iter().max().unwrap());
        // The buffer ends with the tensor on both sides but for one element, which is never written.
        let elements = (high - low) as usize + dim as usize;
        let data: Vec<u16> = (0..elements).map(|n| ((n * 40503) >> 3) as u16).collect();
        let memory = Memory::new();
        let buffer = memory.allocate(2 * elements + 4);
        memory
            .write(buffer + 2, bytemuck::cast_slice(&data))
            .unwrap();
        let from = TensorRef {
            address: buffer + 2 + 2 * low.unsigned_abs(),
            batch_stride: strides[0],
            head_stride: strides[1],
            row_stride: strides[2],
        };
        let (copy, _) = packed(&memory, shape, from, &Options::default());
        let mut copy = copy.into_iter();
        for (b, h, i) in
            (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..rows).map(move |i| (b, h, i))))
        {
            let start = (index(b, h, i) - low) as usize;
            let row: Vec<u16> = copy.by_ref().take(dim as usize).collect();
            assert_eq!(
                row,
                data[start..][..dim as usize],
                "{shape:?}, row {:?}",
                (b, h, i)
            );
        }
    }
}

/// Rows, heads and batches farther apart than 32 bits can say: each lies in a buffer of its own.
#[test]
fn copies_reach_far() {
    for axis in 0..3 {
        let memory = Memory::new();
        let mut shape = [1, 1, 1, 16];
        shape[axis] = 2;
        let rows: [Vec<u16>; 2] = [(0..16).collect(), (16..32).collect()];
        let [first, second] = rows
            .clone()
            .map(|row| memory.upload(bytemuck::cast_slice(&row)));
        let mut strides = [0; 3];
        strides[axis] = (second - first) as i64 / 2;
        assert!(strides[axis] > 1 << 32);
        for (address, sign, expected) in [
            (first, 1, rows.concat()),
            (second, -1, {
                let [a, b] = rows.clone();
                [b, a].concat()
            }),
        ] {
            let [batch_stride, head_stride, row_stride] = strides.map(|stride| sign * stride);
            let from = TensorRef {
                address,
                batch_stride,
                head_stride,
                row_stride,
            };
            let (copy, _) = packed(&memory, shape, from, &Options::default());
            assert_eq!(copy, expected, "axis {axis}");
        }
    }
}

/// Neighbouring lanes read neighbouring elements and write neighbouring chunks, with no conflict
/// between.
#[test]
fn copies_move_no_more_than_needed() {
    let options = Options {
        counters: true,
        ..Options::default()
    };
    for dim in [8, 40, 128] {
        let memory = Memory::new();
        let shape = [1, 2, 128, dim];
        let data = vec![1_u16; 256 * dim as usize + 1];
        let from = TensorRef {
            address: memory.upload(bytemuck::cast_slice(&data)) + 2,
            batch_stride: 0,
            head_stride: 128 * i64::from(dim),
            row_stride: dim.into(),
        };
        let (_, counters) = packed(&memory, shape, from, &options);
        let bytes = 2 * 256 * u64::from(dim);
        assert_eq!(counters.total().bytes_read, bytes);
        assert_eq!(counters.total().bytes_written, bytes);
        assert_eq!(counters.bank_conflicts().count(), 0);
        // 64 bytes an element off a multiple of 32 touch a third sector; stores are whole.
        let loads = counters.total_of("ld.global");
        assert_eq!(loads.sectors, bytes / 64 * 3, "{dim}");
        assert_eq!(counters.total_of("st.global").extra_sectors(), 0);
    }
}
