//! The pack and unpack kernels.

use super::change::remove;
use super::{
    Mutant,
    Which::{All, Last, Nth},
};

const PACK: &str = "pack";
const UNPACK: &str = "unpack";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "an element of a copy from the row's next",
        kernel: PACK,
        pattern: "ld.global.b16",
        which: Nth(2),
        change: |l| l.replace("];", "+2];"),
    },
    Mutant {
        what: "chunks of a copy past the last row",
        kernel: PACK,
        pattern: "min.u32",
        // The last but one; the last is of columns.
        which: Nth(15),
        change: |l| {
            let (_, operands) = l.trim().split_once(char::is_whitespace).expect("operands");
            let operands: Vec<&str> = operands.trim_end_matches(';').split(',').collect();
            format!("mov.u32 {}, {};", operands[0], operands[2])
        },
    },
    Mutant {
        what: "an element of a copy not passed on",
        kernel: PACK,
        pattern: "st.shared.b16",
        which: Nth(5),
        change: remove,
    },
    Mutant {
        what: "an element of a copy put in its neighbour's place",
        kernel: PACK,
        pattern: "st.shared.b16",
        which: Nth(7),
        change: |l| l.replace("],", "+2],"),
    },
    Mutant {
        what: "a copy read before its elements are there",
        kernel: PACK,
        pattern: "bar.warp.sync",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "a copy overwritten before it is read",
        kernel: PACK,
        pattern: "bar.warp.sync",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a copy stored a chunk too far",
        kernel: PACK,
        pattern: "st.global.v4",
        which: Last,
        change: |l| l.replace("],", "+16],"),
    },
    Mutant {
        what: "a copy stored past its last row",
        kernel: PACK,
        pattern: "st.global.v4",
        which: Last,
        change: |l| format!("{l}\n{}", l.replace("],", "+32768],")),
    },
    Mutant {
        what: "heads and batches of a copy exchanged",
        kernel: PACK,
        pattern: "div.u32",
        which: Nth(1),
        change: |l| l.replace("div", "rem"),
    },
    Mutant {
        what: "the row of a chunk of a copy taken for its column",
        kernel: PACK,
        pattern: "div.u32",
        which: Last,
        change: |l| l.replace("div", "rem"),
    },
    Mutant {
        what: "a copy by the stride of heads for rows",
        kernel: PACK,
        pattern: "_param_0+24]",
        which: All,
        change: |l| l.replace("+24]", "+16]"),
    },
    Mutant {
        what: "a copy of the first head alone",
        kernel: PACK,
        pattern: "_param_0+16]",
        which: All,
        change: |l| {
            l.replace("ld.param", "mov")
                .replace("[pack_param_0+16]", "0")
        },
    },
    Mutant {
        what: "an element of an output from its neighbour's place",
        kernel: UNPACK,
        pattern: "ld.global.b16",
        which: All,
        change: |l| l.replace("];", "+2];"),
    },
    Mutant {
        what: "rows of an output past the last one",
        kernel: UNPACK,
        pattern: "min.u32",
        which: Nth(0),
        change: |l| {
            let (register, operands) = l.split_once(',').expect("operands");
            let (_, most) = operands.split_once(',').expect("two");
            format!("{},{most}", register.replace("min.u32", "mov.b32"))
        },
    },
    Mutant {
        what: "heads and batches of an output exchanged",
        kernel: UNPACK,
        pattern: "div.u32",
        which: Nth(1),
        change: |l| l.replace("div", "rem"),
    },
    Mutant {
        what: "the row of an output's element taken for its column",
        kernel: UNPACK,
        pattern: "div.u32",
        which: Last,
        change: |l| l.replace("div", "rem"),
    },
    Mutant {
        what: "an output by the stride of heads for rows",
        kernel: UNPACK,
        pattern: "_param_0+24]",
        which: All,
        change: |l| l.replace("+24]", "+16]"),
    },
    Mutant {
        what: "an output of the first head alone",
        kernel: UNPACK,
        pattern: "_param_0+16]",
        which: All,
        change: |l| {
            l.replace("ld.param", "mov")
                .replace("[unpack_param_0+16]", "0")
        },
    },
];
