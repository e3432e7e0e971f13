//! The gradient of a merge.

use super::cpu;
use super::part::{
    D_FIRST, D_MERGED, D_SECOND, FIRST, SECOND, expect_lse, expect_o, rows_of, validate,
};
use super::plan::plan;
use super::{Partial, PartialMut, RawMergeBackward, RawPart};
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::plan::{CPU, Plan, Steps};
use crate::tensor::{
    Dtype, Element, Storage, StorageMut, Tensor, TensorBase, TensorView, expect_device,
};
use kernels::abi::{MergeBackwardParams, PartRef};
use kernels::catalog::Auxiliary;

/// Computes the gradients `(d_o1, d_lse1)` and `(d_o2, d_lse2)` of the parts of a [`merge`](super::merge), on their device.
///
/// `d_o` `[batch, heads, seqlen, dim_v]` is the gradient of the merged o, and `d_lse` `[batch, heads, seqlen]` that of the
/// merged lse, for a loss that depends on it. The merged tensors themselves are not needed.
///
/// With the weights `w_i` of the merge, `d_o_i = w_i d_o` and `d_lse_i = w_i (d_lse + <d_o, o_i - o>)`. A part with an lse of -inf
/// has gradients of 0. [`Attention::backward_into`](crate::Attention::backward_into) takes each `d_o_i` and `d_lse_i` with the q,
/// k, v, o and lse of its part.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Device, Tensor, merge_backward};
///
/// let device = Device::cpu();
/// let [o1, o2, d_o] = [2.0_f32, 4.0, 1.0].map(|x| Tensor::new(&device, [1, 1, 1, 8], &[x; 8]));
/// let (o1, o2, d_o) = (o1?, o2?, d_o?);
/// let lse = Tensor::new(&device, [1, 1, 1], &[0.5])?;
///
/// let [(d_o1, d_lse1), (_, d_lse2)] = merge_backward((&o1, &lse), (&o2, &lse), &d_o, None)?;
///
/// // Both parts weigh 1/2, and o is 3: weight that moves to the second part raises the sum of o.
/// assert_eq!(d_o1.to_vec()?, [0.5; 8]);
/// assert_eq!((d_lse1.to_vec()?[0], d_lse2.to_vec()?[0]), (-4.0, 4.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Says which argument is wrong, by the names `o1`, `lse1`, `o2`, `lse2`, `d_o` and `d_lse`, or what the device lacks. A
/// failure while a GPU computes shows when the results are read.
pub fn merge_backward<T: Element>(
    first: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    second: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    d_o: &TensorBase<impl Storage<Item = T>>,
    d_lse: Option<TensorView<'_, f32, 3>>,
) -> Result<[(Tensor<T>, Tensor<f32, 3>); 2]> {
    let (shape, device) = (first.0.shape(), first.0.device());
    validate(shape)?;
    let zeros = || {
        let o = Tensor::zeros(&device, shape)?;
        Ok((o, Tensor::zeros(&device, rows_of(shape))?))
    };
    let (mut d_first, mut d_second) = (zeros()?, zeros()?);
    let to = (&mut d_first.0, &mut d_first.1);
    merge_backward_into(
        first,
        second,
        d_o,
        d_lse,
        to,
        (&mut d_second.0, &mut d_second.1),
    )?;
    Ok([d_first, d_second])
}

