//! The kernels of the backward pass.

use super::change::{always_first, diverge, remove, swap, zero};
use super::{
    Mutant, Run,
    Which::{All, Last, Nth},
};
use ferroattn::Device;
use ndarray::s;
use std::sync::Mutex;
use tests::{BackwardCase, BackwardInputs, Case, Layout};

const MAIN: &str = "backward_f16_d64";
const PREPARE: &str = "backward_f16_prepare";
const CONVERT: &str = "backward_f16_convert";

/// Ragged cases: with grouped heads and a gradient of lse, aligned and not; with a NaN and an infinity that the causal
/// mask hides from some rows; and one whose bits are the same in every schedule.
pub fn runs() -> Vec<Run> {
    let case = BackwardCase {
        d_lse: true,
        ..BackwardCase::from(Case {
            heads: 2,
            kv_heads: 1,
            seqlen_q: 150,
            seqlen_kv: 210,
            causal: true,
            ..Case::default()
        })
    };
    let mut odd = case.clone();
    odd.forward.causal = false;
    odd.forward.o = Layout::OddRows;
    odd.dq = Layout::OddRows;
    odd.dk = Layout::OddRows;
    odd.any_order = true;
    // Sums of two numbers have one order.
    let mut many_tiles = case.clone();
    many_tiles.forward.seqlen_kv = 400;
    let one_head = BackwardCase::from(Case {
        heads: 1,
        ..case.forward.clone()
    });
    let mut in_k = one_head.inputs();
    in_k.forward
        .k
        .slice_mut(s![.., .., 209, 3])
        .fill(f32::INFINITY);
    let mut in_q = one_head.inputs();
    in_q.forward.q.slice_mut(s![.., .., 0, 5]).fill(f32::NAN);
    let mut in_d_o = one_head.inputs();
    in_d_o.d_o.slice_mut(s![.., .., 1, 2]).fill(f32::INFINITY);
    let of = |case: &BackwardCase, inputs: BackwardInputs| -> Run {
        let case = case.clone();
        Box::new(move |device| case.run(device, &inputs).map(drop))
    };
    vec![
        of(&case, case.inputs()),
        of(&odd, odd.inputs()),
        of(&one_head, in_k),
        of(&one_head, in_q),
        of(&one_head, in_d_o),
        same_bits(many_tiles),
    ]
}

