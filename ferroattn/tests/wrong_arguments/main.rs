//! Safe calls with arguments of any numbers: each gives a result, a typed error, or the panic that its documentation names.
//!
//! | module | what it has |
//! |---|---|
//! | `strategies` | sizes, problems, tensors and devices at the ends of their ranges, and ordinary ones |
//! | `plans` | plans of calls, without a device |
//! | `devices` | drivers, kernels and launches |
//! | `values` | tensors, checks and counters of the host |

#![forbid(unsafe_code)]

mod devices;
mod plans;
mod strategies;
mod values;

/// Whether a call panics, as its documentation says of tensors of other sizes.
fn panics<T>(call: impl FnOnce() -> T) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
}
