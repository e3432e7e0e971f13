//! Attention in FP8.

/// How q, k and v are rounded to e4m3, for [`Attention::fp8`](crate::Attention::fp8).
///
/// e4m3 has three bits behind the point, and numbers up to 448. Each row of q is scaled, and each block of 128 keys. The values lose the
/// mean of each column, which the output gets back, and each column is scaled. All scales are powers of two. Probabilities are
/// rounded to e4m3, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fp8 {}

impl Fp8 {
    /// The rounding of a call whose inputs have more bits.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Fp8, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 2, 1], vec![0.0_f32; 2])?;
    /// let v = Tensor::from_vec([1, 1, 2, 1], vec![1.0_f32, 2.0])?;
    /// let (o, _) = Attention::new().fp8(Fp8::new()).forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [1.5; 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }
}
