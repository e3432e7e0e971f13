//! The C interface of the [`ferroattn`] library: `include/ferroattn.h`, which cbindgen writes from this crate.
//!
//! Each function reads what C gave it into types of the library, and calls it. The files are those of the interface's
//! types: a [`device`], its [`memory`], [`tensor`]s, [`options`], inputs in [`fp8`], the [`forward`] and [`backward`] passes,
//! the [`merge`] of their parts, what is [`append`]ed to a cache, [`csr`] tables of its pages, and [`plan`]s. [`status`] has errors, and
//! keeps panics from the border.

pub mod append;
pub mod backward;
pub mod csr;
pub mod device;
pub mod forward;
pub mod fp8;
pub mod memory;
pub mod merge;
pub mod options;
pub mod plan;
mod pointer;
mod prefix;
pub mod status;
pub mod tensor;
mod work;

/// Version of the interface that the header describes: a higher number has more functions, more fields or more values.
pub const FERROATTN_VERSION: u32 = 8;

/// Version of the interface that the library has, to compare with `FERROATTN_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn ferroattn_version() -> u32 {
    FERROATTN_VERSION
}
