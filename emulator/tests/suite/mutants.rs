//! Mutants of the real kernels: each has one fault, as a slip in a kernel or a compiler's wrong
//! turn would make it, and each must be reported, by a rule or by a wrong result.
//!
//! `cargo test -p emulator mutant -- --nocapture` prints what caught each.

use crate::attention::{Failure, Modules, Problem, check, combine, named, pack, ptx};
use ::kernels::table::{Family, Kernel};
use emulator::{Error, Module, Options};

/// Which of the lines that fit a mutation it changes.
#[derive(Clone, Copy)]
enum Which {
    Nth(usize),
    Last,
    All,
}
use Which::{All, Last, Nth};

struct Mutant {
    what: &'static str,
    kernel: &'static str,
    /// What the changed lines contain.
    pattern: &'static str,
    which: Which,
    change: fn(&str) -> String,
}

const FULL: &str = "forward_f16_d64";
const CAUSAL: &str = "forward_bf16_d64_causal";
/// Reads Q from shared memory in every step.
const WIDE: &str = "forward_f16_d128";
/// Packs heads, and has four buffers.
const DECODE: &str = "decode_f16_d64";
/// Packs heads, in two tiles a warp.
const PACKED: &str = "packed_f16_d64";
/// Its warps share rows.
const SHARED: &str = "forward_f16_d256_causal";
const COMBINE: &str = "combine_f16";
const PACK: &str = "pack";

fn remove(_: &str) -> String {
    String::new()
}

/// Lets only half of a warp execute a line.
fn diverge(line: &str) -> String {
    format!(
        "{{ .reg .pred %half; .reg .b32 %id;
        mov.u32 %id, %laneid;
        setp.lt.u32 %half, %id, 16;
        @%half bra $mutant;
        {line}
        $mutant: }}"
    )
}

/// Swaps the operands at two places, counted from 0.
fn swap(line: &str, a: usize, b: usize) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '%';
    let opcode_end = line.find(['{', '%']).expect("operands");
    let (opcode, operands) = line.split_at(opcode_end);
    let names: Vec<&str> = operands
        .split(|c| !is_name(c))
        .filter(|s| !s.is_empty())
        .collect();
    let mut at = 0;
    let mut swapped = opcode.to_owned();
    let mut rest = operands;
    while let Some(start) = rest.find(is_name) {
        let end = rest[start..]
            .find(|c| !is_name(c))
            .map_or(rest.len(), |n| start + n);
        let name = match at {
            _ if at == a => names[b],
            _ if at == b => names[a],
            _ => names[at],
        };
        swapped += &rest[..start];
        swapped += name;
        rest = &rest[end..];
        at += 1;
    }
    swapped + rest
}

/// `opcode d, ...` becomes `mov d, 0`.
fn zero(line: &str) -> String {
    let (_, operands) = line
        .trim()
        .split_once(char::is_whitespace)
        .expect("operands");
    let (to, _) = operands.split_once(',').expect("operands");
    format!("mov.b32 {to}, 0;")
}

/// `selp d, a, b, p` or `shr d, a, n` becomes `mov d, a`.
fn always_first(line: &str) -> String {
    let (opcode, operands) = line
        .trim()
        .split_once(char::is_whitespace)
        .expect("operands");
    let kind = opcode.rsplit('.').next().expect("a type");
    let operands: Vec<&str> = operands.split(',').collect();
    format!("mov.{kind} {}, {};", operands[0], operands[1])
}

