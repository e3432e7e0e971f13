//! The matrix product for Hopper: the ring between producer and consumers, products in flight, and the end of C.

use super::change::{remove, zero};
use super::{
    Mutant,
    Which::{All, Last, Nth},
};
use ferroattn::GemmProblem;
use kernels::catalog::Kernel;
use tests::{GemmCase, Rows};

const HOPPER: &str = "gemm_hopper_f16_f32_128x256x64x4";

/// More steps than stages, and fewer; ragged tiles, several for each block; C in pieces of 16 bytes, and element by
/// element.
pub fn cases(kernel: &'static Kernel) -> [GemmCase; 2] {
    let sizes = [(200, 304, 330, Rows::Packed), (130, 257, 72, Rows::Odd)];
    sizes.map(|(m, n, k, c)| GemmCase {
        problem: GemmProblem { m, n, k },
        kernel: Some(kernel.name),
        c,
        ..GemmCase::default()
    })
}

/// A wait on an `mbarrier` that does not wait.
fn no_wait(line: &str) -> String {
    line.replace("@!done bra again;", "")
}

pub const MUTANTS: &[Mutant] = &[
    // The ring.
    Mutant {
        what: "a transaction count too small",
        kernel: HOPPER,
        pattern: ", 49152;",
        which: Nth(0),
        change: |l| l.replace("49152", "49136"),
    },
    Mutant {
        what: "a transaction count too large",
        kernel: HOPPER,
        pattern: ", 49152;",
        which: Nth(0),
        change: |l| l.replace("49152", "49168"),
    },
    Mutant {
        what: "the phase not flipped by the producer",
        kernel: HOPPER,
        pattern: "bfe.u32",
        which: Nth(0),
        change: |l| zero(l).replace(", 0;", ", 1;"),
    },
    Mutant {
        what: "the phase not flipped by a consumer",
        kernel: HOPPER,
        pattern: "bfe.u32",
        which: Last,
        change: zero,
    },
    Mutant {
        what: "no wait until a stage is empty",
        kernel: HOPPER,
        pattern: "@!done bra again",
        which: Nth(0),
        change: no_wait,
    },
    Mutant {
        what: "no wait until the first stage of a tile is full",
        kernel: HOPPER,
        pattern: "@!done bra again",
        which: Nth(1),
        change: no_wait,
    },
    Mutant {
        what: "no wait until a later stage is full",
        kernel: HOPPER,
        pattern: "@!done bra again",
        which: Nth(2),
        change: no_wait,
    },
    Mutant {
        what: "a stage not released",
        kernel: HOPPER,
        pattern: "@first mbarrier.arrive",
        which: Nth(0),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "the last stage of a tile not released",
        kernel: HOPPER,
        pattern: "@first mbarrier.arrive",
        which: Last,
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "a stage released by every lane",
        kernel: HOPPER,
        pattern: "@first mbarrier.arrive",
        which: Nth(0),
        change: |l| l.replace("@first ", ""),
    },
    Mutant {
        what: "a tile taken past the last",
        kernel: HOPPER,
        pattern: "setp.lt.u32",
        which: Nth(0),
        change: |l| l.replace(".lt.", ".le."),
    },
    // Copies.
    Mutant {
        what: "A loaded in place of B",
        kernel: HOPPER,
        pattern: ", 128;",
        which: Nth(0),
        change: |l| l.replace("128", "0"),
    },
    Mutant {
        what: "half a step along k",
        kernel: HOPPER,
        pattern: ", 64;",
        which: Nth(0),
        change: |l| l.replace("64", "32"),
    },
    // Products.
    Mutant {
        what: "a stage released while its products run",
        kernel: HOPPER,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: All,
        change: remove,
    },
    Mutant {
        what: "C stored before the last products are done",
        kernel: HOPPER,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: All,
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "no wgmma.fence",
        kernel: HOPPER,
        pattern: "wgmma.fence",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "sums that do not start at zero",
        kernel: HOPPER,
        pattern: "setp.ne.b32 add, 0, 0",
        which: All,
        change: |l| l.replace("add, 0, 0", "add, 1, 0"),
    },
    Mutant {
        what: "the same rows of A for both warpgroups",
        kernel: HOPPER,
        pattern: ", 13;",
        which: Nth(0),
        change: zero,
    },
    Mutant {
        what: "a descriptor of the wrong columns",
        kernel: HOPPER,
        pattern: ", 65538;",
        which: Last,
        change: |l| l.replace("65538", "65540"),
    },
];
