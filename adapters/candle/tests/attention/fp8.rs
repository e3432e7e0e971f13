//! Calls in FP8, whose inputs are rounded or hold e4m3 already, against attention of what these stand for.

use crate::compare::{devices_of_e4m3, on_host, random};
use crate::errors::line;
use crate::plain::Plain;
use candle_core::{DType, Device, Result, Tensor};
use ferroattn_candle::{Attention, Fp8, flash_attn};

/// Numbers of e4m3 from -1 to 1, in f32.
pub fn numbers(shape: &[usize], seed: u64) -> Result<Tensor> {
    let rounded = random(shape, seed).to_dtype(DType::F8E4M3)?;
    rounded.to_dtype(DType::F32)
}

/// Numbers of e4m3 in its type, on their device. Candle converts on the host, on every GPU.
pub fn e4m3(numbers: &Tensor) -> Result<Tensor> {
    let on_host = on_host(numbers)?.to_dtype(DType::F8E4M3)?;
    on_host.to_device(numbers.device())
}

/// Descales from 0.5 to 1.5 of so many entries and heads, which f16 and bf16 hold.
pub fn descales(entries: usize, heads: usize, seed: u64) -> Result<Tensor> {
    (numbers(&[entries, heads], seed)? * 0.5)? + 1.0
}

/// Rows `[batch, rows, heads, dim]` times the descales of their heads.
pub fn descaled(rows: &Tensor, descales: &Tensor) -> Result<Tensor> {
    let (batch, heads) = descales.dims2()?;
    rows.broadcast_mul(&descales.reshape((batch, 1, heads, 1))?)
}

/// The error in norm, for each unit of the expected one.
fn loss(found: &Tensor, expected: &Tensor) -> Result<f32> {
    let norm = |t: Tensor| t.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>();
    Ok(norm((on_host(found)? - expected)?)? / norm(expected.clone())?)
}

/// Inputs are rounded, or rotated and rounded: both results are near the exact one, and they are not the same.
#[test]
fn rounded() -> Result<()> {
    let [q, k, v] =
        [(4, 1), (2, 2), (2, 3)].map(|(heads, seed)| random(&[2, 150, heads, 64], seed));
    let plain = Plain {
        scale: 0.125,
        causal: true,
        ..Plain::default()
    };
    let expected = plain.forward(&q, &k, &v)?;
    for (device, _) in devices_of_e4m3() {
        let [q, k, v] = [&q, &k, &v].map(|t| t.to_dtype(DType::F16)?.to_device(&device));
        let (q, k, v) = (q?, k?, v?);
        let lost = |fp8: Option<Fp8>| {
            let attention = Attention::new().causal(true).fp8(fp8);
            loss(&attention.forward(&q, &k, &v)?, &expected)
        };
        let exact = lost(None)?;
        let [rounded, rotated] =
            [false, true].map(|rotates| lost(Some(Fp8::new().hadamard(rotates))));
        let (rounded, rotated) = (rounded?, rotated?);
        assert!(rounded != rotated, "{rounded}");
        for lost in [rounded, rotated] {
            assert!(lost > 10.0 * exact && lost < 0.1, "{lost}, {exact}");
        }
    }
    Ok(())
}

