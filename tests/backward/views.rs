//! Gradients of views, into views.

use crate::views::{BATCH, DIM, HEADS, ROWS, part};
use ferroattn::{Attention, Device, Dtype, RawBackward, RawForward, RawOptions, Tensor, f16};
use tests::{BackwardCase, Case, Layout, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::backward("packed_gradients", packed_gradients),
        Test::backward("each_layout", each_layout),
    ]
}

/// dq, dk and dv between each other's rows, in one buffer like q, k and v, have the same bits as in tensors without gaps.
fn packed_gradients(device: &Device) -> Outcome {
    let shape = [BATCH, ROWS, 3, HEADS, DIM];
    let numbers = |factor: usize| -> Vec<f16> {
        let len = shape.iter().product::<usize>();
        let number = |i: usize| (i * factor % 4099) as f32 / 1024.0 - 2.0;
        (0..len).map(|i| f16::from_f32(number(i))).collect()
    };
    let packed = Tensor::new(device, shape, &numbers(7919))?;
    let of_o = Tensor::new(device, shape, &numbers(6101))?;
    let (q, k, v, d_o) = (
        part(&packed, 0)?,
        part(&packed, 1)?,
        part(&packed, 2)?,
        part(&of_o, 1)?,
    );
    let attention = Attention::new().causal(true);
    let (o, lse) = attention.forward(&q, &k, &v)?;
    let (dq, dk, dv) = attention.backward(&q, &k, &v, &o, &lse, &d_o)?;

    let poison = f16::from_bits(0x7e55);
    let mut gradients = Tensor::new(device, shape, &vec![poison; shape.iter().product()])?;
    let whole = gradients.as_raw_mut();
    let strides = part(&gradients, 0)?.strides();
    let gradient = |part: usize| ferroattn::RawTensor {
        address: whole.address + (part * HEADS * DIM * size_of::<f16>()) as u64,
        shape: [BATCH, HEADS, ROWS, DIM],
        strides,
    };
    let forward = RawForward {
        q: q.as_raw(),
        k: k.as_raw(),
        v: v.as_raw(),
        o: o.as_raw(),
        lse: lse.as_raw(),
        options: RawOptions::default(),
    };
    let raw = RawBackward::new(&forward, d_o.as_raw(), [0, 1, 2].map(gradient));
    // SAFETY: all tensors live on, hold elements of these types on this device, and overlap in no element; the null
    // stream is the one that their data was copied on.
    unsafe { attention.backward_raw(device, Dtype::F16, &raw, std::ptr::null_mut())? };
    for (number, expected) in [dq, dk, dv].into_iter().enumerate() {
        assert_eq!(part(&gradients, number)?.to_vec()?, expected.to_vec()?);
    }
    PASSED
}

/// Each tensor in each layout that it can have, the others row-major.
fn each_layout(device: &Device) -> Outcome {
    let inputs = Layout::OUTPUTS.iter().chain(Layout::BROADCASTS);
    let places: [fn(&mut BackwardCase) -> &mut Layout; 8] = [
        |case| &mut case.forward.q,
        |case| &mut case.forward.k,
        |case| &mut case.forward.v,
        |case| &mut case.d_o,
        |case| &mut case.forward.o,
        |case| &mut case.dq,
        |case| &mut case.dk,
        |case| &mut case.dv,
    ];
    for (number, place) in places.into_iter().enumerate() {
        for &layout in inputs.clone() {
            let is_input = number < 4;
            if !is_input && Layout::BROADCASTS.contains(&layout) {
                continue;
            }
            let mut case = BackwardCase::from(Case {
                batch: 2,
                heads: 4,
                kv_heads: 2,
                seqlen_q: 40,
                seqlen_kv: 45,
                ..Case::default()
            });
            *place(&mut case) = layout;
            case.check(device)?;
        }
    }
    PASSED
}
