//! Products by `wgmma`: when they run, where their operands lie, and what rows see of them.

use super::{CAUSAL, FULL, WIDE, WIDE_CAUSAL};
use crate::mutants::change::{diverge, remove, swap};
use crate::mutants::{
    Mutant,
    Which::{All, Last, Nth},
};

pub const MUTANTS: &[Mutant] = &[
    // Products.
    Mutant {
        what: "no wgmma.fence before scores",
        kernel: FULL,
        pattern: "wgmma.fence",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "no wgmma.fence before a product",
        kernel: CAUSAL,
        pattern: "wgmma.fence",
        // Of the loop over masked blocks, which these cases run more than once.
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "scores read one group early",
        kernel: FULL,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Last,
        change: |l| l.replace('1', "2"),
    },
    Mutant {
        what: "scores read with no wait",
        kernel: CAUSAL,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "P replaced and V released before the product is done",
        kernel: FULL,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(2),
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "O rescaled before the product is done",
        kernel: WIDE_CAUSAL,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Nth(1),
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "O stored before the last product is done",
        kernel: WIDE,
        pattern: "wgmma.wait_group.sync.aligned 0",
        which: Last,
        change: |l| l.replace('0', "1"),
    },
    Mutant {
        what: "products of scores not committed",
        kernel: FULL,
        pattern: "wgmma.commit_group",
        which: Nth(3),
        change: remove,
    },
    Mutant {
        what: "an accumulator read before the wait",
        kernel: FULL,
        pattern: "a, b, add, 1",
        which: Last,
        change: |l| {
            let (_, accumulators) = l.split_once(".f16 {").expect("accumulators");
            let (first, _) = accumulators.split_once(',').expect("several");
            format!("{l} {{ .reg .b32 read; mov.b32 read, {first}; }}")
        },
    },
    Mutant {
        what: "scores added to those before",
        kernel: FULL,
        pattern: "setp.ne.b32 add, 0, 0",
        which: Last,
        change: |l| l.replace("add, 0, 0", "add, 1, 0"),
    },
    Mutant {
        what: "scores of the last 16 columns alone",
        kernel: FULL,
        pattern: "setp.ne.b32 add, 1, 0",
        which: Last,
        change: |l| l.replace("add, 1, 0", "add, 0, 0"),
    },
    Mutant {
        what: "V as rows",
        kernel: FULL,
        pattern: "b, 1, 1, 1, 1; }",
        which: Last,
        change: |l| l.replace("b, 1, 1, 1, 1; }", "b, 1, 1, 1, 0; }"),
    },
    Mutant {
        what: "two registers of P swapped",
        kernel: FULL,
        pattern: "b, 1, 1, 1, 1; }",
        which: Last,
        change: |l| {
            let (start, operands) = l.rsplit_once('{').expect("operands of A");
            format!("{start}{}", swap(&format!("{{{operands}"), 0, 1))
        },
    },
    Mutant {
        what: "f16 multiplied as bf16",
        kernel: FULL,
        pattern: "wgmma.mma_async",
        which: Last,
        change: |l| l.replace(".f16.f16", ".bf16.bf16"),
    },
    Mutant {
        what: "a product under a lane-dependent branch",
        kernel: FULL,
        pattern: "wgmma.mma_async",
        which: Last,
        change: diverge,
    },
    // Descriptors.
    Mutant {
        what: "a descriptor without swizzle",
        kernel: FULL,
        pattern: ", 1073741888;",
        which: Nth(0),
        change: |l| l.replace("1073741888", "64"),
    },
    Mutant {
        what: "a descriptor with the swizzle of 64 bytes",
        kernel: FULL,
        pattern: ", 1073741888;",
        which: Nth(0),
        change: |l| l.replace("1073741888", "-2147483584"),
    },
    Mutant {
        what: "a descriptor with half the stride of 8 rows",
        kernel: FULL,
        pattern: ", 1073741888;",
        which: Last,
        change: |l| l.replace("1073741888", "1073741856"),
    },
    Mutant {
        what: "a descriptor of the wrong columns",
        kernel: WIDE,
        pattern: ", 65538;",
        which: Last,
        change: |l| l.replace("65538", "65540"),
    },
    Mutant {
        what: "a descriptor of the wrong distance of panels",
        kernel: WIDE,
        pattern: ", 33554432;",
        which: Nth(1),
        change: |l| l.replace("33554432", "16777216"),
    },
    Mutant {
        what: "a descriptor of the wrong rows of V",
        kernel: FULL,
        pattern: ", 128;",
        which: Nth(5),
        change: |l| l.replace("128", "64"),
    },
    Mutant {
        what: "a descriptor of zeros with the strides of V",
        kernel: WIDE_CAUSAL,
        pattern: ", 1073741824, 1073741888,",
        which: All,
        change: |l| l.replace("1073741824", "1073741888"),
    },
    // The other proxy.
    Mutant {
        what: "no proxy fence after Q is negated",
        kernel: FULL,
        pattern: "fence.proxy.async",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "no proxy fence after zeros are written",
        kernel: CAUSAL,
        pattern: "fence.proxy.async",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "no barrier of the warpgroup after Q is negated",
        kernel: WIDE,
        pattern: "bar.sync r",
        which: All,
        change: remove,
    },
    // Masks.
    Mutant {
        what: "the end of the keys off by one",
        kernel: FULL,
        pattern: "setp.gt.s32",
        which: Nth(6),
        change: |l| l.replace(".gt.", ".ge."),
    },
    Mutant {
        what: "the causal limit off by one",
        kernel: CAUSAL,
        pattern: "setp.gt.s32",
        which: Nth(0),
        change: |l| l.replace(".gt.", ".ge."),
    },
    Mutant {
        what: "the infinities of V multiplied by hidden probabilities",
        kernel: CAUSAL,
        pattern: "bar.red.or.pred",
        which: All,
        change: |l| l.replace("bar.red.or.pred", "bar.red.and.pred"),
    },
    Mutant {
        what: "a block tried again only if all lanes want it",
        kernel: FULL,
        pattern: "vote.sync.any.pred",
        which: All,
        change: |l| l.replace("any.pred", "all.pred"),
    },
];
