//! Mutants of what passes between the producer and the consumers: barriers, tiles, copies and registers.

use super::{CAUSAL, FULL, WIDE, WIDE_CAUSAL};
use crate::mutants::change::{diverge, remove, zero};
use crate::mutants::{
    Mutant,
    Which::{All, Last, Nth},
};

pub const MUTANTS: &[Mutant] = &[
    // Counts of the barriers.
    Mutant {
        what: "a transaction count too small",
        kernel: FULL,
        pattern: ", 8192;",
        which: Nth(0),
        change: |l| l.replace("8192", "8176"),
    },
    Mutant {
        what: "a transaction count too large",
        kernel: WIDE,
        pattern: ", 16384;",
        which: Nth(1),
        change: |l| l.replace("16384", "16400"),
    },
    Mutant {
        what: "no bytes of Q expected",
        kernel: FULL,
        pattern: "mbarrier.arrive.expect_tx",
        which: Nth(1),
        change: |l| {
            let (arrival, _) = l.rsplit_once(',').expect("a count");
            format!("{}; }}", arrival.replace(".expect_tx", ""))
        },
    },
    Mutant {
        what: "empty initialised for a warp too few",
        kernel: FULL,
        pattern: ", 16;",
        which: Nth(0),
        change: |l| l.replace("16", "15"),
    },
    Mutant {
        what: "empty initialised for a warp too many",
        kernel: WIDE_CAUSAL,
        pattern: ", 12;",
        which: Nth(0),
        change: |l| l.replace("12", "13"),
    },
    Mutant {
        what: "an mbarrier not initialised",
        kernel: FULL,
        pattern: "mbarrier.init",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "no barrier after the initialisation",
        kernel: FULL,
        pattern: "bar.sync 0;",
        which: All,
        change: remove,
    },
    // Waits.
    Mutant {
        what: "the phase of a stage not flipped by the producer",
        kernel: FULL,
        pattern: "bfe.u32",
        which: Nth(0),
        change: |l| zero(l).replace(", 0;", ", 1;"),
    },
    Mutant {
        what: "the phase of a stage not flipped by a consumer",
        kernel: FULL,
        pattern: "bfe.u32",
        which: Nth(7),
        change: zero,
    },
    Mutant {
        what: "the phase of Q not flipped",
        kernel: CAUSAL,
        pattern: ", 1;",
        which: Nth(13),
        change: zero,
    },
    Mutant {
        what: "no wait until Q is free",
        kernel: FULL,
        pattern: "@!done bra again",
        which: Nth(0),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "no wait until a stage is free",
        kernel: FULL,
        pattern: "@!done bra again",
        which: Nth(1),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "the job read before Q is full",
        kernel: CAUSAL,
        pattern: "@!done bra again",
        which: Nth(4),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "K multiplied before it is there",
        kernel: WIDE,
        pattern: "@!done bra again",
        which: Nth(11),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "V searched for infinities before it is there",
        kernel: CAUSAL,
        pattern: "@!done bra again",
        which: Nth(8),
        change: |l| l.replace("@!done bra again;", ""),
    },
    // Releases.
    Mutant {
        what: "a stage passed by and not released",
        kernel: FULL,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(0),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "K not released",
        kernel: FULL,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(6),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "V released by every lane",
        kernel: FULL,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(5),
        change: |l| l.replace("@first ", ""),
    },
    Mutant {
        what: "V released in place of K",
        kernel: FULL,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(6),
        change: |l| l.replace("];", "+64];"),
    },
    Mutant {
        what: "Q released before all lanes have read the job",
        kernel: FULL,
        pattern: "bar.warp.sync",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "the job read after Q is released",
        kernel: FULL,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(7),
        change: |l| {
            let (_, empty) = l.split_once('[').expect("an address");
            let (empty, _) = empty.split_once(']').expect("an address");
            // The job lies behind the barriers of four stages of K and V, and so behind Q's second one.
            let job = 8 + 8 * 16;
            format!("{l} {{ .reg .b32 late; ld.shared.b32 late, [{empty}+{job}]; }}")
        },
    },
    Mutant {
        what: "Q not released",
        kernel: WIDE,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(7),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "the end of the tiles not announced",
        kernel: CAUSAL,
        pattern: "@first mbarrier.arrive.shared",
        which: Last,
        change: |_| "}".to_owned(),
    },
    // Tiles.
    Mutant {
        what: "a tile left out by the counter",
        kernel: FULL,
        pattern: "atom.global.inc",
        which: All,
        change: |l| format!("{l}\n{l}"),
    },
    Mutant {
        what: "a tile taken past the last",
        kernel: FULL,
        pattern: "setp.lt.u32",
        which: Nth(0),
        change: |l| l.replace(".lt.", ".le."),
    },
    // Copies.
    Mutant {
        what: "K taken for V",
        kernel: FULL,
        pattern: ", 256;",
        which: Nth(0),
        change: |l| l.replace("256", "128"),
    },
    Mutant {
        what: "head and batch of a box exchanged",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(1),
        change: |l| {
            let (start, rest) = l.rsplit_once('{').expect("coordinates");
            let (place, end) = rest.split_once('}').expect("coordinates");
            let place: Vec<&str> = place.split(',').map(str::trim).collect();
            let [column, row, head, batch] = place[..] else {
                panic!("four coordinates: {l}")
            };
            format!("{start}{{{column}, {row}, {batch}, {head}}}{end}")
        },
    },
    Mutant {
        what: "the second panel from the columns of the first",
        kernel: WIDE,
        pattern: "cp.async.bulk.tensor",
        which: Nth(1),
        change: |l| {
            let (start, rest) = l.rsplit_once('{').expect("coordinates");
            let (_, rest) = rest.split_once(',').expect("a column");
            format!("{{ .reg .b32 column; mov.b32 column, 0; {start}{{column,{rest} }}")
        },
    },
    Mutant {
        what: "V loaded on the mbarrier of K",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(3),
        change: |l| l.replace("];", "+-64];"),
    },
    Mutant {
        what: "V loaded to the next stage",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(3),
        change: |l| l.replacen("], [", "+8192], [", 1),
    },
    Mutant {
        what: "a box to an address that its swizzle does not allow",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(0),
        change: |l| l.replacen("], [", "+64], [", 1),
    },
    Mutant {
        what: "loads by every lane of the producer",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(0),
        change: |l| l.replace("@first ", ""),
    },
    Mutant {
        what: "loads by every warp of the producer",
        kernel: FULL,
        pattern: ", 16;",
        which: Nth(1),
        change: |l| l.replace("ne.b32", "lt.u32"),
    },
    // Registers.
    Mutant {
        what: "registers not given back",
        kernel: FULL,
        pattern: "setmaxnreg.dec",
        which: All,
        change: remove,
    },
    Mutant {
        what: "more registers taken than given back",
        kernel: WIDE,
        pattern: "setmaxnreg.inc",
        which: All,
        change: |l| l.replace("160", "168"),
    },
    Mutant {
        what: "registers given back by a part of the warps",
        kernel: FULL,
        pattern: "setmaxnreg.dec",
        which: All,
        change: |l| {
            format!(
                "{{ .reg .pred %other; .reg .b32 %id;
                mov.u32 %id, %tid.x;
                setp.ge.u32 %other, %id, 544;
                @%other bra $mutant;
                {l}
                $mutant: }}"
            )
        },
    },
    Mutant {
        what: "setmaxnreg under a lane-dependent branch",
        kernel: FULL,
        pattern: "setmaxnreg.inc",
        which: All,
        change: diverge,
    },
];
