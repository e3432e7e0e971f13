//! The kernels of batch invariant calls: exact maxima, and packed sequences that are spread and gathered.

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
        SPREAD | GATHER => invariance::runs_of_packed(),
        _ => return None,
    };
    let on = matches!(kernel, FORWARD | HOPPER);
    Some((runs, Switches::NONE.with(Switch::Exact, on)))
}
