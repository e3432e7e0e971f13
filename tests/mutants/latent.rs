//! The kernel of latent attention: what its warpgroups tell each other, their halves of O's columns, and the stages of keys.

use super::change::{remove, zero};
use super::options::off;
use super::{
    Mutant, Run,
    Which::{All, Last, Nth},
};
use crate::latent::{case_of_pages, hidden_infinity, rising};
use ferroattn::Dtype;
use kernels::abi::{Switch, Switches};
use tests::{Case, Inputs};

const LATENT: &str = "latent_f16_d576";
/// With lengths and pages.
const PAGED: &str = "latent_bf16_d576";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "keys loaded into the first stage alone",
        kernel: LATENT,
        pattern: ", 3;",
        which: Last,
        change: zero,
    },
    Mutant {
        what: "a block read from the first stage",
        kernel: LATENT,
        pattern: ", 3;",
        which: Nth(0),
        change: zero,
    },
    Mutant {
        what: "probabilities of the second 16 keys not given",
        kernel: LATENT,
        pattern: "st.shared.v4.b32",
        which: Nth(16),
        change: remove,
    },
    Mutant {
        what: "maxima not given",
        kernel: LATENT,
        pattern: "st.shared.v4.b32",
        which: Nth(17),
        change: remove,
    },
    Mutant {
        what: "sums not given",
        kernel: LATENT,
        pattern: "st.shared.v4.b32",
        which: Nth(23),
        change: remove,
    },
    Mutant {
        what: "probabilities taken before they are given",
        kernel: LATENT,
        pattern: "bar.sync",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "probabilities given without an arrival",
        kernel: LATENT,
        pattern: "bar.arrive",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "the first half of the columns for both warpgroups",
        kernel: LATENT,
        pattern: ", 14;",
        which: Nth(0),
        change: zero,
    },
    Mutant {
        what: "scores read before they are there",
        kernel: LATENT,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Nth(1),
        change: |line| line.replace('1', "2"),
    },
    Mutant {
        what: "a stage released before its product is done",
        kernel: LATENT,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(4),
        change: |line| line.replace('0', "1"),
    },
    Mutant {
        what: "no wgmma.fence before a product",
        kernel: LATENT,
        pattern: "wgmma.fence",
        which: Nth(5),
        change: remove,
    },
    Mutant {
        what: "infinities behind the mask not looked for",
        kernel: LATENT,
        pattern: "bar.red.or",
        which: All,
        change: |line| line.replace(", 1, 0, any", ", 0, 0, any"),
    },
    Mutant {
        what: "infinities left there after the guarded product",
        kernel: LATENT,
        pattern: "st.shared.v4.b32",
        which: All,
        change: without_zeros,
    },
    Mutant {
        what: "pages left out",
        kernel: PAGED,
        pattern: "mov.b32 switch_pages, 1;",
        which: All,
        change: off,
    },
    Mutant {
        what: "the first page for all boxes",
        kernel: PAGED,
        pattern: "shfl.sync.idx",
        which: Nth(10),
        change: zero,
    },
    Mutant {
        what: "every box from the begin of its page",
        kernel: PAGED,
        pattern: "shfl.sync.idx",
        which: Nth(19),
        change: zero,
    },
];

/// Drops a store of four times the same register.
fn without_zeros(line: &str) -> String {
    let stored = line.split(['{', '}']).nth(1).expect("registers");
    let mut registers = stored.split(',').map(str::trim);
    let first = registers.next();
    match registers.all(|register| Some(register) == first) {
        true => String::new(),
        false => line.to_owned(),
    }
}

/// The runs that show faults of a kernel, and its switches; none for other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let run = |(case, inputs): (Case, Inputs)| -> Run {
        Box::new(move |device| case.run(device, &inputs).map(drop))
    };
    let random = |case: Case| {
        let inputs = case.inputs();
        (case, inputs)
    };
    match kernel {
        LATENT => {
            let case = |splits| Case {
                heads: 16,
                seqlen_q: 4,
                seqlen_kv: 400,
                causal: true,
                splits,
                ..Case::default()
            };
            let cases = [random(case(2).latent()), rising(&case(1).latent())];
            let infinite = [40, 65, 200].map(|keys| hidden_infinity(keys, 1, (300, f32::INFINITY)));
            let cases = cases.into_iter().chain(infinite);
            Some((cases.map(run).collect(), Switches::NONE))
        }
        PAGED => {
            let on = [Switch::Lengths, Switch::Pages].into_iter();
            let on = on.fold(Switches::NONE, |on, switch| on.with(switch, true));
            let cases = [8, 64].map(|keys| {
                random(Case {
                    dtype: Dtype::Bf16,
                    ..case_of_pages(keys, 4)
                })
            });
            Some((cases.map(run).into(), on))
        }
        _ => None,
    }
}
