//! PTX as text: what the builder and the library make of the compiler's.

pub mod lines;
pub mod twin;
