//! Kernels that decode with a cache of e4m3.

use super::options::{off, zero_parameter};
use super::{Mutant, Run, Which::All};
use crate::e4m3_cache;
use kernels::abi::{Switch, Switches};
use tests::Case;

const DECODE: &str = "decode_e4m3_f16_d64";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "pages of e4m3 left out",
        kernel: DECODE,
        pattern: "mov.b32 switch_pages, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "the first page's descale of keys for all",
        kernel: DECODE,
        pattern: "param_0+648]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "the first head's descale of values for all",
        kernel: DECODE,
        pattern: "param_0+688]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "even and odd columns not told apart",
        kernel: DECODE,
        pattern: "0, 0x3120;",
        which: All,
        change: |line| line.replace("0x3120", "0x3210"),
    },
    Mutant {
        what: "two numbers of four read twice",
        kernel: DECODE,
        pattern: "cvt.rn.f16x2.e4m3x2",
        which: All,
        change: |line| line.replace(", high; }", ", low; }"),
    },
];

/// The runs that show faults of a kernel, and its switches; none for other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let case: Case = (kernel == DECODE).then(|| e4m3_cache::paged_case(0, 64))?;
    let run: Run = Box::new(move |device| case.check(device).map(drop));
    let switches = [Switch::Lengths, Switch::Pages].into_iter();
    let switches = switches.fold(Switches::NONE, |on, switch| on.with(switch, true));
    Some((vec![run], switches))
}
