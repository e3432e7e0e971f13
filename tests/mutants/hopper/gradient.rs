//! The backward kernels: what warpgroups, roles and blocks tell each other.

use crate::mutants::backward::same_bits;
use crate::mutants::change::remove;
use crate::mutants::{
    Mutant, Run,
    Which::{All, Nth},
};
use tests::{BackwardCase, Case};

const STORED: &str = "backward_hopper_stored_f16_d64";
const SUMS: &str = "backward_hopper_f16_d64";

/// Ragged cases whose bits are the same in every schedule: one of several tiles of keys, and one of four waves of heads.
pub fn runs(kernel: &'static str) -> Vec<Run> {
    let of = |heads, kv_heads, seqlen_q, seqlen_kv| {
        BackwardCase::from(Case {
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim: 64,
            kernel: Some(kernel.to_owned()),
            ..Case::default()
        })
    };
    vec![same_bits(of(2, 1, 150, 520)), same_bits(of(8, 8, 70, 100))]
}

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "jobs that do not wait for each other",
        kernel: STORED,
        pattern: "@early bra again",
        which: All,
        change: |l| l.replace("@early bra again;", ""),
    },
    Mutant {
        what: "dS counted before its copies are done",
        kernel: STORED,
        pattern: "cp.async.bulk.wait_group 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "stored dS not counted",
        kernel: STORED,
        pattern: "@first atom.release",
        which: Nth(1),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "dS copied before it is visible",
        kernel: STORED,
        pattern: "fence.proxy.async.shared",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "dS overwritten before it is copied",
        kernel: STORED,
        pattern: "cp.async.bulk.wait_group.read 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "dS not transposed",
        kernel: STORED,
        pattern: "stmatrix",
        which: All,
        change: |l| l.replace(".trans", ""),
    },
    Mutant {
        what: "P of scores that are not there",
        kernel: STORED,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Nth(1),
        change: |l| l.replace('1', "2"),
    },
    Mutant {
        what: "dS of a dP that is not there",
        kernel: STORED,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(2),
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "Q released before dK is done",
        kernel: STORED,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(1),
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "dS and K multiplied before they are there",
        kernel: STORED,
        pattern: "@!done bra again",
        which: Nth(1),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "Q multiplied before it is there",
        kernel: STORED,
        pattern: "@!done bra again",
        which: Nth(3),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "dO multiplied before it is there",
        kernel: STORED,
        pattern: "@!done bra again",
        which: Nth(4),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "Q not released",
        kernel: STORED,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(2),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "dS of the other warpgroup read before it is written",
        kernel: SUMS,
        pattern: "@!done bra again",
        which: Nth(1),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "dQ added before it is visible",
        kernel: SUMS,
        pattern: "fence.proxy.async.shared",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "dQ overwritten before it is added",
        kernel: SUMS,
        pattern: "cp.async.bulk.wait_group.read 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "dQ added before its turn",
        kernel: SUMS,
        pattern: "@early bra again",
        which: Nth(0),
        change: |l| l.replace("@early bra again;", ""),
    },
    Mutant {
        what: "a turn passed on before dQ is added",
        kernel: SUMS,
        pattern: "cp.async.bulk.wait_group 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a turn not passed on",
        kernel: SUMS,
        pattern: "@first atom.release",
        which: Nth(0),
        change: |_| "}".to_owned(),
    },
];
