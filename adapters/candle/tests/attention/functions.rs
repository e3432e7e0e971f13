//! Every function of a batch.

use crate::compare::{compare, random};
use crate::plain::Plain;
use candle_core::{Device, Result, Tensor};
use ferroattn_candle::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed,
};

const SCALE: f32 = 0.3;
const SLOPES: [f32; 4] = [0.5, 0.25, 0.125, 0.0625];

/// Queries, keys, heads, key/value heads and head dim.
const SIZES: [[usize; 5]; 6] = [
    [1, 1, 4, 4, 8],
    [5, 7, 4, 2, 16],
    // The first queries see no key where a mask is causal.
    [9, 4, 4, 1, 40],
    [1, 70, 4, 2, 64],
    [33, 33, 4, 4, 20],
    [130, 66, 4, 2, 64],
];

/// Windows of left and right bounds, of which one is larger than any sequence.
const WINDOWS: [[Option<usize>; 2]; 6] = [
    [None, None],
    [None, Some(0)],
    [Some(2), Some(1)],
    [Some(3), None],
    [Some(0), Some(0)],
    [Some(1000), Some(1000)],
];

/// q, k and v of a batch of two.
fn inputs([seqlen_q, seqlen_kv, heads, kv_heads, dim]: [usize; 5]) -> [Tensor; 3] {
    [
        random(&[2, seqlen_q, heads, dim], 1),
        random(&[2, seqlen_kv, kv_heads, dim], 2),
        random(&[2, seqlen_kv, kv_heads, dim], 3),
    ]
}

fn slopes(device: &Device) -> Result<Tensor> {
    Tensor::new(&SLOPES, device)
}

fn with_slopes(plain: Plain) -> Plain {
    let slopes = Some(SLOPES.to_vec());
    Plain { slopes, ..plain }
}

/// Compares on all sizes, with and without a causal mask.
fn on_all_sizes(
    plain: Plain,
    function: impl Fn([&Tensor; 3], bool) -> Result<Tensor>,
) -> Result<()> {
    for sizes in SIZES {
        for causal in [false, true] {
            let plain = Plain {
                scale: SCALE,
                causal,
                ..plain.clone()
            };
            let actual = |t: &[Tensor]| function([&t[0], &t[1], &t[2]], causal);
            compare(&inputs(sizes), actual, |t| {
                plain.forward(&t[0], &t[1], &t[2])
            })?;
        }
    }
    Ok(())
}

/// Compares on all windows.
fn on_all_windows(
    plain: Plain,
    function: impl Fn([&Tensor; 3], [Option<usize>; 2]) -> Result<Tensor>,
) -> Result<()> {
    for sizes in [SIZES[1], SIZES[2], SIZES[5]] {
        for window in WINDOWS {
            let [left, right] = window;
            let plain = Plain {
                scale: SCALE,
                left,
                right,
                ..plain.clone()
            };
            let actual = |t: &[Tensor]| function([&t[0], &t[1], &t[2]], window);
            compare(&inputs(sizes), actual, |t| {
                plain.forward(&t[0], &t[1], &t[2])
            })?;
        }
    }
    Ok(())
}

#[test]
fn plain_and_causal() -> Result<()> {
    on_all_sizes(Plain::default(), |[q, k, v], causal| {
        flash_attn(q, k, v, SCALE, causal)
    })
}

#[test]
fn alibi() -> Result<()> {
    on_all_sizes(with_slopes(Plain::default()), |[q, k, v], causal| {
        flash_attn_alibi(q, k, v, &slopes(q.device())?, SCALE, causal)
    })
}

#[test]
fn windowed() -> Result<()> {
    on_all_windows(Plain::default(), |[q, k, v], [left, right]| {
        flash_attn_windowed(q, k, v, SCALE, left, right)
    })
}

#[test]
fn alibi_windowed() -> Result<()> {
    on_all_windows(with_slopes(Plain::default()), |[q, k, v], [left, right]| {
        flash_attn_alibi_windowed(q, k, v, &slopes(q.device())?, SCALE, left, right)
    })
}

#[test]
fn alibi_windowed_softcap() -> Result<()> {
    let softcap = Some(0.8);
    let plain = Plain {
        softcap,
        ..Plain::default()
    };
    on_all_windows(plain.clone(), |[q, k, v], [left, right]| {
        flash_attn_alibi_windowed_softcap(q, k, v, None, SCALE, left, right, 0.8)
    })?;
    on_all_windows(with_slopes(plain), |[q, k, v], [left, right]| {
        let slopes = Some(slopes(q.device())?);
        flash_attn_alibi_windowed_softcap(q, k, v, slopes.as_ref(), SCALE, left, right, 0.8)
    })
}

/// A softcap of 0 is none, which candle-flash-attn's callers pass.
#[test]
fn no_softcap() -> Result<()> {
    on_all_windows(Plain::default(), |[q, k, v], [left, right]| {
        flash_attn_alibi_windowed_softcap(q, k, v, None, SCALE, left, right, 0.0)
    })
}

/// Candle-flash-attn takes a bound of more keys than there are for none.
#[test]
fn a_window_larger_than_the_keys_is_none() -> Result<()> {
    let inputs = inputs([9, 3, 4, 1, 16]);
    // Counted from its place, -6, the first query would see no key.
    let actual = |t: &[Tensor]| flash_attn_windowed(&t[0], &t[1], &t[2], SCALE, None, Some(4));
    let plain = Plain {
        scale: SCALE,
        ..Plain::default()
    };
    compare(&inputs, actual, |t| plain.forward(&t[0], &t[1], &t[2]))
}
