//! Copies of packed sequences that each begin at a multiple of a step.

use crate::error::{Result, expect_at_most};
use crate::options::{RawOptions, Sequences};
use crate::plan::{Step, Steps};
use crate::tensor::RawTensor;
use kernels::abi::{MAX_DEPTH, MAX_SEQLEN, SpreadParams, TensorRef};
use kernels::catalog::{self, Auxiliary, Family};
use std::mem::offset_of;

/// How packed sequences are spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// Address of their offsets.
    offsets: u64,
    sequences: usize,
    pub step: u32,
    /// Rows of a copy.
    pub rows: usize,
}

impl Spread {
    /// How a batch invariant call has the queries and the keys of packed sequences, by steps of so many; none where they stay. Its
    /// tensors have `rows` of each.
    ///
    /// # Errors
    /// If there are too many rows.
    pub fn of_call(
        options: &RawOptions,
        rows: [usize; 2],
        steps: [u32; 2],
    ) -> Result<[Option<Self>; 2]> {
        let (Some(Sequences::Packed { q, kv }), true) =
            (options.sequences, options.batch_invariant)
        else {
            return Ok([None; 2]);
        };
        let of = |offsets: RawTensor<1>, rows: usize, step: u32| {
            let sequences = offsets.shape[0] - 1;
            let steps = rows.div_ceil(step as usize).saturating_add(sequences);
            let rows = steps.saturating_mul(step as usize);
            expect_at_most("the number of rows of spread sequences", rows, MAX_SEQLEN)?;
            Ok(Some(Spread {
                offsets: offsets.address,
                sequences,
                step,
                rows,
            }))
        };
        Ok([of(q, rows[0], steps[0])?, of(kv, rows[1], steps[1])?])
    }
}

impl Steps {
    /// Where kernels read an input `[1, heads, rows, dim]` of packed sequences: in a copy if these are spread, else where
    /// [`input`](Self::input) says. `place` is the place of its address.
    ///
    /// # Errors
    /// If the input is too large for a launch, or the workspace overflows.
    pub(crate) fn spread_input(
        &mut self,
        input: RawTensor,
        spread: Option<&Spread>,
        place: usize,
    ) -> Result<TensorRef> {
        let Some(spread) = spread.filter(|_| input.shape[3] > 0) else {
            return self.input(input, place);
        };
        let copy = self.reserve_spread(input, spread)?;
        self.launch_spread(Auxiliary::Spread, input, copy.address, spread, spread.rows)?;
        self.places.push(place);
        Ok(copy)
    }

    /// A copy of numbers `f32[1, heads, rows]` of packed sequences, spread, at an offset in the workspace; or their address. `place` is
    /// the place of it.
    ///
    /// # Errors
    /// The conditions of [`spread_input`](Self::spread_input).
    pub(crate) fn spread_numbers(
        &mut self,
        numbers: RawTensor<3>,
        spread: Option<&Spread>,
        place: usize,
    ) -> Result<u64> {
        let Some(spread) = spread else {
            return Ok(numbers.address);
        };
        let [batch, heads, rows] = numbers.shape;
        let copy = self.reserve([heads, spread.rows, size_of::<f32>()])?;
        let rows = RawTensor {
            address: numbers.address,
            ..RawTensor::row_major([batch, heads, rows, 1])
        };
        let step = spread_step(Auxiliary::Spread, rows, copy, spread, spread.rows, true)?;
        self.steps.push(step);
        self.places.push(place);
        Ok(copy)
    }

    /// Where kernels write an output `[1, heads, rows, dim]` of packed sequences: in the workspace if these are spread, for
    /// [`gather`](Self::gather) to copy; else where [`output`](Self::output) says. `place` is the place of its address.
    ///
    /// # Errors
    /// The conditions of [`spread_input`](Self::spread_input).
    pub(crate) fn spread_output(
        &mut self,
        output: RawTensor,
        spread: Option<&Spread>,
        place: usize,
    ) -> Result<TensorRef> {
        let Some(spread) = spread.filter(|_| output.shape[3] > 0) else {
            return self.output(output, place);
        };
        self.places.push(place);
        self.reserve_spread(output, spread)
    }

    /// Adds the copy of an output from where kernels [wrote](Self::spread_output) it, if that is the workspace.
    ///
    /// # Errors
    /// If the output is too large for a launch.
    pub(crate) fn gather(
        &mut self,
        output: RawTensor,
        written: TensorRef,
        spread: Option<&Spread>,
    ) -> Result<()> {
        let Some(spread) = spread.filter(|_| output.shape[3] > 0) else {
            return self.write(output, written);
        };
        let rows = output.shape[2];
        self.launch_spread(Auxiliary::Gather, output, written.address, spread, rows)
    }

    /// Reserves a spread copy of a tensor: row-major, with rows of whole pieces.
    fn reserve_spread(&mut self, tensor: RawTensor, spread: &Spread) -> Result<TensorRef> {
        let [_, heads, _, dim] = tensor.shape;
        expect_at_most("dim", dim, MAX_DEPTH)?;
        let row = dim.next_multiple_of(8);
        let head = spread.rows.checked_mul(row).ok_or(Self::OVERFLOW)?;
        Ok(TensorRef {
            address: self.reserve([heads, head, size_of::<u16>()])?,
            batch_stride: 0,
            head_stride: head as i64,
            row_stride: row as i64,
        })
    }

    fn launch_spread(
        &mut self,
        kernel: Auxiliary,
        tensor: RawTensor,
        copy: u64,
        spread: &Spread,
        rows: usize,
    ) -> Result<()> {
        let step = spread_step(kernel, tensor, copy, spread, rows, false)?;
        self.steps.push(step);
        Ok(())
    }
}

/// A launch of a kernel that spreads or gathers, with a row of a head for each of `rows`.
fn spread_step(
    kernel: Auxiliary,
    tensor: RawTensor,
    copy: u64,
    spread: &Spread,
    rows: usize,
    numbers: bool,
) -> Result<Step> {
    let kernel = catalog::kernel(Family::Auxiliary(kernel));
    let [_, heads, tensor_rows, dim] = tensor.shape;
    let from = TensorRef::from(tensor);
    let params = SpreadParams {
        tensor: from,
        copy,
        offsets: spread.offsets,
        sequences: spread.sequences as u32,
        step: spread.step,
        tensor_rows: tensor_rows as u32,
        rows: spread.rows as u32,
        dim: dim as u32,
        numbers: u32::from(numbers),
        aligned: u32::from(from.is_aligned() && dim.is_multiple_of(8)),
        padding: 0,
    };
    let blocks = heads as u128 * rows.div_ceil(Auxiliary::SPREAD_ROWS as usize) as u128;
    let (shared_bytes, places) = (kernel.launch.shared_bytes, [offset_of!(SpreadParams, copy)]);
    Step::new(kernel.into(), blocks, shared_bytes, &params, &places)
}
