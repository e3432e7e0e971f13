//! Kernels whose K and V pass in chunks, for head dims above 256.

use super::{SLICES, SLICES_CAUSAL};
use crate::mutants::change::remove;
use crate::mutants::{
    Mutant,
    Which::{All, Last, Nth},
};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "the second chunk of K multiplied before it is there",
        kernel: SLICES,
        pattern: "@!done bra again",
        which: Nth(30),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "the second chunk of V multiplied before it is there",
        kernel: SLICES,
        pattern: "@!done bra again",
        which: Nth(34),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "the second chunk of V searched before it is there",
        kernel: SLICES_CAUSAL,
        pattern: "@!done bra again",
        which: Nth(24),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "a chunk of K overwritten before all have released it",
        kernel: SLICES,
        pattern: "@!done bra again",
        which: Nth(6),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "a chunk of K released before its products are done",
        kernel: SLICES,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Nth(7),
        change: remove,
    },
    Mutant {
        what: "scores read before the last chunk's products are done",
        kernel: SLICES,
        pattern: "wgmma.wait_group.sync.aligned 2",
        which: Last,
        change: |l| l.replace('2', "3"),
    },
    Mutant {
        what: "a chunk of V released before its products are done",
        kernel: SLICES,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Nth(10),
        change: |l| l.replace('1', "2"),
    },
    Mutant {
        what: "a chunk of K not released",
        kernel: SLICES,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(17),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "a chunk of a block passed by not released",
        kernel: SLICES_CAUSAL,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(2),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "the second chunk of V released in place of the first",
        kernel: SLICES,
        pattern: "@first mbarrier.arrive.shared",
        which: Nth(20),
        change: |l| l.replace("];", "+16];"),
    },
    Mutant {
        what: "a chunk of K loaded on the mbarrier of the next",
        kernel: SLICES,
        pattern: "cp.async.bulk.tensor",
        which: Nth(6),
        change: |l| l.replace("];", "+16];"),
    },
    Mutant {
        what: "a chunk of K loaded to the place of the next",
        kernel: SLICES,
        pattern: "cp.async.bulk.tensor",
        which: Nth(6),
        change: |l| l.replacen("], [", "+16384], [", 1),
    },
    Mutant {
        what: "a chunk of K from the columns of the first",
        kernel: SLICES,
        pattern: ", 256;",
        which: Nth(3),
        change: |l| l.replace("256", "0"),
    },
    Mutant {
        what: "a chunk of V from the keys of the first",
        kernel: SLICES,
        pattern: ", 32;",
        which: Nth(5),
        change: |l| l.replace("32;", "0;"),
    },
    Mutant {
        what: "V of the first slice for both slices",
        kernel: SLICES,
        pattern: ", 256;",
        which: Nth(3),
        change: |l| l.replace("256", "0"),
    },
    Mutant {
        what: "scores too large for the maxima so far not noticed",
        kernel: SLICES,
        pattern: "0f41600000",
        which: All,
        change: |l| l.replace("0f41600000", "0f7F800000"),
    },
];
