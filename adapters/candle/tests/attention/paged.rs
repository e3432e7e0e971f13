//! Packed queries and keys in pages, against attention of each sequence alone.

use crate::compare::{compare_outputs, devices, random};
use crate::pages::Pages;
use crate::plain::Plain;
use crate::varlen::{alone, offsets};
use candle_core::{DType, Device, Result, Tensor};
use ferroattn_candle::{
    Attention, flash_attn_varlen_paged, flash_attn_varlen_paged_alibi,
    flash_attn_varlen_paged_alibi_windowed, flash_attn_varlen_paged_alibi_windowed_softcap,
    flash_attn_varlen_paged_sinks_windowed_softcap, flash_attn_varlen_paged_windowed,
};

const SCALE: f32 = 0.3;
const SLOPES: [f32; 4] = [0.5, 0.25, 0.125, 0.0625];
const SINKS: [f32; 4] = [0.5, -1.0, 0.0, 1.5];

/// Queries and keys of each sequence, and keys of a page.
const CALLS: [(&[[usize; 2]], usize); 8] = [
    // Steps of decoding; one with nothing to see.
    (&[[1, 7], [1, 1], [1, 0], [1, 33]], 4),
    (&[[1, 100], [1, 16], [1, 17]], 16),
    // Some entries of a batch have no query.
    (&[[1, 5], [0, 2], [1, 1], [0, 0]], 2),
    // Speculative steps.
    (&[[4, 4], [4, 70], [4, 9]], 8),
    // Chunks of prompts.
    (
        &[[3, 5], [1, 9], [0, 3], [5, 5], [2, 0], [0, 0], [7, 40]],
        1,
    ),
    (&[[130, 130], [7, 65], [64, 200]], 32),
    // More queries than keys.
    (&[[5, 2], [2, 3]], 16),
    (&[[6, 6]], 256),
];

const WINDOWS: [[Option<usize>; 2]; 4] = [
    [None, None],
    [None, Some(0)],
    [Some(2), Some(1)],
    [Some(3), Some(0)],
];

/// What functions take beside q, k and v.
struct Call {
    seqlens: [Tensor; 2],
    table: Tensor,
    max: [usize; 2],
    page: usize,
}

/// Compares on all calls, with tables of both types.
fn on_all_calls(
    plain: &Plain,
    function: impl Fn([&Tensor; 3], &Call) -> Result<Tensor>,
) -> Result<()> {
    for (index, (lengths, page)) in CALLS.into_iter().enumerate() {
        let [queries, keys] = [0, 1].map(|part| {
            lengths
                .iter()
                .map(|lengths| lengths[part])
                .collect::<Vec<_>>()
        });
        let pages = Pages::new(page, &keys, index as u64 + 1)?;
        let most = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or_default();
        let max = [most(&queries), most(&keys)];
        let rows = |lengths: &[usize]| lengths.iter().sum::<usize>();
        let inputs = [
            random(&[rows(&queries), 4, 24], 1),
            random(&[rows(&keys), 2, 24], 2),
            random(&[rows(&keys), 2, 24], 3),
        ];
        let actual = |t: &[Tensor]| {
            let device = t[0].device();
            let seqlens = [&queries, &keys];
            let seqlens =
                seqlens.map(|lengths| Tensor::new(offsets(lengths.iter().copied()), device));
            let [seqlens_q, seqlens_k] = seqlens;
            let call = Call {
                seqlens: [seqlens_q?, seqlens_k?],
                table: pages.tensor(index % 2 == 1, device)?,
                max,
                page,
            };
            let (k, v) = (pages.filled(&t[1], &keys)?, pages.filled(&t[2], &keys)?);
            function([&t[0], &k, &v], &call)
        };
        compare_outputs(&inputs, actual, |t| alone(plain, lengths, t))?;
    }
    Ok(())
}

fn plain([left, right]: [Option<usize>; 2]) -> Plain {
    Plain {
        scale: SCALE,
        left,
        right,
        ..Plain::default()
    }
}

fn with_slopes(plain: Plain) -> Plain {
    let slopes = Some(SLOPES.to_vec());
    Plain { slopes, ..plain }
}

#[test]
fn plain_and_causal() -> Result<()> {
    for causal in [false, true] {
        let plain = plain([None, causal.then_some(0)]);
        on_all_calls(&plain, |[q, k, v], call| {
            let ([sq, sk], [max_q, max_k], table) = (&call.seqlens, call.max, &call.table);
            flash_attn_varlen_paged(
                q, k, v, sq, sk, table, max_q, max_k, SCALE, causal, call.page,
            )
        })?;
    }
    Ok(())
}

