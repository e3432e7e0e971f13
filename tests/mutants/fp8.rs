//! The kernels for FP8: what rounds q, k and v, their scales and their layouts, and the main loop.

use super::change::{remove, zero};
use super::{
    Mutant, Run,
    Which::{All, Last, Nth},
};
use crate::fp8::output::{self, Rows};
use crate::fp8::{e4m3, far, flat, hidden, in_fp8, options, steep};
use ferroattn::Dtype;
use kernels::abi::{Switch, Switches};
use tests::Case;

const MAIN: &str = "fp8_f16_d128";
const CAUSAL: &str = "fp8_f16_d64_causal";
/// With a product that is late.
const LATE: &str = "fp8_f16_d256";
/// With sums in two levels.
const LEVELS: &str = "fp8_two_levels_f16_d128";
/// With o in f32.
const F32_OUTPUT: &str = "fp8_two_levels_f16_d64";
/// With options.
const OPTIONS: &str = "fp8_optional_f16_d64";
const SCALE: &str = "scale_rows";
const TRANSPOSE: &str = "transpose_values";
const ROWS: &str = "round_rows_f16";
const MOMENTS: &str = "moments_f16";
const VALUES: &str = "round_values_f16";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "keys of P in another order than those of V",
        kernel: MAIN,
        pattern: "cvt.rn.satfinite.e4m3x2.f16x2",
        which: All,
        change: |line| line.replace("{lo, hi}; }", "{hi, lo}; }"),
    },
    Mutant {
        what: "a slice of Q left out",
        kernel: MAIN,
        pattern: "mov.b64 a, {",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "a slice of P left out",
        kernel: MAIN,
        pattern: "k32.f16.e4m3.e4m3",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "Q of the first slice for another",
        kernel: LEVELS,
        pattern: "ldmatrix",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "the scale of keys left out",
        kernel: MAIN,
        pattern: "ld.shared.f32",
        which: All,
        change: |line| zero(line).replace(" 0;", " 0x3f800000;"),
    },
    Mutant {
        what: "scores read before they are there",
        kernel: MAIN,
        pattern: "wgmma.wait_group",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "no wgmma.fence before P V",
        kernel: MAIN,
        pattern: "wgmma.fence",
        which: Nth(5),
        change: remove,
    },
    Mutant {
        what: "a stage released while lanes read the scale",
        kernel: MAIN,
        pattern: "bar.warp.sync",
        which: All,
        change: remove,
    },
    Mutant {
        what: "columns of a tile read before they are there",
        kernel: MAIN,
        pattern: "mbarrier.try_wait",
        which: Nth(13),
        change: at_once,
    },
    Mutant {
        what: "old maxima for all scores",
        kernel: MAIN,
        pattern: "vote.sync.any",
        which: Nth(4),
        change: |line| line.replace("1, 0, any", "0, 0, any"),
    },
    Mutant {
        what: "pairs of f16 for scores far from 0",
        kernel: MAIN,
        pattern: "vote.sync.any",
        which: Nth(0),
        change: |line| line.replace("1, 0, any", "0, 0, any"),
    },
    Mutant {
        what: "sums without a bound",
        kernel: MAIN,
        pattern: "0f45B54000",
        which: All,
        change: |line| line.replace("0f45B54000", "0f7F800000"),
    },
    Mutant {
        what: "a polynomial of hidden scores",
        kernel: CAUSAL,
        pattern: "fma.rn.relu.f16x2",
        which: All,
        change: |line| line.replace(".relu", ""),
    },
    Mutant {
        what: "a late product released before it is done",
        kernel: LATE,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(5),
        change: |line| line.replace("aligned 0", "aligned 1"),
    },
    Mutant {
        what: "old maxima for all scores, beside a late product",
        kernel: LATE,
        pattern: "vote.sync.any",
        which: All,
        change: |line| line.replace("1, 0, any", "0, 0, any"),
    },
    Mutant {
        what: "numbers that are not finite left out",
        kernel: CAUSAL,
        pattern: "vote.sync.any",
        which: Last,
        change: |line| line.replace("1, 0, any", "0, 0, any"),
    },
    Mutant {
        what: "rounded rows of Q read before they are there",
        kernel: MAIN,
        pattern: "bar.sync",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "rounded rows of Q that products do not see",
        kernel: MAIN,
        pattern: "fence.proxy.async",
        which: All,
        change: remove,
    },
    Mutant {
        what: "a stage of Q released while lanes read it",
        kernel: CAUSAL,
        pattern: "bar.warp.sync",
        which: Nth(5),
        change: remove,
    },
    Mutant {
        what: "the scale of a lane for a row of Q",
        kernel: CAUSAL,
        pattern: "shfl.sync.bfly",
        which: Nth(0),
        change: zero,
    },
    Mutant {
        what: "the scale of the first row for all",
        kernel: SCALE,
        pattern: "shfl.sync.bfly",
        which: All,
        change: zero,
    },
    Mutant {
        what: "the largest number of a lane for a block of keys",
        kernel: ROWS,
        pattern: "shfl.sync.bfly",
        which: All,
        change: zero,
    },
    Mutant {
        what: "maxima of warps read before they are there",
        kernel: ROWS,
        pattern: "bar.sync",
        which: All,
        change: remove,
    },
    Mutant {
        what: "sums of columns read before they are there",
        kernel: MOMENTS,
        pattern: "bar.sync",
        which: All,
        change: remove,
    },
    Mutant {
        what: "columns read before they are there",
        kernel: VALUES,
        pattern: "bar.red.or.pred",
        which: Nth(0),
        change: without_wait,
    },
    Mutant {
        what: "a tile stored before it is there",
        kernel: VALUES,
        pattern: "bar.red.or.pred",
        which: Nth(1),
        change: without_wait,
    },
    Mutant {
        what: "moments read before the launch that finds them has ended",
        kernel: VALUES,
        pattern: "griddepcontrol.wait",
        which: All,
        change: without_end,
    },
    Mutant {
        what: "moments written before the launch before has ended",
        kernel: MOMENTS,
        pattern: "griddepcontrol.wait",
        which: All,
        change: without_end,
    },
    Mutant {
        what: "rounded keys read before the launch that rounds them has ended",
        kernel: MAIN,
        pattern: "griddepcontrol.wait",
        which: All,
        change: without_end,
    },
    Mutant {
        what: "keys of V in another order",
        kernel: VALUES,
        pattern: "cvt.rn.satfinite.e4m3x2.f32",
        which: All,
        change: |line| line.replace("{lo, hi}; }", "{hi, lo}; }"),
    },
    Mutant {
        what: "a part of O that stays beside its outer sum",
        kernel: LEVELS,
        pattern: "sub.rn.f16x2",
        which: Last,
        change: keep_left,
    },
    Mutant {
        what: "outer sums that do not follow a reference",
        kernel: LEVELS,
        pattern: "mul.rn.f16x2",
        which: All,
        change: |line| line.replace("mul.rn.f16x2", "max.f16x2"),
    },
    Mutant {
        what: "o in f32 cut to bf16",
        kernel: F32_OUTPUT,
        pattern: "st.global.v4.b32",
        which: All,
        change: cut_to_bf16,
    },
    Mutant {
        what: "four columns of o in f32 left out",
        kernel: F32_OUTPUT,
        pattern: "st.global.v4.b32",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a column of o in f32 left out, in rows that are not aligned",
        kernel: F32_OUTPUT,
        pattern: "st.global.b32",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "descales left out",
        kernel: SCALE,
        pattern: "ld.global.b32",
        which: All,
        change: |line| zero(line).replace(" 0;", " 0x3f800000;"),
    },
    Mutant {
        what: "a step of a rotation left out",
        kernel: SCALE,
        pattern: ", 8, 0x1f",
        which: All,
        change: zero,
    },
    Mutant {
        what: "values of NaN not noted",
        kernel: TRANSPOSE,
        pattern: "vote.sync.ballot",
        which: All,
        change: |line| line.replace("setp.ne", "setp.lt"),
    },
    Mutant {
        what: "a transposed tile stored before it is there",
        kernel: TRANSPOSE,
        pattern: "bar.red.or.pred",
        which: Nth(1),
        change: without_wait,
    },
    Mutant {
        what: "scores without a bound",
        kernel: OPTIONS,
        pattern: "tanh.approx",
        which: All,
        change: |line| line.replace("tanh.approx", "mov"),
    },
    Mutant {
        what: "the sink left out",
        kernel: OPTIONS,
        pattern: "ld.global.b32",
        which: Last,
        change: |line| zero(line).replace(" 0;", " 0xff800000;"),
    },
    Mutant {
        what: "values that are not finite left out, with a window",
        kernel: OPTIONS,
        pattern: "vote.sync.any",
        which: Last,
        change: |line| line.replace("1, 0, any", "0, 0, any"),
    },
    Mutant {
        what: "keys of no sequence counted for scales",
        kernel: ROWS,
        pattern: "ld.global.v2.b32",
        which: All,
        change: seen_by_one,
    },
    Mutant {
        what: "keys of no sequence counted for moments",
        kernel: MOMENTS,
        pattern: "ld.global.v2.b32",
        which: All,
        change: seen_by_one,
    },
];

