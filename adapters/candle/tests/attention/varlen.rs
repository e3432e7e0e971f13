//! Every function of packed sequences, against attention of each sequence alone.

use crate::compare::{compare, random};
use crate::plain::Plain;
use candle_core::{DType, Device, Result, Tensor};
use ferroattn_candle::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_windowed,
};

const SCALE: f32 = 0.3;
const SLOPES: [f32; 4] = [0.5, 0.25, 0.125, 0.0625];

/// Lengths of queries and keys of each sequence.
const SEQUENCES: [&[[usize; 2]]; 4] = [
    &[[3, 4], [1, 1], [5, 2], [2, 9]],
    // A sequence without anything, without keys, without queries.
    &[[4, 4], [0, 0], [3, 0], [0, 5], [1, 70]],
    &[[130, 130], [7, 65]],
    &[[6, 6]],
];

const WINDOWS: [[Option<usize>; 2]; 4] = [
    [None, None],
    [None, Some(0)],
    [Some(2), Some(1)],
    [Some(3), None],
];

/// Where each sequence begins, and where the last one ends.
pub fn offsets(lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut offsets = vec![0];
    offsets.extend(lengths.scan(0, |end, length| {
        *end += length as u32;
        Some(*end)
    }));
    offsets
}

/// Attention of each sequence alone.
pub fn alone(plain: &Plain, lengths: &[[usize; 2]], t: &[Tensor]) -> Result<Tensor> {
    let (mut at, mut outputs) = ([0, 0], Vec::new());
    for [queries, keys] in lengths {
        let q = t[0].narrow(0, at[0], *queries)?.unsqueeze(0)?;
        let [k, v] = [&t[1], &t[2]].map(|t| t.narrow(0, at[1], *keys)?.unsqueeze(0));
        at = [at[0] + queries, at[1] + keys];
        match (*queries, *keys) {
            (0, _) => (),
            // Candle multiplies no empty matrices.
            (_, 0) => outputs.push((q.squeeze(0)? * 0.0)?),
            _ => outputs.push(plain.forward(&q, &k?, &v?)?.squeeze(0)?),
        }
    }
    Tensor::cat(&outputs, 0)
}

/// The offsets and largest lengths that functions take.
struct Packed {
    seqlens: [Tensor; 2],
    max: [usize; 2],
}

/// Compares on all sequences, with offsets of both types.
fn on_all_sequences(
    plain: &Plain,
    function: impl Fn([&Tensor; 3], &Packed) -> Result<Tensor>,
) -> Result<()> {
    for (index, lengths) in SEQUENCES.into_iter().enumerate() {
        let columns = [0, 1].map(|part| lengths.iter().map(move |lengths| lengths[part]));
        let max = columns
            .clone()
            .map(|lengths| lengths.max().unwrap_or_default());
        let offsets = columns.map(offsets);
        let [rows_q, rows_kv] = offsets
            .each_ref()
            .map(|offsets| offsets[lengths.len()] as usize);
        let inputs = [
            random(&[rows_q, 4, 24], 1),
            random(&[rows_kv, 2, 24], 2),
            random(&[rows_kv, 2, 24], 3),
        ];
        let dtype = [DType::U32, DType::I32][index % 2];
        let actual = |t: &[Tensor]| {
            let device = t[0].device();
            let on_device = |offsets: &Vec<u32>| -> Result<Tensor> {
                Tensor::new(&offsets[..], &Device::Cpu)?
                    .to_dtype(dtype)?
                    .to_device(device)
            };
            let seqlens = [on_device(&offsets[0])?, on_device(&offsets[1])?];
            function([&t[0], &t[1], &t[2]], &Packed { seqlens, max })
        };
        compare(&inputs, actual, |t| alone(plain, lengths, t))?;
    }
    Ok(())
}

fn plain(window: [Option<usize>; 2], softcap: Option<f32>, slopes: Option<Vec<f32>>) -> Plain {
    let [left, right] = window;
    Plain {
        scale: SCALE,
        left,
        right,
        softcap,
        slopes,
        ..Plain::default()
    }
}

fn causal_window(causal: bool) -> [Option<usize>; 2] {
    [None, causal.then_some(0)]
}

#[test]
fn plain_and_causal() -> Result<()> {
    for causal in [false, true] {
        let plain = plain(causal_window(causal), None, None);
        on_all_sequences(
            &plain,
            |[q, k, v],
             Packed {
                 seqlens: [sq, sk],
                 max,
             }| { flash_attn_varlen(q, k, v, sq, sk, max[0], max[1], SCALE, causal) },
        )?;
    }
    Ok(())
}

#[test]
fn windowed() -> Result<()> {
    for window in WINDOWS {
        let plain = plain(window, None, None);
        on_all_sequences(
            &plain,
            |[q, k, v],
             Packed {
                 seqlens: [sq, sk],
                 max,
             }| {
                let [left, right] = window;
                flash_attn_varlen_windowed(q, k, v, sq, sk, max[0], max[1], SCALE, left, right)
            },
        )?;
    }
    Ok(())
}

#[test]
fn alibi() -> Result<()> {
    for causal in [false, true] {
        let plain = plain(causal_window(causal), None, Some(SLOPES.to_vec()));
        on_all_sequences(
            &plain,
            |[q, k, v],
             Packed {
                 seqlens: [sq, sk],
                 max,
             }| {
                let slopes = Tensor::new(&SLOPES, q.device())?;
                flash_attn_varlen_alibi(q, k, v, &slopes, sq, sk, max[0], max[1], SCALE, causal)
            },
        )?;
    }
    Ok(())
}

#[test]
fn alibi_windowed() -> Result<()> {
    for window in WINDOWS {
        let plain = plain(window, None, Some(SLOPES.to_vec()));
        on_all_sequences(
            &plain,
            |[q, k, v],
             Packed {
                 seqlens: [sq, sk],
                 max,
             }| {
                let ([left, right], [max_q, max_k]) = (window, *max);
                let slopes = Tensor::new(&SLOPES, q.device())?;
                flash_attn_varlen_alibi_windowed(
                    q, k, v, &slopes, sq, sk, max_q, max_k, SCALE, left, right,
                )
            },
        )?;
    }
    Ok(())
}

#[test]
fn alibi_windowed_softcap() -> Result<()> {
    for (window, has_slopes) in WINDOWS.into_iter().zip([true, false, true, false]) {
        let plain = plain(window, Some(0.8), has_slopes.then(|| SLOPES.to_vec()));
        on_all_sequences(
            &plain,
            |[q, k, v],
             Packed {
                 seqlens: [sq, sk],
                 max,
             }| {
                let ([left, right], [max_q, max_k]) = (window, *max);
                let slopes = Tensor::new(&SLOPES, q.device())?;
                let slopes = has_slopes.then_some(&slopes);
                flash_attn_varlen_alibi_windowed_softcap(
                    q, k, v, slopes, sq, sk, max_q, max_k, SCALE, left, right, 0.8,
                )
            },
        )?;
    }
    Ok(())
}
