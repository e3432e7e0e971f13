//! The kernels that merge partial results.

use super::{
    Mutant,
    Which::{All, Nth},
};

const MERGE: &str = "merge_f16";
const BACKWARD: &str = "merge_backward_f16";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "weights of parts by their lse itself",
        kernel: MERGE,
        pattern: "ex2.approx",
        which: All,
        change: |l| l.replace("ex2.approx.ftz.f32", "mov.b32"),
    },
    Mutant {
        what: "a part without keys counted",
        kernel: MERGE,
        pattern: ", 0fFF800000",
        which: All,
        change: |l| l.replace("0fFF800000", "0f7F800000"),
    },
    Mutant {
        what: "an element of a part from the row's next",
        kernel: MERGE,
        pattern: "ld.global.b16",
        which: Nth(3),
        change: |l| l.replace("];", "+2];"),
    },
    Mutant {
        what: "rows merged past the last",
        kernel: MERGE,
        pattern: "st.global.b32",
        which: All,
        change: |l| format!("{l}\n{}", l.replace("],", "+4096],")),
    },
    Mutant {
        what: "lse of one part in the order of the other's entries",
        kernel: MERGE,
        pattern: "param_0+40]",
        which: All,
        change: |l| l.replace("+40]", "+96]"),
    },
    Mutant {
        what: "lse of one part in the order of the other's heads",
        kernel: MERGE,
        pattern: "param_0+48]",
        which: All,
        change: |l| l.replace("+48]", "+104]"),
    },
    Mutant {
        what: "gradients of a part without keys",
        kernel: BACKWARD,
        pattern: ", 0fFF800000",
        which: All,
        change: |l| l.replace("0fFF800000", "0f7F800000"),
    },
    Mutant {
        what: "the gradient of lse from half of a row's lanes",
        kernel: BACKWARD,
        pattern: "shfl.sync.bfly",
        which: Nth(1),
        change: |l| l.replace(", 2, 0x1f", ", 1, 0x1f"),
    },
    Mutant {
        what: "gradients of parts not weighed",
        kernel: BACKWARD,
        pattern: "rcp.approx",
        which: All,
        change: |l| l.replace("rcp.approx.ftz.f32", "mov.b32"),
    },
];
