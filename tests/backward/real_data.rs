//! The gradients of a real language model's attention, whose softmax is sharp in one head and flat in another.

use crate::real_data;
use ferroattn::{Device, Dtype};
use tests::{BackwardCase, Layout, Outcome, PASSED, Test};

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
        d_o: Layout::Bnhd,
        d_lse: true,
        ..real_data::case(dtype, causal).into()
    };
    case.run(device, &case.inputs_with(real_data::inputs(&case.forward)))?;
    PASSED
}
