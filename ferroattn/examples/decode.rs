//! Decodes token by token: each query attends to a cache of keys and values that grows by a row.
//!
//! ```sh
//! cargo run -p ferroattn --release --example decode
//! ```

use ferroattn::{Attention, Device, Problem, Tensor, f16, random};

const HEADS: usize = 8;
/// Each is shared by four query heads, which read the cache once.
const KV_HEADS: usize = 2;
const TOKENS: usize = 64;
const DIM: usize = 64;

fn main() -> ferroattn::Result<()> {
    let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    let difference = run(&device)?;
    println!("{TOKENS} tokens, {HEADS} heads on {}", device.name());
    println!("one at a time and all at once differ by at most {difference:.5}");
    Ok(())
}

/// The largest difference between rows that were decoded and rows of causal attention over all tokens.
fn run(device: &Device) -> ferroattn::Result<f32> {
    let shape = |heads| [1, heads, TOKENS, DIM];
    let problem = Problem::new(shape(HEADS), shape(KV_HEADS), shape(KV_HEADS), true, None)?;
    let [q, k, v] = random::inputs::<f16>(&problem, 0);
    let q = Tensor::new(device, shape(HEADS), &q)?;
    let k = Tensor::new(device, shape(KV_HEADS), &k)?;
    let v = Tensor::new(device, shape(KV_HEADS), &v)?;
    let (all, _) = Attention::new().causal(true).forward(&q, &k, &v)?;
    let mut k_cache = Tensor::zeros(device, shape(KV_HEADS))?;
    let mut v_cache = Tensor::zeros(device, shape(KV_HEADS))?;
    let mut largest = 0.0_f32;
    for token in 0..TOKENS {
        // A model computes rows of q, k and v from the last token; views of the caches are attended to in place.
        let row = |tensor: &Tensor<f16>| tensor.view().narrow(2, token, 1)?.try_clone();
        (k_cache.view_mut().narrow(2, token, 1)?).copy_from(&row(&k)?)?;
        (v_cache.view_mut().narrow(2, token, 1)?).copy_from(&row(&v)?)?;
        let keys = k_cache.view().narrow(2, 0, token + 1)?;
        let values = v_cache.view().narrow(2, 0, token + 1)?;
        let (o, _) = Attention::new().forward(&row(&q)?, &keys, &values)?;
        for (o, expected) in o.to_vec()?.iter().zip(row(&all)?.to_vec()?) {
            largest = largest.max((o.to_f32() - expected.to_f32()).abs());
        }
    }
    Ok(largest)
}

#[test]
fn tokens_one_at_a_time_are_all_at_once() {
    let difference = run(&Device::cpu()).expect("decoded");
    assert!(difference < 2e-3, "{difference}");
}
