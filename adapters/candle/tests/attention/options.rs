//! Options beyond candle-flash-attn's, with their gradients.

use crate::compare::{compare, devices, random};
use crate::plain::Plain;
use candle_core::{DType, Device, Result, Tensor, Var};
use ferroattn_candle::{Attention, flash_attn};

/// q, k and v of head dims 16 and 24, with two query heads for each key/value head.
fn inputs() -> [Tensor; 3] {
    [
        random(&[2, 9, 4, 16], 1),
        random(&[2, 11, 2, 16], 2),
        random(&[2, 11, 2, 24], 3),
    ]
}

fn with(tensors: impl IntoIterator<Item = Tensor>) -> Vec<Tensor> {
    inputs().into_iter().chain(tensors).collect()
}

#[test]
fn values_of_another_dim() -> Result<()> {
    let plain = Plain {
        scale: 0.25,
        ..Plain::default()
    };
    compare(
        &inputs(),
        // The scale is 1 / sqrt(16) by default.
        |t| Attention::new().forward(&t[0], &t[1], &t[2]),
        |t| plain.forward(&t[0], &t[1], &t[2]),
    )
}

/// Chunks of a sequence, each with the keys up to its last one.
#[test]
fn batch_invariant() -> Result<()> {
    for (device, _) in devices() {
        for split_keys in [0, 64] {
            let attention = Attention::new().causal(true).batch_invariant(true);
            let attention = attention.split_keys(split_keys);
            let [q, k, v] = [(4, 5), (2, 6), (2, 7)].map(|(heads, seed)| {
                let tensor = random(&[2, 150, heads, 16], seed).to_dtype(DType::F16)?;
                tensor.to_device(&device)
            });
            let (q, k, v) = (q?, k?, v?);
            let bits = |o: Tensor| o.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            let whole = attention.forward(&q, &k, &v)?;
            for (first, end) in [(0, 1), (1, 40), (40, 150), (149, 150)] {
                let [k, v] = [&k, &v].map(|tensor| tensor.narrow(1, 0, end));
                let rows = q.narrow(1, first, end - first)?;
                let chunk = attention.forward(&rows, &k?, &v?)?;
                let part = whole.narrow(1, first, end - first)?;
                assert_eq!(bits(chunk)?, bits(part)?, "{first}..{end}");
            }
        }
    }
    Ok(())
}

/// Biases of every shape have gradients of theirs.
#[test]
fn bias() -> Result<()> {
    for [batch, heads, seqlen_q] in [
        [2, 4, 9],
        [1, 4, 9],
        [2, 1, 9],
        [1, 1, 9],
        [2, 4, 1],
        [1, 1, 1],
    ] {
        compare(
            &with([random(&[batch, heads, seqlen_q, 11], 4)]),
            |t| {
                Attention::new()
                    .causal(true)
                    .bias(&t[3])
                    .forward(&t[0], &t[1], &t[2])
            },
            |t| {
                let bias = Some(t[3].clone());
                let plain = Plain {
                    scale: 0.25,
                    causal: true,
                    bias,
                    ..Plain::default()
                };
                plain.forward(&t[0], &t[1], &t[2])
            },
        )?;
    }
    Ok(())
}

/// Keys before queries: the bias is a view, whose last axis is copied.
#[test]
fn a_bias_that_is_a_view() -> Result<()> {
    compare(
        &with([random(&[2, 4, 11, 9], 4)]),
        |t| {
            Attention::new()
                .bias(&t[3].transpose(2, 3)?)
                .forward(&t[0], &t[1], &t[2])
        },
        |t| {
            let bias = Some(t[3].transpose(2, 3)?);
            let plain = Plain {
                scale: 0.25,
                bias,
                ..Plain::default()
            };
            plain.forward(&t[0], &t[1], &t[2])
        },
    )
}

#[test]
fn sinks() -> Result<()> {
    for causal in [false, true] {
        compare(
            &with([random(&[4], 4)]),
            |t| {
                Attention::new()
                    .causal(causal)
                    .sinks(&t[3])
                    .forward(&t[0], &t[1], &t[2])
            },
            |t| {
                let sinks = Some(t[3].clone());
                let plain = Plain {
                    scale: 0.25,
                    causal,
                    sinks,
                    ..Plain::default()
                };
                plain.forward(&t[0], &t[1], &t[2])
            },
        )?;
    }
    Ok(())
}

