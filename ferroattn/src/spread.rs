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
    /// How a call has the keys of its sequences, of `rows` rows, for a kernel that takes so many at a step; none where they stay.
    ///
    /// # Errors
    /// If there are too many rows.
    pub fn of_keys(options: &RawOptions, rows: usize, step: u32) -> Result<Option<Self>> {
        let (Some(Sequences::Packed { kv, .. }), true) =
            (options.sequences, options.batch_invariant)
        else {
            return Ok(None);
        };
        let sequences = kv.shape[0] - 1;
        let steps = rows.div_ceil(step as usize).saturating_add(sequences);
        let rows = steps.saturating_mul(step as usize);
        expect_at_most("the number of keys of spread sequences", rows, MAX_SEQLEN)?;
        Ok(Some(Spread {
            offsets: kv.address,
            sequences,
            step,
            rows,
        }))
    }
}

impl Steps {
    /// Adds a copy of packed sequences `[1, heads, rows, dim]` into the workspace, spread. `place` is the place of its address.
    ///
    /// # Errors
    /// If the input is too large for a launch, or the workspace overflows.
    pub(crate) fn spread(
        &mut self,
        input: RawTensor,
        spread: &Spread,
        place: usize,
    ) -> Result<TensorRef> {
        let from = TensorRef::from(input);
        let [_, heads, tensor_rows, dim] = input.shape;
        expect_at_most("dim", dim, MAX_DEPTH)?;
        let row = dim.next_multiple_of(8);
        let head = spread.rows.checked_mul(row).ok_or(Self::OVERFLOW)?;
        let copy = self.reserve([heads, head, size_of::<u16>()])?;
        let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Spread));
        let tiles = spread.rows.div_ceil(Auxiliary::SPREAD_ROWS as usize);
        let params = SpreadParams {
            tensor: from,
            copy,
            offsets: spread.offsets,
            sequences: spread.sequences as u32,
            step: spread.step,
            tensor_rows: tensor_rows as u32,
            rows: spread.rows as u32,
            dim: dim as u32,
            aligned: u32::from(from.is_aligned() && dim.is_multiple_of(8)),
        };
        let (blocks, places) = (
            heads as u128 * tiles as u128,
            [offset_of!(SpreadParams, copy)],
        );
        let shared_bytes = kernel.shared_bytes();
        let step = Step::new(kernel.into(), blocks, shared_bytes, &params, &places)?;
        self.steps.push(step);
        self.places.push(place);
        Ok(TensorRef {
            address: copy,
            batch_stride: 0,
            head_stride: head as i64,
            row_stride: row as i64,
        })
    }
}
