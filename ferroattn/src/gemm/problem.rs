//! The size of a matrix product, and what sizes are allowed.

use crate::error::{Result, expect_at_most};
use crate::tensor::{Layout, expect_shape};
use kernels::abi::{MAX_DEPTH, MAX_SEQLEN};

/// Sizes of a matrix product `C = A B^T`; any of them may be 0.
///
/// The feature `serde` reads and writes it as these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub fn new([m, k]: [usize; 2], b: [usize; 2]) -> Result<Self> {
        let n = b[0];
        expect_shape("b", &[n, k], &b)?;
        let problem = GemmProblem { m, n, k };
        problem.validate()?;
        Ok(problem)
    }

    /// Checks every size.
    ///
    /// # Errors
    /// Names the first that is out of range and says what is allowed.
    pub fn validate(&self) -> Result<()> {
        expect_at_most("m", self.m, MAX_SEQLEN)?;
        expect_at_most("n", self.n, MAX_SEQLEN)?;
        expect_at_most("k", self.k, MAX_DEPTH)?;
        for (argument, shape) in [
            ("a", self.a_shape()),
            ("b", self.b_shape()),
            ("c", self.c_shape()),
        ] {
            Layout::expect_countable_bytes(argument, shape)?;
        }
        Ok(())
    }

    /// `[m, k]`.
    pub fn a_shape(&self) -> [usize; 2] {
        [self.m, self.k]
    }

    /// `[n, k]`.
    pub fn b_shape(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    /// `[m, n]`.
    pub fn c_shape(&self) -> [usize; 2] {
        [self.m, self.n]
    }

    /// Floating-point operations: two for each product.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}
