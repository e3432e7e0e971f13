//! The merge of two partial results, and its gradient.

use crate::device::{FerroattnDevice, opened};
use crate::options::optional;
use crate::plan::FerroattnPlan;
use crate::pointer::{self, Parameters};
use crate::status::{Failure, FerroattnStatus, guarded};
use crate::tensor::{FerroattnTensor, Use, dtype};
use ferroattn::{
    Dtype, RawMerge, RawMergeBackward, RawPart, merge_backward_plan, merge_backward_raw,
    merge_plan, merge_raw,
};
use std::ffi::c_void;

/// Tensors of a merge: the same queries' attention to two sets of keys becomes attention to all these keys.
///
/// A part with an lse of -inf has no part in its row, whatever its o holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnMerge {
    /// `sizeof(FerroattnMerge)`.
    pub struct_size: u32,
    /// The `FerroattnDtype` of o1, o2 and o.
    pub dtype: u32,
    /// Output of the first part, `[batch, heads, seqlen, dim_v]`; like o2 and o, with stride 1 in dim_v.
    pub o1: FerroattnTensor,
    /// Row log-sum-exp of the first part, `float[batch, heads, seqlen]`; like lse2 and lse, contiguous.
    pub lse1: FerroattnTensor,
    /// Output of the second part, of o1's shape.
    pub o2: FerroattnTensor,
    /// Row log-sum-exp of the second part, of lse1's shape.
    pub lse2: FerroattnTensor,
    /// Merged output, of o1's shape.
    pub o: FerroattnTensor,
    /// Merged row log-sum-exp, another output, of lse1's shape.
    pub lse: FerroattnTensor,
}

// SAFETY: numbers and structs of numbers, the size first.
unsafe impl Parameters for FerroattnMerge {
    const NAME: &'static str = "FerroattnMerge";
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// Tensors of a merge's gradient. The merged tensors themselves are not needed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnMergeBackward {
    /// `sizeof(FerroattnMergeBackward)`.
    pub struct_size: u32,
    /// The `FerroattnDtype` of o1, o2, d_o, d_o1 and d_o2.
    pub dtype: u32,
    /// Output of the first part, `[batch, heads, seqlen, dim_v]`; like all tensors of four axes, with stride 1 in dim_v.
    pub o1: FerroattnTensor,
    /// Row log-sum-exp of the first part, `float[batch, heads, seqlen]`; like all tensors of three axes, contiguous.
    pub lse1: FerroattnTensor,
    /// Output of the second part, of o1's shape.
    pub o2: FerroattnTensor,
    /// Row log-sum-exp of the second part, of lse1's shape.
    pub lse2: FerroattnTensor,
    /// Gradient of the merged o, of o1's shape.
    pub d_o: FerroattnTensor,
    /// Gradient of o1, an output like the following ones, of o1's shape.
    pub d_o1: FerroattnTensor,
    /// Gradient of lse1, of its shape.
    pub d_lse1: FerroattnTensor,
    /// Gradient of o2, of o1's shape.
    pub d_o2: FerroattnTensor,
    /// Gradient of lse2, of lse1's shape.
    pub d_lse2: FerroattnTensor,
    /// Gradient of the merged lse, an input, of lse1's shape; NULL for zeros.
    pub d_lse: *const FerroattnTensor,
}

