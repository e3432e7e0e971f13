//! The kernels with options, and those that find what sequences and masks see.

use super::backward::same_bits;
use super::change::{always_first, always_last, remove};
use super::{
    Mutant, Run,
    Which::{All, Nth},
};
use ferroattn::{Sequences, Window};
use kernels::abi::{Switch, Switches};
use kernels::catalog::Kernel;
use tests::modifiers::Pairs;
use tests::{BackwardCase, Case, Layout, Modifiers};

const FORWARD: &str = "optional_f16_d64";
const HOPPER: &str = "hopper_optional_f16_d64";
const VECTORS: &str = "optional_f16_d128";
const BACKWARD: &str = "backward_optional_f16_d64";
const SUMS: &str = "backward_hopper_optional_f16_d64";
const STORED: &str = "backward_hopper_stored_optional_f16_d128";
const RANGES: &str = "ranges";
const PREPARE: &str = "backward_f16_prepare";
const BLOCKS: &str = "blocks";

/// Turns a switch off.
pub fn off(line: &str) -> String {
    let values = [", 1;", ", 2;", ", 3;"];
    values
        .iter()
        .fold(line.to_owned(), |line, value| line.replace(value, ", 0;"))
}

/// Reads 0 in place of a parameter.
pub fn zero_parameter(line: &str) -> String {
    let (register, _) = line.split_once(',').expect("a register");
    format!("{}, 0;", register.replace("ld.param", "mov"))
}

/// Takes the comparison's other edge.
fn or_equal(line: &str) -> String {
    line.replace(".gt.", ".ge.").replace(".lt.", ".le.")
}

/// `op d, a, 1` becomes `op d, a, 0`.
fn one_less(line: &str) -> String {
    line.replace(", 1;", ", 0;")
}

macro_rules! ignored {
    ($($kernel:ident $switch:literal $what:literal $which:expr;)*) => {
        [$(Mutant {
            what: $what,
            kernel: $kernel,
            pattern: concat!("mov.b32 switch_", $switch, ";"),
            which: $which,
            change: off,
        },)*]
    };
}