/// A range of queries that is read becomes 0..1.
fn seen_by_one(line: &str) -> String {
    let (_, to) = line.split_once('{').expect("two registers");
    let (to, _) = to.split_once('}').expect("two registers");
    let (start, end) = to.split_once(',').expect("two registers");
    format!("mov.b32 {start}, 0; mov.b32 {end}, 1;")
}

/// Pairs that are stored lose the lower halves of their words.
fn cut_to_bf16(line: &str) -> String {
    let (_, pair) = line.split_once('{').expect("two registers");
    let (pair, _) = pair.split_once('}').expect("two registers");
    let cut = pair
        .split(',')
        .map(|word| format!("and.b32 {word}, {word}, 0xffff0000; "));
    cut.collect::<String>() + line
}

/// A difference becomes what is subtracted from.
fn keep_left(line: &str) -> String {
    let (difference, _) = line.rsplit_once(',').expect("two operands");
    difference.replace("sub.rn.f16x2", "mov.b32") + ";"
}

/// A wait that ends at once.
fn at_once(line: &str) -> String {
    let (label, _) = line.split_once(':').expect("a label");
    format!("{label}: setp.eq.u32 done, 0, 0;")
}

/// A vote of the block's threads becomes each thread's own.
fn without_wait(line: &str) -> String {
    line.replace("bar.red.or.pred any, 0, own", "mov.pred any, own")
}