// SAFETY: numbers, pointers and structs of numbers, the size first.
unsafe impl Parameters for FerroattnMergeBackward {
    const NAME: &'static str = "FerroattnMergeBackward";
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// A partial result or its gradient as the library takes it, by its tensors and their names.
fn part(
    of: Use,
    dtype: Dtype,
    [(o_name, o), (lse_name, lse)]: [(&str, &FerroattnTensor); 2],
) -> Result<RawPart, Failure> {
    Ok(RawPart {
        o: of.tensor(o_name, o, dtype.bytes() as u64)?,
        lse: of.tensor(lse_name, lse, 4)?,
    })
}

/// A merge as the library takes it.
///
/// # Safety
/// The pointer is null, or the struct is valid.
unsafe fn read(args: *const FerroattnMerge, of: Use) -> Result<(Dtype, RawMerge), Failure> {
    // SAFETY: the caller's word.
    let args = unsafe { pointer::parameters(args, "args")? };
    let dtype = dtype(args.dtype, "dtype")?;
    let part = |tensors| part(of, dtype, tensors);
    let merge = RawMerge {
        first: part([("o1", &args.o1), ("lse1", &args.lse1)])?,
        second: part([("o2", &args.o2), ("lse2", &args.lse2)])?,
        merged: part([("o", &args.o), ("lse", &args.lse)])?,
    };
    Ok((dtype, merge))
}

/// A merge's gradient as the library takes it.
///
/// # Safety
/// The pointer is null, or the struct and all that it points to are valid.
unsafe fn read_backward(
    args: *const FerroattnMergeBackward,
    of: Use,
) -> Result<(Dtype, RawMergeBackward), Failure> {
    // SAFETY: the caller's word.
    let args = unsafe { pointer::parameters(args, "args")? };
    let dtype = dtype(args.dtype, "dtype")?;
    let part = |tensors| part(of, dtype, tensors);
    let backward = RawMergeBackward {
        first: part([("o1", &args.o1), ("lse1", &args.lse1)])?,
        second: part([("o2", &args.o2), ("lse2", &args.lse2)])?,
        d_o: of.tensor("d_o", &args.d_o, dtype.bytes() as u64)?,
        // SAFETY: the caller's word.
        d_lse: unsafe { optional(of, "d_lse", args.d_lse, 4)? },
        d_first: part([("d_o1", &args.d_o1), ("d_lse1", &args.d_lse1)])?,
        d_second: part([("d_o2", &args.d_o2), ("d_lse2", &args.d_lse2)])?,
    };
    Ok((dtype, backward))
}

/// Plans a merge, and writes the plan's handle. Plans may be made for tensors at address 0.
///
/// # Safety
/// `device` is NULL or an open device's, and `args` is NULL or valid. `plan` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_merge(
    device: *const FerroattnDevice,
    args: *const FerroattnMerge,
    plan: *mut *mut FerroattnPlan,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, (dtype, args)) = unsafe { (opened(device)?, read(args, Use::Plan)?) };
        let planned = || {
            let plan = merge_plan(device.device.facts(), dtype, &args)?;
            Ok(FerroattnPlan::boxed(plan))
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(plan, "plan", planned) }
    })
}

/// Plans a merge's gradient, and writes the plan's handle. Plans may be made for tensors at address 0.
///
/// # Safety
/// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_merge_backward(
    device: *const FerroattnDevice,
    args: *const FerroattnMergeBackward,
    plan: *mut *mut FerroattnPlan,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, (dtype, args)) = unsafe { (opened(device)?, read_backward(args, Use::Plan)?) };
        let planned = || {
            let plan = merge_backward_plan(device.device.facts(), dtype, &args)?;
            Ok(FerroattnPlan::boxed(plan))
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(plan, "plan", planned) }
    })
}

/// Merges two partial results into o and lse, without a workspace. On a GPU the call returns before the work is done.
///
/// The stream is as for `ferroattn_forward`. More parts are merged one after the other.
///
/// # Safety
/// - `device` is NULL or an open device's; `args` is NULL or valid during the call.
/// - Each element of the tensors is live memory of the device until the work is done. Elements have the types that the struct says.
/// - Until then nothing else writes the parts, or touches o or lse. Neither o nor lse, from its first element to its last, holds
///   elements of other tensors.
/// - The stream is NULL or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_merge(
    device: *const FerroattnDevice,
    args: *const FerroattnMerge,
    stream: *mut c_void,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, (dtype, args)) = unsafe { (opened(device)?, read(args, Use::Run)?) };
        // SAFETY: the caller's word.
        let done = unsafe { merge_raw(&device.device, dtype, &args, stream) };
        Ok(done?)
    })
}

/// Computes the gradients of both parts of a merge, without a workspace. On a GPU the call returns before the work is done.
///
/// The stream is as for `ferroattn_forward`. `ferroattn_backward` takes the gradients of a part as its d_o and d_lse.
///
/// # Safety
/// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
/// - Each element of the tensors is live memory of the device until the work is done. Elements have the types that the struct says.
/// - Until then nothing else writes inputs, or touches a gradient of a part. No such gradient, from its first element to its last,
///   holds elements of other tensors.
/// - The stream is NULL or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_merge_backward(
    device: *const FerroattnDevice,
    args: *const FerroattnMergeBackward,
    stream: *mut c_void,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, (dtype, args)) = unsafe { (opened(device)?, read_backward(args, Use::Run)?) };
        // SAFETY: the caller's word.
        let done = unsafe { merge_backward_raw(&device.device, dtype, &args, stream) };
        Ok(done?)
    })
}
