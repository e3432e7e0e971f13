//! Plans behind opaque handles.

use crate::device::{AttentionDevice, opened};
use crate::pointer;
use crate::status::{AttentionStatus, guarded, one_line};
use attention::Plan;
use std::ffi::{CString, c_char};
use std::ptr::null;

/// The launches of a call, as data. A plan needs neither the tensors nor the device that it was made for.
pub struct AttentionPlan {
    plan: Plan,
    kernel: CString,
}

impl AttentionPlan {
    pub(crate) fn boxed(plan: Plan) -> *mut Self {
        let kernel = one_line(plan.kernel);
        Box::into_raw(Box::new(AttentionPlan { plan, kernel }))
    }
}

/// Bytes of the workspace that the planned call needs; 0 of NULL.
///
/// # Safety
/// The handle is NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn attention_plan_workspace_bytes(plan: *const AttentionPlan) -> usize {
    // SAFETY: the caller's word.
    let plan = unsafe { plan.as_ref() };
    plan.map_or(0, |plan| plan.plan.workspace_bytes)
}

/// Splits of the keys of the planned call, 1 where nothing is split; 0 of NULL.
///
/// # Safety
/// The handle is NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn attention_plan_splits(plan: *const AttentionPlan) -> u32 {
    // SAFETY: the caller's word.
    let plan = unsafe { plan.as_ref() };
    plan.map_or(0, |plan| plan.plan.splits)
}

/// Name of the kernel that does the work, `cpu` on the CPU; NULL of NULL. It is valid until the plan is freed.
///
/// # Safety
/// The handle is NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn attention_plan_kernel(plan: *const AttentionPlan) -> *const c_char {
    // SAFETY: the caller's word.
    let plan = unsafe { plan.as_ref() };
    plan.map_or(null(), |plan| plan.kernel.as_ptr())
}

/// Frees a plan; NULL is fine.
///
/// # Safety
/// The handle is NULL, or that of a plan that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn attention_plan_free(plan: *mut AttentionPlan) {
    if !plan.is_null() {
        // SAFETY: the handle is that of `AttentionPlan::boxed`, and this call its last.
        drop(unsafe { Box::from_raw(plan) });
    }
}

/// Loads the kernels of plans, several at once, and launches nothing: no call with such a plan then waits for a compiler.
///
/// # Safety
/// `device` is NULL or an open device's; `plans` is NULL or has `count` handles, each NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn attention_prepare(
    device: *const AttentionDevice,
    plans: *const *const AttentionPlan,
    count: usize,
) -> AttentionStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let device = unsafe { opened(device)? };
        let handles = pointer::checked(plans, "plans")?;
        let plan = |i| {
            // SAFETY: the caller's word.
            let plan = unsafe { pointer::shared(*handles.add(i), "a plan") };
            plan.map(|plan: &AttentionPlan| plan.plan.clone())
        };
        let plans = (0..count).map(plan).collect::<Result<Vec<_>, _>>()?;
        Ok(device.device.warm_up(&plans)?)
    })
}