/// `mul d, a, b` becomes `mov d, b`.
fn always_last(line: &str) -> String {
    let (opcode, operands) = line
        .trim()
        .trim_end_matches(';')
        .split_once(char::is_whitespace)
        .expect("operands");
    let kind = opcode.rsplit('.').next().expect("a type");
    let operands: Vec<&str> = operands.split(',').collect();
    format!("mov.{kind} {}, {};", operands[0], operands[2])
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "the barrier after loading Q removed",
        kernel: FULL,
        pattern: "bar.sync 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "the main loop's barrier removed",
        kernel: FULL,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "the masked loop's barrier removed",
        kernel: CAUSAL,
        pattern: "bar.sync 0",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "every barrier removed",
        kernel: FULL,
        pattern: "bar.sync 0",
        which: All,
        change: remove,
    },
    Mutant {
        what: "the wait for Q one group short",
        kernel: FULL,
        pattern: "cp.async.wait_group 0",
        which: Nth(0),
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "the main loop's wait one group short",
        kernel: FULL,
        pattern: "cp.async.wait_group 0",
        which: Last,
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "the wait for Q removed",
        kernel: CAUSAL,
        pattern: "cp.async.wait_group 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "the first commit dropped",
        kernel: FULL,
        pattern: "cp.async.commit_group",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "the main loop's commit dropped",
        kernel: FULL,
        pattern: "cp.async.commit_group",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "one copy left out",
        kernel: FULL,
        pattern: "cp.async.cg",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "one copy made twice",
        kernel: FULL,
        pattern: "cp.async.cg",
        which: Nth(3),
        change: |l| format!("{l}\n{l}"),
    },
    Mutant {
        what: "a copy's swizzle changed",
        kernel: FULL,
        pattern: ", 112;",
        which: Nth(0),
        change: |l| l.replace("112", "96"),
    },
    Mutant {
        what: "the swizzle of O changed",
        kernel: FULL,
        pattern: ", 112;",
        which: Last,
        change: |l| l.replace("112", "96"),
    },
    Mutant {
        what: "an ldmatrix of the wrong columns",
        kernel: FULL,
        pattern: "ldmatrix.sync.aligned.m8n8.x4.shared",
        which: Last,
        change: |l| l.replace("];", "+16];"),
    },
    Mutant {
        what: "an ldmatrix a block of memory too far",
        kernel: FULL,
        pattern: "ldmatrix.sync.aligned.m8n8.x4.trans",
        which: Last,
        change: |l| l.replace("];", "+65536];"),
    },
    Mutant {
        what: "an ldmatrix address off by an element",
        kernel: WIDE,
        pattern: "ldmatrix.sync.aligned.m8n8.x4.shared",
        which: Last,
        change: |l| l.replace("];", "+2];"),
    },
    Mutant {
        what: "V not transposed",
        kernel: FULL,
        pattern: "ldmatrix.sync.aligned.m8n8.x4.trans",
        which: Nth(0),
        change: |l| l.replace(".trans", ""),
    },
    Mutant {
        what: "two registers of A swapped",
        kernel: FULL,
        pattern: "mma.sync",
        which: Nth(0),
        change: |l| swap(l, 4, 5),
    },
    Mutant {
        what: "two registers of B swapped",
        kernel: FULL,
        pattern: "mma.sync",
        which: Last,
        change: |l| swap(l, 8, 9),
    },
    Mutant {
        what: "two accumulators swapped",
        kernel: FULL,
        pattern: "mma.sync",
        which: Nth(0),
        change: |l| swap(l, 0, 2),
    },
    Mutant {
        what: "an mma left out",
        kernel: CAUSAL,
        pattern: "mma.sync",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "f16 multiplied as bf16",
        kernel: FULL,
        pattern: "mma.sync",
        which: Nth(1),
        change: |l| l.replace(".f16.f16.", ".bf16.bf16."),
    },
    Mutant {
        what: "a shuffle's mask narrowed",
        kernel: FULL,
        pattern: "shfl.sync.bfly",
        which: Nth(0),
        change: |l| l.replace("0xffffffff", "0x0000ffff"),
    },
    Mutant {
        what: "a shuffle of the wrong distance",
        kernel: FULL,
        pattern: "shfl.sync.bfly",
        which: Nth(1),
        change: |l| {
            l.replace(", 2, 0x1f", ", 4, 0x1f")
                .replace(", 1, 0x1f", ", 4, 0x1f")
        },
    },
    Mutant {
        what: "a barrier under a lane-dependent branch",
        kernel: FULL,
        pattern: "bar.sync 0",
        which: Last,
        change: diverge,
    },
    Mutant {
        what: "a shuffle under a lane-dependent branch",
        kernel: FULL,
        pattern: "shfl.sync.bfly",
        which: Last,
        change: diverge,
    },
    Mutant {
        what: "an mma under a lane-dependent branch",
        kernel: FULL,
        pattern: "mma.sync",
        which: Nth(0),
        change: diverge,
    },
    Mutant {
        what: "an ldmatrix under a lane-dependent branch",
        kernel: FULL,
        pattern: "ldmatrix",
        which: Last,
        change: diverge,
    },
    Mutant {
        what: "O written with no warp barrier before it is read",
        kernel: FULL,
        pattern: "bar.warp.sync",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "Q overwritten by O with no warp barrier",
        kernel: WIDE,
        pattern: "bar.warp.sync",
        which: All,
        change: remove,
    },
    Mutant {
        what: "the ragged tail of Q read",
        kernel: FULL,
        pattern: "selp.b32 ",
        which: Nth(6),
        change: always_first,
    },
    Mutant {
        what: "rows of O past the end stored",
        kernel: FULL,
        pattern: "st.global.v4.b32",
        which: Last,
        change: |l| l.replace("],", "+16384],"),
    },
    Mutant {
        what: "O stored 16 bytes too far",
        kernel: FULL,
        pattern: "st.global.v4.b32",
        which: Nth(0),
        change: |l| l.replace("],", "+16],"),
    },
    Mutant {
        what: "O stored misaligned",
        kernel: FULL,
        pattern: "st.global.v4.b32",
        which: Nth(0),
        change: |l| l.replace("],", "+2],"),
    },
    Mutant {
        what: "O stored to the buffer of Q",
        kernel: FULL,
        pattern: "_param_0+96]",
        which: All,
        change: |l| l.replace("_param_0+96]", "_param_0]"),
    },
    Mutant {
        what: "lse stored a row too far",
        kernel: FULL,
        pattern: "st.global.b32",
        which: Nth(0),
        change: |l| l.replace("],", "+4],"),
    },
    Mutant {
        what: "ex2 replaced by lg2",
        kernel: CAUSAL,
        pattern: "ex2.approx.ftz",
        which: Nth(0),
        change: |l| l.replace("ex2", "lg2"),
    },
    Mutant {
        what: "log2(e) left out of the scale",
        kernel: FULL,
        pattern: "0f3FB8AA3B",
        which: All,
        change: |l| l.replace("0f3FB8AA3B", "0f3F800000"),
    },
    Mutant {
        what: "a row's maximum forgotten",
        kernel: FULL,
        pattern: "max.f32",
        which: Nth(0),
        change: |l| l.replace("max", "min"),
    },
    Mutant {
        what: "a block too large for its maxima not noticed",
        kernel: FULL,
        pattern: "vote.sync.any.pred",
        which: All,
        change: |l| l.replace("vote.sync.any.pred any, own, 0xffffffff", "mov.pred any, 0"),
    },
    Mutant {
        what: "a block tried again only if all lanes want it",
        kernel: FULL,
        pattern: "vote.sync.any.pred",
        which: All,
        change: |l| l.replace("any.pred", "all.pred"),
    },
    Mutant {
        what: "a block tried again by the lanes that want it",
        kernel: FULL,
        pattern: "vote.sync.any.pred",
        which: All,
        change: |l| {
            l.replace(
                "vote.sync.any.pred any, own, 0xffffffff",
                "mov.pred any, own",
            )
        },
    },
    Mutant {
        what: "the vote of a decode step for all lanes",
        kernel: DECODE,
        pattern: "vote.sync.any.pred",
        which: All,
        change: |l| l.replace("any.pred", "all.pred"),
    },
    Mutant {
        what: "a row's sum bounded by infinity",
        kernel: FULL,
        pattern: ", 0f46800000;",
        which: Nth(0),
        change: |l| l.replace("0f46800000", "0f7F800000"),
    },
    Mutant {
        what: "an element of O not rescaled to a maximum that rose",
        kernel: FULL,
        pattern: "mul.rn.f32",
        which: Nth(80),
        change: always_last,
    },
    Mutant {
        what: "P packed with its halves swapped",
        kernel: FULL,
        pattern: "cvt.rn.f16x2",
        which: Nth(0),
        change: |l| swap(l, 1, 2),
    },
    Mutant {
        what: "an accumulator never set to zero",
        kernel: FULL,
        pattern: ", 0f00000000;",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "the causal limit off by one",
        kernel: CAUSAL,
        pattern: "setp.gt.s32",
        which: Last,
        change: |l| l.replace("gt", "ge"),
    },
    Mutant {
        what: "a parameter read from its neighbour",
        kernel: FULL,
        pattern: "_param_0+56]",
        which: All,
        change: |l| l.replace("+56]", "+48]"),
    },
    Mutant {
        what: "a register used before it is written",
        kernel: FULL,
        pattern: "%ctaid.x",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a loop that does not end",
        kernel: FULL,
        pattern: ", -1;",
        which: Last,
        change: |l| l.replace("-1", "0"),
    },
    Mutant {
        what: "a wait that leaves one group too many",
        kernel: DECODE,
        pattern: "cp.async.wait_group 2",
        which: Last,
        change: |l| l.replace('2', "3"),
    },
    Mutant {
        what: "the barrier of a decode step removed",
        kernel: DECODE,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "P read before the team has written it",
        kernel: SHARED,
        pattern: "bar.red",
        which: Last,
        change: |l| {
            l.replace("bar.red.or.pred any, 0, own;", "")
                .replace("setp.ne.u32 own", "setp.ne.u32 any")
        },
    },
    Mutant {
        what: "maxima that rise only if all threads say so",
        kernel: SHARED,
        pattern: "bar.red",
        which: Last,
        change: |l| l.replace("bar.red.or", "bar.red.and"),
    },
    Mutant {
        what: "V overwritten before the product is done",
        kernel: SHARED,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "maxima of the team read before they are there",
        kernel: SHARED,
        pattern: "bar.sync %",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "a row's sum without the other warp's",
        kernel: SHARED,
        pattern: "ld.shared.f32",
        which: Last,
        change: zero,
    },
    Mutant {
        what: "a quotient of rows and heads taken before its shift",
        kernel: DECODE,
        pattern: "shr.u64",
        which: Last,
        change: always_first,
    },
    Mutant {
        what: "a row's query taken before its shift, for its mask",
        kernel: PACKED,
        pattern: "shr.u64",
        which: Nth(22),
        change: always_first,
    },
    Mutant {
        what: "a row's query taken before its shift, for its address",
        kernel: PACKED,
        pattern: "shr.u64",
        which: Last,
        change: always_first,
    },
    Mutant {
        what: "the barrier of the last packed block removed",
        kernel: PACKED,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "half of a partial sector not stored",
        kernel: FULL,
        pattern: "st.global.v2.b32",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "one split's weight dropped",
        kernel: COMBINE,
        pattern: "shfl.sync.idx",
        which: Nth(1),
        change: zero,
    },
    Mutant {
        what: "the weights taken relative to no maximum",
        kernel: COMBINE,
        pattern: "ex2.approx",
        which: All,
        change: |l| l.replace("ex2.approx.ftz.f32", "mov.b32"),
    },
    Mutant {
        what: "the maximum over half of the splits",
        kernel: COMBINE,
        pattern: "shfl.sync.bfly",
        which: Nth(0),
        change: |l| l.replace("0x1f", "0x00"),
    },
    Mutant {
        what: "the sum over a part of the splits",
        kernel: COMBINE,
        pattern: "shfl.sync.bfly",
        which: Nth(5),
        change: |l| l.replace("bfly", "idx"),
    },
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
];

