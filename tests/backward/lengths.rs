//! The sequence lengths that FlashAttention's own tests use, and those around which its gradients were NaN.

use crate::lengths::{self, LENGTHS};
use ferroattn::Dtype;
use tests::{BackwardCase, PASSED, Test};

pub fn tests() -> Vec<Test> {
    let lengths = LENGTHS.iter().filter(|(seqlen_q, _)| *seqlen_q < 2048);
    let pairs = lengths.flat_map(|lengths| [(lengths, false), (lengths, true)]);
    let tests = pairs.map(|(&lengths, causal)| {
        let ((seqlen_q, seqlen_kv), mask) = (lengths, if causal { "causal" } else { "full" });
        Test::backward(format!("q{seqlen_q}_kv{seqlen_kv}_{mask}"), move |device| {
            let variants = [(Dtype::F16, 64), (Dtype::Bf16, 128), (Dtype::F16, 40)];
            for (number, (dtype, dim)) in variants.into_iter().enumerate() {
                // One of them on the emulator, where each takes seconds.
                if device.is_emulator() && number != (seqlen_q + usize::from(causal)) % 3 {
                    continue;
                }
                case(dtype, dim, lengths, causal).check(device)?;
            }
            PASSED
        })
    });
    let mut tests: Vec<_> = tests.collect();
    // The tails of blocks hold poison: reading it as a row gives NaN in dk and dv.
    tests.push(Test::backward("odd", |device| {
        for length in [1, 3, 15, 17, 31, 33, 63, 65, 127, 129, 191] {
            for causal in [false, true] {
                case(Dtype::Bf16, 64, (length, length), causal).check(device)?;
            }
        }
        PASSED
    }));
    tests
}

fn case(dtype: Dtype, dim: usize, lengths: (usize, usize), causal: bool) -> BackwardCase {
    lengths::case(dtype, dim, lengths, causal).into()
}
