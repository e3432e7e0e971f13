//! Every run gives the same bits.

use attention::{Device, Element, Tensor, bf16, f16};
use tests::{Case, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let case = Case {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        seqlen_q: 200,
        seqlen_kv: 500,
        ..Case::default()
    };
    let packed = Case {
        seqlen_q: 50,
        ..case.clone()
    };
    let decode = Case {
        seqlen_q: 3,
        dim: 128,
        ..case.clone()
    };
    let mut tests = Vec::new();
    for (name, case) in [("forward", case), ("packed", packed), ("decode", decode)] {
        for splits in [1, 5] {
            for causal in [false, true] {
                let mask = if causal { "causal" } else { "full" };
                let case = Case {
                    splits,
                    causal,
                    ..case.clone()
                };
                tests.push(Test::new(
                    format!("{name}_{mask}_{splits}_splits"),
                    move |device| {
                        repeat::<f16>(device, &case)?;
                        repeat::<bf16>(device, &case)
                    },
                ));
            }
        }
    }
    tests
}

/// Runs a case several times.
pub fn repeat<T: Element>(device: &Device, case: &Case) -> Outcome {
    // The emulator takes seconds where a GPU takes microseconds.
    let repeats = if device.is_emulator() { 3 } else { 100 };
    let inputs = case.inputs();
    let upload = |values: &ndarray::Array4<f32>| {
        let data: Vec<T> = values.iter().map(|&value| T::from_f32(value)).collect();
        Tensor::new(device, values.dim().into(), &data)
    };
    let (q, k, v) = (upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?);
    let run = || -> attention::Result<(Vec<T>, Vec<f32>)> {
        let (o, lse) = case.options(device).forward(&q, &k, &v)?;
        Ok((o.to_vec()?, lse.to_vec()?))
    };
    let first = run()?;
    for repeat in 1..repeats {
        let (o, lse) = run()?;
        let same = bytemuck::cast_slice::<T, u8>(&o) == bytemuck::cast_slice::<T, u8>(&first.0)
            && bytemuck::cast_slice::<f32, u8>(&lse) == bytemuck::cast_slice::<f32, u8>(&first.1);
        assert!(same, "{case}: run {repeat} differs from the first");
    }
    PASSED
}
