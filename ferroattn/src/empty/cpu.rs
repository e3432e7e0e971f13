//! Outputs on the CPU.

use crate::backward::RawBackward;
use crate::forward::RawForward;
use crate::tensor::Element;
use ndarray::Axis;

/// # Safety
/// The conditions of [`Attention::forward_raw`](crate::Attention::forward_raw) on the CPU, with `T` the element type.
pub unsafe fn forward<T: Element>(args: &RawForward) {
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
/// The conditions of [`Attention::backward_raw`](crate::Attention::backward_raw) on the CPU, with `T` the element type.
pub unsafe fn backward<T: Element>(args: &RawBackward) {
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
