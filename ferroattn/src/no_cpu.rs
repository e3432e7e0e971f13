//! Calls on the CPU without the feature `cpu`: errors.

use crate::append::RawAppend;
use crate::backward::RawBackward;
use crate::csr::RawCsrPages;
use crate::error::{Error, Result};
use crate::forward::{Problem, RawForward};
use crate::gemm::RawGemm;
use crate::merge::{RawMerge, RawMergeBackward};
use crate::tensor::Dtype;

/// In place of the forward pass.
pub unsafe fn forward_raw(_: Dtype, _: &Problem, _: &RawForward) -> Result<()> {
    Err(Error::NoCpu)
}

/// In place of the backward pass.
pub unsafe fn backward_raw(_: Dtype, _: &Problem, _: &RawBackward) -> Result<()> {
    Err(Error::NoCpu)
}

/// In place of matrix products.
pub unsafe fn gemm_raw(_: Dtype, _: &RawGemm) -> Result<()> {
    Err(Error::NoCpu)
}

/// In place of merges.
pub unsafe fn merge_raw(_: Dtype, _: &RawMerge) -> Result<()> {
    Err(Error::NoCpu)
}

/// In place of a merge's gradient.
pub unsafe fn merge_backward_raw(_: Dtype, _: &RawMergeBackward) -> Result<()> {
    Err(Error::NoCpu)
}

/// In place of appending.
pub unsafe fn append_raw(_: Dtype, _: &RawAppend) -> Result<()> {
    Err(Error::NoCpu)
}

/// In place of tables of pages.
pub unsafe fn csr_pages_raw(_: &RawCsrPages) -> Result<()> {
    Err(Error::NoCpu)
}