const IGNORED: [Mutant; 18] = ignored! {
    FORWARD "softcap, 1" "the softcap left out" All;
    FORWARD "alibi, 1" "slopes left out" All;
    FORWARD "ranges, 1" "sequences left out" All;
    FORWARD "mask, 2" "the mask's bits left out" All;
    HOPPER "ranges, 1" "sequences left out on Hopper" All;
    HOPPER "bias, 3" "a bias of f32 left out" All;
    HOPPER "mask, 1" "the mask's bytes left out" All;
    BACKWARD "alibi, 1" "slopes left out of gradients" All;
    BACKWARD "bias, 1" "a bias left out of gradients" All;
    BACKWARD "bias_gradient, 1" "no gradient of the bias" All;
    BACKWARD "mask, 1" "the mask left out of gradients" All;
    SUMS "softcap, 1" "the softcap left out of gradients on Hopper" All;
    SUMS "bias, 3" "a bias left out of gradients on Hopper" All;
    SUMS "bias_gradient, 2" "no gradient of the bias on Hopper" All;
    SUMS "mask, 2" "the mask's bits left out of gradients on Hopper" All;
    STORED "alibi, 2" "slopes of sequences left out of gradients on Hopper" All;
    STORED "ranges, 1" "sequences left out of gradients on Hopper" All;
    STORED "mask, 1" "the mask's bytes left out of gradients on Hopper" All;
};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "vectors of a bias exchanged with another lane",
        kernel: VECTORS,
        pattern: ", 1, 0x1f",
        which: Nth(0),
        change: |line| line.replace(", 1, 0x1f", ", 2, 0x1f"),
    },
    Mutant {
        what: "vectors of a bias's gradient exchanged with another lane",
        kernel: SUMS,
        pattern: ", 4, 0x1f",
        which: Nth(0),
        change: |line| line.replace(", 4, 0x1f", ", 8, 0x1f"),
    },
    Mutant {
        what: "dQ of sequences added before its turn",
        kernel: SUMS,
        pattern: "@early bra again",
        which: Nth(0),
        change: |l| l.replace("@early bra again;", ""),
    },
    Mutant {
        what: "a query finds its sequence by the offset above",
        kernel: RANGES,
        pattern: "setp.gt.s32",
        which: Nth(3),
        change: or_equal,
    },
    Mutant {
        what: "a query sees one key less",
        kernel: RANGES,
        pattern: "add.s32",
        which: Nth(29),
        change: one_less,
    },
    Mutant {
        what: "an offset of queries below those before it, for keys",
        kernel: RANGES,
        pattern: "max.s32",
        which: Nth(16),
        change: always_last,
    },
    Mutant {
        what: "an offset of queries above those behind it",
        kernel: RANGES,
        pattern: "min.s32",
        which: Nth(6),
        change: always_last,
    },
    Mutant {
        what: "an offset of keys below those before it",
        kernel: RANGES,
        pattern: "max.s32",
        which: Nth(7),
        change: always_last,
    },
    Mutant {
        what: "an offset of keys above those behind it",
        kernel: RANGES,
        pattern: "min.s32",
        which: Nth(7),
        change: always_last,
    },
    Mutant {
        what: "the length of a sequence's queries left out",
        kernel: RANGES,
        pattern: "min.s32",
        which: Nth(1),
        change: always_first,
    },
    Mutant {
        what: "first keys left out",
        kernel: RANGES,
        pattern: "ranges_param_0+32]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "slopes of the first sequence for all",
        kernel: RANGES,
        pattern: "ranges_param_0+48]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "slopes of the first head for all",
        kernel: RANGES,
        pattern: "ranges_param_0+56]",
        which: All,
        change: zero_parameter,
    },
    Mutant {
        what: "slopes of queries not written",
        kernel: RANGES,
        pattern: "st.global.b32",
        which: All,
        change: remove,
    },
    Mutant {
        what: "a length for each sequence of heads that share one",
        kernel: RANGES,
        pattern: "div.u32",
        which: Nth(3),
        change: |line| {
            let (quotient, operands) = line.split_once(',').expect("operands");
            let (dividend, _) = operands.split_once(',').expect("two");
            format!("{},{dividend};", quotient.replace("div.u32", "mov.b32"))
        },
    },
    Mutant {
        what: "queries of no sequence not marked",
        kernel: RANGES,
        pattern: ", -2147483648;",
        which: Nth(0),
        change: |line| line.replace("-2147483648", "0"),
    },
    Mutant {
        what: "rows of no sequence in the gradient of sinks",
        kernel: PREPARE,
        pattern: ", -2147483648;",
        which: Nth(0),
        change: |line| line.replace("-2147483648", "2147483647"),
    },
    Mutant {
        what: "a softcap far above the scores taken for a near one",
        kernel: VECTORS,
        pattern: "mov.b32 switch_softcap, 2;",
        which: All,
        change: |line| line.replace(", 2;", ", 1;"),
    },
    Mutant {
        what: "a small hyperbolic tangent from the exponential",
        kernel: VECTORS,
        pattern: "0f3E051EB8",
        which: All,
        change: |line| line.replace("0f3E051EB8", "0f00000000"),
    },
    Mutant {
        what: "a far softcap taken for a near one in gradients on Hopper",
        kernel: STORED,
        pattern: "mov.b32 switch_softcap, 2;",
        which: All,
        change: |line| line.replace(", 2;", ", 1;"),
    },
    Mutant {
        what: "a query's own place not aligned",
        kernel: RANGES,
        pattern: "sub.s32",
        which: Nth(2),
        change: always_first,
    },
];

