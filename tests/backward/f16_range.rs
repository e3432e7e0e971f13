//! P and dS are numbers of the element type where they are multiplied: in f16 P has steps of 2^-24, and dS at most 65504.

use ferroattn::{Attention, Device, Dtype, Element, Tensor, bf16, f16};
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::backward("small_probabilities", |device| {
            small_probabilities::<f16>(device)?;
            small_probabilities::<bf16>(device)
        }),
        Test::backward("large_score_gradients", |device| {
            large_score_gradients::<f16>(device)?;
            large_score_gradients::<bf16>(device)
        }),
    ]
}

const ROWS: usize = 64;
const DIM: usize = 64;

/// A tensor whose rows hold one number each.
fn rows<T: Element>(
    device: &Device,
    number: impl Fn(usize) -> f32,
) -> ferroattn::Result<Tensor<T>> {
    let elements: Vec<T> = (0..ROWS * DIM)
        .map(|i| T::from_f32(number(i / DIM)))
        .collect();
    Tensor::new(device, [1, 1, ROWS, DIM], &elements)
}

/// A sink leaves each key a weight of 3e-7, 5.1 steps of f16: dv is off by at most half a step of each row, 3 %, and is right in
/// bfloat16.
fn small_probabilities<T: Element>(device: &Device) -> Outcome {
    let zeros = rows::<T>(device, |_| 0.0)?;
    let d_o = rows::<T>(device, |_| 2000.0)?;
    let sinks = Tensor::new(device, [1], &[15.0_f32])?;
    let call = Attention::new().sinks(&sinks);
    let (o, lse) = call.forward(&zeros, &zeros, &zeros)?;
    let (_, _, dv) = call.backward(&zeros, &zeros, &zeros, &o, &lse, &d_o)?;
    let sum = ROWS as f64 * 2000.0;
    let p = 1.0 / (ROWS as f64 + 15_f64.exp());
    let half_step = match T::DTYPE {
        Dtype::F16 => (-25_f64).exp2(),
        _ => 0.0,
    };
    for dv in dv.to_vec()? {
        let dv = f64::from(dv.to_f32());
        let allowed = sum * (half_step + p / 128.0);
        assert!((dv - sum * p).abs() <= allowed, "{:?}: {dv}", T::DTYPE);
    }
    PASSED
}

/// dS of 2^18, though dq is 2^14: never a wrong number. In f16 a GPU's dq is not finite.
fn large_score_gradients<T: Element>(device: &Device) -> Outcome {
    let sign = |row: usize| if row.is_multiple_of(2) { 1.0 } else { -1.0 };
    let q = rows::<T>(device, |_| 0.0)?;
    let k = rows::<T>(device, |row| sign(row) / 64.0)?;
    let v = rows::<T>(device, |row| 1024.0 * sign(row))?;
    let d_o = rows::<T>(device, |_| 256.0)?;
    let call = Attention::new().scale(0.0625);
    let (o, lse) = call.forward(&q, &k, &v)?;
    let (dq, ..) = call.backward(&q, &k, &v, &o, &lse, &d_o)?;
    // All 64 keys weigh 1/64, delta is 0, and dP is 2^24 of their sign.
    let expected = 0.0625 * (24_f64.exp2() / 64.0);
    for dq in dq.to_vec()? {
        let dq = f64::from(dq.to_f32());
        let is_right = (dq - expected).abs() <= expected / 128.0;
        let may_overflow = T::DTYPE == Dtype::F16 && !device.is_cpu();
        assert!(
            is_right || may_overflow && !dq.is_finite(),
            "{:?}: {dq}",
            T::DTYPE
        );
    }
    PASSED
}
