//! Decodes token by token: in each layer the new key joins a cache in pages, and the new query attends to all keys.
//!
//! ```sh
//! cargo run -p ferroattn --release --example decode
//! ```

use ferroattn::{Attention, Decoder, DecoderShape, Device, Problem, Result, Tensor, f16, random};
use std::time::{Duration, Instant};

const LAYERS: usize = 32;
const HEADS: usize = 8;
/// Each is shared by four query heads, which read the cache once.
const KV_HEADS: usize = 2;
const TOKENS: usize = 64;
const DIM: usize = 64;
/// Keys of a page.
const PAGE: usize = 16;

fn main() -> Result<()> {
    let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    let (difference, queued) = run(&device)?;
    println!(
        "{TOKENS} tokens, {LAYERS} layers, {HEADS} heads on {}",
        device.name()
    );
    println!("one at a time and all at once differ by at most {difference:.5}");
    if !device.is_cpu() {
        let layers = (TOKENS * LAYERS) as f64;
        println!(
            "the host queues a layer in {:.2} us",
            queued.as_secs_f64() * 1e6 / layers
        );
    }
    Ok(())
}

/// The largest difference between rows that were decoded and rows of causal attention over all tokens, and the time in which all
/// layers were queued.
fn run(device: &Device) -> Result<(f32, Duration)> {
    let all = |heads| [1, heads, TOKENS, DIM];
    let problem = Problem::new(all(HEADS), all(KV_HEADS), all(KV_HEADS), true, None)?;
    let [q, k, v] = random::inputs::<f16>(&problem, 0);
    let q = Tensor::new(device, all(HEADS), &q)?;
    let k = Tensor::new(device, all(KV_HEADS), &k)?;
    let v = Tensor::new(device, all(KV_HEADS), &v)?;
    let (expected, _) = Attention::new().causal(true).forward(&q, &k, &v)?;

    let most = TOKENS.div_ceil(PAGE);
    let pages = [most, KV_HEADS, PAGE, DIM];
    let shape = DecoderShape {
        q: [1, HEADS, 1, DIM],
        k_cache: pages,
        v_cache: pages,
        pages: Some(most),
    };
    let attention = Attention::new();
    let mut decoder = Decoder::new(device, shape, &[&attention])?;
    // Pages come in any order.
    let table: Vec<i32> = (0..most as i32).rev().collect();
    decoder
        .pages_mut()
        .expect("pages")
        .copy_from_slice(&table)?;
    let zeros = |shape| {
        (0..LAYERS)
            .map(|_| Tensor::zeros(device, shape))
            .collect::<Result<Vec<_>>>()
    };
    let (mut k_caches, mut v_caches, mut o) = (zeros(pages)?, zeros(pages)?, zeros(shape.q)?);
    let (mut largest, mut queued) = (0.0_f32, Duration::ZERO);
    for token in 0..TOKENS {
        // A model computes rows of q, k and v from the last token; here those of all layers are alike.
        let row = |tensor: &Tensor<f16>| tensor.view().narrow(2, token, 1)?.try_clone();
        let (q, k, v) = (row(&q)?, row(&k)?, row(&v)?);
        let start = Instant::now();
        for ((k_cache, v_cache), o) in k_caches.iter_mut().zip(&mut v_caches).zip(&mut o) {
            decoder.layer(&attention, &q, [&k, &v], (k_cache, v_cache), o)?;
        }
        decoder.advance(None)?;
        queued += start.elapsed();
        for (o, expected) in o[LAYERS - 1]
            .to_vec()?
            .iter()
            .zip(row(&expected)?.to_vec()?)
        {
            largest = largest.max((o.to_f32() - expected.to_f32()).abs());
        }
    }
    Ok((largest, queued))
}

#[test]
fn tokens_one_at_a_time_are_all_at_once() {
    let (difference, _) = run(&Device::cpu()).expect("decoded");
    assert!(difference < 2e-3, "{difference}");
}
