//! The forward kernels whose warps share rows.

use super::change::{remove, zero};
use super::{
    Mutant,
    Which::{Last, Nth},
};

/// Its warps share rows.
const SHARED: &str = "forward_f16_d256_causal";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "P read before the team has written it",
        kernel: SHARED,
        pattern: "bar.red",
        which: Last,
        change: |l| {
            l.replace("bar.red.or.pred any, 0, own;", "")
                .replace("setp.ne.u32 own", "setp.ne.u32 any")
        },
    },
    Mutant {
        what: "maxima that rise only if all threads say so",
        kernel: SHARED,
        pattern: "bar.red",
        which: Last,
        change: |l| l.replace("bar.red.or", "bar.red.and"),
    },
    Mutant {
        what: "V overwritten before the product is done",
        kernel: SHARED,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "maxima of the team read before they are there",
        kernel: SHARED,
        pattern: "bar.sync r",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "a row's sum without the other warp's",
        kernel: SHARED,
        pattern: "ld.shared.f32",
        which: Last,
        change: zero,
    },
];
