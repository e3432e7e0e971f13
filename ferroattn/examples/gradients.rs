//! Compares gradients with differences of the loss itself, in f32 on the CPU.
//!
//! ```sh
//! cargo run -p ferroattn --release --example gradients
//! ```

use ferroattn::{Attention, Device, Problem, Result, Tensor, random};

const Q: [usize; 4] = [2, 4, 40, 32];
const KV: [usize; 4] = [2, 2, 50, 32];
/// A step along a direction; a difference is wrong by its square.
const STEP: f32 = 1e-2;

fn main() -> Result<()> {
    println!("slopes of sum(weight * o) along random directions of q, k and v");
    for direction in 1..=4 {
        let [gradient, difference] = run(direction)?;
        println!("by the gradients {gradient:9.3}, by a difference {difference:9.3}");
    }
    Ok(())
}

/// The slope of a loss along a random direction of q, k and v: by their gradients, and by a difference.
fn run(seed: u64) -> Result<[f32; 2]> {
    let attention = Attention::new().causal(true).softcap(20.0);
    let problem = Problem::new(Q, KV, KV, true, None)?;
    let inputs = random::inputs::<f32>(&problem, 0);
    let directions = random::inputs::<f32>(&problem, seed);
    let weight = random::output_gradient::<f32>(&problem, 0);
    let d_o = Tensor::new(&Device::cpu(), Q, &weight)?;
    let moved = |index: usize, step: f32| {
        let pairs = inputs[index].iter().zip(&directions[index]);
        let data: Vec<_> = pairs.map(|(x, d)| x + step * d).collect();
        Tensor::new(&Device::cpu(), if index == 0 { Q } else { KV }, &data)
    };
    let loss = |step| -> Result<f32> {
        let (o, _) = attention.forward(&moved(0, step)?, &moved(1, step)?, &moved(2, step)?)?;
        Ok(dot(&o.to_vec()?, &weight))
    };
    let (q, k, v) = (moved(0, 0.0)?, moved(1, 0.0)?, moved(2, 0.0)?);
    let (o, lse) = attention.forward(&q, &k, &v)?;
    let (dq, dk, dv) = attention.backward(&q, &k, &v, &o, &lse, &d_o)?;
    let slopes = [&dq, &dk, &dv].into_iter().zip(&directions);
    let slopes = slopes.map(|(gradient, d)| Ok(dot(&gradient.to_vec()?, d)));
    let gradient = slopes.sum::<Result<f32>>()?;
    Ok([gradient, (loss(STEP)? - loss(-STEP)?) / (2.0 * STEP)])
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>() as f32
}

#[test]
fn gradients_are_slopes() {
    let [gradient, difference] = run(1).expect("computed");
    let error = (gradient - difference).abs();
    assert!(error < 0.01 * gradient.abs(), "{gradient} {difference}");
}
