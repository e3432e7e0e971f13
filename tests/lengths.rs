//! The sequence lengths that FlashAttention's own tests use.

use ferroattn::Dtype;
use tests::{Case, PASSED, Test};

/// Queries and keys.
pub const LENGTHS: &[(usize, usize)] = &[
    (1, 1),
    (239, 1),
    (799, 3),
    (113, 203),
    (108, 256),
    (384, 256),
    (640, 128),
    (1023, 1024),
    (1024, 1023),
    (2048, 2048),
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let variants = LENGTHS
        .iter()
        .flat_map(|lengths| [(lengths, false), (lengths, true)]);
    variants
        .map(|(&(seqlen_q, seqlen_kv), causal)| {
            let mask = if causal { "causal" } else { "full" };
            let name = format!("q{seqlen_q}_kv{seqlen_kv}_{mask}");
            let test = Test::new(name, move |device| {
                let variants = [(Dtype::F16, 64), (Dtype::Bf16, 128), (Dtype::F16, 40)];
                // Long ones differ in the number of blocks alone: one of them on the emulator, where each takes seconds.
                let is_one = device.is_emulator() && seqlen_q > 1000;
                let count = if is_one { 1 } else { variants.len() };
                for &(dtype, dim) in &variants[..count] {
                    case(dtype, dim, (seqlen_q, seqlen_kv), causal).check(device)?;
                }
                PASSED
            });
            match seqlen_q {
                2048.. => test.not_emulated(),
                _ => test,
            }
        })
        .collect()
}

/// Two heads that share keys, of these queries and keys.
pub fn case(dtype: Dtype, dim: usize, (seqlen_q, seqlen_kv): (usize, usize), causal: bool) -> Case {
    Case {
        dtype,
        heads: 2,
        kv_heads: 1,
        seqlen_q,
        seqlen_kv,
        dim,
        causal,
        ..Case::default()
    }
}
