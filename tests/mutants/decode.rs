//! The decode kernels.

use super::change::{always_first, remove};
use super::{
    Mutant,
    Which::{All, Last, Nth},
};

/// Packs heads, and has four buffers.
const DECODE: &str = "decode_f16_d64";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "the vote of a decode step for all lanes",
        kernel: DECODE,
        pattern: "vote.sync.any.pred",
        which: All,
        change: |l| l.replace("any.pred", "all.pred"),
    },
    Mutant {
        what: "a wait that leaves one group too many",
        kernel: DECODE,
        pattern: "cp.async.wait_group 2",
        which: Last,
        change: |l| l.replace('2', "3"),
    },
    Mutant {
        what: "the barrier of a decode step removed",
        kernel: DECODE,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "a quotient of rows and heads taken before its shift",
        kernel: DECODE,
        pattern: "shr.u64",
        // Those behind are of blocks that combine.
        which: Nth(27),
        change: always_first,
    },
];
