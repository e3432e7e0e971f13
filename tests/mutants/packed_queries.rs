//! Tiles of packed queries, and the kernel that divides queries into them.

use super::change::{remove, swap, zero};
use super::options::off;
use super::pages::{RANGES, of_cases};
use super::{
    Mutant, Run,
    Which::{All, Nth},
};
use crate::packed_queries;
use kernels::abi::{Switch, Switches};
use tests::Case;

const DECODE: &str = "decode_optional_f16_d128";
const FORWARD: &str = "optional_f16_d96";
const HOPPER: &str = "hopper_optional_f16_d96";

/// What loads a tile, or a range of keys, of which nothing here reads the third number and the fourth, and the first is 0.
const LOADS: &str = "ld.global.v4.b32";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "tiles of packed queries left out of decoding",
        kernel: DECODE,
        pattern: "mov.b32 switch_tiles, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "tiles of packed queries left out",
        kernel: FORWARD,
        pattern: "mov.b32 switch_tiles, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "tiles of packed queries left out on Hopper",
        kernel: HOPPER,
        pattern: "mov.b32 switch_tiles, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "tiles of packed queries with rows of one head on Hopper",
        kernel: HOPPER,
        pattern: "mov.b32 switch_group, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "keys of the first sequence for all",
        kernel: DECODE,
        pattern: LOADS,
        which: All,
        change: |line| then_set(line, 0, "0"),
    },
    Mutant {
        what: "rows behind the end of their sequence",
        kernel: FORWARD,
        pattern: LOADS,
        which: All,
        change: |line| then_set(line, 3, "1000"),
    },
    Mutant {
        what: "rows before the begin of their sequence",
        kernel: HOPPER,
        pattern: LOADS,
        which: All,
        change: |line| then_set(line, 2, "0"),
    },
    Mutant {
        what: "tiles that begin where their sequence does",
        kernel: RANGES,
        pattern: "st.global.v4.b32",
        which: Nth(0),
        change: |line| swap(line, 2, 3),
    },
    Mutant {
        what: "tiles that are too many not marked",
        kernel: RANGES,
        pattern: "st.global.v4.b32",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "tiles of sequences before those of 32 lanes not counted",
        kernel: RANGES,
        pattern: "shfl.sync.idx",
        which: Nth(7),
        change: zero,
    },
];

/// The load, and then another value for a number of it.
fn then_set(line: &str, number: usize, value: &str) -> String {
    let (_, numbers) = line.split_once('{').expect("numbers");
    let (numbers, _) = numbers.split_once('}').expect("numbers");
    let register = numbers.split(',').nth(number).expect("four numbers");
    format!("{line} mov.b32 {register}, {value};")
}

/// The runs that show faults of a kernel, and its switches; none for other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let cases = match kernel {
        DECODE => vec![packed_queries::decoding_case()],
        FORWARD | HOPPER => vec![Case {
            dim: 96,
            kernel: Some(kernel.to_owned()),
            ..packed_queries::mixed_case(16)
        }],
        _ => return None,
    };
    let on = |on: Switches, switch| on.with(switch, true);
    let switches = [Switch::Ranges, Switch::Pages, Switch::Tiles];
    let switches = switches.into_iter().fold(Switches::NONE, on);
    Some((
        of_cases(cases),
        switches.with(Switch::Group, kernel != DECODE),
    ))
}

/// The runs of the kernel that divides queries into tiles.
pub fn runs_of_tiles() -> Vec<Run> {
    of_cases([packed_queries::mixed_case(16), packed_queries::many_case(4)])
}
