//! The forward kernels for Hopper: a producer, consumers, and what passes between them.

use super::change::{diverge, remove, swap, zero};
use super::{
    Mutant,
    Which::{All, Last, Nth},
};

const FULL: &str = "hopper_f16_d64";
/// Scores, softmax and product follow each other, and rows see only a part of some blocks.
const CAUSAL: &str = "hopper_f16_d64_causal";
/// Tiles have two panels of 64 columns.
const WIDE: &str = "hopper_f16_d128";
const WIDE_CAUSAL: &str = "hopper_f16_d128_causal";
/// Two blocks have half of O's columns each; K and V pass in chunks.
const SLICES: &str = "hopper_f16_d512";
const SLICES_CAUSAL: &str = "hopper_f16_d512_causal";

pub const MUTANTS: &[Mutant] = &[
    // What the barriers count.
    Mutant {
        what: "a transaction count too small",
        kernel: FULL,
        pattern: ", 8192;",
        which: Nth(0),
        change: |l| l.replace("8192", "8176"),
    },
    Mutant {
        what: "a transaction count too large",
        kernel: WIDE,
        pattern: ", 16384;",
        which: Nth(1),
        change: |l| l.replace("16384", "16400"),
    },
    Mutant {
        what: "no bytes of Q expected",
        kernel: FULL,
        pattern: "mbarrier.arrive.expect_tx",
        which: Nth(0),
        change: |l| {
            let (arrival, _) = l.rsplit_once(',').expect("a count");
            format!("{};", arrival.replace(".expect_tx", ""))
        },
    },
    Mutant {
        what: "empty initialised for a warp too few",
        kernel: FULL,
        pattern: ", 16;",
        which: Nth(0),
        change: |l| l.replace("16", "15"),
    },
    Mutant {
        what: "empty initialised for a warp too many",
        kernel: WIDE_CAUSAL,
        pattern: ", 12;",
        which: Nth(0),
        change: |l| l.replace("12", "13"),
    },
    Mutant {
        what: "an mbarrier not initialised",
        kernel: FULL,
        pattern: "mbarrier.init",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "no barrier after the initialisation",
        kernel: FULL,
        pattern: "bar.sync 0;",
        which: All,
        change: remove,
    },
    // Waits.
    Mutant {
        what: "the phase of a stage not flipped by the producer",
        kernel: FULL,
        pattern: "bfe.u32",
        which: Nth(0),
        change: |l| zero(l).replace(", 0;", ", 1;"),
    },
    Mutant {
        what: "the phase of a stage not flipped by a consumer",
        kernel: FULL,
        pattern: "bfe.u32",
        which: Nth(7),
        change: zero,
    },
    Mutant {
        what: "the phase of Q not flipped",
        kernel: CAUSAL,
        pattern: ", 1;",
        which: Nth(13),
        change: zero,
    },
    Mutant {
        what: "no wait until Q is free",
        kernel: FULL,
        pattern: "@!done bra again",
        which: Nth(0),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "no wait until a stage is free",
        kernel: FULL,
        pattern: "@!done bra again",
        which: Nth(1),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "the job read before Q is full",
        kernel: CAUSAL,
        pattern: "@!done bra again",
        which: Nth(4),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "K multiplied before it is there",
        kernel: WIDE,
        pattern: "@!done bra again",
        which: Nth(11),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "V searched for infinities before it is there",
        kernel: CAUSAL,
        pattern: "@!done bra again",
        which: Nth(8),
        change: |l| l.replace("@!done bra again;", ""),
    },
    // Releases.
    Mutant {
        what: "a stage passed by and not released",
        kernel: FULL,
        pattern: "@first mbarrier.arrive",
        which: Nth(0),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "K not released",
        kernel: FULL,
        pattern: "@first mbarrier.arrive",
        which: Nth(6),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "V released by every lane",
        kernel: FULL,
        pattern: "@first mbarrier.arrive",
        which: Nth(5),
        change: |l| l.replace("@first ", ""),
    },
    Mutant {
        what: "V released in place of K",
        kernel: FULL,
        pattern: "@first mbarrier.arrive",
        which: Nth(6),
        change: |l| l.replace("];", "+64];"),
    },
    Mutant {
        what: "Q released before all lanes have read the job",
        kernel: FULL,
        pattern: "bar.warp.sync",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "the job read after Q is released",
        kernel: FULL,
        pattern: "@first mbarrier.arrive",
        which: Last,
        change: |l| {
            let (_, empty) = l.split_once('[').expect("an address");
            let (empty, _) = empty.split_once(']').expect("an address");
            // The job lies behind the barriers of four stages of K and V, and so behind Q's second one.
            let job = 8 + 8 * 16;
            format!("{l} {{ .reg .b32 late; ld.shared.b32 late, [{empty}+{job}]; }}")
        },
    },
    Mutant {
        what: "Q not released",
        kernel: WIDE,
        pattern: "@first mbarrier.arrive",
        which: Last,
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "the end of the tiles not announced",
        kernel: CAUSAL,
        pattern: "mbarrier.arrive.shared",
        which: Last,
        change: remove,
    },
    // Tiles.
    Mutant {
        what: "a tile left out by the counter",
        kernel: FULL,
        pattern: "atom.global.inc",
        which: All,
        change: |l| format!("{l}\n{l}"),
    },
    Mutant {
        what: "a tile taken past the last",
        kernel: FULL,
        pattern: "setp.lt.u32",
        which: Nth(0),
        change: |l| l.replace(".lt.", ".le."),
    },
    // Copies.
    Mutant {
        what: "K taken for V",
        kernel: FULL,
        pattern: ", 256;",
        which: Nth(0),
        change: |l| l.replace("256", "128"),
    },
    Mutant {
        what: "head and batch of a box exchanged",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(1),
        change: |l| {
            let (start, rest) = l.split_once('{').expect("coordinates");
            let (place, end) = rest.split_once('}').expect("coordinates");
            let place: Vec<&str> = place.split(',').map(str::trim).collect();
            let [column, row, head, batch] = place[..] else {
                panic!("four coordinates: {l}")
            };
            format!("{start}{{{column}, {row}, {batch}, {head}}}{end}")
        },
    },
    Mutant {
        what: "the second panel from the columns of the first",
        kernel: WIDE,
        pattern: "cp.async.bulk.tensor",
        which: Nth(1),
        change: |l| {
            let (start, rest) = l.split_once('{').expect("coordinates");
            let (_, rest) = rest.split_once(',').expect("a column");
            format!("{{ .reg .b32 column; mov.b32 column, 0; {start}{{column,{rest} }}")
        },
    },
    Mutant {
        what: "V loaded on the mbarrier of K",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(2),
        change: |l| l.replace("];", "+-64];"),
    },
    Mutant {
        what: "V loaded to the next stage",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(2),
        change: |l| l.replacen("], [", "+8192], [", 1),
    },
    Mutant {
        what: "a box to an address that its swizzle does not allow",
        kernel: FULL,
        pattern: "cp.async.bulk.tensor",
        which: Nth(0),
        change: |l| l.replacen("], [", "+64], [", 1),
    },
    Mutant {
        what: "loads by every thread of the producer",
        kernel: FULL,
        pattern: ", 512;",
        which: Nth(0),
        change: |l| l.replace("ne.b32", "lt.u32"),
    },
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
        which: Nth(3),
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
    // Chunks of K and V.
    Mutant {
        what: "the second chunk of K multiplied before it is there",
        kernel: SLICES,
        pattern: "@!done bra again",
        which: Nth(30),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "the second chunk of V multiplied before it is there",
        kernel: SLICES,
        pattern: "@!done bra again",
        which: Nth(34),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "the second chunk of V searched before it is there",
        kernel: SLICES_CAUSAL,
        pattern: "@!done bra again",
        which: Nth(24),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "a chunk of K overwritten before all have released it",
        kernel: SLICES,
        pattern: "@!done bra again",
        which: Nth(6),
        change: |l| l.replace("@!done bra again;", ""),
    },
    Mutant {
        what: "a chunk of K released before its products are done",
        kernel: SLICES,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Nth(7),
        change: remove,
    },
    Mutant {
        what: "scores read before the last chunk's products are done",
        kernel: SLICES,
        pattern: "wgmma.wait_group.sync.aligned 2",
        which: Last,
        change: |l| l.replace('2', "3"),
    },
    Mutant {
        what: "a chunk of V released before its products are done",
        kernel: SLICES,
        pattern: "wgmma.wait_group.sync.aligned 1",
        which: Nth(10),
        change: |l| l.replace('1', "2"),
    },
    Mutant {
        what: "a chunk of K not released",
        kernel: SLICES,
        pattern: "@first mbarrier.arrive",
        which: Nth(17),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "a chunk of a block passed by not released",
        kernel: SLICES_CAUSAL,
        pattern: "@first mbarrier.arrive",
        which: Nth(2),
        change: |_| "}".to_owned(),
    },
    Mutant {
        what: "the second chunk of V released in place of the first",
        kernel: SLICES,
        pattern: "@first mbarrier.arrive",
        which: Nth(20),
        change: |l| l.replace("];", "+16];"),
    },
    Mutant {
        what: "a chunk of K loaded on the mbarrier of the next",
        kernel: SLICES,
        pattern: "cp.async.bulk.tensor",
        which: Nth(6),
        change: |l| l.replace("];", "+16];"),
    },
    Mutant {
        what: "a chunk of K loaded to the place of the next",
        kernel: SLICES,
        pattern: "cp.async.bulk.tensor",
        which: Nth(6),
        change: |l| l.replacen("], [", "+16384], [", 1),
    },
    Mutant {
        what: "a chunk of K from the columns of the first",
        kernel: SLICES,
        pattern: ", 256;",
        which: Nth(4),
        change: |l| l.replace("256", "0"),
    },
    Mutant {
        what: "a chunk of V from the keys of the first",
        kernel: SLICES,
        pattern: ", 32;",
        which: Nth(1),
        change: |l| l.replace("32;", "0;"),
    },
    Mutant {
        what: "V of the first slice for both slices",
        kernel: SLICES,
        pattern: ", 256;",
        which: Nth(3),
        change: |l| l.replace("256", "0"),
    },
    Mutant {
        what: "scores too large for the maxima so far not noticed",
        kernel: SLICES,
        pattern: "0f41600000",
        which: All,
        change: |l| l.replace("0f41600000", "0f7F800000"),
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
        which: Nth(4),
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
        pattern: "bar.sync %",
        which: All,
        change: remove,
    },
    // Registers.
    Mutant {
        what: "registers not given back",
        kernel: FULL,
        pattern: "setmaxnreg.dec",
        which: All,
        change: remove,
    },
    Mutant {
        what: "more registers taken than given back",
        kernel: WIDE,
        pattern: "setmaxnreg.inc",
        which: All,
        change: |l| l.replace("160", "168"),
    },
    Mutant {
        what: "registers given back by a part of the warps",
        kernel: FULL,
        pattern: "setmaxnreg.dec",
        which: All,
        change: |l| {
            format!(
                "{{ .reg .pred %other; .reg .b32 %id;
                mov.u32 %id, %tid.x;
                setp.ge.u32 %other, %id, 544;
                @%other bra $mutant;
                {l}
                $mutant: }}"
            )
        },
    },
    Mutant {
        what: "setmaxnreg under a lane-dependent branch",
        kernel: FULL,
        pattern: "setmaxnreg.inc",
        which: All,
        change: diverge,
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
