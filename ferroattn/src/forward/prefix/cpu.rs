//! Calls with a prefix and own keys on the CPU.

use super::divide::{Call, as_one_entry, of_entries};
use crate::device::Device;
use crate::error::Result;
use crate::forward::cpu;
use crate::merge::{RawMerge, RawPart, merge_on_cpu};
use crate::tensor::{Dtype, Element, RawTensor, Tensor};
use half::{bf16, f16};
use ndarray::Axis;

/// Computes both parts and merges their results.
///
/// # Safety
/// The conditions of [`Attention::forward_raw`](crate::Attention::forward_raw) on the CPU, of the whole call.
pub unsafe fn two(dtype: Dtype, prefix: &Call, own: &Call) -> Result<()> {
    let two = match dtype {
        Dtype::F16 => two_of::<f16>,
        Dtype::Bf16 => two_of::<bf16>,
        Dtype::F32 => two_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { two(prefix, own) }
}

/// # Safety
/// The conditions of [`two`], with `T` the element type.
unsafe fn two_of<T: Element>(prefix: &Call, own: &Call) -> Result<()> {
    let cpu = Device::cpu();
    let outputs = |call: &Call| -> Result<(Tensor<T>, Tensor<f32, 3>)> {
        let (o, lse) = (call.problem.o_shape(), call.problem.lse_shape());
        Ok((Tensor::zeros(&cpu, o)?, Tensor::zeros(&cpu, lse)?))
    };
    let (mut first, mut second) = (outputs(prefix)?, outputs(own)?);
    let [first, second] = [&mut first, &mut second].map(|(o, lse)| RawPart {
        o: o.as_raw_mut(),
        lse: lse.as_raw_mut(),
    });
    // SAFETY: the caller vouches for the memory, and that nothing writes it.
    let copy = unsafe { copy_of::<T>(own.args.q)? };
    let (mut prefix, mut own_args) = (*prefix, own.args);
    prefix.args.q = as_one_entry(own_args.q).unwrap_or_else(|| copy.as_raw());
    (prefix.args.o, prefix.args.lse) = (first.o, first.lse);
    (own_args.o, own_args.lse) = (second.o, second.lse);
    let batch = own.problem.batch;
    let args = RawMerge {
        first: RawPart {
            o: of_entries(first.o, batch),
            lse: of_entries(first.lse, batch),
        },
        second,
        merged: RawPart {
            o: own.args.o,
            lse: own.args.lse,
        },
    };
    // SAFETY: the caller's word, of the inputs and the merged outputs; the parts' outputs, and the copy of q, are tensors that live on,
    // which nothing else touches.
    unsafe {
        cpu::forward_raw(T::DTYPE, &prefix.problem, &prefix.args)?;
        cpu::forward_raw(T::DTYPE, &own.problem, &own_args)?;
        merge_on_cpu(T::DTYPE, &args)
    }
}

/// A copy of q as the rows of one entry, if q itself is not; without elements otherwise.
///
/// # Safety
/// Every element lies in readable memory, aligned, and nothing writes it.
unsafe fn copy_of<T: Element>(q: RawTensor) -> Result<Tensor<T>> {
    if as_one_entry(q).is_some() {
        return Tensor::from_vec([0; 4], Vec::new());
    }
    let [batch, heads, rows, dim] = q.shape;
    // SAFETY: the caller's word.
    let view = unsafe { q.view::<T, _>() };
    let heads_of = view.axis_iter(Axis(1));
    let elements = heads_of.flat_map(|head| head.iter().copied().collect::<Vec<_>>());
    Tensor::from_vec([1, heads, batch * rows, dim], elements.collect())
}
