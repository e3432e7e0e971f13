//! Every kernel of the table, run and compared with plain attention.

mod common;

use common::{Problem, check, module};
use emulator::Options;
use kernels::table::{KERNELS, Kernel};

fn clean(kernel: &Kernel, p: &Problem, options: &Options) {
    if let Err(failure) = check(kernel, &module(kernel), p, options) {
        panic!("{}, {p:?}: {failure:?}", kernel.name);
    }
}

#[test]
fn ragged_lengths() {
    for kernel in KERNELS {
        for (seqlen_q, seqlen_kv) in [(1, 1), (17, 130), (129, 33), (70, 257)] {
            let p = Problem {
                seqlen_q,
                seqlen_kv,
                ..Problem::square(0, kernel.head_dim)
            };
            clean(kernel, &p, &Options::default());
        }
    }
}
