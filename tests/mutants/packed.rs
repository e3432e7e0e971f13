//! The packed kernels.

use super::change::{always_first, remove, zero};
use super::{
    Mutant,
    Which::{Last, Nth},
};

/// Packs heads, in two tiles a warp.
const PACKED: &str = "packed_f16_d64";
/// Packs heads, and consumers copy Q.
const HOPPER: &str = "hopper_packed_f16_d128";
/// Packs heads like [`HOPPER`], on two sides.
const SIDES: &str = "hopper_packed_f16_d64";

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
    // Q on Hopper.
    Mutant {
        what: "no barrier after the copy of Q",
        kernel: HOPPER,
        pattern: "bar.sync r",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "no proxy fence after the copy of Q",
        kernel: HOPPER,
        pattern: "fence.proxy.async",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "rows of Q before the first one",
        kernel: HOPPER,
        pattern: "max.s32",
        which: Nth(1),
        change: always_first,
    },
    Mutant {
        what: "a row of Q of another query",
        kernel: HOPPER,
        pattern: "shr.u64",
        which: Nth(17),
        change: always_first,
    },
    Mutant {
        what: "a chunk of Q beside its place",
        kernel: HOPPER,
        pattern: "st.shared.v4",
        which: Nth(2),
        change: |l| l.replace(']', "+16]"),
    },
    Mutant {
        what: "a job that is not announced",
        kernel: HOPPER,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(0),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "a job written before the last one is read",
        kernel: HOPPER,
        pattern: "@!done bra again",
        which: Nth(1),
        change: |l| l.replace("@!done bra again;", ""),
    },
    // Two sides, each with every other block of keys.
    Mutant {
        what: "a part of O taken before the other side gave it",
        kernel: SIDES,
        pattern: "bar.sync r",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "a part of O given before the last one was taken",
        kernel: SIDES,
        pattern: "bar.sync r",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "a part of O beside its place",
        kernel: SIDES,
        pattern: "st.shared.v4",
        which: Last,
        change: |l| l.replace(']', "+16]"),
    },
    Mutant {
        what: "the factor of a side's part 0",
        kernel: SIDES,
        pattern: "ex2.approx.ftz.f32",
        which: Last,
        change: zero,
    },
];
