//! The rungs for Hopper: how a tile comes to its stage, and how a stage becomes free.

use super::change::remove;
use super::{
    Mutant, Subject,
    Which::{All, Last, Nth},
    runs_like,
};
use ferroattn::Class;
use ladder::Ladder;
use ladder::catalog::{Loop, named};
use tests::Case;

const WGMMA: &str = "wgmma_f16_d64";
const TMA: &str = "tma_f16_d64";
const SPECIALISED: &str = "specialised_bf16_d64";
const PING_PONG: &str = "ping_pong_f16_d64";

/// The rung of this name.
pub fn subject(name: &str) -> Option<Subject> {
    let kernel = named(name)?;
    let Loop::Hopper(rung) = kernel.shape.main_loop else {
        return None;
    };
    let case = Case {
        dtype: kernel.shape.dtype.into(),
        seqlen_q: 300,
        seqlen_kv: 400,
        dim: kernel.shape.dim() as usize,
        causal: true,
        ladder: Some(Ladder::new(rung)),
        ..Case::default()
    };
    Some(Subject {
        entry: kernel.into(),
        class: Class::Sm90,
        runs: runs_like(&case),
    })
}

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "copies not visible to the tensor cores",
        kernel: WGMMA,
        pattern: "fence.proxy.async",
        which: All,
        change: remove,
    },
    Mutant {
        what: "a tile read before all threads have copied",
        kernel: WGMMA,
        pattern: "bar.sync 0;",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a tile read one copy early",
        kernel: WGMMA,
        pattern: "cp.async.wait_group 2",
        which: Last,
        change: |l| l.replace('2', "3"),
    },
    Mutant {
        what: "a copy not committed",
        kernel: WGMMA,
        pattern: "cp.async.commit_group",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "a stage filled while a warpgroup reads it",
        kernel: TMA,
        pattern: "bar.sync 0;",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "K loaded in place of V",
        kernel: TMA,
        pattern: ", 128;",
        which: Nth(1),
        change: |l| l.replace("128", "0"),
    },
    Mutant {
        what: "a tile multiplied before it is there",
        kernel: TMA,
        pattern: "@!done bra again",
        which: Last,
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "a box loaded twice",
        kernel: TMA,
        pattern: "cp.async.bulk.tensor",
        which: Last,
        change: |l| format!("{l}\n{l}"),
    },
    Mutant {
        what: "Q multiplied before it is there",
        kernel: SPECIALISED,
        pattern: "@!done bra again",
        which: Nth(1),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "a stage filled before it is free",
        kernel: SPECIALISED,
        pattern: "@!done bra again",
        which: Nth(0),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "K not released",
        kernel: SPECIALISED,
        pattern: "@first mbarrier.arrive",
        which: Nth(0),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "a stage free after one warpgroup",
        kernel: SPECIALISED,
        pattern: ", 8;",
        which: Nth(0),
        change: |l| l.replace(", 8;", ", 4;"),
    },
    Mutant {
        what: "no first turn",
        kernel: PING_PONG,
        pattern: "bar.arrive",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a turn not passed",
        kernel: PING_PONG,
        pattern: "bar.arrive",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "a turn not taken",
        kernel: PING_PONG,
        pattern: "bar.sync r",
        which: All,
        change: remove,
    },
];
