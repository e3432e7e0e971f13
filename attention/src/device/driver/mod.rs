//! The CUDA driver, through cust: devices, memory, modules and events.
//!
//! Nothing outside this module names cust. Every call makes the device's primary context current
//! for as long as it takes, so that it may come from any thread and leaves the thread's own current
//! context alone. The primary context is the one that the CUDA runtime and other Rust CUDA crates
//! use: their pointers and streams are valid here, and ours there.
//!
//! Work goes to the legacy default stream unless a stream is given: it is ordered with copies.

mod event;
mod gpu;
mod memory;
mod module;
mod pool;
mod symbols;

pub use event::Event;
pub use gpu::Gpu;
pub use memory::Memory;

use crate::error::{Error, Result};
use cust::error::CudaError;
use cust::sys::CUresult;

/// Turns a status of a raw driver call into a result.
fn check(operation: &'static str, status: CUresult) -> Result<()> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(failure(operation, status as u32)),
    }
}

/// Turns an error of a cust call into ours.
fn failed(operation: &'static str) -> impl Fn(CudaError) -> Error {
    move |error| failure(operation, error as u32)
}

fn failure(operation: &'static str, status: u32) -> Error {
    Error::Cuda {
        operation,
        message: symbols::message(status),
    }
}
