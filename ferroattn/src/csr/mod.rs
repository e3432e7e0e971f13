//! Pages in the CSR form, as a table of pages and lengths.

mod call;
#[cfg(feature = "cpu")]
mod cpu;
mod numbers;
mod plan;
mod raw;

#[cfg(not(feature = "cpu"))]
use crate::no_cpu as cpu;

pub use call::CsrPages;
pub use plan::{csr_pages_plan, csr_pages_raw};
pub use raw::RawCsrPages;
