//! The forward pass.

use crate::device::{FerroattnDevice, opened};
use crate::fp8;
use crate::options::{self, FerroattnOptions};
use crate::plan::FerroattnPlan;
use crate::pointer::{self, Parameters};
use crate::status::{Failure, FerroattnStatus, guarded};
use crate::tensor::{FerroattnTensor, Use, dtype};
use crate::work::Work;
use ferroattn::{Attention, Dtype, RawForward};
use std::ffi::c_void;

/// Tensors of a forward pass, `o = softmax(scale q k^T) v`, and its options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnForward {
    /// `sizeof(FerroattnForward)`.
    pub struct_size: u32,
    /// The `FerroattnDtype` of q, k, v and o; inputs of `FerroattnE4m3` are bytes.
    pub dtype: u32,
    /// Options; NULL if all are off.
    pub options: *const FerroattnOptions,
    /// Queries, `[batch, heads, seqlen_q, dim]`; like k, v and o, with stride 1 in dim.
    pub q: FerroattnTensor,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: FerroattnTensor,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: FerroattnTensor,
    /// Output, `[batch, heads, seqlen_q, dim_v]`; `float` where the options have `f32_o`.
    pub o: FerroattnTensor,
    /// Row log-sum-exp, another output, `float[batch, heads, seqlen_q]`, contiguous.
    pub lse: FerroattnTensor,
}

// SAFETY: numbers, pointers and structs of numbers, the size first.
unsafe impl Parameters for FerroattnForward {
    const NAME: &'static str = "FerroattnForward";
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// A call as the library takes it.
struct Call {
    attention: Attention<'static>,
    dtype: Dtype,
    args: RawForward,
}

impl Call {
    /// # Safety
    /// The pointer is null, or the struct and all that it points to are valid.
    unsafe fn read(args: *const FerroattnForward, of: Use) -> Result<Self, Failure> {
        // SAFETY: the caller's word.
        let args = unsafe { pointer::parameters(args, "args")? };
        let dtype = dtype(args.dtype, "dtype")?;
        // SAFETY: the caller's word.
        let (attention, options) = unsafe { options::read(args.options, dtype, of)? };
        let [of_q, of_keys] = fp8::input_bytes(&options, dtype);
        let of_o = if options.f32_o { Dtype::F32 } else { dtype };
        let args = RawForward {
            q: of.tensor("q", &args.q, of_q)?,
            k: of.tensor("k", &args.k, of_keys)?,
            v: of.tensor("v", &args.v, of_keys)?,
            o: of.tensor("o", &args.o, of_o.bytes() as u64)?,
            lse: of.tensor("lse", &args.lse, 4)?,
            options,
        };
        Ok(Call {
            attention,
            dtype,
            args,
        })
    }
}

/// Plans a forward pass, and writes the plan's handle. Plans may be made for tensors at address 0.
///
/// # Safety
/// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_forward(
    device: *const FerroattnDevice,
    args: *const FerroattnForward,
    plan: *mut *mut FerroattnPlan,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, call) = unsafe { (opened(device)?, Call::read(args, Use::Plan)?) };
        let facts = device.device.facts();
        let planned = || {
            let plan = call.attention.plan(facts, call.dtype, &call.args)?;
            Ok(FerroattnPlan::boxed(plan))
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(plan, "plan", planned) }
    })
}

/// Computes o and lse. On a GPU the call returns before the work is done.
///
/// The workspace is as many bytes as a plan of the call says, or more, at a multiple of 256. With address and bytes 0, the
/// library allocates and frees it in the order of the stream. The stream is a `CUstream`, NULL for the default stream.
///
/// # Safety
/// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
/// - Each element of the tensors, and the workspace, are live memory of the device until the work is done. Elements have the types
///   that the structs say.
/// - Until then nothing else writes inputs, or touches o, lse or the workspace. Neither o nor lse, from its first element to its
///   last, holds elements of other tensors.
/// - The stream is NULL or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_forward(
    device: *const FerroattnDevice,
    args: *const FerroattnForward,
    workspace: u64,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, call) = unsafe { (opened(device)?, Call::read(args, Use::Run)?) };
        let Call {
            attention,
            dtype,
            args,
        } = call;
        let device = &device.device;
        let done = match Work::new(workspace, workspace_bytes)? {
            // SAFETY: the caller's word.
            Work::Own => unsafe { attention.forward_raw(device, dtype, &args, stream) },
            // SAFETY: the caller's word.
            Work::In(workspace) => unsafe {
                attention.forward_raw_in(device, dtype, &args, workspace, stream)
            },
        };
        Ok(done?)
    })
}
