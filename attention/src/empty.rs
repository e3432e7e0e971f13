//! Calls without an entry, a head, a query or a key: nothing is computed, and outputs that have elements are filled.
//!
//! A query without keys has o = 0, and the lse of its sink, or -inf; gradients are 0.

use crate::backward::RawBackward;
use crate::error::{Error, Result};
use crate::forward::{Problem, RawForward};
use crate::plan::{EMPTY, Fill, Plan, Steps};
use crate::tensor::{Element, RawTensor};
use ndarray::Axis;

/// Fills of o and lse, on a device that launches kernels.
pub(crate) fn forward(problem: &Problem, args: &RawForward) -> Result<Plan> {
    let mut plan = Steps::default().finish(EMPTY, 1);
    if problem.seqlen_q == 0 {
        return Ok(plan);
    }
    if args.options.sinks.is_some() && !args.lse.layout().is_empty() {
        return Err(Error::NoOption("sinks without keys"));
    }
    zeros(&mut plan, &args.o, size_of::<u16>());
    let bytes = args.lse.layout().len() * size_of::<f32>();
    if bytes > 0 {
        plan.fills.push(Fill {
            address: args.lse.address,
            bytes,
            word: f32::NEG_INFINITY.to_bits(),
        });
    }
    Ok(plan)
}

/// Fills of gradients, on a device that launches kernels.
pub(crate) fn backward(args: &RawBackward) -> Result<Plan> {
    // Without keys the sink's gradient is the sum of those of lse.
    let has_sum = args.d_lse.is_some_and(|d_lse| !d_lse.layout().is_empty());
    if args.d_sinks.is_some() && has_sum {
        return Err(Error::NoOption("the gradient of sinks without keys"));
    }
    let mut plan = Steps::default().finish(EMPTY, 1);
    for gradient in [&args.dq, &args.dk, &args.dv] {
        zeros(&mut plan, gradient, size_of::<u16>());
    }
    if let Some(d_bias) = &args.d_bias {
        zeros(&mut plan, d_bias, size_of::<f32>());
    }
    if let Some(d_sinks) = &args.d_sinks {
        zeros(&mut plan, d_sinks, size_of::<f32>());
    }
    Ok(plan)
}

/// Zeros in all elements of a tensor.
fn zeros<const R: usize>(plan: &mut Plan, tensor: &RawTensor<R>, element: usize) {
    let (run, starts) = tensor.layout().runs();
    plan.fills.extend(starts.map(|start| {
        Fill {
            address: tensor
                .address
                .wrapping_add_signed((start * element as isize) as i64),
            bytes: run * element,
            word: 0,
        }
    }));
}

/// # Safety
/// As for [`Attention::forward_raw`](crate::Attention::forward_raw) on the CPU, with `T` the element type.
pub(crate) unsafe fn forward_cpu<T: Element>(args: &RawForward) {
    // SAFETY: the caller vouches for the memory, and that nothing else touches it.
    let (mut o, mut lse) = unsafe { (args.o.view_mut::<T, _>(), args.lse.view_mut::<f32, _>()) };
    o.fill(T::zeroed());
    lse.fill(f32::NEG_INFINITY);
    if let Some(sinks) = args.options.sinks {
        // SAFETY: the caller vouches for the memory, and that nothing writes it.
        let sinks = unsafe { sinks.view::<f32, _>() };
        for (mut rows, sink) in lse.axis_iter_mut(Axis(1)).zip(sinks) {
            rows.fill(*sink);
        }
    }
}

/// # Safety
/// As for [`Attention::backward_raw`](crate::Attention::backward_raw) on the CPU, with `T` the element type.
pub(crate) unsafe fn backward_cpu<T: Element>(args: &RawBackward) {
    for gradient in [args.dq, args.dk, args.dv] {
        // SAFETY: the caller vouches for the memory, and that nothing else touches it.
        unsafe { gradient.view_mut::<T, _>() }.fill(T::zeroed());
    }
    if let Some(d_bias) = args.d_bias {
        // SAFETY: as above.
        unsafe { d_bias.view_mut::<f32, _>() }.fill(0.0);
    }
    if let (Some(d_sinks), Some(sinks)) = (args.d_sinks, args.options.sinks) {
        // SAFETY: as above; nothing writes the inputs.
        let (mut d_sinks, sinks) =
            unsafe { (d_sinks.view_mut::<f32, _>(), sinks.view::<f32, _>()) };
        d_sinks.fill(0.0);
        let Some(d_lse) = args.d_lse else { return };
        // SAFETY: nothing writes the inputs.
        let d_lse = unsafe { d_lse.view::<f32, _>() };
        for ((sum, rows), sink) in d_sinks.iter_mut().zip(d_lse.axis_iter(Axis(1))).zip(sinks) {
            // lse is the sink, if that is a number.
            *sum = if *sink > f32::NEG_INFINITY {
                rows.sum()
            } else {
                0.0
            };
        }
    }
}
