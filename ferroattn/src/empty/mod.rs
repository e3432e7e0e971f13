//! Calls without an entry, a head, a query or a key: nothing is computed, and outputs that have elements are filled.
//!
//! A query without keys has o = 0, and the lse of its sink, or -inf; gradients are 0.

#[cfg(feature = "cpu")]
pub(crate) mod cpu;

use crate::backward::RawBackward;
use crate::error::{Error, Result};
use crate::forward::{Problem, RawForward};
use crate::plan::{EMPTY, Fill, Plan, Steps};
use crate::tensor::RawTensor;

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
