//! Lengths of 0, and lengths of each entry of a batch.

use crate::compare::{compare, devices, random};
use crate::plain::Plain;
use candle_core::{DType, Device, Result, Tensor, Var};
use ferroattn_candle::{Attention, flash_attn, flash_attn_varlen};

#[test]
fn padded_batches() -> Result<()> {
    let inputs = [
        random(&[4, 6, 4, 16], 1),
        random(&[4, 9, 2, 16], 2),
        random(&[4, 9, 2, 16], 3),
    ];
    let lengths = vec![[6, 9], [3, 1], [0, 4], [5, 0]];
    for causal in [false, true] {
        let numbers = |part: usize, device: &Device| {
            let numbers: Vec<i32> = lengths.iter().map(|lengths| lengths[part] as i32).collect();
            Tensor::new(numbers, device)
        };
        let actual = |t: &[Tensor]| {
            let device = t[0].device();
            Attention::new()
                .scale(0.3)
                .causal(causal)
                .padded(&numbers(0, device)?, &numbers(1, device)?)
                .forward(&t[0], &t[1], &t[2])
        };
        let lengths = Some(lengths.clone());
        let plain = Plain {
            scale: 0.3,
            causal,
            lengths,
            ..Plain::default()
        };
        compare(&inputs, actual, |t| plain.forward(&t[0], &t[1], &t[2]))?;
    }
    Ok(())
}

/// The output, and gradients of its sum.
fn of_zeros(q: [usize; 4], k: [usize; 4], device: &Device, dtype: DType) -> Result<[Tensor; 4]> {
    // Candle allocates nothing of no elements on a GPU.
    let var = |shape: [usize; 4]| -> Result<(Var, Tensor)> {
        let [batch, rows, heads, dim] = shape;
        let var = Var::zeros((batch, rows + 1, heads, dim), dtype, device)?;
        let rows = var.narrow(1, 0, rows)?;
        Ok((var, rows))
    };
    let ((_, q), (_, k), (_, v)) = (var(q)?, var(k)?, var(k)?);
    let o = flash_attn(&q, &k, &v, 1.0, false)?;
    Ok([q, k, v, o])
}

#[test]
fn no_keys() -> Result<()> {
    for (device, dtypes) in devices() {
        let [_, _, _, o] = of_zeros([2, 3, 4, 8], [2, 0, 2, 8], &device, dtypes[0])?;
        assert_eq!(o.dims(), [2, 3, 4, 8]);
        let numbers = o.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(numbers, [0.0; 2 * 3 * 4 * 8]);
    }
    Ok(())
}

#[test]
fn no_queries() -> Result<()> {
    for (device, dtypes) in devices() {
        let [_, _, _, o] = of_zeros([2, 0, 4, 8], [2, 3, 2, 8], &device, dtypes[0])?;
        assert_eq!(o.dims(), [2, 0, 4, 8]);
    }
    Ok(())
}

/// Neither query nor key: the pass that computes nothing has gradients, too.
#[test]
fn gradients_of_nothing() -> Result<()> {
    let q = Var::zeros((1, 2, 4, 8), DType::F32, &Device::Cpu)?;
    let k = Var::zeros((1, 0, 4, 8), DType::F32, &Device::Cpu)?;
    let gradients = flash_attn(&q, &k, &k, 1.0, true)?.sum_all()?.backward()?;
    let dq = gradients.get(&q).expect("a gradient").flatten_all()?;
    assert_eq!(dq.to_vec1::<f32>()?, [0.0; 64]);
    assert_eq!(gradients.get(&k).expect("a gradient").dims(), [1, 0, 4, 8]);
    Ok(())
}

/// Rows before the first sequence and behind the last one are in none.
#[test]
fn rows_of_no_sequence() -> Result<()> {
    let [q, k, v] = [1, 2, 3].map(|seed| random(&[7, 2, 16], seed));
    let ones = Tensor::ones((2, 2, 16), DType::F32, &Device::Cpu)?;
    let outside = |t: &Tensor| Tensor::cat(&[&(&ones * 0.0)?, t, &(&ones * 0.0)?], 0);
    let actual = |t: &[Tensor]| {
        let seqlens = Tensor::new(&[2_u32, 5], t[0].device())?;
        flash_attn_varlen(&t[0], &t[1], &t[2], &seqlens, &seqlens, 3, 3, 0.3, true)
    };
    let expected = |t: &[Tensor]| {
        let [q, k, v] = [&t[0], &t[1], &t[2]].map(|t| t.narrow(0, 2, 3)?.unsqueeze(0));
        let plain = Plain {
            scale: 0.3,
            causal: true,
            ..Plain::default()
        };
        outside(&plain.forward(&q?, &k?, &v?)?.squeeze(0)?)
    };
    compare(&[q, k, v], actual, expected)
}
