//! Every kernel of the table on the emulator: no rule broken, and the result of plain attention.

use crate::attention::{Failure, Problem, check, module};
use ::kernels::table::{Dtype, KERNELS, Kernel, select};
use emulator::{Counters, Options};

fn run(kernel: &Kernel, p: &Problem, options: &Options) -> Counters {
    check(kernel, &module(kernel), p, options).unwrap_or_else(|failure| match failure {
        Failure::Error(error) => panic!("{p:?}: {error}"),
        Failure::Wrong(wrong) => panic!("{}, {p:?}: {wrong}", kernel.name),
    })
}

/// Runs every kernel on a few problems of its own head dim.
fn run_all(problems: impl Fn(u32) -> Vec<Problem>) {
    for kernel in KERNELS {
        for p in problems(kernel.head_dim) {
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

#[test]
fn every_schedule_is_clean() {
    for kernel in KERNELS {
        let module = module(kernel);
        for seed in 0..20 {
            let p = Problem {
                seed,
                ..lengths(kernel.head_dim, 130, 100)
            };
            let options = Options {
                seed,
                ..Options::default()
            };
            if let Err(failure) = check(kernel, &module, &p, &options) {
                panic!("{}, seed {seed}: {failure:?}", kernel.name);
            }
        }
    }
}

#[test]
fn counters_are_those_of_the_algorithm() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for dim in [32, 64, 96, 128, 192, 256] {
            let kernel = select(dtype, dim, false).unwrap();
            let options = Options {
                counters: true,
                ..Options::default()
            };
            let p = Problem::square(256, dim);
            let counters = run(kernel, &p, &options);
            let total = counters.total();
            assert_eq!(
                total.flops,
                4 * 256 * 256 * u64::from(dim),
                "{}",
                kernel.name
            );
            assert_eq!(counters.mma(), total.flops / 4096);
            let conflicts: Vec<_> = counters.bank_conflicts().collect();
            assert!(conflicts.is_empty(), "{}: {conflicts:?}", kernel.name);
            assert_eq!(total.extra_sectors(), 0, "{}", kernel.name);
            let tensor = 2 * 256 * u64::from(dim);
            let q_tiles = u64::from(256 / kernel.tile.q_rows);
            assert_eq!(total.bytes_read, tensor + 2 * q_tiles * tensor);
            assert_eq!(total.bytes_written, tensor + 4 * 256);
        }
    }
}