/// Ragged, with grouped heads, aligned and not, split and not, and with scores that raise the maxima
/// of some rows in the main loop.
fn problems(kernel: &Kernel) -> [Problem; 4] {
    let p = Problem {
        heads: 2,
        seqlen_q: 150,
        seqlen_kv: 210,
        causal: true,
        ..Problem::square(0, kernel.head_dim)
    };
    [
        p,
        Problem {
            gap: 8,
            kv_heads: 2,
            ..p
        },
        Problem {
            gap: 3,
            splits: 2,
            ..p
        },
        Problem { rise: 0.25, ..p },
    ]
}

impl Mutant {
    /// The module's text with the fault in it.
    fn apply(&self, text: &str) -> String {
        let fitting: Vec<usize> = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(self.pattern) && !line.contains("//"))
            .map(|(index, _)| index)
            .collect();
        let changed = match self.which {
            Nth(n) => fitting.get(n).map_or(&[][..], std::slice::from_ref),
            Last => fitting.last().map_or(&[][..], std::slice::from_ref),
            All => &fitting[..],
        };
        assert!(
            !changed.is_empty(),
            "{}: no line with {:?}",
            self.what,
            self.pattern
        );
        let lines = text.lines().enumerate().map(|(index, line)| {
            if changed.contains(&index) {
                (self.change)(line)
            } else {
                line.to_owned()
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// What catches it.
    fn caught(&self) -> Option<String> {
        let mutated = named(self.kernel);
        // A combine kernel shows its faults after one that splits, the pack kernel before any.
        let kernel = match mutated.family {
            Family::Combine | Family::Pack => named(FULL),
            _ => mutated,
        };
        let text = self.apply(&ptx(mutated));
        let module = Module::parse(&text, self.what).unwrap_or_else(|e| panic!("{e}"));
        let mut modules = Modules::of(kernel);
        if mutated == combine(kernel) {
            modules.combine = module;
        } else if mutated == pack() {
            modules.pack = module;
        } else {
            modules.kernel = module;
        }
        for seed in 0..3 {
            for p in problems(kernel) {
                let options = Options {
                    seed,
                    instruction_budget: 1 << 20,
                    ..Options::default()
                };
                match check(kernel, &modules, &p, &options) {
                    Ok(_) => {}
                    Err(Failure::Error(Error::Fault(fault))) => {
                        return Some(format!("{} (line {})", fault.rule, fault.line));
                    }
                    Err(Failure::Error(other)) => panic!("{}: {other}", self.what),
                    Err(Failure::Wrong(wrong)) => return Some(format!("wrong result: {wrong}")),
                }
            }
        }
        None
    }
}

#[test]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    for mutant in MUTANTS {
        match mutant.caught() {
            Some(by) => println!("{:50} {:24} {by}", mutant.what, mutant.kernel),
            None => missed.push(mutant.what),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}