#[test]
fn windowed() -> Result<()> {
    for (window, softcap) in WINDOWS
        .into_iter()
        .zip([None, Some(0.8), Some(0.0), Some(0.8)])
    {
        let plain = Plain {
            softcap: softcap.filter(|&softcap| softcap > 0.0),
            ..plain(window)
        };
        on_all_calls(&plain, |[q, k, v], call| {
            let ([sq, sk], [max_q, max_k], [left, right]) = (&call.seqlens, call.max, window);
            flash_attn_varlen_paged_windowed(
                q,
                k,
                v,
                sq,
                sk,
                &call.table,
                None,
                max_q,
                max_k,
                SCALE,
                left,
                right,
                call.page,
                softcap,
            )
        })?;
    }
    Ok(())
}

#[test]
fn alibi() -> Result<()> {
    let plain = with_slopes(plain([None, Some(0)]));
    on_all_calls(&plain, |[q, k, v], call| {
        let ([sq, sk], [max_q, max_k]) = (&call.seqlens, call.max);
        let slopes = Tensor::new(&SLOPES, q.device())?;
        flash_attn_varlen_paged_alibi(
            q,
            k,
            v,
            &slopes,
            sq,
            sk,
            &call.table,
            max_q,
            max_k,
            SCALE,
            true,
            call.page,
        )
    })
}

#[test]
fn alibi_windowed() -> Result<()> {
    let plain = with_slopes(plain([Some(3), Some(1)]));
    on_all_calls(&plain, |[q, k, v], call| {
        let ([sq, sk], [max_q, max_k], left) = (&call.seqlens, call.max, Some(3));
        let slopes = Tensor::new(&SLOPES, q.device())?;
        flash_attn_varlen_paged_alibi_windowed(
            q,
            k,
            v,
            &slopes,
            sq,
            sk,
            &call.table,
            max_q,
            max_k,
            SCALE,
            left,
            Some(1),
            call.page,
        )
    })
}

#[test]
fn alibi_windowed_softcap() -> Result<()> {
    for has_slopes in [false, true] {
        let plain = Plain {
            softcap: Some(0.8),
            slopes: has_slopes.then(|| SLOPES.to_vec()),
            ..plain([Some(5), Some(0)])
        };
        on_all_calls(&plain, |[q, k, v], call| {
            let ([sq, sk], [max_q, max_k]) = (&call.seqlens, call.max);
            let slopes = Tensor::new(&SLOPES, q.device())?;
            let slopes = has_slopes.then_some(&slopes);
            flash_attn_varlen_paged_alibi_windowed_softcap(
                q,
                k,
                v,
                slopes,
                sq,
                sk,
                &call.table,
                max_q,
                max_k,
                SCALE,
                Some(5),
                Some(0),
                call.page,
                0.8,
            )
        })?;
    }
    Ok(())
}

#[test]
fn sinks() -> Result<()> {
    let sinks = |device: &Device| Tensor::new(&SINKS, device);
    for (window, softcap) in WINDOWS.into_iter().zip([0.0, 0.8, 0.0, 0.8]) {
        let plain = Plain {
            softcap: Some(softcap).filter(|&softcap| softcap > 0.0),
            sinks: Some(sinks(&Device::Cpu)?),
            ..plain(window)
        };
        on_all_calls(&plain, |[q, k, v], call| {
            let ([sq, sk], [max_q, max_k], [left, right]) = (&call.seqlens, call.max, window);
            flash_attn_varlen_paged_sinks_windowed_softcap(
                q,
                k,
                v,
                &sinks(q.device())?,
                sq,
                sk,
                &call.table,
                max_q,
                max_k,
                SCALE,
                left,
                right,
                call.page,
                softcap,
            )
        })?;
    }
    Ok(())
}

/// Heads outside of keys, keys and values in one tensor, queries that are a part of one projection: nothing is row-major.
#[test]
fn views() -> Result<()> {
    let (lengths, keys) = ([[2, 9], [1, 4], [1, 30]], [9, 4, 30]);
    let pages = Pages::new(4, &keys, 7)?;
    let inputs = [
        random(&[4, 4, 16], 1),
        random(&[43, 2, 16], 2),
        random(&[43, 2, 16], 3),
    ];
    let actual = |t: &[Tensor]| {
        let device = t[0].device();
        let heads_first = |packed: &Tensor| {
            let pages = pages.filled(packed, &keys)?.transpose(1, 2)?;
            pages.contiguous()
        };
        let both = Tensor::stack(&[heads_first(&t[1])?, heads_first(&t[2])?], 1)?;
        let [k, v] = [0, 1].map(|part| both.narrow(1, part, 1)?.squeeze(1)?.transpose(1, 2));
        let q = Tensor::cat(&[&t[0], &t[0]], 1)?.narrow(1, 4, 4)?;
        let table = pages.tensor(false, device)?.t()?.contiguous()?.t()?;
        let seqlens_q = Tensor::new(&[0_u32, 2, 3, 4], device)?;
        let seqlens_k = Tensor::new(&[0_u32, 9, 13, 43], device)?;
        flash_attn_varlen_paged(
            &q, &k?, &v?, &seqlens_q, &seqlens_k, &table, 2, 30, SCALE, true, 4,
        )
    };
    compare_outputs(&inputs, actual, |t| {
        alone(&plain([None, Some(0)]), &lengths, t)
    })
}

