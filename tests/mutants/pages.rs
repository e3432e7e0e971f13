//! Kernels that read pages and units, and the one that appends.

use super::change::{always_first, remove, zero};
use super::options::{off, zero_parameter};
use super::{
    Mutant, Run,
    Which::{All, Nth},
};
use crate::pages;
use kernels::abi::{Switch, Switches};
use tests::Case;

const DECODE: &str = "decode_optional_f16_d64";
const FORWARD: &str = "optional_bf16_d64";
const HOPPER: &str = "hopper_optional_f16_d128";
const APPEND: &str = "append_f16";
pub const RANGES: &str = "ranges";
pub const COMBINE: &str = "combine_f16";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "pages left out of decoding",
        kernel: DECODE,
        pattern: "mov.b32 switch_pages, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "pages left out",
        kernel: FORWARD,
        pattern: "mov.b32 switch_pages, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "pages left out on Hopper",
        kernel: HOPPER,
        pattern: "mov.b32 switch_pages, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "keys of a step from its first page on Hopper",
        kernel: HOPPER,
        pattern: "shfl.sync.idx",
        which: Nth(10),
        change: of_first_lane,
    },
    Mutant {
        what: "values of a step from its first page on Hopper",
        kernel: HOPPER,
        pattern: "shfl.sync.idx",
        which: Nth(14),
        change: of_first_lane,
    },
    Mutant {
        what: "lengths left out of decoding",
        kernel: DECODE,
        pattern: "mov.b32 switch_lengths, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "the first page in place of all",
        kernel: DECODE,
        pattern: "ld.global.b32",
        which: All,
        change: zero,
    },
    Mutant {
        what: "units of a part of all keys",
        kernel: DECODE,
        pattern: "redux.sync.add",
        which: All,
        change: |line| line.replace("redux.sync.add", "redux.sync.max"),
    },
    Mutant {
        what: "units of entries before those of 32 lanes not counted",
        kernel: DECODE,
        pattern: "shfl.sync.idx",
        which: Nth(5),
        change: zero,
    },
    Mutant {
        what: "units that end with their entry",
        kernel: DECODE,
        pattern: "min.u32",
        which: Nth(1),
        change: always_first,
    },
    Mutant {
        what: "no unit of an entry without keys",
        kernel: DECODE,
        pattern: "max.u32",
        which: All,
        change: |line| match line.ends_with(", 1;") {
            true => always_first(line),
            false => line.to_owned(),
        },
    },
    Mutant {
        what: "where the units of an entry begin not written",
        kernel: DECODE,
        pattern: "st.global.b32",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "where the units of the last entry end not written",
        kernel: DECODE,
        pattern: "st.global.b32",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "all units added up for the first entry's rows",
        kernel: COMBINE,
        pattern: "ld.global.b32",
        which: Nth(2),
        change: zero,
    },
    Mutant {
        what: "keys turned the other way round",
        kernel: APPEND,
        pattern: "sub.rn.f32",
        which: Nth(0),
        change: |line| line.replace("sub.rn", "add.rn"),
    },
    Mutant {
        what: "the second of a pair turned the other way round",
        kernel: APPEND,
        pattern: "add.rn.f32",
        which: Nth(0),
        change: |line| line.replace("add.rn", "sub.rn"),
    },
    Mutant {
        what: "the table of pages left out",
        kernel: APPEND,
        pattern: "param_0+240]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "keys that are there left out",
        kernel: APPEND,
        pattern: "param_0+272]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "slots left out",
        kernel: APPEND,
        pattern: "param_0+288]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "positions left out",
        kernel: APPEND,
        pattern: "param_0+304]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "elements behind those that turn",
        kernel: APPEND,
        pattern: "st.global.b16",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "sines for cosines",
        kernel: APPEND,
        pattern: "param_0+320]",
        which: All,
        change: |line| line.replace("+320]", "+328]"),
    },
];

/// The first lane's number in place of another one's.
fn of_first_lane(line: &str) -> String {
    let operands: Vec<&str> = line.split(',').collect();
    let [to, number, _, rest @ ..] = &operands[..] else {
        unreachable!("a lane's number: {line}");
    };
    format!("{to},{number}, 0,{}", rest.join(","))
}

/// The switches that are on in the text of a kernel.
fn switches(kernel: &str) -> Switches {
    let decodes = kernel == DECODE;
    let reads_ranges = [FORWARD, HOPPER].contains(&kernel);
    Switches::NONE
        .with(Switch::Lengths, decodes)
        .with(Switch::Ranges, reads_ranges)
        .with(Switch::Pages, decodes || reads_ranges)
}

/// The runs that show faults of a kernel, and its switches; none for other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let runs = match kernel {
        APPEND => crate::append::runs(),
        DECODE => of_cases([
            pages::uneven_case(6, true, None),
            pages::even_case(),
            pages::wild_case(2, 16),
        ]),
        FORWARD | HOPPER => {
            let dim = if kernel == HOPPER { 128 } else { 64 };
            let [few, many] = [pages::wild_case(2, 16), pages::wild_case(150, 32)];
            of_cases([few, many].map(|case| Case {
                dim,
                kernel: Some(kernel.to_owned()),
                dtype: match kernel {
                    HOPPER => ferroattn::Dtype::F16,
                    _ => ferroattn::Dtype::Bf16,
                },
                ..case
            }))
        }
        _ => return None,
    };
    Some((runs, switches(kernel)))
}

/// The runs of the kernel that combines units.
pub fn runs_of_units() -> Vec<Run> {
    of_cases([pages::uneven_case(6, true, None)])
}

pub fn of_cases(cases: impl IntoIterator<Item = Case>) -> Vec<Run> {
    let run = |case: Case| -> Run { Box::new(move |device| case.check(device).map(drop)) };
    cases.into_iter().map(run).collect()
}
