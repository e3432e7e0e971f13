//! What happens to a score between `Q K^T` and the softmax.

use super::SoftmaxScale;
use crate::abi::ForwardParams;
use crate::tile::Accumulator;

/// Turns products of queries and keys into scores.
pub trait Score: Copy {
    /// The scores of a launch.
    fn new(params: &ForwardParams) -> Self;

    /// What the softmax multiplies scores by.
    fn scale(self) -> SoftmaxScale;

    /// Replaces the products of a warp's rows by their scores. `row` is the first row, among the rows of all
    /// tiles of the heads, and `key` the first key, counted in the split.
    fn apply<const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        row: u32,
        key: u32,
    );
}

/// `scale * (q . k)`. The products stay as they are: the softmax multiplies and subtracts the maximum in one
/// fused multiply-add.
#[derive(Clone, Copy)]
pub struct Scaled(pub SoftmaxScale);

impl Score for Scaled {
    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        Scaled(SoftmaxScale::new(params.scale))
    }

    #[inline(always)]
    fn scale(self) -> SoftmaxScale {
        self.0
    }

    #[inline(always)]
    fn apply<const MT: usize, const NT: usize>(
        self,
        _s: &mut [[Accumulator; NT]; MT],
        _row: u32,
        _key: u32,
    ) {
    }
}
