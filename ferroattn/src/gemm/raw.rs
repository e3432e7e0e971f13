//! Matrices of a product by address.

use super::GemmProblem;
use crate::tensor::RawTensor;

/// Matrices of a product by address, for [`Gemm::forward_raw`](super::Gemm::forward_raw); with stride 1 along the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawGemm {
    /// `[m, k]`.
    pub a: RawTensor<2>,
    /// `[n, k]`.
    pub b: RawTensor<2>,
    /// `[m, n]`.
    pub c: RawTensor<2>,
}

impl RawGemm {
    /// Row-major matrices at address 0: enough to [plan](super::Gemm::plan) a product whose matrices do not exist yet.
    pub fn row_major(problem: GemmProblem) -> Self {
        let shapes = [problem.a_shape(), problem.b_shape(), problem.c_shape()];
        let [a, b, c] = shapes.map(RawTensor::row_major);
        RawGemm { a, b, c }
    }
}
