//! Tensors that are views, and gradients of outputs that are.

use crate::compare::{compare, random};
use crate::plain::Plain;
use candle_core::{Result, Tensor};
use ferroattn_candle::flash_attn;

const SCALE: f32 = 0.25;

fn plain() -> Plain {
    Plain {
        scale: SCALE,
        causal: true,
        ..Plain::default()
    }
}

/// `[batch, heads, rows, dim]`, as most models have them.
#[test]
fn transposed_heads() -> Result<()> {
    let heads_first = |t: &Tensor| t.transpose(1, 2);
    let inputs = [
        random(&[2, 4, 9, 16], 1),
        random(&[2, 2, 11, 16], 2),
        random(&[2, 2, 11, 16], 3),
    ];
    let call = |t: &[Tensor]| {
        let [q, k, v] = [&t[0], &t[1], &t[2]].map(heads_first);
        // The gradient of the output arrives transposed.
        heads_first(&flash_attn(&q?, &k?, &v?, SCALE, true)?)
    };
    let expected = |t: &[Tensor]| {
        let [q, k, v] = [&t[0], &t[1], &t[2]].map(heads_first);
        heads_first(&plain().forward(&q?, &k?, &v?)?)
    };
    compare(&inputs, call, expected)
}

/// q, k and v in one projection `[batch, rows, 3, heads, dim]`.
#[test]
fn parts_of_one_tensor() -> Result<()> {
    let part = |t: &Tensor, index| t.narrow(2, index, 1)?.squeeze(2);
    let inputs = [random(&[2, 13, 3, 4, 16], 1)];
    compare(
        &inputs,
        |t| {
            flash_attn(
                &part(&t[0], 0)?,
                &part(&t[0], 1)?,
                &part(&t[0], 2)?,
                SCALE,
                true,
            )
        },
        |t| plain().forward(&part(&t[0], 0)?, &part(&t[0], 1)?, &part(&t[0], 2)?),
    )
}

/// Rows, heads and elements of larger tensors; rows then begin at odd addresses.
#[test]
fn narrowed_axes() -> Result<()> {
    let inside = |t: &Tensor| {
        t.narrow(0, 1, 2)?
            .narrow(1, 3, 7)?
            .narrow(2, 1, 2)?
            .narrow(3, 3, 10)
    };
    let inputs = [
        random(&[4, 11, 4, 15], 1),
        random(&[3, 10, 3, 13], 2),
        random(&[3, 10, 3, 13], 3),
    ];
    compare(
        &inputs,
        |t| {
            flash_attn(
                &inside(&t[0])?,
                &inside(&t[1])?,
                &inside(&t[2])?,
                SCALE,
                true,
            )
        },
        |t| plain().forward(&inside(&t[0])?, &inside(&t[1])?, &inside(&t[2])?),
    )
}

/// A last axis of another stride than 1 is copied.
#[test]
fn transposed_elements() -> Result<()> {
    let turned = |t: &Tensor| t.transpose(1, 3);
    let inputs = [1, 2, 3].map(|seed| random(&[2, 16, 2, 9], seed));
    compare(
        &inputs,
        |t| {
            turned(&flash_attn(
                &turned(&t[0])?,
                &turned(&t[1])?,
                &turned(&t[2])?,
                SCALE,
                true,
            )?)
        },
        |t| turned(&plain().forward(&turned(&t[0])?, &turned(&t[1])?, &turned(&t[2])?)?),
    )
}

/// Keys and values that all entries of a batch share, with a stride of 0.
#[test]
fn repeated_keys() -> Result<()> {
    let repeated = |t: &Tensor| t.broadcast_as((3, 9, 2, 16));
    let inputs = [
        random(&[3, 5, 2, 16], 1),
        random(&[1, 9, 2, 16], 2),
        random(&[1, 9, 2, 16], 3),
    ];
    compare(
        &inputs,
        |t| flash_attn(&t[0], &repeated(&t[1])?, &repeated(&t[2])?, SCALE, true),
        |t| plain().forward(&t[0], &repeated(&t[1])?, &repeated(&t[2])?),
    )
}

/// The gradient of a sum is one number that repeats.
#[test]
fn repeated_gradients() -> Result<()> {
    let inputs = [1, 2, 3].map(|seed| random(&[2, 9, 2, 16], seed));
    compare(
        &inputs,
        |t| flash_attn(&t[0], &t[1], &t[2], SCALE, true)?.sum(3),
        |t| plain().forward(&t[0], &t[1], &t[2])?.sum(3),
    )
}

/// A tensor in several places gets the sum of their gradients.
#[test]
fn one_tensor_for_all() -> Result<()> {
    compare(
        &[random(&[2, 9, 2, 16], 1)],
        |t| flash_attn(&t[0], &t[0], &t[0], SCALE, true),
        |t| plain().forward(&t[0], &t[0], &t[0]),
    )
}

/// The output of one call is the input of another.
#[test]
fn two_layers() -> Result<()> {
    let inputs = [1, 2].map(|seed| random(&[2, 9, 2, 16], seed));
    compare(
        &inputs,
        |t| {
            let o = flash_attn(&t[0], &t[1], &t[1], SCALE, true)?;
            flash_attn(&o, &t[1], &o, SCALE, true)
        },
        |t| {
            let o = plain().forward(&t[0], &t[1], &t[1])?;
            plain().forward(&o, &t[1], &o)
        },
    )
}
