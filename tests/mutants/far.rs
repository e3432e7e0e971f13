//! The kernels of rows with an lse far from 0, and of sums of a bias' gradient.

use super::change::{remove, zero};
use super::{
    Mutant, Run,
    Which::{All, Nth},
};
use kernels::abi::{Switch, Switches};
use tests::modifiers::Pairs;
use tests::{BackwardCase, Case, Modifiers};

const SUMS: &str = "backward_f16_far_sums";
const FAR: &str = "backward_f16_far";
const BIAS: &str = "backward_f16_sum_bias_d64";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "sums of far rows from tiles that have not landed",
        kernel: SUMS,
        pattern: "cp.async.wait_group",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "no sums of far rows",
        kernel: SUMS,
        pattern: "rcp.approx",
        which: All,
        change: zero,
    },
    Mutant {
        what: "no mark of far rows",
        kernel: SUMS,
        pattern: "redux.sync",
        which: Nth(0),
        change: zero,
    },
    Mutant {
        what: "gradients of far rows from tiles that have not landed",
        kernel: FAR,
        pattern: "cp.async.wait_group",
        which: All,
        change: remove,
    },
    Mutant {
        what: "dS of far rows read before it is written",
        kernel: FAR,
        pattern: "bar.warp.sync",
        which: Nth(4),
        change: remove,
    },
    Mutant {
        what: "gradients of far rows not added to others",
        kernel: FAR,
        pattern: "ld.global.b16",
        which: All,
        change: |line| {
            let (to, _) = line.trim()["ld.global.b16 ".len()..]
                .split_once(',')
                .expect("operands");
            format!("mov.b16 {to}, 0;")
        },
    },
    Mutant {
        what: "tiles of a bias's gradient overwritten while they are read",
        kernel: BIAS,
        pattern: "bar.sync",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "sums of a bias's gradient from tiles that have not landed",
        kernel: BIAS,
        pattern: "cp.async.wait_group",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a bias's gradient summed over half of its lanes",
        kernel: BIAS,
        pattern: ", 2, 0x1f",
        which: Nth(0),
        change: |line| line.replace(", 2, 0x1f", ", 1, 0x1f"),
    },
];

/// Runs that show faults of these kernels, and the switches of their text; none of other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let bias = Switches::NONE.with(Switch::BiasF32, true);
    let far = || {
        let runs = crate::far_scores::runs().into_iter();
        let runs = runs.map(|run| -> Run { Box::new(move |device| run(device).map(drop)) });
        runs.collect()
    };
    match kernel {
        SUMS => Some((far(), bias)),
        FAR => Some((far(), bias.with(Switch::BiasGradient, true))),
        BIAS => {
            let summed = [[true, true, false], [false, true, true]].map(|repeats| -> Run {
                let case = BackwardCase::from(Case {
                    batch: 2,
                    heads: 2,
                    kv_heads: 1,
                    modifiers: Modifiers {
                        bias: Some(Pairs { repeats, of: 2 }),
                        ..Modifiers::default()
                    },
                    ..Case::default()
                });
                Box::new(move |device| case.check(device).map(drop))
            });
            Some((summed.into(), bias))
        }
        _ => None,
    }
}