/// Values of another head dim, and a batch of queries with lengths, by the options.
#[test]
fn padded_queries() -> Result<()> {
    let (lengths, keys) = ([[2, 9], [2, 4], [2, 30]], [9, 4, 30]);
    let pages = Pages::new(8, &keys, 5)?;
    let inputs = [
        random(&[6, 4, 16], 1),
        random(&[43, 2, 16], 2),
        random(&[43, 2, 40], 3),
    ];
    let actual = |t: &[Tensor]| {
        let device = t[0].device();
        let numbers = |numbers: [i32; 3]| Tensor::new(&numbers, device);
        let attention = Attention::new()
            .scale(SCALE)
            .causal(true)
            .pages(&pages.tensor(true, device)?)
            .padded(&numbers([2, 2, 2])?, &numbers([9, 4, 30])?);
        let (k, v) = (pages.filled(&t[1], &keys)?, pages.filled(&t[2], &keys)?);
        let o = attention.forward(&t[0].reshape((3, 2, 4, 16))?, &k, &v)?;
        o.reshape((6, 4, 40))
    };
    compare_outputs(&inputs, actual, |t| {
        alone(&plain([None, Some(0)]), &lengths, t)
    })
}

/// Entries of a cache that repeat, in any order; others have NaN.
#[test]
fn cache_entries() -> Result<()> {
    let inputs = [
        random(&[3, 2, 4, 16], 1),
        random(&[2, 5, 2, 16], 2),
        random(&[2, 5, 2, 16], 3),
    ];
    let nan = |t: &Tensor| (t * f64::NAN)?.narrow(0, 0, 1);
    let actual = |t: &[Tensor]| {
        let [k, v] = [&t[1], &t[2]].map(|t| Tensor::cat(&[&nan(t)?, t, &nan(t)?], 0));
        let entries = Tensor::new(&[2_u32, 1, 2], t[0].device())?;
        let attention = Attention::new().scale(SCALE).cache_entries(&entries);
        attention.forward(&t[0], &k?, &v?)
    };
    compare_outputs(&inputs, actual, |t| {
        let order = Tensor::new(&[1_u32, 0, 1], &Device::Cpu)?;
        let [k, v] = [&t[1], &t[2]].map(|t| t.index_select(&order, 0));
        plain([None, None]).forward(&t[0], &k?, &v?)
    })
}

/// Neither queries nor keys.
#[test]
fn nothing() -> Result<()> {
    for (device, dtypes) in devices() {
        let q = Tensor::zeros((1, 4, 16), dtypes[0], &device)?;
        let k = Tensor::full(f32::NAN, (1, 4, 2, 16), &device)?.to_dtype(dtypes[0])?;
        let table = Tensor::new(&[[9_u32], [9]], &device)?;
        let none = Tensor::new(&[0_u32, 0, 0], &device)?;
        let one = Tensor::new(&[0_u32, 0, 1], &device)?;
        let paged = |q: &Tensor, seqlens_q: &Tensor, max_q| {
            flash_attn_varlen_paged(q, &k, &k, seqlens_q, &none, &table, max_q, 0, 1.0, true, 4)
        };
        let o = paged(&q.narrow(0, 0, 0)?, &none, 0)?;
        assert_eq!(o.dims(), [0, 4, 16]);
        let o = paged(&q, &one, 1)?.to_dtype(DType::F32)?;
        assert_eq!(o.flatten_all()?.to_vec1::<f32>()?, [0.0; 64]);
    }
    Ok(())
}

/// Offsets and pages that are not allowed: a GPU reads and writes inside of its tensors.
#[test]
fn a_gpu_stays_inside() -> Result<()> {
    for (device, dtypes) in devices().into_iter().filter(|(device, _)| device.is_cuda()) {
        let q = Tensor::zeros((5, 4, 16), dtypes[0], &device)?;
        let k = Tensor::zeros((3, 4, 2, 16), dtypes[0], &device)?;
        let table = Tensor::new(&[[u32::MAX, 1 << 30], [7, 0]], &device)?;
        for numbers in [[0, 99, 5], [u32::MAX, 3, 1], [7, 0, u32::MAX], [0, 3, 5]] {
            let seqlens = Tensor::new(&numbers, &device)?;
            let o = flash_attn_varlen_paged(
                &q, &k, &k, &seqlens, &seqlens, &table, 4, 8, 1.0, true, 4,
            )?;
            let o = o.to_dtype(DType::F32)?.flatten_all()?;
            assert_eq!(o.to_vec1::<f32>()?, [0.0; 320]);
        }
    }
    Ok(())
}