/// A wait for the launches before, which no thread reaches.
fn without_end(line: &str) -> String {
    line.replace(
        "griddepcontrol.wait;",
        "{ .reg .pred no; setp.ne.u32 no, 0, 0; @no griddepcontrol.wait; }",
    )
}

/// The runs that show faults of a kernel; none for other kernels.
pub fn runs(kernel: &str) -> Option<(Vec<Run>, Switches)> {
    let case = |dim, causal| {
        in_fp8(Case {
            dtype: Dtype::F16,
            batch: 1,
            heads: 2,
            kv_heads: 1,
            seqlen_q: 200,
            seqlen_kv: 400,
            dim,
            causal,
            ..Case::default()
        })
    };
    let of_case = |case: Case| -> Run { Box::new(move |device| case.check(device).map(drop)) };
    let runs: Vec<Run> = match kernel {
        MAIN => vec![
            of_case(case(128, false)),
            Box::new(move |device| steep(device, &case(128, false))),
            Box::new(move |device| far(device, &case(128, false))),
            Box::new(|device| flat(device, 128).map(drop)),
        ],
        LATE => vec![
            of_case(case(256, false)),
            Box::new(move |device| steep(device, &case(256, false))),
        ],
        CAUSAL => vec![
            of_case(case(64, true)),
            Box::new(move |device| hidden(device, &case(64, true))),
        ],
        ROWS | MOMENTS | VALUES => vec![
            of_case(case(128, false)),
            Box::new(|device| options::unseen_rows(device).map(drop)),
        ],
        OPTIONS => {
            let in_window = move |left, right| {
                let mut case = case(64, false);
                let modifiers = &mut case.modifiers;
                (modifiers.softcap, modifiers.sinks) = (Some(1.0), true);
                (modifiers.window.left, modifiers.window.right) = (Some(left), Some(right));
                case
            };
            let runs: Vec<Run> = vec![
                // A sink is a large part of few keys.
                of_case(in_window(3, 0)),
                Box::new(move |device| options::spoilt(device, &in_window(140, 20))),
            ];
            return Some((runs, Switches::NONE.with(Switch::Softcap, true)));
        }
        LEVELS => {
            let case = Case {
                seqlen_kv: 1200,
                ..case(128, false)
            };
            vec![
                Box::new(move |device| e4m3::check(device, &case, false)),
                Box::new(|device| e4m3::flat(device).map(drop)),
            ]
        }
        F32_OUTPUT => {
            let case = Case {
                dtype: Dtype::F32,
                ..case(64, false)
            };
            let of_rows = |rows| -> Run {
                let case = case.clone();
                Box::new(move |device| e4m3::check_rows(device, &case, rows))
            };
            let runs: Vec<Run> = vec![
                of_rows(Rows::Contiguous),
                of_rows(Rows::Odd),
                Box::new(|device| output::of_one_key(device).map(drop)),
            ];
            return Some((runs, Switches::NONE.with(Switch::F32Output, true)));
        }
        SCALE => vec![Box::new(move |device| {
            e4m3::check(device, &case(128, false), true)
        })],
        TRANSPOSE => vec![Box::new(|device| e4m3::hidden(device).map(drop))],
        _ => return None,
    };
    Some((runs, Switches::NONE))
}
