//! Copies of inputs whose rows are not aligned.

use crate::error::{Result, expect_at_most};
use crate::plan::{Step, Steps, grid};
use crate::tensor::RawTensor;
use kernels::abi::{MAX_DEPTH, PackParams, TensorRef};
use kernels::catalog::{self, Auxiliary, Family};
use std::mem::offset_of;

impl Steps {
    /// Where kernels read an input `[batch, heads, rows, dim]`: in place if every row starts at a multiple of 16
    /// bytes and has whole pieces of 8 elements, or none; else in a copy. `place` is the place of its address.
    ///
    /// # Errors
    /// The conditions of [`pack`](Self::pack).
    pub(crate) fn input(&mut self, input: RawTensor, place: usize) -> Result<TensorRef> {
        let in_place = TensorRef::from(input);
        let [.., dim] = input.shape;
        if dim == 0 || in_place.is_aligned() && dim.is_multiple_of(8) {
            return Ok(in_place);
        }
        self.places.push(place);
        self.pack(input)
    }

    /// Adds a copy of an input `[batch, heads, rows, dim]` into the workspace. Gives where the copy lies, as an
    /// offset in the workspace.
    ///
    /// The copy is row-major, with rows padded by zeros to multiples of 8 elements. An axis of stride 0 stays one.
    ///
    /// # Errors
    /// If the input is too large for a launch, or the workspace overflows.
    pub fn pack(&mut self, input: RawTensor) -> Result<TensorRef> {
        let from = TensorRef::from(input);
        let distinct = |extent: usize, stride: i64| if stride == 0 { 1 } else { extent };
        let [batch, heads, rows, dim] = input.shape;
        let batch = distinct(batch, from.batch_stride);
        let heads = distinct(heads, from.head_stride);
        let rows = distinct(rows, from.row_stride);
        let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Pack));
        let tiles = rows.div_ceil(Auxiliary::PACK_ROWS as usize);
        let all_heads = batch.checked_mul(heads).ok_or(Self::OVERFLOW)?;
        let blocks = all_heads as u128 * tiles as u128;
        grid(kernel.name, blocks)?;
        expect_at_most("dim", dim, MAX_DEPTH)?;
        let row = dim.next_multiple_of(8);
        let head = rows.checked_mul(row).ok_or(Self::OVERFLOW)?;
        let to = self.reserve([all_heads, head, size_of::<u16>()])?;
        let params = PackParams {
            from,
            to,
            // All fit: the grid has no fewer heads, and a block for each few rows.
            heads: heads as u32,
            rows: rows as u32,
            dim: dim as u32,
            tiles: tiles as u32,
        };
        let (shared_bytes, places) = (kernel.shared_bytes(), [offset_of!(PackParams, to)]);
        let step = Step::new(kernel.into(), blocks, shared_bytes, &params, &places)?;
        self.steps.push(step);
        let packed = |stride: i64, row_major: usize| if stride == 0 { 0 } else { row_major as i64 };
        Ok(TensorRef {
            address: to,
            batch_stride: packed(from.batch_stride, heads.saturating_mul(head)),
            head_stride: packed(from.head_stride, head),
            row_stride: packed(from.row_stride, row),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::plan::Steps;
    use crate::tensor::RawTensor;

    #[test]
    fn copies_are_row_major_and_broadcasts_stay() {
        let pack = |[batch, head, row]: [isize; 3], shape| {
            let from = RawTensor {
                address: 2,
                shape,
                strides: [batch, head, row, 1],
            };
            let mut steps = Steps::default();
            steps.pack(from).map(|copy| {
                assert!(copy.is_aligned());
                let plan = steps.finish("pack", 1);
                let strides = [copy.batch_stride, copy.head_stride, copy.row_stride];
                (strides, plan.steps[0].blocks, plan.workspace_bytes)
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
        for [batch, heads, rows, dim] in [
            [1 << 40, 1 << 40, 1, 8],
            [1, 1, 1, usize::MAX],
            [1, 1, usize::MAX, 8],
        ] {
            assert!(pack([1, 1, 1], [batch, heads, rows, dim]).is_err());
        }
        let error = pack([1, 1, 1], [1 << 30, 1, 1 << 30, 256]);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
    }
}
