//! The driver of the command: [`Cust`] launches the library's plans through `cust`.

mod cust;

pub use cust::Cust;
