//! The C interface of the [`attention`] library: `include/attention.h`, which cbindgen writes from this crate.
//!
//! Each function reads what C gave it into types of the library, and calls it. The files are those of the interface's
//! types: a [`device`], its [`memory`], [`tensor`]s, [`options`], the [`forward`] and [`backward`] passes, the
//! [`merge`] of their parts, and [`plan`]s. [`status`] has errors, and keeps panics from the border.

pub mod backward;
pub mod device;
pub mod forward;
pub mod memory;
pub mod merge;
pub mod options;
pub mod plan;
mod pointer;
pub mod status;
pub mod tensor;
mod work;

/// Version of the interface that the header describes: a higher number has more functions, more fields or more values.
pub const ATTENTION_VERSION: u32 = 1;

/// Version of the interface that the library has, to compare with `ATTENTION_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn attention_version() -> u32 {
    ATTENTION_VERSION
}
