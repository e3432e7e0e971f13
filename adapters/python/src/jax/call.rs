//! A call as the library takes it: what both passes have.

use super::abi::element;
use super::failure::Failure;
use super::frame::{Frame, number};
use crate::form::{Form, repeated};
use ferroattn::{
    Attention, Dtype, RawBias, RawForward, RawMask, RawOptions, RawTensor, RawWorkspace,
};

/// Axes of a bias or a mask.
pub const PAIRS: [Option<usize>; 4] = [Some(0), Some(1), Some(2), Some(3)];

/// Options and tensors of a call.
pub struct Call {
    pub attention: Attention<'static>,
    pub form: Form,
    pub dtype: Dtype,
    /// Tensors of the forward pass: o and lse are its results, and arguments of a backward pass.
    pub tensors: RawForward,
}

impl Call {
    /// Reads a call of either pass.
    pub fn read(frame: &Frame) -> Result<Self, Failure> {
        let of_q = frame.array("q");
        let of_q = of_q.ok_or_else(|| Failure::internal("the call has no array q"))?;
        let form = Form::of(of_q.dims().len(), frame.flag("heads_first")?);
        let dtype = of_q.dtype("q")?;
        let of_keys = form.of_keys(frame.array("pages").is_some());
        let tensor = |name| frame.tensor(name, number(dtype), form.axes());
        let keys = |name| frame.tensor(name, number(dtype), of_keys.axes());
        let q = tensor("q")?;
        Ok(Call {
            attention: attention(frame)?,
            form,
            dtype,
            tensors: RawForward {
                q,
                k: keys("k")?,
                v: keys("v")?,
                o: tensor("o")?,
                lse: frame.tensor("lse", element::F32, form.axes_of_rows())?,
                options: options(frame, form, q)?,
            },
        })
    }
}

/// Options that are numbers.
fn attention(frame: &Frame) -> Result<Attention<'static>, Failure> {
    // A negative bound is none.
    let bound = |name| Ok::<_, Failure>(usize::try_from(frame.int(name)?).ok());
    let mut attention = Attention::new()
        .causal(frame.flag("causal")?)
        .window(bound("left")?, bound("right")?)
        .batch_invariant(frame.flag("batch_invariant")?);
    let (scale, softcap) = (frame.float("scale")?, frame.float("softcap")?);
    if !scale.is_nan() {
        attention = attention.scale(scale);
    }
    if softcap != 0.0 {
        attention = attention.softcap(softcap);
    }
    Ok(attention)
}

/// Options that are tensors.
fn options(frame: &Frame, form: Form, q: RawTensor) -> Result<RawOptions, Failure> {
    let [batch, heads, queries, _] = q.shape;
    let repeated = |tensor| repeated(tensor, [batch, heads, queries]);
    let numbers = |name| frame.optional(name, element::S32, [Some(0)]);
    let mut options = RawOptions::default();
    if let Some(bias) = frame.array("bias") {
        let dtype = bias.dtype("bias")?;
        let tensor = repeated(bias.raw("bias", number(dtype), PAIRS)?);
        options.bias = Some(RawBias { dtype, tensor });
    }
    let mask = frame.optional("mask", element::PRED, PAIRS)?;
    options.mask = mask.map(|tensor| RawMask {
        bits: false,
        tensor: repeated(tensor),
    });
    options.sinks = frame.optional("sinks", element::F32, [Some(0)])?;
    if let Some(slopes) = frame.array("alibi_slopes") {
        let of_heads = slopes.dims().len() == 1;
        let axes = if of_heads {
            [None, Some(0)]
        } else {
            [Some(0), Some(1)]
        };
        let mut slopes = slopes.raw("alibi_slopes", element::F32, axes)?;
        if of_heads {
            slopes.shape[0] = batch;
        }
        options.alibi = Some(slopes);
    }
    let (seqlens_q, seqlens_k) = (numbers("seqlens_q")?, numbers("seqlens_k")?);
    let in_pages = frame.array("pages").is_some();
    options.sequences = form
        .sequences(seqlens_q, seqlens_k, in_pages)
        .map_err(Failure::argument)?;
    options.first_keys = numbers("first_keys")?;
    options.cache_entries = numbers("cache_entries")?;
    options.pages = frame.optional("pages", element::S32, [Some(0), Some(1)])?;
    Ok(options)
}

/// Memory that XLA gives for the call's work, from the first address in it that a workspace may have.
pub fn workspace(frame: &Frame) -> Result<RawWorkspace, Failure> {
    let RawTensor {
        address,
        shape: [bytes],
        ..
    } = frame.tensor("workspace", element::U8, [Some(0)])?;
    let first = address.next_multiple_of(RawWorkspace::ALIGNMENT);
    match bytes.checked_sub((first - address) as usize) {
        Some(bytes @ 1..) => Ok(RawWorkspace {
            address: first,
            bytes,
        }),
        _ => Ok(RawWorkspace::default()),
    }
}
