//! A small language model, trained with this crate's attention and with candle's own, from the same weights: the losses fall alike.
//!
//! `cargo run --release --example train`, with `--features cuda` for a GPU.

mod model;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{AdamW, Optimizer, loss};
use model::{Attend, Model, Sizes, ferroattn, plain};

/// Letters in an order of their own, each with one behind it.
const TEXT: &[u8] = b"qwertyuiopasdfghjklzxcvbnmqwertyuiopasdfghjkl";

/// Windows of the text, as tokens.
fn windows(rows: usize, device: &Device) -> Result<Tensor> {
    let starts = 0..4;
    let letters = starts.flat_map(|start| &TEXT[start * 9..start * 9 + rows]);
    let tokens: Vec<u32> = letters.map(|letter| u32::from(letter - b'a')).collect();
    Tensor::from_vec(tokens, (4, rows), device)
}

/// The loss before each step and after the last.
fn train(attend: Attend, steps: usize, device: &Device) -> Result<Vec<f32>> {
    let sizes = Sizes {
        vocabulary: 26,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        dim: 16,
        rows: 17,
    };
    let model = Model::new(sizes, DType::F32, device)?;
    let mut optimizer = AdamW::new_lr(model.vars.clone(), 1e-3)?;
    let tokens = windows(sizes.rows + 1, device)?;
    let inputs = tokens.narrow(1, 0, sizes.rows)?.contiguous()?;
    let targets = tokens.narrow(1, 1, sizes.rows)?.flatten_all()?;
    let mut losses = Vec::new();
    for step in 0..=steps {
        let logits = model.forward(&inputs, attend)?;
        let rows = logits.reshape((targets.dim(D::Minus1)?, sizes.vocabulary))?;
        let loss = loss::cross_entropy(&rows, &targets)?;
        losses.push(loss.to_scalar()?);
        if step < steps {
            optimizer.backward_step(&loss)?;
        }
    }
    Ok(losses)
}

/// Trains both, prints their losses, and gives the last ones.
fn compare(steps: usize, device: &Device) -> Result<[f32; 2]> {
    let ours = train(ferroattn, steps, device)?;
    let candles = train(plain, steps, device)?;
    println!(
        "On {:?}: step, loss with ferroattn, with candle's own operations",
        device.location()
    );
    for step in (0..=steps).step_by((steps / 5).max(1)) {
        println!("{step:4} {:8.4} {:8.4}", ours[step], candles[step]);
    }
    if ours[steps] > 0.1 * ours[0] {
        candle_core::bail!("the loss fell from {} to {} only", ours[0], ours[steps])
    }
    Ok([ours[steps], candles[steps]])
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let [ours, candles] = compare(100, &device)?;
    let allowed = if device.is_cpu() { 1e-3 } else { 5e-2 };
    if (ours - candles).abs() > allowed {
        candle_core::bail!("the losses differ: {ours} and {candles}")
    }
    Ok(())
}

#[test]
fn losses_fall_alike() -> Result<()> {
    let [ours, candles] = compare(60, &Device::Cpu)?;
    assert!((ours - candles).abs() < 1e-3, "{ours} and {candles}");
    Ok(())
}
