//! The options of a matrix product.

use super::Accumulation;
use std::sync::Arc;

/// Options of a matrix product `C = A B^T`: A is `[m, k]`, B `[n, k]`, C `[m, n]`.
///
/// Any sizes will do, 0 included, and any strides with stride 1 along the rows. With k = 0, C is
/// zeros. A GPU works in place on inputs whose rows all start at multiples of 16 bytes and are
/// multiples of 8 elements long; of each other input it first makes a copy that does, which takes memory
/// until the work is done.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Device, Gemm, Tensor, f16};
///
/// let device = Device::cpu();
/// let a = Tensor::new(&device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(f16::from_f32))?;
/// let b = Tensor::new(&device, [1, 3], &[1.0, 0.0, 2.0].map(f16::from_f32))?;
///
/// let c = Gemm::new().forward(&a, &b)?;
///
/// assert_eq!(c.shape(), [2, 1]);
/// assert_eq!(c.to_vec()?, [7.0, 16.0].map(f16::from_f32));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Gemm {
    pub(super) kernel: Option<Arc<str>>,
    pub(super) accumulation: Accumulation,
    pub(super) stages: Option<u32>,
}

impl Gemm {
    /// Accumulation in f32, the best kernel.
    pub fn new() -> Self {
        Self::default()
    }

    /// The kernel to use: [`SIMPLE`](super::SIMPLE), [`MULTISTAGE`](super::MULTISTAGE), [`HOPPER`](super::HOPPER), or a
    /// name from [`suitable`](Self::suitable). Default: the fastest one.
    ///
    /// A Hopper kernel addresses A and B by tensor maps. It leaves inputs that have none, such as rows in reverse order,
    /// to a multistage kernel.
    pub fn kernel(mut self, name: impl AsRef<str>) -> Self {
        self.kernel = Some(name.as_ref().into());
        self
    }

    /// In what the products are added up; f16 for f16 inputs only. The CPU always takes f32.
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// Tiles of A and B that a pipelined kernel holds in shared memory. Default: the best number. The CPU
    /// has none.
    pub fn stages(mut self, stages: u32) -> Self {
        self.stages = Some(stages);
        self
    }
}
