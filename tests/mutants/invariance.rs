//! The kernels of batch invariant calls: exact maxima, tiles that heads share, and packed sequences that are spread and gathered.

use super::change::zero;
use super::options::off;
use super::{
    Mutant, Run,
    Which::{All, Nth},
};
use crate::invariance;
use kernels::abi::{Switch, Switches};

const FORWARD: &str = "optional_bf16_d96";
const HOPPER: &str = "hopper_optional_bf16_d96";
const GROUP: &str = "optional_bf16_d128";
const HOPPER_GROUP: &str = "hopper_optional_bf16_d64";
const SPREAD: &str = "spread";
const GATHER: &str = "gather";

/// `a > b` becomes `a >= b`.
fn or_equal(line: &str) -> String {
    line.replace(".gt.", ".ge.")
}

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "rows vote on their maxima",
        kernel: FORWARD,
        pattern: "mov.b32 switch_exact, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "rows vote on their maxima on Hopper",
        kernel: HOPPER,
        pattern: "mov.b32 switch_exact, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "rows of several heads vote on their maxima",
        kernel: GROUP,
        pattern: "mov.b32 switch_exact, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "rows of several heads vote on their maxima on Hopper",
        kernel: HOPPER_GROUP,
        pattern: "mov.b32 switch_exact, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "as many rows as one head has",
        kernel: GROUP,
        pattern: "switch_group;",
        which: Nth(14),
        change: zero,
    },
    Mutant {
        what: "the first head's sink for all heads",
        kernel: GROUP,
        pattern: "switch_group;",
        which: Nth(28),
        change: zero,
    },
    Mutant {
        what: "o in the rows of one head",
        kernel: GROUP,
        pattern: "switch_group;",
        which: Nth(52),
        change: zero,
    },
    Mutant {
        what: "as many rows as one head has on Hopper",
        kernel: HOPPER_GROUP,
        pattern: "switch_group;",
        which: Nth(1),
        change: zero,
    },
    Mutant {
        what: "keys of another head",
        kernel: HOPPER_GROUP,
        pattern: "switch_group;",
        which: Nth(12),
        change: zero,
    },
    Mutant {
        what: "queries counted as rows",
        kernel: HOPPER_GROUP,
        pattern: "switch_group;",
        which: Nth(25),
        change: zero,
    },
    Mutant {
        what: "log-sum-exps of other rows",
        kernel: HOPPER_GROUP,
        pattern: "switch_group;",
        which: Nth(114),
        change: zero,
    },
    Mutant {
        what: "the first row of a sequence left out",
        kernel: SPREAD,
        pattern: "setp.gt.u32",
        which: Nth(0),
        change: or_equal,
    },
    Mutant {
        what: "all rows of a sequence the first one",
        kernel: SPREAD,
        pattern: "sub.s32",
        which: Nth(1),
        change: zero,
    },
    Mutant {
        what: "the first row of a sequence taken for one of the sequence before",
        kernel: GATHER,
        pattern: "setp.gt.u32",
        which: Nth(0),
        change: or_equal,
    },
    Mutant {
        what: "all rows of a sequence from the first one",
        kernel: GATHER,
        pattern: "sub.s32",
        which: Nth(1),
        change: zero,
    },
];

/// The runs that show faults of a kernel, and its switches; none for other kernels.
pub fn runs(kernel: &'static str) -> Option<(Vec<Run>, Switches)> {
    let runs = match kernel {
        FORWARD | HOPPER => invariance::runs_of_chunks(kernel),
        GROUP => invariance::runs_of_groups(kernel, 128),
        HOPPER_GROUP => invariance::runs_of_groups(kernel, 64),
        SPREAD | GATHER => invariance::runs_of_packed(),
        _ => return None,
    };
    let shares = matches!(kernel, GROUP | HOPPER_GROUP);
    let is_exact = shares || matches!(kernel, FORWARD | HOPPER);
    let switches = Switches::NONE.with(Switch::Exact, is_exact);
    Some((runs, switches.with(Switch::Group, shares)))
}