/// q, k and v of e4m3 with descales, in every type of o.
#[test]
fn inputs() -> Result<()> {
    let [q, k, v] =
        [(4, 1), (2, 2), (2, 3)].map(|(heads, seed)| numbers(&[2, 150, heads, 64], seed));
    let (q, k, v) = (q?, k?, v?);
    let [of_q, of_k, of_v] = [4, 5, 6].map(|seed| descales(2, 2, seed));
    let (of_q, of_k, of_v) = (of_q?, of_k?, of_v?);
    let of_heads = Tensor::cat(&[&of_q, &of_q], 0)?.reshape((2, 2, 2))?;
    let of_heads = of_heads.permute((1, 2, 0))?.reshape((2, 4))?;
    for causal in [false, true] {
        let plain = Plain {
            scale: 0.125,
            causal,
            ..Plain::default()
        };
        let wide = [
            descaled(&q, &of_heads)?,
            descaled(&k, &of_k)?,
            descaled(&v, &of_v)?,
        ];
        let expected = plain.forward(&wide[0], &wide[1], &wide[2])?;
        for (device, _) in devices_of_e4m3() {
            let [q, k, v] = [&q, &k, &v].map(|t| e4m3(&t.to_device(&device)?));
            let (q, k, v) = (q?, k?, v?);
            let [of_q, of_k, of_v] = [&of_q, &of_k, &of_v].map(|t| t.to_device(&device));
            let attention = Attention::new()
                .causal(causal)
                .descales(&of_q?, &of_k?, &of_v?);
            for dtype in [DType::F16, DType::BF16, DType::F32] {
                let o = attention.forward_e4m3(&q, &k, &v, dtype)?;
                assert_eq!(o.dtype(), dtype);
                // The CPU rounds no probabilities.
                let bound = match dtype {
                    _ if device.is_cuda() => 0.04,
                    DType::F32 => 1e-5,
                    DType::F16 => 5e-4,
                    _ => 4e-3,
                };
                let lost = loss(&o, &expected)?;
                assert!(lost < bound, "{dtype:?}: {lost}");
                let rotated = attention.clone().fp8(Fp8::new().hadamard(true));
                let rotated = loss(&rotated.forward_e4m3(&q, &k, &v, dtype)?, &expected)?;
                assert!(rotated > lost && rotated < 0.1, "{dtype:?}: {rotated}");
            }
        }
    }
    Ok(())
}

/// A tensor of zeros on the host.
pub fn of(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).expect("a tensor")
}

#[test]
fn wrong_inputs() {
    let [x, half] = [DType::F8E4M3, DType::F16].map(|dtype| of(dtype, &[1, 4, 2, 16]));
    let ones = of(DType::F32, &[1, 2]);
    let plain = Attention::new();
    let refused = |attention: &Attention| line(attention.forward_e4m3(&x, &x, &x, DType::F16));
    assert_eq!(
        line(flash_attn(&x, &x, &x, 1.0, true)),
        "q is of F8E4M3, which Attention::forward_e4m3 takes"
    );
    assert_eq!(
        line(plain.forward_e4m3(&x, &x, &half, DType::F16)),
        "v is of F16; it must be of F8E4M3"
    );
    assert_eq!(
        line(plain.forward_e4m3(&x, &x, &x, DType::F64)),
        "attention computes F16, BF16 and, on the CPU, F32; not F64"
    );
    assert_eq!(
        refused(
            &plain
                .clone()
                .descales(&ones, &ones, &of(DType::F32, &[2, 1]))
        ),
        "v_descale has shape [2, 1]; it must be [1, 2] to match the other tensors"
    );
    assert_eq!(
        refused(&plain.clone().descales(&of(DType::F32, &[2]), &ones, &ones)),
        "q_descale has shape [2]; it must be [batch, kv_heads], or [pages, kv_heads] of pages"
    );
    assert_eq!(
        refused(
            &plain
                .clone()
                .descales(&of(DType::F16, &[1, 2]), &ones, &ones)
        ),
        "q_descale is of F16; it must be of F32"
    );
    assert_eq!(
        refused(&plain.clone().cache_descales(&ones, &ones)),
        "descales of a cache need q of 16 bits; forward_e4m3 has descales"
    );
    assert_eq!(
        refused(&plain.clone().batch_invariant(true)),
        "fp8 cannot be combined with batch_invariant"
    );
    let rounded = plain.clone().batch_invariant(true).fp8(Fp8::new());
    assert_eq!(
        line(rounded.forward(&half, &half, &half)),
        "fp8 cannot be combined with batch_invariant"
    );
    let descaled = plain.descales(&ones, &ones, &ones);
    assert_eq!(
        line(descaled.forward(&half, &half, &half)),
        "descales need k and v of F8E4M3"
    );
    assert_eq!(
        line(descaled.forward(&half, &x, &x)),
        "q_descale needs q of F8E4M3; a cache has cache_descales"
    );
}
