//! Learns a bias by its gradient: attention to all places alike becomes attention to the place before.
//!
//! ```sh
//! cargo run -p ferroattn --release --example bias
//! ```

use ferroattn::{Attention, BackwardInputs, Device, Tensor, f16};

/// Places, and elements of a value: value `j` is the unit vector `j`, so that o is the weights themselves.
const N: usize = 16;
const SHAPE: [usize; 4] = [1, 1, N, N];
const STEPS: usize = 60;
const RATE: f32 = 40.0;

fn main() -> ferroattn::Result<()> {
    let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    println!("a bias learns to look one place back, on {}", device.name());
    for (step, weight) in run(&device)?.iter().enumerate().step_by(10) {
        println!("step {step:2}: weight of the place before {weight:.3}");
    }
    Ok(())
}

/// The mean weight of the place before, in each step.
fn run(device: &Device) -> ferroattn::Result<Vec<f32>> {
    let is = |on: bool| f16::from_f32(f32::from(u8::from(on)));
    let unit: Vec<_> = (0..N * N).map(|i| is(i / N == i % N)).collect();
    let before: Vec<_> = (0..N * N)
        .map(|i| is((i / N + N - 1) % N == i % N))
        .collect();
    let q = Tensor::zeros(device, SHAPE)?;
    let v = Tensor::new(device, SHAPE, &unit)?;
    let mut bias = vec![0.0_f32; N * N];
    let mut learnt = Vec::new();
    for _ in 0..=STEPS {
        let on_device = Tensor::new(device, SHAPE, &bias)?;
        let attention = Attention::new().bias(&on_device);
        let (o, lse) = attention.forward(&q, &q, &v)?;
        // Half the squared distance from the place before, in the mean over rows, has this gradient.
        let (mut d_o, mut sum) = (Vec::new(), 0.0);
        for (weight, before) in o.to_vec()?.iter().zip(&before) {
            let (weight, before) = (weight.to_f32(), before.to_f32());
            sum += weight * before;
            d_o.push(f16::from_f32((weight - before) / N as f32));
        }
        learnt.push(sum / N as f32);
        let d_o = Tensor::new(device, SHAPE, &d_o)?;
        let inputs = BackwardInputs::new(&q, &q, &v, &o, &lse, &d_o);
        let gradients = attention.backward_all(&inputs)?;
        let d_bias = gradients.d_bias.expect("the call has a bias").to_vec()?;
        (bias.iter_mut().zip(d_bias)).for_each(|(bias, d)| *bias -= RATE * d);
    }
    Ok(learnt)
}

#[test]
fn the_bias_learns() {
    let learnt = run(&Device::cpu()).expect("learnt");
    assert!(learnt[0] < 0.07 && learnt[STEPS] > 0.9, "{learnt:?}");
}
