//! The gradients of a real language model's attention, whose softmax is sharp in one head and flat in another.

use crate::real_data::load;
use attention::{Device, Dtype};
use tests::{BackwardCase, Case, Inputs, Layout, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::backward("f16_full", |device| agrees(device, Dtype::F16, false)),
        Test::backward("f16_causal", |device| agrees(device, Dtype::F16, true)),
        Test::backward("bf16_full", |device| agrees(device, Dtype::Bf16, false)),
        Test::backward("bf16_causal", |device| agrees(device, Dtype::Bf16, true)),
        Test::cpu("f32_full", |device| agrees(device, Dtype::F32, false)),
        Test::cpu("f32_causal", |device| agrees(device, Dtype::F32, true)),
    ]
}

fn agrees(device: &Device, dtype: Dtype, causal: bool) -> Outcome {
    let case = BackwardCase {
        forward: Case {
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
        },
        d_o: Layout::Bnhd,
        d_lse: true,
        ..BackwardCase::default()
    };
    let inputs = case.inputs_with(Inputs {
        q: load("q", case.forward.q_shape()),
        k: load("k", case.forward.kv_shape()),
        v: load("v", case.forward.kv_shape()),
    });
    case.run(device, &inputs)?;
    PASSED
}
