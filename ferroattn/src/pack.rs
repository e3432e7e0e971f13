//! Copies of inputs whose rows are not aligned, and of outputs whose rows are no whole pieces.

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
        let shape = [batch, heads, rows, dim];
        let copy = self.pack_whole(RawTensor { shape, ..input })?;
        let [batch_stride, head_stride, row_stride] = copy_strides(shape);
        let packed = |stride: i64, of_copy: i64| if stride == 0 { 0 } else { of_copy };
        Ok(TensorRef {
            address: copy,
            batch_stride: packed(from.batch_stride, batch_stride),
            head_stride: packed(from.head_stride, head_stride),
            row_stride: packed(from.row_stride, row_stride),
        })
    }

    /// Adds a copy like that of [`pack`](Self::pack), in which axes of stride 0 have all their elements. Gives its address.
    ///
    /// # Errors
    /// The conditions of [`pack`](Self::pack).
    pub(crate) fn pack_whole(&mut self, input: RawTensor) -> Result<u64> {
        let copy = self.reserve_copy(Auxiliary::Pack, input.shape)?;
        self.copy(Auxiliary::Pack, input.into(), copy, input.shape)?;
        Ok(copy)
    }

    /// Where kernels write an output `[batch, heads, rows, dim]`: in place if its rows have whole pieces of 8 elements, or none;
    /// else in the workspace, for [`write`](Self::write) to copy. `place` is the place of its address.
    ///
    /// # Errors
    /// If the output is too large for a launch, or the workspace overflows.
    pub(crate) fn output(&mut self, output: RawTensor, place: usize) -> Result<TensorRef> {
        if output.shape[3].is_multiple_of(8) {
            return Ok(TensorRef::from(output));
        }
        let address = self.reserve_copy(Auxiliary::Unpack, output.shape)?;
        self.places.push(place);
        let [batch_stride, head_stride, row_stride] = copy_strides(output.shape);
        Ok(TensorRef {
            address,
            batch_stride,
            head_stride,
            row_stride,
        })
    }

    /// Adds the copy of an output from where kernels [wrote](Self::output) it, if that is the workspace.
    ///
    /// # Errors
    /// If the output is too large for a launch.
    pub(crate) fn write(&mut self, output: RawTensor, written: TensorRef) -> Result<()> {
        match output.shape[3].is_multiple_of(8) {
            true => Ok(()),
            false => self.copy(
                Auxiliary::Unpack,
                output.into(),
                written.address,
                output.shape,
            ),
        }
    }

    /// Reserves a copy of a tensor, by or for a kernel: row-major, with rows of whole pieces.
    fn reserve_copy(
        &mut self,
        kernel: Auxiliary,
        [batch, heads, rows, dim]: [usize; 4],
    ) -> Result<u64> {
        let all_heads = batch.checked_mul(heads).ok_or(Self::OVERFLOW)?;
        let name = catalog::kernel(Family::Auxiliary(kernel)).name;
        grid(name, all_heads as u128 * tiles(rows) as u128)?;
        expect_at_most("dim", dim, MAX_DEPTH)?;
        let head = rows.checked_mul(dim.next_multiple_of(8));
        let head = head.ok_or(Self::OVERFLOW)?;
        self.reserve([all_heads, head, size_of::<u16>()])
    }

    /// Adds a launch of a kernel that copies a tensor to the workspace, or back.
    fn copy(
        &mut self,
        kernel: Auxiliary,
        tensor: TensorRef,
        copy: u64,
        [batch, heads, rows, dim]: [usize; 4],
    ) -> Result<()> {
        let kernel = catalog::kernel(Family::Auxiliary(kernel));
        let tiles = tiles(rows);
        let blocks = batch as u128 * heads as u128 * tiles as u128;
        let params = PackParams {
            tensor,
            copy,
            // All fit if the grid does: it has no fewer heads, and a block for each few rows.
            heads: heads as u32,
            rows: rows as u32,
            dim: dim as u32,
            tiles: tiles as u32,
        };
        let (shared_bytes, places) = (kernel.launch.shared_bytes, [offset_of!(PackParams, copy)]);
        let step = Step::new(kernel.into(), blocks, shared_bytes, &params, &places)?;
        self.steps.push(step);
        Ok(())
    }
}

/// Blocks that copy so many rows of a head.
fn tiles(rows: usize) -> usize {
    rows.div_ceil(Auxiliary::PACK_ROWS as usize)
}

/// Elements from a batch entry, a head and a row of a copy to the next one.
fn copy_strides([_, heads, rows, dim]: [usize; 4]) -> [i64; 3] {
    let row = dim.next_multiple_of(8);
    let head = rows.saturating_mul(row);
    [heads.saturating_mul(head), head, row].map(|stride| stride as i64)
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
