//! Head dims that are no multiples of 8, whose rows kernels read and write in copies.

use ferroattn::Device;
use tests::{BackwardCase, Case, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::kernels("forward", forward),
        Test::backward("gradients", gradients),
        Test::new("one_element", one_element),
    ];
    Test::and_on_hopper(tests)
}

/// A causal case of these head dims, by plain kernels or, with sinks, by those with options.
fn causal([dim, dim_v]: [usize; 2], sinks: bool) -> Case {
    Case {
        dim,
        causal: true,
        modifiers: Modifiers {
            sinks,
            dim_v: (dim_v != dim).then_some(dim_v),
            ..Modifiers::default()
        },
        ..Case::default()
    }
}

/// Plain kernels, packed and decoding ones, splits, and kernels with options, at both sides of multiples of 8 and of tiles.
fn forward(device: &Device) -> Outcome {
    for (dim, dim_v) in [
        (7, 7),
        (63, 63),
        (65, 65),
        (100, 100),
        (3, 81),
        (129, 20),
        (255, 255),
        (257, 257),
        (513, 1023),
    ] {
        for (seqlen_q, heads, splits, sinks) in
            [(150, 1, 1, false), (2, 4, 2, false), (70, 2, 1, true)]
        {
            let case = Case {
                heads,
                seqlen_q,
                splits,
                o: Layout::OddRows,
                ..causal([dim, dim_v], sinks)
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// Gradients by stored dS and by sums, of short sequences that share tiles, and with options.
fn gradients(device: &Device) -> Outcome {
    for (dim, dim_v) in [(7, 7), (63, 63), (100, 100), (5, 81), (129, 129)] {
        for (batch, seqlen, sinks) in [(1, 150, false), (70, 5, false), (1, 150, true)] {
            let case = BackwardCase::from(Case {
                batch,
                heads: 2,
                seqlen_q: seqlen,
                seqlen_kv: seqlen + 3,
                ..causal([dim, dim_v], sinks)
            });
            case.check(device)?;
        }
    }
    PASSED
}

/// Rows of one element.
fn one_element(device: &Device) -> Outcome {
    let case = Case {
        dim: 1,
        seqlen_q: 40,
        seqlen_kv: 30,
        ..Case::default()
    };
    case.check(device)?;
    BackwardCase::from(case).check(device)?;
    PASSED
}
