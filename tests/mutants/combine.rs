//! The combine kernels.

use super::change::zero;
use super::{
    Mutant,
    Which::{All, Nth},
};

/// Its second part is of rows that take a warp for each 128 columns.
const COMBINE: &str = "combine_f16";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "one split's weight dropped",
        kernel: COMBINE,
        pattern: "shfl.sync.idx",
        which: Nth(3),
        change: zero,
    },
    Mutant {
        what: "the weights taken relative to no maximum",
        kernel: COMBINE,
        pattern: "ex2.approx",
        which: All,
        change: |l| l.replace("ex2.approx.ftz.f32", "mov.b32"),
    },
    Mutant {
        what: "the maximum over half of the splits",
        kernel: COMBINE,
        pattern: "shfl.sync.bfly",
        which: Nth(10),
        change: |l| l.replace("0x1f", "0x00"),
    },
    Mutant {
        what: "the sum over a part of the splits",
        kernel: COMBINE,
        pattern: "shfl.sync.bfly",
        which: Nth(15),
        change: |l| l.replace("bfly", "idx"),
    },
];
