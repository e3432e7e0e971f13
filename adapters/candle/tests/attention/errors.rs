//! Calls that are refused, in a line that says why.

use candle_core::{DType, Device, Result, Tensor, Var};
use ferroattn_candle::{Attention, flash_attn, flash_attn_alibi, flash_attn_varlen};

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).expect("a tensor")
}

fn f32(shape: &[usize]) -> Tensor {
    zeros(shape, DType::F32)
}

/// The line of a refusal.
fn line(refused: Result<Tensor>) -> String {
    let message = refused.expect_err("a refusal").to_string();
    // A backtrace may follow.
    message.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn shapes() {
    let q = f32(&[2, 5, 4, 8]);
    let refused = |q: &Tensor, k: &Tensor, v: &Tensor| line(flash_attn(q, k, v, 1.0, true));
    let k = f32(&[2, 7, 2, 8]);
    assert_eq!(
        refused(&q, &f32(&[2, 7, 2, 16]), &k),
        "k has shape [2, 7, 2, 16]; it must be [2, 7, 2, 8]"
    );
    assert_eq!(
        refused(&q, &k, &f32(&[2, 6, 2, 8])),
        "v has shape [2, 6, 2, 8]; it must be [2, 7, 2, 8]"
    );
    assert_eq!(
        refused(&q, &f32(&[2, 7, 3, 8]), &f32(&[2, 7, 3, 8])),
        "heads is 4; it must be a multiple of kv_heads, which is 3"
    );
    assert_eq!(
        refused(&f32(&[5, 4, 8]), &k, &k),
        "q has shape [5, 4, 8]; it must be [batch, rows, heads, dim]"
    );
    let wide = f32(&[1, 1, 1, 1025]);
    assert_eq!(
        refused(&wide, &wide, &wide),
        "dim is 1025; it must be from 1 to 1024"
    );
}

#[test]
fn types() {
    let [q, k] = [DType::F16, DType::BF16].map(|dtype| zeros(&[1, 2, 1, 8], dtype));
    assert_eq!(
        line(flash_attn(&q, &k, &q, 1.0, true)),
        "k is of BF16; it must be of q's type, F16"
    );
    let q = zeros(&[1, 2, 1, 8], DType::F64);
    assert_eq!(
        line(flash_attn(&q, &q, &q, 1.0, true)),
        "attention computes F16, BF16 and, on the CPU, F32; not F64"
    );
}

#[test]
fn numbers() {
    let q = f32(&[1, 2, 1, 8]);
    assert_eq!(
        line(flash_attn(&q, &q, &q, f32::NAN, true)),
        "scale is NaN; it must be finite"
    );
    assert_eq!(
        line(Attention::new().softcap(-1.0).forward(&q, &q, &q)),
        "softcap is -1; it must be finite and above 0"
    );
}

#[test]
fn options() -> Result<()> {
    let q = f32(&[2, 5, 4, 8]);
    let refused = |attention: Attention| line(attention.forward(&q, &q, &q));
    assert_eq!(
        refused(Attention::new().bias(&f32(&[2, 4, 5]))),
        "bias has shape [2, 4, 5]; it must be [2, 4, 5, 5], with 1 for any of the first three"
    );
    assert_eq!(
        refused(Attention::new().mask(&zeros(&[1, 1, 5, 1], DType::U8))),
        "mask has shape [1, 1, 5, 1]; it must be [2, 4, 5, 5], with 1 for any of the first three"
    );
    assert_eq!(
        refused(Attention::new().mask(&f32(&[1, 1, 5, 5]))),
        "mask is of F32; it must be of U8"
    );
    assert_eq!(
        refused(Attention::new().sinks(&f32(&[2]))),
        "sinks has shape [2]; it must be [4]"
    );
    assert_eq!(
        refused(Attention::new().alibi(&f32(&[3, 4]))),
        "alibi has shape [3, 4]; it must be [4] or [2, 4]"
    );
    let lengths = zeros(&[3], DType::U32);
    assert_eq!(
        refused(Attention::new().padded(&lengths, &lengths)),
        "lengths_q has shape [3]; it must be [2]"
    );
    Ok(())
}

/// Candle would give slopes no gradient, and not say so.
#[test]
fn slopes_that_learn() -> Result<()> {
    let q = f32(&[1, 5, 4, 8]);
    let slopes = Var::zeros(4, DType::F32, &Device::Cpu)?;
    assert_eq!(
        line(flash_attn_alibi(&q, &q, &q, &slopes, 1.0, true)),
        "alibi has no gradient; pass alibi.detach()"
    );
    flash_attn_alibi(&q, &q, &q, &slopes.detach(), 1.0, true)?;
    Ok(())
}

#[test]
fn offsets() -> Result<()> {
    let q = f32(&[5, 4, 8]);
    let refused = |seqlens_q: &Tensor, seqlens_k: &Tensor| {
        line(flash_attn_varlen(
            &q, &q, &q, seqlens_q, seqlens_k, 5, 5, 1.0, true,
        ))
    };
    let offsets = |numbers: &[u32]| Tensor::new(numbers, &Device::Cpu);
    assert_eq!(
        refused(&offsets(&[0, 2, 5])?, &offsets(&[0, 5])?),
        "offsets_kv has shape [2]; it must be [3]"
    );
    assert_eq!(
        refused(&offsets(&[0, 6])?, &offsets(&[0, 5])?),
        "offsets_q[1] is 6; it must be from 0 to 5"
    );
    assert_eq!(
        refused(&offsets(&[])?, &offsets(&[])?),
        "offsets_q must have one more element than there are sequences, 2 or more"
    );
    let wrong = Tensor::new(&[0_i64, 5], &Device::Cpu)?;
    assert_eq!(
        refused(&wrong, &wrong),
        "offsets_q is of I64; it must be of one of [I32, U32]"
    );
    let batch = f32(&[1, 5, 4, 8]);
    let seqlens = offsets(&[0, 5])?;
    assert_eq!(
        line(flash_attn_varlen(
            &batch, &batch, &batch, &seqlens, &seqlens, 5, 5, 1.0, true
        )),
        "q has shape [1, 5, 4, 8]; of packed sequences it must be [rows, heads, dim]"
    );
    Ok(())
}

/// f32 is the CPU's alone, and tensors of a call are on one device.
#[test]
fn devices() -> Result<()> {
    let Some((device, _)) = crate::compare::devices()
        .into_iter()
        .find(|(device, _)| device.is_cuda())
    else {
        return Ok(());
    };
    let q = zeros(&[1, 2, 1, 8], DType::F16);
    let on_device = q.to_device(&device)?;
    assert_eq!(
        line(flash_attn(&on_device, &q, &on_device, 1.0, true)),
        "k is on Cpu; it must be on the device of q, Cuda { gpu_id: 0 }"
    );
    let slopes = f32(&[1]);
    assert_eq!(
        line(flash_attn_alibi(
            &on_device, &on_device, &on_device, &slopes, 1.0, true
        )),
        "alibi is on Cpu; it must be on the device of q, Cuda { gpu_id: 0 }"
    );
    let q = on_device.to_dtype(DType::F32)?;
    assert_eq!(
        line(flash_attn(&q, &q, &q, 1.0, true)),
        "no kernel computes f32, only f16 and bf16; use the CPU"
    );
    Ok(())
}
