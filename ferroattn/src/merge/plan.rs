//! The plan of a merge or of its gradient: one launch.

use super::{RawMerge, RawPart};
use crate::error::{Result, expect_at_most};
use crate::plan::{Plan, Steps};
use crate::tensor::RawTensor;
use bytemuck::NoUninit;
use kernels::abi::{Divisor, MergeParams, MergeParts, TensorRef};
use kernels::catalog::{self, Auxiliary, Dtype, Family};

/// Rows that a kernel can count.
const MAX_ROWS: u32 = i32::MAX as u32;

/// The plan of a merge of tensors whose shapes match, with lse of any strides but stride 1 in its last axis.
pub fn merge_of(dtype: Dtype, args: &RawMerge) -> Result<Plan> {
    let &RawMerge {
        first,
        second,
        merged,
    } = args;
    let kernel = Auxiliary::Merge(dtype);
    plan(kernel, [first, second], &[merged.o], |parts| MergeParams {
        parts,
        merged: merged.into(),
    })
}

/// The plan for parts of a valid shape, by a kernel with these parameters; without steps if there are no rows. `others` are
/// all tensors of four axes beside the parts' own.
pub fn plan<P: NoUninit>(
    kernel: Auxiliary,
    [first, second]: [RawPart; 2],
    others: &[RawTensor],
    params: impl FnOnce(MergeParts) -> P,
) -> Result<Plan> {
    let kernel = catalog::kernel(Family::Auxiliary(kernel));
    let mut steps = Steps::default();
    let [batch, heads, seqlen, dim] = first.o.shape;
    let rows = batch * heads * seqlen;
    expect_at_most("batch * heads * seqlen", rows, MAX_ROWS)?;
    if rows > 0 {
        let is_aligned = |tensor: &RawTensor| TensorRef::from(*tensor).is_aligned();
        let all = [first.o, second.o];
        let aligned = dim.is_multiple_of(8) && all.iter().chain(others).all(is_aligned);
        // All numbers fit: there are no more heads, and no longer ones, than rows.
        let parts = MergeParts {
            first: first.into(),
            second: second.into(),
            rows: rows as u32,
            dim: dim as u32,
            heads: Divisor::new(heads as u32),
            seqlen: Divisor::new(seqlen as u32),
            aligned: u32::from(aligned),
            padding: 0,
        };
        let blocks = (rows as u128).div_ceil(u128::from(Auxiliary::MERGED_ROWS));
        steps.launch(
            kernel.into(),
            blocks,
            kernel.launch.shared_bytes,
            &params(parts),
        )?;
    }
    Ok(steps.finish(kernel.name, 1))
}
