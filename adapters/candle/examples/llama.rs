//! A model of Llama's shape with this crate's attention and with candle's own: the same logits, and the time of each.
//!
//! `cargo run --release --example llama`, with `--features cuda` for a GPU.

mod model;

use candle_core::{DType, Device, Result, Tensor};
use model::{Attend, Model, Sizes, ferroattn, plain};
use std::time::{Duration, Instant};

/// The least time of three forward passes, and their logits.
fn timed(model: &Model, tokens: &Tensor, attend: Attend) -> Result<(Duration, Tensor)> {
    let mut logits = model.forward(tokens, attend)?;
    let mut least = Duration::MAX;
    for _ in 0..3 {
        tokens.device().synchronize()?;
        let start = Instant::now();
        logits = model.forward(tokens, attend)?;
        tokens.device().synchronize()?;
        least = least.min(start.elapsed());
    }
    Ok((least, logits))
}

/// The largest difference of logits, of which the largest size is also told, after a comparison of a model of these sizes.
fn compare(sizes: Sizes, device: &Device, dtype: DType) -> Result<[f32; 2]> {
    let model = Model::new(sizes, dtype, device)?;
    let tokens: Vec<u32> = (0..sizes.rows as u32)
        .map(|row| row * row % sizes.vocabulary as u32)
        .collect();
    let tokens = Tensor::from_vec(tokens, (1, sizes.rows), device)?;
    let (ours, logits) = timed(&model, &tokens, ferroattn)?;
    let (candles, expected) = timed(&model, &tokens, plain)?;
    let largest = |tensor: Tensor| tensor.abs()?.max_all()?.to_scalar::<f32>();
    let [logits, expected] = [logits, expected].map(|logits| logits.to_dtype(DType::F32));
    let expected = expected?;
    let difference = largest((logits? - &expected)?)?;
    let size = largest(expected)?;
    let parameters: usize = model.vars.iter().map(|var| var.elem_count()).sum();
    println!(
        "{} tokens, {parameters} parameters in {dtype:?} on {:?}",
        sizes.rows,
        device.location()
    );
    println!("with ferroattn {ours:.1?}, with candle's own operations {candles:.1?}");
    println!("logits differ by {difference:.1e} at most, of {size:.1}");
    Ok([difference, size])
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let dtype = if device.is_cpu() {
        DType::F32
    } else {
        DType::BF16
    };
    let sizes = Sizes {
        vocabulary: 1000,
        layers: 4,
        heads: 8,
        kv_heads: 2,
        dim: 64,
        rows: if device.is_cpu() { 1024 } else { 8192 },
    };
    let [difference, size] = compare(sizes, &device, dtype)?;
    let allowed = if dtype == DType::F32 { 1e-4 } else { 5e-2 };
    if difference > allowed * size {
        candle_core::bail!("logits differ by {difference}")
    }
    Ok(())
}

#[test]
fn logits_are_the_same() -> Result<()> {
    let sizes = Sizes {
        vocabulary: 50,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        dim: 16,
        rows: 40,
    };
    let [difference, size] = compare(sizes, &Device::Cpu, DType::F32)?;
    assert!(difference < 1e-5 * size, "{difference} of {size}");
    Ok(())
}
