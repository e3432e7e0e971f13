//! Attention of a real language model, compared with results from another implementation
//! (`data/README.md`).

use ferroattn::{Device, Dtype, f16};
use ndarray::{Array, Dimension, ShapeBuilder};
use safetensors::{SafeTensors, tensor};
use tests::{Case, Inputs, Layout, Outcome, PASSED, Test};

/// Embedded in the program, which also runs where its sources are missing.
static DATA: &[u8] = include_bytes!("data/minilm_layer3.safetensors");

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("f16_full", |device| agrees(device, Dtype::F16, false)),
        Test::new("f16_causal", |device| agrees(device, Dtype::F16, true)),
        Test::new("bf16_full", |device| agrees(device, Dtype::Bf16, false)),
        Test::new("bf16_causal", |device| agrees(device, Dtype::Bf16, true)),
        Test::cpu("f32_full", |device| agrees(device, Dtype::F32, false)),
        Test::cpu("f32_causal", |device| agrees(device, Dtype::F32, true)),
    ]
}

/// The named tensor, as `f32`.
fn load<D: Dimension>(name: &str, shape: impl ShapeBuilder<Dim = D>) -> Array<f32, D> {
    let file = SafeTensors::deserialize(DATA).expect("a safetensors file");
    let view = file.tensor(name).expect("a tensor of that name");
    let bytes = view.data();
    let values = match view.dtype() {
        tensor::Dtype::F16 => bytemuck::pod_collect_to_vec::<u8, f16>(bytes)
            .into_iter()
            .map(f32::from)
            .collect(),
        tensor::Dtype::F32 => bytemuck::pod_collect_to_vec::<u8, f32>(bytes),
        dtype => panic!("{name} has dtype {dtype:?}"),
    };
    Array::from_shape_vec(shape, values).expect("the shape in data/README.md")
}

/// The case of the data.
pub fn case(dtype: Dtype, causal: bool) -> Case {
    Case {
        dtype,
        batch: 2,
        heads: 2,
        kv_heads: 2,
        seqlen_q: 512,
        seqlen_kv: 512,
        dim: 32,
        causal,
        o: Layout::Bnhd,
        ..Case::default()
    }
}

/// Its q, k and v.
pub fn inputs(case: &Case) -> Inputs {
    Inputs {
        q: load("q", case.q_shape()),
        k: load("k", case.kv_shape()),
        v: load("v", case.kv_shape()),
    }
}

fn agrees(device: &Device, dtype: Dtype, causal: bool) -> Outcome {
    let case = case(dtype, causal);
    let inputs = inputs(&case);
    // `run` compares with our own reference, in bf16 for the rounded inputs.
    let result = case.run(device, &inputs)?;

    let suffix = if causal { "_causal" } else { "" };
    let o = load(&format!("o{suffix}"), case.q_shape());
    let lse = load(&format!("lse{suffix}"), (2, 2, 512));
    let max = |errors: &mut dyn Iterator<Item = f32>| f64::from(errors.fold(0.0, f32::max));
    let o_error = max(&mut (&result.o - &o).into_iter().map(f32::abs));
    let lse_error = max(&mut (&result.lse - &lse).into_iter().map(f32::abs));
    // o of up to 4 is rounded by up to 2^-10, and P before. bf16 rounds the inputs too, by 2^-9 of their size: a score of 25 moves by
    // about 0.1.
    let (o_tolerance, lse_tolerance) = match dtype {
        Dtype::F16 => (2e-3, 1e-3),
        Dtype::Bf16 => (0.1, 0.1),
        Dtype::F32 => (1e-5, 1e-5),
        other => unreachable!("no case is {}", other.name()),
    };
    assert!(
        o_error <= o_tolerance,
        "o is off by {o_error}, tolerance {o_tolerance}"
    );
    assert!(
        lse_error <= lse_tolerance,
        "lse is off by {lse_error}, tolerance {lse_tolerance}"
    );
    PASSED
}