#[test]
fn bias_sinks_window_and_softcap_at_once() -> Result<()> {
    let window = Plain {
        scale: 0.25,
        left: Some(4),
        right: Some(2),
        softcap: Some(0.7),
        ..Plain::default()
    };
    compare(
        &with([random(&[1, 4, 9, 11], 4), random(&[4], 5)]),
        |t| {
            let attention = Attention::new().window(4, 2).softcap(0.7);
            attention
                .bias(&t[3])
                .sinks(&t[4])
                .forward(&t[0], &t[1], &t[2])
        },
        |t| {
            let (bias, sinks) = (Some(t[3].clone()), Some(t[4].clone()));
            let plain = Plain {
                bias,
                sinks,
                ..window.clone()
            };
            plain.forward(&t[0], &t[1], &t[2])
        },
    )
}

/// A mask that also hides all keys of a row.
#[test]
fn mask() -> Result<()> {
    for [batch, heads] in [[2, 4], [1, 1]] {
        let numbers = random(&[batch, heads, 9, 11], 4).gt(0.2_f32)?;
        let rows = Tensor::new(
            &[[1_u8], [0], [1], [1], [0], [1], [1], [1], [1]],
            &Device::Cpu,
        )?;
        let mask = numbers.broadcast_mul(&rows)?;
        compare(
            &inputs(),
            |t| {
                let mask = mask.to_device(t[0].device())?;
                Attention::new().mask(&mask).forward(&t[0], &t[1], &t[2])
            },
            |t| {
                let mask = Some(mask.clone());
                let plain = Plain {
                    scale: 0.25,
                    mask,
                    ..Plain::default()
                };
                plain.forward(&t[0], &t[1], &t[2])
            },
        )?;
    }
    Ok(())
}

/// Only what candle tracks gets a gradient, and tensors that it does not track are read all the same.
#[test]
fn a_bias_alone_may_be_tracked() -> Result<()> {
    for (device, dtypes) in devices() {
        let on_device = |t: Tensor| t.to_dtype(dtypes[0])?.to_device(&device);
        let [q, k, v] = inputs().map(on_device);
        let (q, k, v) = (q?, k?, v?);
        let bias = Var::from_tensor(&on_device(random(&[1, 4, 9, 11], 4))?)?;
        let sinks = on_device(random(&[4], 5))?;
        let attention = Attention::new().sinks(&sinks);
        let o = attention.clone().bias(&bias).forward(&q, &k, &v)?;
        let gradients = o.sum_all()?.backward()?;
        assert!(gradients.get(&bias).is_some() && gradients.get(&sinks).is_none());
        assert!(gradients.get(&q).is_none());
        let untracked = attention.bias(&bias.detach()).forward(&q, &k, &v)?;
        assert!(!untracked.track_op());
        let numbers = |t: Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!(numbers(o)?, numbers(untracked)?);
    }
    Ok(())
}

/// Each backward pass gives the same gradients, of both operations that bias and sinks take.
#[test]
fn backward_passes_repeat() -> Result<()> {
    for (device, dtypes) in devices() {
        let var = |t: Tensor| Var::from_tensor(&t.to_dtype(dtypes[0])?.to_device(&device)?);
        let [q, k, v] = inputs().map(var);
        let (q, k, v) = (q?, k?, v?);
        let bias = var(random(&[1, 4, 9, 11], 4))?;
        let loss = Attention::new()
            .bias(&bias)
            .forward(&q, &k, &v)?
            .sqr()?
            .sum_all()?;
        let bits = || -> Result<Vec<Vec<f32>>> {
            let gradients = loss.backward()?;
            let of = |var: &Var| {
                let gradient = gradients.get(var).expect("a gradient");
                gradient
                    .to_dtype(DType::F32)?
                    .flatten_all()?
                    .to_vec1::<f32>()
            };
            [&q, &k, &v, &bias].into_iter().map(of).collect()
        };
        assert_eq!(bits()?, bits()?);
    }
    Ok(())
}

/// Tensors that candle does not track keep no gradient.
#[test]
fn a_query_alone_may_be_tracked() -> Result<()> {
    let [q, k, v] = inputs();
    let q = Var::from_tensor(&q)?;
    let gradients = Attention::new()
        .forward(&q, &k, &v)?
        .sum_all()?
        .backward()?;
    let has = [q.as_tensor(), &k, &v].map(|tensor| gradients.get(tensor).is_some());
    assert_eq!(has, [true, false, false]);
    Ok(())
}

/// Tensors that are not tracked leave no graph.
#[test]
fn inference_has_no_graph() -> Result<()> {
    let q = Tensor::zeros((1, 2, 1, 8), DType::F32, &Device::Cpu)?;
    assert!(!flash_attn(&q, &q, &q, 1.0, true)?.track_op());
    Ok(())
}