/// Like [`merge_backward`], into tensors of the caller, `d_o1`, `d_lse1`, `d_o2` and `d_lse2` in messages: of o any strides that
/// give every element its own place, with unit stride in dim; of lse contiguous ones.
///
/// # Errors
/// The conditions of [`merge_backward`].
pub fn merge_backward_into<T: Element>(
    first: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    second: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    d_o: &TensorBase<impl Storage<Item = T>>,
    d_lse: Option<TensorView<'_, f32, 3>>,
    d_first: PartialMut<'_, impl StorageMut<Item = T>, impl StorageMut<Item = f32>>,
    d_second: PartialMut<'_, impl StorageMut<Item = T>, impl StorageMut<Item = f32>>,
) -> Result<()> {
    let ((o1, lse1), (o2, lse2)) = (first, second);
    let device = o1.device();
    expect_device(&device, [("lse1", lse1.device()), ("o2", o2.device())])?;
    expect_device(&device, [("lse2", lse2.device()), ("d_o", d_o.device())])?;
    let d_lse_device = d_lse.as_ref().map(TensorBase::device);
    expect_device(&device, d_lse_device.map(|device| ("d_lse", device)))?;
    for ([d_o, d_lse], devices) in [
        (D_FIRST, [d_first.0.device(), d_first.1.device()]),
        (D_SECOND, [d_second.0.device(), d_second.1.device()]),
    ] {
        expect_device(&device, [d_o, d_lse].into_iter().zip(devices))?;
    }
    let args = RawMergeBackward {
        first: RawPart::of(first),
        second: RawPart::of(second),
        d_o: d_o.as_raw(),
        d_lse: d_lse.map(|d_lse| d_lse.as_raw()),
        d_first: RawPart::of_mut(d_first),
        d_second: RawPart::of_mut(d_second),
    };
    // SAFETY: a tensor lies inside its own buffer on the device, and the shapes are compared. No other argument borrows the
    // buffer of a gradient of a part, so they overlap nothing. A buffer that is dropped early is freed by the driver after
    // the work on the default stream.
    unsafe { merge_backward_raw(&device, T::DTYPE, &args, std::ptr::null_mut()) }
}

/// Like [`merge_backward_into`], on memory of any owner and on the caller's stream. On a CUDA device the call returns before
/// the work is done.
///
/// Addresses and the stream are as for [`Attention::forward_raw`](crate::Attention::forward_raw).
///
/// # Errors
/// Says which argument is wrong, or what the device lacks.
///
/// # Safety
/// - Every element of the tensors in `args`, by their sizes, lies in live memory of the device, aligned to its type, until the
///   work is done.
/// - Tensors of four axes hold elements of `dtype`.
/// - Until then nothing else writes the inputs, or touches the gradients of the parts. The memory from the first to the last
///   element of each of these holds no element of another tensor.
/// - `stream` is null or a live stream of the device's primary context.
pub unsafe fn merge_backward_raw(
    device: &Device,
    dtype: Dtype,
    args: &RawMergeBackward,
    stream: RawStream,
) -> Result<()> {
    let plan = merge_backward_plan(device.facts(), dtype, args)?;
    if !device.is_cpu() {
        // SAFETY: the caller's word; the plan has the kernel's own parameters and grid.
        return unsafe { plan.run(device, stream) };
    }
    // SAFETY: the caller's word.
    unsafe { cpu::merge_backward_raw(dtype, args) }
}

/// The launches of a merge's [gradient](merge_backward_raw) on a device with these facts; nothing on the CPU, which is `None`, or
/// if there are no rows.
///
/// # Errors
/// The conditions of [`merge_backward`].
pub fn merge_backward_plan(
    facts: Option<&Facts>,
    dtype: Dtype,
    args: &RawMergeBackward,
) -> Result<Plan> {
    facts.map_or(Ok(()), Facts::validate)?;
    let &RawMergeBackward {
        first,
        second,
        d_o,
        d_lse,
        d_first,
        d_second,
    } = args;
    let shape = first.o.shape;
    validate(shape)?;
    first.expect(FIRST, shape)?;
    second.expect(SECOND, shape)?;
    expect_o(D_MERGED[0], &d_o, shape)?;
    if let Some(d_lse) = d_lse {
        expect_lse(D_MERGED[1], &d_lse, shape)?;
    }
    d_first.expect_output(D_FIRST, shape)?;
    d_second.expect_output(D_SECOND, shape)?;
    if facts.is_none() {
        return Ok(Steps::default().finish(CPU, 1));
    }
    let kernel = Auxiliary::MergeBackward(dtype.of_kernels()?);
    let others = [d_o, d_first.o, d_second.o];
    plan(kernel, [first, second], &others, |parts| {
        MergeBackwardParams {
            parts,
            d_merged: match d_lse {
                Some(lse) => RawPart { o: d_o, lse }.into(),
                None => PartRef {
                    o: d_o.into(),
                    ..PartRef::default()
                },
            },
            d_first: d_first.into(),
            d_second: d_second.into(),
        }
    })
}
