//! Steps for rows whose lse has no digits left for the row's sum.

use super::draft::Draft;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::options;
use kernels::abi::{BackwardParams, ROW_PADDING, Switches};
use kernels::catalog::{self, Backward, Family};
use std::mem::offset_of;

impl Draft<'_> {
    /// Reserves the sums of far rows and their marks, where rows may be far.
    pub fn reserve_far(&mut self) -> Result<()> {
        if options::may_be_far(&self.problem, &self.args.options) {
            self.params.far = self.steps.reserve([self.row_bytes(2)?, 1, 1])?;
            self.params.far_marks = self
                .steps
                .reserve([self.far_marks(), size_of::<u32>(), 1])?;
            self.steps.places.extend([
                offset_of!(BackwardParams, far),
                offset_of!(BackwardParams, far_marks),
                offset_of!(BackwardParams, far_count),
            ]);
            self.params.far_count = self.steps.reserve_zeros(size_of::<u32>())?;
        }
        Ok(())
    }

    /// Finds far rows and their sums, behind the statistics of all rows.
    pub fn launch_far_sums(&mut self) -> Result<()> {
        let switches = options::switches(&self.problem, &self.args.options);
        let most = self.far_marks();
        self.launch_on_far_rows(Backward::FarSums(self.dtype), switches, most)
    }

    /// Computes the gradients of far rows, behind those of all others.
    pub fn launch_far(&mut self, switches: Switches) -> Result<()> {
        self.launch_on_far_rows(Backward::Far(self.dtype), switches, usize::MAX)
    }

    /// Blocks take parts of the work in turns: all run at a time and, where no row is far, few leave at once.
    fn launch_on_far_rows(
        &mut self,
        kernel: Backward,
        switches: Switches,
        most_blocks: usize,
    ) -> Result<()> {
        if self.params.far_count == 0 {
            return Ok(());
        }
        let kernel = catalog::kernel(Family::Backward(kernel));
        let entry = match self.args.options.custom {
            None => kernel.into(),
            Some(custom) => custom.kernels.entry(kernel).ok_or(Error::NotCompiled)?,
        };
        let entry = Entry { switches, ..entry };
        let blocks = most_blocks.min(4 * self.multiprocessors as usize) as u128;
        let (shared_bytes, params) = (kernel.launch.shared_bytes, self.params);
        self.steps.launch(entry, blocks, shared_bytes, &params)?;
        Ok(())
    }

    /// Marks of far rows, of all heads.
    fn far_marks(&self) -> usize {
        self.rows / ROW_PADDING as usize
    }
}
