//! O that leaves by tensor stores, through its slot of Q.

use super::{WIDE, WIDE_CAUSAL};
use crate::mutants::change::remove;
use crate::mutants::{
    Mutant,
    Which::{Last, Nth},
};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        what: "no proxy fence before O leaves",
        kernel: WIDE,
        pattern: "fence.proxy.async.shared",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "O leaves before all lanes have written it",
        kernel: WIDE,
        pattern: "bar.warp.sync",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "a slot of Q given back before O has left it",
        kernel: WIDE_CAUSAL,
        pattern: "bulk.wait_group.read",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a slot of Q given back before O has left it by rows that do not exist",
        kernel: WIDE_CAUSAL,
        pattern: "bulk.wait_group.read",
        which: Nth(1),
        change: remove,
    },
    Mutant {
        what: "the block's end before the last O has left",
        kernel: WIDE,
        pattern: "bulk.wait_group.read",
        which: Last,
        change: remove,
    },
    Mutant {
        what: "stores of O not committed",
        kernel: WIDE,
        pattern: "bulk.commit_group",
        which: Nth(0),
        change: remove,
    },
    Mutant {
        what: "a slot of Q that O left not given back",
        kernel: WIDE,
        pattern: "mbarrier.arrive.shared",
        which: Nth(2),
        change: remove,
    },
    Mutant {
        what: "a box of O from before row 0 on",
        kernel: WIDE,
        pattern: ", -1;",
        which: Nth(9),
        change: |l| l.replace("-1;", "-200;"),
    },
    Mutant {
        what: "head and batch of a box of O exchanged",
        kernel: WIDE,
        pattern: "bulk.tensor.4d.global",
        which: Nth(0),
        change: |l| {
            let [start, column, row, head, batch, end] = coordinates(l);
            format!("{start}{column}, {row}, {batch}, {head}{end}")
        },
    },
    Mutant {
        what: "the second panel of O to the columns of the first",
        kernel: WIDE,
        pattern: "bulk.tensor.4d.global",
        which: Nth(1),
        change: |l| {
            let [start, _, row, head, batch, end] = coordinates(l);
            format!(
                "{{ .reg .b32 zero; mov.b32 zero, 0; {start}zero, {row}, {head}, {batch}{end} }}"
            )
        },
    },
    Mutant {
        what: "the second panel of O from the first one's place",
        kernel: WIDE_CAUSAL,
        pattern: "bulk.tensor.4d.global",
        which: Nth(1),
        change: |l| l.replace("]; }", "+-8192]; }"),
    },
    Mutant {
        what: "a tile of O beside its place",
        kernel: WIDE,
        pattern: "stmatrix",
        which: Nth(1),
        change: |l| l.replace("], {", "+16], {"),
    },
];

/// The text before a store's coordinates, these four, and the text after them.
fn coordinates(line: &str) -> [&str; 6] {
    let (start, rest) = line.rsplit_once(", {").expect("coordinates");
    let (place, end) = rest.split_once('}').expect("coordinates");
    let place: Vec<&str> = place.split(',').map(str::trim).collect();
    let [column, row, head, batch] = place[..] else {
        panic!("four coordinates: {line}")
    };
    let (start, end) = (
        &line[..start.len() + 3],
        &line[line.len() - end.len() - 1..],
    );
    [start, column, row, head, batch, end]
}
