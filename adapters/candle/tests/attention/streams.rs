//! Calls on a stream of candle's.

use crate::compare::{devices, random};
use candle_core::{DType, Device, Result, Tensor};
use ferroattn_candle::{Append, Attention, flash_attn};

/// Layers of attention and of candle's operations.
fn layers(device: &Device) -> Result<Vec<f32>> {
    let [q, k] = [1, 2].map(|seed| {
        let numbers = random(&[2, 300, 4, 64], seed).to_dtype(DType::F16)?;
        numbers.to_device(device)
    });
    let (mut x, k) = (q?, k?);
    for _ in 0..20 {
        let o = flash_attn(&x, &(&k * 0.5)?, &k, 0.125, true)?;
        x = (x + (o * 0.25)?)?;
    }
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// Nothing waits but streams: each layer reads what the one before wrote, and memory is used again.
#[test]
fn calls_are_in_the_order_of_candles_stream() -> Result<()> {
    if !devices().iter().any(|(device, _)| device.is_cuda()) {
        return Ok(());
    }
    let expected = layers(&Device::Cpu)?;
    for device in [Device::new_cuda(0)?, Device::new_cuda_with_stream(0)?] {
        for (x, expected) in layers(&device)?.into_iter().zip(&expected) {
            assert!((x - expected).abs() < 0.05, "{x} and {expected}");
        }
    }
    Ok(())
}

/// Steps of decoding: each appends what the one before computed.
fn steps(device: &Device) -> Result<Vec<f32>> {
    let zeros = || Tensor::zeros((8, 16, 4, 64), DType::F16, device);
    let (k_cache, v_cache) = (zeros()?, zeros()?);
    let table = Tensor::new(&[[5_u32, 0, 3], [2, 7, 1]], device)?;
    let queries = Tensor::ones(2, DType::U32, device)?;
    let mut lengths = Tensor::zeros(2, DType::U32, device)?;
    let x = random(&[2, 1, 4, 64], 1).to_dtype(DType::F16)?;
    let mut x = x.to_device(device)?;
    let append = Append::new().pages(&table);
    for _ in 0..40 {
        lengths = append
            .clone()
            .lengths(&lengths)
            .run(&(&x * 0.5)?, &x, &k_cache, &v_cache)?;
        let attention = Attention::new().causal(true).pages(&table);
        let o = attention
            .padded(&queries, &lengths)
            .forward(&x, &k_cache, &v_cache)?;
        x = ((x * 0.25)? + (o * 0.75)?)?;
    }
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

#[test]
fn appends_are_in_the_order_of_candles_stream() -> Result<()> {
    if !devices().iter().any(|(device, _)| device.is_cuda()) {
        return Ok(());
    }
    let expected = steps(&Device::Cpu)?;
    for device in [Device::new_cuda(0)?, Device::new_cuda_with_stream(0)?] {
        for (x, expected) in steps(&device)?.into_iter().zip(&expected) {
            assert!(
                (x - expected).abs() < 0.05 * expected.abs().max(1.0),
                "{x} and {expected}"
            );
        }
    }
    Ok(())
}

/// Tensors of two of candle's devices are on two streams, also where the GPU is one.
#[test]
fn two_streams_are_two_devices() -> Result<()> {
    if !devices().iter().any(|(device, _)| device.is_cuda()) {
        return Ok(());
    }
    let on = |device: Device| Tensor::zeros((1, 2, 1, 8), DType::F16, &device);
    let (q, k) = (
        on(Device::new_cuda(0)?)?,
        on(Device::new_cuda_with_stream(0)?)?,
    );
    assert!(flash_attn(&q, &k, &k, 1.0, true).is_err());
    Ok(())
}
