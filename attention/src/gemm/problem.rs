//! The size of a matrix product, and what sizes are allowed.

use crate::error::Error;
use crate::tensor::Layout;
use kernels::abi::MAX_DEPTH;
use kernels::abi::MAX_SEQLEN;

/// Sizes of a matrix product `C = A B^T`; any of them may be 0.
///
/// The feature `serde` reads and writes it as these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GemmProblem {
    /// Rows of A and C.
    pub m: usize,
    /// Rows of B, columns of C.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
}

impl GemmProblem {
    /// The problem that A `[m, k]` and B `[n, k]` pose.
    ///
    /// # Errors
    /// If they differ in k, or a size is [not allowed](Self::validate).
    pub fn new([m, k]: [usize; 2], b: [usize; 2]) -> Result<Self, Error> {
        let n = b[0];
        if b[1] != k {
            return Err(Error::Shape {
                argument: "b",
                expected: vec![n, k],
                found: b.to_vec(),
            });
        }
        let problem = GemmProblem { m, n, k };
        problem.validate()?;
        Ok(problem)
    }

    /// Checks every size.
    ///
    /// # Errors
    /// Names the first that is out of range and says what is allowed.
    pub fn validate(&self) -> Result<(), Error> {
        for (argument, value) in [("m", self.m), ("n", self.n)] {
            if value > MAX_SEQLEN as usize {
                return Err(Error::TooLong { argument, value });
            }
        }
        if self.k > MAX_DEPTH as usize {
            return Err(Error::Depth(self.k));
        }
        for (argument, shape) in [
            ("a", self.a_shape()),
            ("b", self.b_shape()),
            ("c", self.c_shape()),
        ] {
            if !Layout::has_countable_bytes(shape) {
                return Err(Error::Overflow { argument });
            }
        }
        Ok(())
    }

    /// `[m, k]`.
    #[must_use]
    pub fn a_shape(&self) -> [usize; 2] {
        [self.m, self.k]
    }

    /// `[n, k]`.
    #[must_use]
    pub fn b_shape(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    /// `[m, n]`.
    #[must_use]
    pub fn c_shape(&self) -> [usize; 2] {
        [self.m, self.n]
    }

    /// Floating-point operations: two for each product.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}
