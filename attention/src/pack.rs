//! Copies of inputs whose rows are not aligned.

use crate::error::Result;
use crate::plan::{Step, Workspace, grid};
use kernels::abi::{PackParams, TensorRef};
use kernels::catalog::{self, Family, Pack};
use std::mem::offset_of;

/// The step that copies an input `[batch, heads, rows, dim]` into the workspace, and where the copy lies; its
/// address counts from the start of the workspace.
///
/// The copy is row-major, with rows padded by zeros to multiples of 8 elements. An axis of stride 0 stays one.
///
/// # Errors
/// If the input is too large for a launch, or the workspace overflows.
pub fn pack(
    from: TensorRef,
    [batch, heads, rows, dim]: [usize; 4],
    workspace: &mut Workspace,
) -> Result<(Step, TensorRef)> {
    let distinct = |extent: usize, stride: i64| if stride == 0 { 1 } else { extent };
    let batch = distinct(batch, from.batch_stride);
    let heads = distinct(heads, from.head_stride);
    let rows = distinct(rows, from.row_stride);
    let kernel = catalog::kernel(Family::Pack(Pack));
    let tiles = rows.div_ceil(Pack::ROWS as usize);
    // No overflow: problems have `batch * heads` below 2^63.
    let blocks = (batch * heads) as u128 * tiles as u128;
    grid(kernel.name, blocks)?;
    let row = dim.next_multiple_of(8);
    let to = workspace.reserve([batch * heads, rows * row, size_of::<u16>()])?;
    let params = PackParams {
        from,
        to,
        // All fit: the grid has as many blocks.
        heads: heads as u32,
        rows: rows as u32,
        dim: dim as u32,
        tiles: tiles as u32,
    };
    let places = [offset_of!(PackParams, to)];
    let step = Step::new(
        kernel.into(),
        blocks,
        kernel.shared_bytes(),
        &params,
        &places,
    )?;
    let packed = |stride: i64, row_major: usize| if stride == 0 { 0 } else { row_major as i64 };
    Ok((
        step,
        TensorRef {
            address: to,
            batch_stride: packed(from.batch_stride, heads * rows * row),
            head_stride: packed(from.head_stride, rows * row),
            row_stride: packed(from.row_stride, row),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::pack;
    use crate::error::Error;
    use crate::plan::Workspace;
    use kernels::abi::TensorRef;

    #[test]
    fn copies_are_row_major_and_broadcasts_stay() {
        let pack = |strides: [i64; 3], shape| {
            let [batch_stride, head_stride, row_stride] = strides;
            let from = TensorRef {
                address: 2,
                batch_stride,
                head_stride,
                row_stride,
            };
            let mut workspace = Workspace::default();
            pack(from, shape, &mut workspace).map(|(step, copy)| {
                assert!(copy.is_aligned());
                let strides = [copy.batch_stride, copy.head_stride, copy.row_stride];
                (strides, step.blocks, workspace.bytes)
            })
        };
        let shape = [2, 3, 65, 8];
        assert_eq!(pack([9, -7, 5], shape), Ok(([1560, 520, 8], 12, 6240)));
        assert_eq!(pack([0, 0, 5], shape), Ok(([0, 0, 8], 2, 1040)));
        assert_eq!(pack([0, 5, 0], shape), Ok(([0, 8, 0], 3, 48)));
        assert_eq!(pack([0, 0, 0], shape), Ok(([0, 0, 0], 1, 16)));
        // Rows of 13 elements take 16 places.
        let odd = [2, 3, 65, 13];
        assert_eq!(pack([9, -7, 5], odd), Ok(([3120, 1040, 16], 12, 12480)));
        let error = pack([1, 1, 1], [1 << 15, 1 << 15, 129, 8]);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
        let error = pack([1, 1, 1], [1 << 30, 1, 1 << 30, 256]);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
    }
}
