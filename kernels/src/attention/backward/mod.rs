//! The backward pass: gradients of q, k and v from the gradient of o (FlashAttention-2, Algorithm 2).
//!
//! With `S = scale q kᵀ`, `P = exp(S - lse)`, `dP = do vᵀ`, `delta = rowsum(do * o) - d_lse` and `dS = P * (dP - delta)`:
//!
//! ```text
//! dv = Pᵀ do      dk = scale dSᵀ q      dq = scale dS k
//! ```
//!
//! | module | step |
//! |---|---|
//! | `prepare` | lse in base 2 and delta of each row, and zeros where the others count and sum |
//! | `sm80` | dk, dv and the sums of dq |
//! | `sm90` | dk, dv, and dq as sums or from stored dS, on Hopper |
//! | `convert` | dq, from sums to 16 bits |
//! | `far` | all of these for rows whose lse has no digits left for their sum |
//! | `bias` | the gradient of the bias: zeros before it, or its sums over axes that repeat |
//! | `sinks` | the gradient of the sinks |

mod bias;
mod convert;
mod far;
mod job;
mod prepare;
mod sinks;
mod sm80;
mod sm90;

pub use bias::{sum_bias, zero_bias};
pub use convert::convert;
pub use far::{far_gradients, far_sums};
pub use prepare::prepare;
pub use sinks::sinks;
pub use sm80::sm80;
pub use sm90::{sm90, sm90_stored};
