//! Tables of pages by address.

use super::cpu;
use super::numbers::expect_numbers;
use crate::device::{Device, Facts, RawStream};
use crate::error::{Result, expect_at_most};
use crate::options::read_pages;
use crate::plan::{CPU, EMPTY, Plan, Steps};
use crate::tensor::{RawTensor, expect_shape};
use kernels::abi::CsrParams;
use kernels::catalog::{self, Auxiliary, Family};

/// Tensors by address, for [`csr_pages_raw`]: all of `i32`, with stride 1 in the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawCsrPages {
    /// Keys of a page, a power of 2.
    pub page: usize,
    /// Where the pages of each entry of the batch begin, and where the last one's end, `[batch + 1]`.
    pub indptr: RawTensor<1>,
    /// Page numbers, `[n]`.
    pub indices: RawTensor<1>,
    /// Keys of each entry's last page, `[batch]`.
    pub last_page: RawTensor<1>,
    /// Where to write the table, `[batch, most]`.
    pub table: RawTensor<2>,
    /// Where to write the lengths, `[batch]`.
    pub lengths: RawTensor<1>,
    /// Whether a GPU [checks](super::CsrPages::check_lengths) the numbers.
    pub check_lengths: bool,
}

impl RawCsrPages {
    /// Pages of so many keys, and the table and lengths to write, without a check.
    pub fn new(
        page: usize,
        [indptr, indices, last_page]: [RawTensor<1>; 3],
        (table, lengths): (RawTensor<2>, RawTensor<1>),
    ) -> Self {
        RawCsrPages {
            page,
            indptr,
            indices,
            last_page,
            table,
            lengths,
            check_lengths: false,
        }
    }

    /// Checks shapes and strides.
    fn validate(&self) -> Result<()> {
        let [batch, most] = self.table.shape;
        read_pages(self.page, most)?;
        for (argument, tensor, count) in [
            ("indptr", self.indptr, batch.saturating_add(1)),
            ("indices", self.indices, self.indices.shape[0]),
            ("last_page", self.last_page, batch),
            ("lengths", self.lengths, batch),
        ] {
            expect_shape(argument, &[count], &tensor.shape)?;
            expect_at_most(argument, count, i32::MAX as u32)?;
            tensor.expect_rows(argument, "its axis")?;
        }
        self.table.expect_rows("table", "its last axis")?;
        self.table.layout().expect_injective("table")
    }
}

/// Writes the table of pages and the lengths that pages in the [CSR form](super::CsrPages) give, by address and on the caller's
/// stream. On a CUDA device the call returns before the work is done. It takes no workspace.
///
/// Addresses and the stream are as for [`Attention::forward_raw`](crate::Attention::forward_raw).
///
/// # Errors
/// Says which argument is wrong, or what the device lacks.
///
/// # Safety
/// - Every element of the tensors in `args`, by their sizes, lies in live memory of the device, aligned to its type, until the
///   work is done.
/// - Until then nothing else writes the inputs, or touches the table or the lengths, and these overlap no other tensor.
/// - `stream` is null or a live stream of the device's primary context.
pub unsafe fn csr_pages_raw(device: &Device, args: &RawCsrPages, stream: RawStream) -> Result<()> {
    let plan = csr_pages_plan(device.facts(), args)?;
    if plan.kernel == EMPTY {
        return Ok(());
    }
    // SAFETY: the caller's word.
    unsafe {
        if device.is_cpu() {
            return cpu::csr_pages_raw(args);
        }
        if args.check_lengths {
            expect_numbers(device, args, stream)?;
        }
        plan.run(device, stream)
    }
}

/// The launch of a [call](csr_pages_raw) on a device with these facts; none on the CPU, which is `None`, or for an empty batch.
///
/// # Errors
/// The conditions of [`CsrPages::run`](super::CsrPages::run).
pub fn csr_pages_plan(facts: Option<&Facts>, args: &RawCsrPages) -> Result<Plan> {
    facts.map_or(Ok(()), Facts::validate)?;
    args.validate()?;
    let mut steps = Steps::default();
    let [batch, most] = args.table.shape;
    if batch == 0 {
        return Ok(steps.finish(EMPTY, 1));
    }
    if facts.is_none() {
        return Ok(steps.finish(CPU, 1));
    }
    let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Csr));
    let pieces = most.div_ceil(Auxiliary::CSR_PAGES as usize).max(1);
    let [table_stride, _] = args.table.used_strides();
    // All numbers fit: they were compared.
    let params = CsrParams {
        indptr: args.indptr.address,
        indices: args.indices.address,
        last_page: args.last_page.address,
        table: args.table.address,
        table_stride: table_stride as i64,
        lengths: args.lengths.address,
        count: args.indices.shape[0] as u32,
        batch: batch as u32,
        most: most as u32,
        keys: args.page as u32,
        pieces: pieces as u32,
        padding: 0,
    };
    let warps = batch as u128 * pieces as u128;
    let blocks = warps.div_ceil(u128::from(Auxiliary::WARPS));
    steps.launch(kernel.into(), blocks, kernel.shared_bytes(), &params)?;
    Ok(steps.finish(kernel.name, 1))
}
