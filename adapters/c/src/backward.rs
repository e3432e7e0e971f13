//! The backward pass.

use crate::device::{FerroattnDevice, opened};
use crate::options::{self, FerroattnOptions, optional};
use crate::plan::FerroattnPlan;
use crate::pointer::{self, Parameters};
use crate::status::{Failure, FerroattnStatus, guarded};
use crate::tensor::{FerroattnTensor, Use, dtype};
use crate::work::Work;
use ferroattn::{Attention, Dtype, RawBackward, RawForward};
use std::ffi::c_void;

/// Tensors of a backward pass, and the options that its forward pass had.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnBackward {
    /// `sizeof(FerroattnBackward)`.
    pub struct_size: u32,
    /// The `FerroattnDtype` of q, k, v, o, d_o, dq, dk and dv.
    pub dtype: u32,
    /// Options; NULL if all are off.
    pub options: *const FerroattnOptions,
    /// Queries, `[batch, heads, seqlen_q, dim]`; like all tensors of four axes, with stride 1 in the last.
    pub q: FerroattnTensor,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: FerroattnTensor,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: FerroattnTensor,
    /// Output of the forward pass, `[batch, heads, seqlen_q, dim_v]`.
    pub o: FerroattnTensor,
    /// Row log-sum-exp of the forward pass, `float[batch, heads, seqlen_q]`, contiguous.
    pub lse: FerroattnTensor,
    /// Gradient of o, `[batch, heads, seqlen_q, dim_v]`.
    pub d_o: FerroattnTensor,
    /// Gradient of q, an output like the following ones, `[batch, heads, seqlen_q, dim]`.
    pub dq: FerroattnTensor,
    /// Gradient of k, `[batch, kv_heads, seqlen_kv, dim]`.
    pub dk: FerroattnTensor,
    /// Gradient of v, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub dv: FerroattnTensor,
    /// Gradient of lse, an input, `float[batch, heads, seqlen_q]`, contiguous; NULL for zeros.
    pub d_lse: *const FerroattnTensor,
    /// Gradient of sinks, `float[heads]`; NULL if it is not wanted.
    pub d_sinks: *const FerroattnTensor,
    /// Gradient of the bias, `float[batch, heads, seqlen_q, seqlen_kv]`, summed over each of the first axes of extent 1; NULL if it
    /// is not wanted.
    pub d_bias: *const FerroattnTensor,
}

// SAFETY: numbers, pointers and structs of numbers, the size first.
unsafe impl Parameters for FerroattnBackward {
    const NAME: &'static str = "FerroattnBackward";
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// A call as the library takes it.
struct Call {
    attention: Attention<'static>,
    dtype: Dtype,
    args: RawBackward,
}

impl Call {
    /// # Safety
    /// The pointer is null, or the struct and all that it points to are valid.
    unsafe fn read(args: *const FerroattnBackward, of: Use) -> Result<Self, Failure> {
        // SAFETY: the caller's word.
        let args = unsafe { pointer::parameters(args, "args")? };
        let dtype = dtype(args.dtype, "dtype")?;
        // SAFETY: the caller's word.
        let (attention, options) = unsafe { options::read(args.options, dtype, of)? };
        let tensor = |name, tensor| of.tensor(name, tensor, dtype.bytes() as u64);
        // SAFETY: the caller's word.
        let (d_lse, d_sinks, d_bias) = unsafe {
            (
                optional(of, "d_lse", args.d_lse, 4)?,
                optional(of, "d_sinks", args.d_sinks, 4)?,
                optional(of, "d_bias", args.d_bias, 4)?,
            )
        };
        let forward = RawForward {
            q: tensor("q", &args.q)?,
            k: tensor("k", &args.k)?,
            v: tensor("v", &args.v)?,
            o: tensor("o", &args.o)?,
            lse: of.tensor("lse", &args.lse, 4)?,
            options,
        };
        let d_o = tensor("d_o", &args.d_o)?;
        let (dq, dk) = (tensor("dq", &args.dq)?, tensor("dk", &args.dk)?);
        let gradients = [dq, dk, tensor("dv", &args.dv)?];
        let mut args = RawBackward::new(&forward, d_o, gradients);
        (args.d_lse, args.d_sinks, args.d_bias) = (d_lse, d_sinks, d_bias);
        Ok(Call {
            attention,
            dtype,
            args,
        })
    }
}

/// Plans a backward pass, and writes the plan's handle. Plans may be made for tensors at address 0.
///
/// # Safety
/// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_backward(
    device: *const FerroattnDevice,
    args: *const FerroattnBackward,
    plan: *mut *mut FerroattnPlan,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, call) = unsafe { (opened(device)?, Call::read(args, Use::Plan)?) };
        let facts = device.device.facts();
        let planned = || {
            let attention = &call.attention;
            let plan = attention.backward_plan(facts, call.dtype, &call.args)?;
            Ok(FerroattnPlan::boxed(plan))
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(plan, "plan", planned) }
    })
}

/// Computes the gradients. On a GPU the call returns before the work is done.
///
/// Workspace and stream are as for `ferroattn_forward`.
///
/// # Safety
/// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
/// - Each element of the tensors, and the workspace, are live memory of the device until the work is done. Elements have the types
///   that the structs say.
/// - Until then nothing else writes inputs, or touches a gradient or the workspace. No element of a gradient is an element of
///   another tensor.
/// - The stream is NULL or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_backward(
    device: *const FerroattnDevice,
    args: *const FerroattnBackward,
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
            Work::Own => unsafe { attention.backward_raw(device, dtype, &args, stream) },
            // SAFETY: the caller's word.
            Work::In(workspace) => unsafe {
                attention.backward_raw_in(device, dtype, &args, workspace, stream)
            },
        };
        Ok(done?)
    })
}
