//! Attends in sequences of different lengths at once: packed one after another, without padding.
//!
//! ```sh
//! cargo run -p ferroattn --release --example packed
//! ```

use ferroattn::{Attention, Device, Problem, Tensor, f16, random};

/// Where each sequence begins, and where the last ends: 300, 17, 1 and 128 rows.
const OFFSETS: [i32; 5] = [0, 300, 317, 318, 446];
const SHAPE: [usize; 4] = [1, 4, 446, 64];

fn main() -> ferroattn::Result<()> {
    let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    println!("causal, packed sequences on {}", device.name());
    println!("{:>6} {:>24}", "length", "packed and alone differ");
    for (length, difference) in run(&device)? {
        println!("{length:6} {difference:24.5}");
    }
    Ok(())
}

/// Each sequence's length, and the largest difference between its rows of one packed call and a call of its own.
fn run(device: &Device) -> ferroattn::Result<Vec<(usize, f32)>> {
    let problem = Problem::new(SHAPE, SHAPE, SHAPE, true, None)?;
    let [q, k, v] = random::inputs::<f16>(&problem, 0);
    let q = Tensor::new(device, SHAPE, &q)?;
    let k = Tensor::new(device, SHAPE, &k)?;
    let v = Tensor::new(device, SHAPE, &v)?;
    let offsets = Tensor::new(device, [OFFSETS.len()], &OFFSETS)?;
    let attention = Attention::new().causal(true);
    let packed = attention.packed(&offsets, &offsets);
    let (o, _) = packed.forward(&q, &k, &v)?;

    let mut differences = Vec::new();
    for ends in OFFSETS.windows(2) {
        let (start, length) = (ends[0] as usize, (ends[1] - ends[0]) as usize);
        let part = |tensor: &Tensor<f16>| tensor.view().narrow(2, start, length)?.try_clone();
        let (alone, _) = attention.forward(&part(&q)?, &part(&k)?, &part(&v)?)?;
        let mut largest = 0.0_f32;
        for (packed, alone) in part(&o)?.to_vec()?.iter().zip(alone.to_vec()?) {
            largest = largest.max((packed.to_f32() - alone.to_f32()).abs());
        }
        differences.push((length, largest));
    }
    Ok(differences)
}

#[test]
fn packed_sequences_do_not_see_each_other() {
    let differences = run(&Device::cpu()).expect("computed");
    let all_agree = differences.iter().all(|&(_, largest)| largest < 2e-3);
    assert!(all_agree && differences.len() == 4, "{differences:?}");
}
