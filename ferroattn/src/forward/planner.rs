//! Plans by kernels of another crate.

use super::{Problem, RawForward};
use crate::device::Facts;
use crate::error::Result;
use crate::plan::Plan;
use kernels::catalog::Dtype;
use std::fmt::Debug;

/// Plans attention calls by kernels of another crate, for [`Attention::planner`](crate::Attention::planner).
///
/// # Safety
/// Safe calls run the plan of [`plan`](Self::plan) as it is. Its kernels, with their parameters:
/// - read elements of q, k, v and of the options' tensors alone, by addresses and sizes in `args`, and the workspace;
/// - write the workspace, o and lse alone;
/// - fit the device, of these facts, and come to an end.
///
/// A plan that [`Draft`](crate::internals::Draft) or [`Attention::plan`](crate::Attention::plan) made does so, if its kernels
/// take the parameters that it has for them.
pub unsafe trait Planner: Debug + Send + Sync {
    /// The plan for a [valid](Problem::validate) problem on a device with these facts, or on the CPU, which has
    /// none; on this many splits of the keys if any number is given.
    ///
    /// # Errors
    /// Says why the kernel cannot compute the problem.
    fn plan(
        &self,
        facts: Option<&Facts>,
        dtype: Dtype,
        problem: &Problem,
        args: &RawForward,
        splits: Option<u32>,
    ) -> Result<Plan>;
}