const MAPPED: &[Mutant] = &[
    Mutant {
        what: "a block shown only if all lanes find a pair",
        kernel: BLOCKS,
        pattern: "vote.sync.any",
        which: All,
        change: |line| line.replace("vote.sync.any", "vote.sync.all"),
    },
    Mutant {
        what: "flags read before all warps have written them",
        kernel: BLOCKS,
        pattern: "bar.sync",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "the numbers of shown blocks not written",
        kernel: BLOCKS,
        pattern: "st.global.v2.b32",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a mixed block taken for whole",
        kernel: BLOCKS,
        pattern: "vote.sync.any",
        which: Nth(1),
        change: |line| line.replace(", 1, 0, any", ", 0, 0, any"),
    },
    Mutant {
        what: "blocks of some pairs not masked by Hopper's warpgroups",
        kernel: HOPPER,
        pattern: ", 1, 2, p",
        which: All,
        change: |line| line.replace(", 1, 2, p", ", 2, 2, p"),
    },
    Mutant {
        what: "blocks of some pairs not masked in gradients on Hopper",
        kernel: SUMS,
        pattern: ", 1, 2, p",
        which: All,
        change: |line| line.replace(", 1, 2, p", ", 2, 2, p"),
    },
    Mutant {
        what: "the count of shown blocks not written",
        kernel: BLOCKS,
        pattern: "st.global.b32",
        which: Nth(1),
        change: remove,
    },
];

pub const ALL: [&[Mutant]; 3] = [&IGNORED, MUTANTS, MAPPED];

/// The options of a kernel's runs, and what is on in its text.
fn options(kernel: &str) -> (Modifiers, &'static [Switch]) {
    let pairs = |of| {
        let repeats = [true, false, false];
        Some(Pairs { repeats, of })
    };
    let sequences = Some(Sequences::Packed {
        q: vec![3, 70, 70, 150, 150],
        kv: vec![0, 90, 95, 100, 210],
    });
    let window = Window {
        left: Some(60),
        right: Some(5),
    };
    match kernel {
        HOPPER => (
            Modifiers {
                bias: pairs(2),
                mask: pairs(0),
                sequences,
                sinks: true,
                ..Modifiers::default()
            },
            &[Switch::BiasF32, Switch::MaskBytes, Switch::Ranges],
        ),
        VECTORS => (
            Modifiers {
                bias: pairs(0),
                softcap: Some(1e5),
                ..Modifiers::default()
            },
            &[Switch::SoftcapFar, Switch::BiasF16, Switch::BiasVectors],
        ),
        BACKWARD => (
            Modifiers {
                alibi: true,
                bias: pairs(0),
                mask: pairs(0),
                window,
                ..Modifiers::default()
            },
            &[
                Switch::Alibi,
                Switch::BiasF16,
                Switch::BiasGradient,
                Switch::MaskBytes,
            ],
        ),
        SUMS => (
            Modifiers {
                softcap: Some(1.5),
                bias: pairs(2),
                mask: pairs(1),
                sequences,
                ..Modifiers::default()
            },
            &[
                Switch::Softcap,
                Switch::Ranges,
                Switch::BiasF32,
                Switch::BiasGradientVectors,
                Switch::MaskBits,
            ],
        ),
        STORED => (
            Modifiers {
                alibi: true,
                own_slopes: true,
                softcap: Some(1e5),
                mask: pairs(0),
                sequences,
                ..Modifiers::default()
            },
            &[
                Switch::SoftcapFar,
                Switch::AlibiRows,
                Switch::MaskBytes,
                Switch::Ranges,
            ],
        ),
        BLOCKS => (
            Modifiers {
                mask: Some(Pairs {
                    repeats: [false; 3],
                    of: 1,
                }),
                ..Modifiers::default()
            },
            &[],
        ),
        RANGES | PREPARE => (
            Modifiers {
                window,
                sequences,
                sinks: true,
                ..Modifiers::default()
            },
            &[],
        ),
        _ => (
            Modifiers {
                softcap: Some(1.5),
                alibi: true,
                mask: pairs(1),
                sequences,
                ..Modifiers::default()
            },
            &[
                Switch::Softcap,
                Switch::Alibi,
                Switch::MaskBits,
                Switch::Ranges,
            ],
        ),
    }
}