/// A run that remembers what the first device gave.
pub fn same_bits(case: BackwardCase) -> Run {
    let first = Mutex::new(None);
    Box::new(move |device: &Device| {
        let found = case.run(device, &case.inputs())?;
        let mut first = first.lock().expect("no test panics with it");
        match &*first {
            Some(expected) if *expected != found => Err("other bits in another schedule".into()),
            Some(_) => Ok(()),
            None => {
                *first = Some(found);
                Ok(())
            }
        }
    })
}

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "the job read before it is written",
        kernel: MAIN,
        pattern: "bar.sync 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "the barrier of a step of queries removed",
        kernel: MAIN,
        pattern: "bar.sync 0",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "P passed before dQ has read dS",
        kernel: MAIN,
        pattern: "bar.sync r",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "the barrier before dK and dV are stored removed",
        kernel: MAIN,
        pattern: "bar.sync 0",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "P read before it is passed",
        kernel: MAIN,
        pattern: "bar.sync r",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "dS written before all lanes have read P",
        kernel: MAIN,
        pattern: "bar.warp.sync",
        which: Nth(16),
        change: remove,
    },
    Mutant {
        what: "the wait for a step's tiles removed",
        kernel: MAIN,
        pattern: "cp.async.wait_group",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "a piece of the statistics left out",
        kernel: MAIN,
        pattern: "cp.async.cg",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "lse not subtracted",
        kernel: MAIN,
        pattern: "fma.rn.f32",
        which: Nth(5),
        change: |l| {
            let (rest, _) = l.rsplit_once(',').expect("operands");
            format!("{rest}, 0f00000000;")
        },
    },
    Mutant {
        what: "delta not subtracted",
        kernel: MAIN,
        pattern: "sub.rn.f32",
        which: Nth(7),
        change: always_first,
    },
    Mutant {
        what: "an exponential left out",
        kernel: MAIN,
        pattern: "ex2.approx",
        which: Nth(20),
        change: |l| l.replace("ex2.approx.ftz.f32", "mov.b32"),
    },
    Mutant {
        what: "a hidden pair of P not masked",
        kernel: MAIN,
        pattern: "0f00000000, p",
        which: Nth(3),
        change: always_first,
    },
    Mutant {
        what: "no look for infinities in K",
        kernel: MAIN,
        pattern: "redux.sync",
        which: Nth(0),
        change: zero,
    },
    Mutant {
        what: "no look for infinities in Q and dO",
        kernel: MAIN,
        pattern: "redux.sync",
        which: Nth(1),
        change: zero,
    },
    Mutant {
        what: "an operand of dQ not transposed",
        kernel: MAIN,
        pattern: ".x4.trans",
        which: Nth(8),
        change: |l| l.replace(".trans", ""),
    },
    Mutant {
        what: "two registers of an operand of dQ swapped",
        kernel: MAIN,
        pattern: ".x4.trans",
        which: Nth(8),
        change: |l| swap(l, 1, 2),
    },
    Mutant {
        what: "a product of S and dP left out",
        kernel: MAIN,
        pattern: "mma.sync",
        which: Nth(300),
        change: remove,
    },
    Mutant {
        what: "a number of dQ not added",
        kernel: MAIN,
        pattern: "red.global.add",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "a number of dQ added twice",
        kernel: MAIN,
        pattern: "red.global.add",
        which: Nth(9),
        change: |l| format!("{l}\n{l}"),
    },
    Mutant {
        what: "a number of dQ added in its neighbour's place",
        kernel: MAIN,
        pattern: "red.global.add",
        which: Nth(4),
        change: |l| l.replace("],", "+128],"),
    },
    Mutant {
        what: "dQ added before its turn",
        kernel: MAIN,
        pattern: "ld.acquire.gpu",
        which: All,
        change: |l| l.replace("setp.lt.u32 early, count,", "setp.lt.u32 early, 0, 0; //"),
    },
    Mutant {
        what: "a turn never passed on",
        kernel: MAIN,
        pattern: "atom.release.gpu",
        which: All,
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "the last turn of a block not passed on",
        kernel: MAIN,
        pattern: "atom.release.gpu",
        which: Last,
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "a turn passed on twice",
        kernel: MAIN,
        pattern: "atom.release.gpu",
        which: Nth(0),
        change: |l| l.replace(", 1; }", ", 2; }"),
    },
    Mutant {
        what: "the barrier of a step of queries under a lane-dependent branch",
        kernel: MAIN,
        pattern: "bar.sync 0",
        which: Nth(2),
        change: diverge,
    },
    Mutant {
        what: "delta over half of a row's lanes",
        kernel: PREPARE,
        pattern: "shfl.sync.bfly",
        which: Nth(1),
        change: |l| l.replace(", 2, 0x1f", ", 0, 0x1f"),
    },
    Mutant {
        what: "lse left in base e",
        kernel: PREPARE,
        pattern: "0f3FB8AA3B",
        which: All,
        change: |l| l.replace("0f3FB8AA3B", "0f3F800000"),
    },
    Mutant {
        what: "a number of dQ not scaled",
        kernel: CONVERT,
        pattern: "mul.rn.f32",
        which: Nth(6),
        change: |l| l.replace("mul.rn.f32", "mov.b32").replacen(", r4,", ",", 1),
    },
    Mutant {
        what: "a pair of dQ in another lane's place",
        kernel: CONVERT,
        pattern: "shfl.sync.bfly",
        which: Nth(2),
        change: |l| l.replace(", 1, 0x1f", ", 2, 0x1f"),
    },
];
