//! Tables of pages by address: the plan of a call, and the call.

use super::numbers::expect_numbers;
use super::{RawCsrPages, cpu};
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::plan::{CPU, EMPTY, Plan, Steps};
use kernels::abi::CsrParams;
use kernels::catalog::{self, Auxiliary, Family};

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
    steps.launch(kernel.into(), blocks, kernel.launch.shared_bytes, &params)?;
    Ok(steps.finish(kernel.name, 1))
}
