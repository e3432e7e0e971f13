//! Calls on the CPU, with a prefix or without.

#[cfg(feature = "cpu")]
use super::cpu::two;
use super::divide::{Divided, divided};
use crate::device::Device;
use crate::error::Result;
use crate::forward::{Problem, RawForward, cpu};
use crate::tensor::Dtype;

/// Computes o and lse of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`Attention::forward_raw`](crate::Attention::forward_raw) on the CPU.
pub unsafe fn forward_raw(dtype: Dtype, problem: &Problem, args: &RawForward) -> Result<()> {
    let divided = divided(dtype, problem, args)?;
    // SAFETY: the caller's word.
    unsafe {
        let pages = args.k.shape[0];
        args.options.expect_prefix(problem, pages, &Device::cpu())?;
        match divided {
            None => cpu::forward_raw(dtype, problem, args),
            Some(Divided { prefix: None, own }) => cpu::forward_raw(dtype, &own.problem, &own.args),
            #[cfg(feature = "cpu")]
            Some(Divided {
                prefix: Some(prefix),
                own,
            }) => two(dtype, &prefix, &own),
            #[cfg(not(feature = "cpu"))]
            Some(_) => Err(crate::error::Error::NoCpu),
        }
    }
}
