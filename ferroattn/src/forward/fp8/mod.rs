//! Calls in FP8: what rounds q, k and v, and what multiplies them.

#[cfg(feature = "cpu")]
mod bounds;
mod inputs;
mod plan;
#[cfg(feature = "cpu")]
mod round;

#[cfg(feature = "cpu")]
pub use round::Rounded;
