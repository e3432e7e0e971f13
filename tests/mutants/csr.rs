//! The kernel that makes a table of pages of the CSR form.

use super::change::always_first;
use super::{
    Mutant,
    Which::{All, Nth},
};

const CSR: &str = "csr";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "offsets below the first number",
        kernel: CSR,
        pattern: "max.s32",
        which: Nth(0),
        change: always_first,
    },
    Mutant {
        what: "offsets behind the last number",
        kernel: CSR,
        pattern: "min.s32",
        which: Nth(1),
        change: always_first,
    },
    Mutant {
        what: "offsets that fall",
        kernel: CSR,
        pattern: "max.s32",
        which: Nth(1),
        change: |line| line.replace(", r7,", ", r19,"),
    },
    Mutant {
        what: "more pages than a row has room for",
        kernel: CSR,
        pattern: "min.u32",
        which: Nth(0),
        change: always_first,
    },
    Mutant {
        what: "last pages that are all full",
        kernel: CSR,
        pattern: "selp.b32",
        which: Nth(0),
        change: always_first,
    },
    Mutant {
        what: "a half of each piece",
        kernel: CSR,
        pattern: ", 128;",
        which: All,
        change: |line| line.replace(", 128;", ", 64;"),
    },
];
