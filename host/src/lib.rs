//! What the command has beside the library: [`Cust`], its driver, and the host's free memory.

mod cust;
mod free;

pub use cust::Cust;
pub use free::free_memory;
