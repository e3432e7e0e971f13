//! The merge of two partial results.

use super::cpu;
use super::part::{FIRST, MERGED, SECOND, rows_of, validate};
use super::plan::merge_of;
use super::{Partial, PartialMut, RawMerge, RawPart};
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::plan::{CPU, Plan, Steps};
use crate::tensor::{Dtype, Element, Storage, StorageMut, Tensor, expect_device};

/// Merges the results of the same queries' attention to two sets of keys into the result for all these keys, on the device
/// of the inputs.
///
/// Each part, and the result, is o `[batch, heads, seqlen, dim_v]` and lse `[batch, heads, seqlen]`, as
/// [`Attention::forward`](crate::Attention::forward) gives them. With `lse = log(exp(lse1) + exp(lse2))` and
/// `w_i = exp(lse_i - lse)`, o is `w_1 o1 + w_2 o2`. More parts are merged one after the other.
///
/// A part with an lse of -inf has no part in its row, whatever its o holds; two such parts give `o = 0` and `lse = -inf`. An lse
/// of inf outweighs every finite one. Two of inf have no weights: lse stays inf and o is NaN. An lse of NaN makes both NaN.
///
/// `dim_v` is from 1 to 1024; batch, heads and seqlen may be 0. GPUs merge f16 and bf16, the CPU f32, too.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, Device, Tensor, merge};
///
/// let device = Device::cpu();
/// let numbers: Vec<f32> = (0..6 * 8).map(|i| (i % 7) as f32 / 7.0).collect();
/// let q = Tensor::new(&device, [1, 1, 6, 8], &numbers)?;
/// let (k, v) = (&q, &q);
/// let part = |start, len| {
///     let [k, v] = [k, v].map(|tensor| tensor.view().narrow(2, start, len));
///     Attention::new().forward(&q, &k?, &v?)
/// };
/// let ((o1, lse1), (o2, lse2)) = (part(0, 4)?, part(4, 2)?);
/// let (o, lse) = merge((&o1, &lse1), (&o2, &lse2))?;
///
/// let (all_o, all_lse) = Attention::new().forward(&q, k, v)?;
/// let near = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5);
/// assert!(near(o.to_vec()?, all_o.to_vec()?) && near(lse.to_vec()?, all_lse.to_vec()?));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Says which argument is wrong, by the names `o1`, `lse1`, `o2` and `lse2`, or what the device lacks. A failure while a GPU
/// computes shows when the results are read.
pub fn merge<T: Element>(
    first: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    second: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
) -> Result<(Tensor<T>, Tensor<f32, 3>)> {
    let (shape, device) = (first.0.shape(), first.0.device());
    validate(shape)?;
    let mut o = Tensor::zeros(&device, shape)?;
    let mut lse = Tensor::zeros(&device, rows_of(shape))?;
    merge_into(first, second, (&mut o, &mut lse))?;
    Ok((o, lse))
}

/// Like [`merge`], into tensors of the caller, `o` and `lse` in messages: `o` of any strides that give every element its own
/// place, with unit stride in dim, and `lse` contiguous.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Device, Tensor, merge_into};
///
/// let device = Device::cpu();
/// let [o1, o2] = [2.0_f32, 4.0].map(|x| Tensor::new(&device, [1, 1, 1, 8], &[x; 8]));
/// let (o1, o2, lse) = (o1?, o2?, Tensor::new(&device, [1, 1, 1], &[0.5])?);
/// let mut o = Tensor::zeros(&device, [1, 1, 1, 8])?;
/// let mut merged = Tensor::zeros(&device, [1, 1, 1])?;
/// merge_into((&o1, &lse), (&o2, &lse), (&mut o, &mut merged))?;
/// assert_eq!(o.to_vec()?, [3.0; 8]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The conditions of [`merge`].
pub fn merge_into<T: Element>(
    first: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    second: Partial<'_, impl Storage<Item = T>, impl Storage<Item = f32>>,
    (o, lse): PartialMut<'_, impl StorageMut<Item = T>, impl StorageMut<Item = f32>>,
) -> Result<()> {
    let ((o1, lse1), (o2, lse2)) = (first, second);
    let device = o1.device();
    expect_device(&device, [("lse1", lse1.device()), ("o2", o2.device())])?;
    expect_device(&device, [("lse2", lse2.device()), ("o", o.device())])?;
    expect_device(&device, [("lse", lse.device())])?;
    let args = RawMerge {
        first: RawPart::of(first),
        second: RawPart::of(second),
        merged: RawPart::of_mut((o, lse)),
    };
    // SAFETY: a tensor lies inside its own buffer on the device, and the shapes are compared. No other argument borrows the
    // buffer of o or lse, so they overlap nothing. A buffer that is dropped early is freed by the driver after the work on
    // the default stream.
    unsafe { merge_raw(&device, T::DTYPE, &args, std::ptr::null_mut()) }
}

/// Like [`merge_into`], on memory of any owner and on the caller's stream. On a CUDA device the call returns before the work
/// is done.
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
/// - Until then nothing else writes the parts, or touches the merged tensors. The memory from the first to the last element of
///   each of these holds no element of another tensor.
/// - `stream` is null or a live stream of the device's primary context.
pub unsafe fn merge_raw(
    device: &Device,
    dtype: Dtype,
    args: &RawMerge,
    stream: RawStream,
) -> Result<()> {
    let plan = merge_plan(device.facts(), dtype, args)?;
    if !device.is_cpu() {
        // SAFETY: the caller's word; the plan has the kernel's own parameters and grid.
        return unsafe { plan.run(device, stream) };
    }
    // SAFETY: the caller's word.
    unsafe { cpu::merge_raw(dtype, args) }
}

/// The launches of a [merge](merge_raw) on a device with these facts; nothing on the CPU, which is `None`, or if there are no
/// rows.
///
/// # Errors
/// The conditions of [`merge`].
pub fn merge_plan(facts: Option<&Facts>, dtype: Dtype, args: &RawMerge) -> Result<Plan> {
    facts.map_or(Ok(()), Facts::validate)?;
    let &RawMerge {
        first,
        second,
        merged,
    } = args;
    let shape = first.o.shape;
    validate(shape)?;
    first.expect(FIRST, shape)?;
    second.expect(SECOND, shape)?;
    merged.expect_output(MERGED, shape)?;
    if facts.is_none() {
        return Ok(Steps::default().finish(CPU, 1));
    }
    merge_of(dtype.of_kernels()?, args)
}
