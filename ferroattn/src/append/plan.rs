//! Appending by address: the plan of a call, and the call.

use super::numbers::expect_numbers;
use super::{RawAppend, RawRotary, cpu};
use crate::device::{Device, Facts, RawStream};
use crate::error::{Error, Result};
use crate::options::E4M3_CACHE;
use crate::plan::{CPU, EMPTY, Plan, Steps};
use crate::tensor::{Dtype, RawTensor};
use kernels::abi::{AppendE4m3Params, AppendParams, PagesRef, RowsRef, TensorRef};
use kernels::catalog::{self, Auxiliary, Family};

/// Appends new keys and values to a cache by address, on the caller's stream. On a CUDA device the call returns before the work is
/// done. It takes no workspace.
///
/// Addresses and the stream are as for [`Attention::forward_raw`](crate::Attention::forward_raw).
///
/// # Errors
/// Says which argument is wrong, or what the device lacks.
///
/// # Safety
/// - Every element of the tensors in `args`, by their sizes, lies in live memory of the device, aligned to its type, until the
///   work is done.
/// - Tensors of four axes hold elements of `dtype`; caches of e4m3 hold bytes.
/// - Until then nothing else writes the inputs, or touches the caches, `new_lengths` or the rotated queries, and these overlap
///   no other tensor; but the rotated queries may be the queries themselves.
/// - `stream` is null or a live stream of the device's primary context.
pub unsafe fn append_raw(
    device: &Device,
    dtype: Dtype,
    args: &RawAppend,
    stream: RawStream,
) -> Result<()> {
    let plan = append_plan(device.facts(), dtype, args)?;
    if plan.kernel == EMPTY {
        return Ok(());
    }
    // SAFETY: the caller's word.
    unsafe {
        if device.is_cpu() {
            // It finds the places of all rows, and so checks the numbers.
            return cpu::append_raw(dtype, args);
        }
        if args.check_lengths {
            expect_numbers(device, args, stream)?;
        }
        plan.run(device, stream)
    }
}

/// The launch of a [call](append_raw) on a device with these facts; none on the CPU, which is `None`, or if there are no rows.
///
/// # Errors
/// The conditions of [`Append::run`](super::Append::run).
pub fn append_plan(facts: Option<&Facts>, dtype: Dtype, args: &RawAppend) -> Result<Plan> {
    facts.map_or(Ok(()), Facts::validate)?;
    args.validate(dtype)?;
    let [batch, ..] = args.k.shape;
    let mut steps = Steps::default();
    let has_lengths = args.new_lengths.is_some();
    if batch == 0 || args.rows_of_entry() == 0 && !has_lengths {
        return Ok(steps.finish(EMPTY, 1));
    }
    if facts.is_none() {
        return Ok(steps.finish(CPU, 1));
    }
    let of = match args.e4m3_cache {
        None => Auxiliary::Append,
        Some(_) => Auxiliary::AppendE4m3,
    };
    let kernel = catalog::kernel(Family::Auxiliary(of(dtype.of_kernels()?)));
    if facts.is_some_and(|facts| !kernel.target.runs_on(facts.compute_capability)) {
        return Err(Error::NoOption(E4M3_CACHE));
    }
    // An entry without rows has its new length to write.
    let warps = (batch as u128).saturating_mul(args.rows_of_entry().max(1));
    let blocks = warps.div_ceil(u128::from(Auxiliary::WARPS));
    let [entries, _, keys, _] = args.k_cache.shape;
    let address = |tensor: Option<RawTensor<1>>| tensor.map_or(0, |tensor| tensor.address);
    let of_rows = |tensor: Option<RawTensor<2>>| {
        tensor.map_or((0, 0), |tensor| {
            (tensor.address, tensor.used_strides()[0] as i64)
        })
    };
    let (slots, slots_stride) = of_rows(args.slots);
    let (positions, positions_stride) = of_rows(args.positions);
    let (table, pages) = match args.pages {
        Some(table) => (
            table.address,
            PagesRef {
                batch_stride: table.used_strides()[0] as i64,
                count: table.shape[1] as u32,
                keys_log2: keys.ilog2(),
                ..PagesRef::default()
            },
        ),
        None => (
            address(args.cache_entries),
            PagesRef {
                batch_stride: 1,
                count: 1,
                keys_log2: 31,
                ..PagesRef::default()
            },
        ),
    };
    let (cos, cos_stride) = of_rows(args.rotary.map(|rotary| rotary.cos));
    let (sin, sin_stride) = of_rows(args.rotary.map(|rotary| rotary.sin));
    let [rotated_positions, pairs] = args.rotary.map_or([0; 2], |rotary| rotary.cos.shape);
    let flag = |of: fn(RawRotary) -> bool| args.rotary.is_some_and(of).into();
    // All numbers fit: the grid has a warp for each row, and the others were compared.
    let params = AppendParams {
        q: args
            .q
            .map_or(RowsRef::default(), |[from, to]| rows_of(from, to)),
        k: rows_of(args.k, args.k_cache),
        v: rows_of(args.v, args.v_cache),
        table,
        pages,
        lengths: address(args.lengths),
        new_lengths: address(args.new_lengths),
        slots,
        slots_stride,
        positions,
        positions_stride,
        cos,
        sin,
        cos_stride,
        sin_stride,
        rotated_positions: rotated_positions as u32,
        rotary_dim: 2 * pairs as u32,
        interleaved: flag(|rotary| rotary.interleaved),
        wide: flag(|rotary| rotary.dtype == Dtype::F32),
        q_at_first: flag(|rotary| rotary.q_at_first),
        batch: batch as u32,
        entries: entries as u32,
        keys: keys as u32,
    };
    let (entry, bytes) = (kernel.into(), kernel.launch.shared_bytes);
    match args.e4m3_cache.map(|cache| cache.of_kernels()) {
        None => steps.launch(entry, blocks, bytes, &params)?,
        Some([k, v]) => {
            let append = params;
            let params = AppendE4m3Params { append, k, v };
            steps.launch(entry, blocks, bytes, &params)?
        }
    };
    Ok(steps.finish(kernel.name, 1))
}

/// Rows and where they go.
fn rows_of(from: RawTensor, to: RawTensor) -> RowsRef {
    let [_, heads, rows, dim] = from.shape;
    let (from, to) = (TensorRef::from(from), TensorRef::from(to));
    let aligned = dim.is_multiple_of(8) && from.is_aligned() && to.is_aligned();
    RowsRef {
        from,
        to,
        heads: heads as u32,
        rows: rows as u32,
        dim: dim as u32,
        aligned: aligned.into(),
    }
}
