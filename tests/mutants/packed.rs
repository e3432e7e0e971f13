//! The packed kernels.

use super::change::{always_first, remove};
use super::{
    Mutant,
    Which::{Last, Nth},
};

/// Packs heads, in two tiles a warp.
const PACKED: &str = "packed_f16_d64";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "a row's query taken before its shift, for its mask",
        kernel: PACKED,
        pattern: "shr.u64",
        which: Nth(22),
        change: always_first,
    },
    Mutant {
        what: "a row's query taken before its shift, for its address",
        kernel: PACKED,
        pattern: "shr.u64",
        which: Last,
        change: always_first,
    },
    Mutant {
        what: "the barrier of the last packed block removed",
        kernel: PACKED,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
];