/// The switches that are on in the text of a kernel.
pub fn switches(kernel: &str) -> Switches {
    let (_, switches) = options(kernel);
    let on = |on: Switches, switch: &Switch| on.with(*switch, true);
    switches.iter().fold(Switches::NONE, on)
}

/// The runs that show faults of a kernel with options; none for other kernels.
pub fn runs(kernel: &Kernel) -> Option<Vec<Run>> {
    let kernels = [
        FORWARD, HOPPER, VECTORS, BACKWARD, SUMS, STORED, RANGES, PREPARE, BLOCKS,
    ];
    if !kernels.contains(&kernel.name) {
        return None;
    }
    let (modifiers, _) = options(kernel.name);
    let serves_both = [RANGES, BLOCKS].contains(&kernel.name);
    let serves_any = serves_both || kernel.name == PREPARE;
    let case = Case {
        heads: 2,
        kv_heads: 1,
        seqlen_q: 150,
        seqlen_kv: match kernel.name {
            VECTORS => 208,
            SUMS => 212,
            _ => 210,
        },
        kernel: (!serves_any).then(|| kernel.name.to_owned()),
        modifiers,
        ..Case::default()
    };
    let odd = Case {
        q: Layout::OddRows,
        o: Layout::OddRows,
        scale: Some(-0.2),
        ..case.clone()
    };
    let has_gradients = [BACKWARD, SUMS, STORED].contains(&kernel.name) || serves_any;
    let mut long = Case {
        heads: 4,
        seqlen_kv: 1000,
        causal: true,
        ..case.clone()
    };
    long.modifiers.sequences = Some(Sequences::Packed {
        q: vec![0, 40, 150],
        kv: vec![10, 300, 1000],
    });
    // Offsets that fall, of one of both sides.
    let mut falling = case.clone();
    falling.modifiers.sequences = Some(Sequences::Packed {
        q: vec![8, 110, 60, 40, 140],
        kv: vec![10, 150, 120, 100, 210],
    });
    let padded = |batch, [queries, keys]: [i32; 2]| {
        let lengths = |most| (0..batch).map(|entry| entry * 5 % (most + 1)).collect();
        Case {
            batch: batch as usize,
            heads: 2,
            kv_heads: 2,
            seqlen_q: queries as usize,
            seqlen_kv: keys as usize,
            modifiers: Modifiers {
                sequences: Some(Sequences::Padded {
                    q: lengths(queries),
                    kv: lengths(keys),
                }),
                ..Modifiers::default()
            },
            ..case.clone()
        }
    };
    // More key/value heads than multiprocessors, which share tiles; and more queries than kernels of few rows have.
    let (many, long_entries) = (padded(60, [5, 6]), padded(4, [150, 210]));
    let mut own_slopes = case.clone();
    own_slopes.modifiers.alibi = true;
    own_slopes.modifiers.own_slopes = true;
    let on_the_left = Case {
        batch: 3,
        modifiers: Modifiers {
            first_keys: Some(vec![-5, 30, 210]),
            ..Modifiers::default()
        },
        ..case.clone()
    };
    let of_ranges = [falling, many, long_entries, own_slopes, on_the_left].into_iter();
    let of_ranges = of_ranges.filter(|_| kernel.name == RANGES);
    let runs = [case, odd].into_iter().chain(of_ranges).flat_map(|case| {
        let backward = has_gradients.then(|| BackwardCase {
            d_lse: case.modifiers.sinks,
            ..BackwardCase::from(case.clone())
        });
        let forward = (!has_gradients || serves_both).then_some(case);
        let forward =
            forward.map(|case| -> Run { Box::new(move |device| case.check(device).map(drop)) });
        let backward =
            backward.map(|case| -> Run { Box::new(move |device| case.check(device).map(drop)) });
        forward.into_iter().chain(backward)
    });
    let mut runs: Vec<_> = runs.collect();
    if kernel.name == RANGES {
        runs.extend(super::packed_queries::runs_of_tiles());
    }
    if kernel.name == SUMS {
        // More key tiles, which take turns.
        runs.push(same_bits(BackwardCase::from(long)));
    }
    Some(runs)
}
