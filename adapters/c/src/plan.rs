//! Plans behind opaque handles.

use crate::device::{FerroattnDevice, opened};
use crate::pointer;
use crate::status::{FerroattnStatus, guarded, one_line};
use ferroattn::Plan;
use std::ffi::{CString, c_char};
use std::ptr::null;

/// The launches of a call, as data. A plan needs neither the tensors nor the device that it was made for.
pub struct FerroattnPlan {
    plan: Plan,
    kernel: CString,
}

impl FerroattnPlan {
    pub(crate) fn boxed(plan: Plan) -> *mut Self {
        let kernel = one_line(plan.kernel);
        Box::into_raw(Box::new(FerroattnPlan { plan, kernel }))
    }
}

/// Bytes of the workspace that the planned call needs; 0 of NULL.
///
/// # Safety
/// The handle is NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_workspace_bytes(plan: *const FerroattnPlan) -> usize {
    // SAFETY: the caller's word.
    let plan = unsafe { plan.as_ref() };
    plan.map_or(0, |plan| plan.plan.workspace_bytes)
}

/// Splits of the keys of the planned call, 1 where nothing is split; 0 of NULL.
///
/// # Safety
/// The handle is NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_splits(plan: *const FerroattnPlan) -> u32 {
    // SAFETY: the caller's word.
    let plan = unsafe { plan.as_ref() };
    plan.map_or(0, |plan| plan.plan.splits)
}

/// Name of the kernel that does the work, `cpu` on the CPU; NULL of NULL. It is valid until the plan is freed.
///
/// # Safety
/// The handle is NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_kernel(plan: *const FerroattnPlan) -> *const c_char {
    // SAFETY: the caller's word.
    let plan = unsafe { plan.as_ref() };
    plan.map_or(null(), |plan| plan.kernel.as_ptr())
}

/// Frees a plan; NULL is fine.
///
/// # Safety
/// The handle is NULL, or that of a plan that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_free(plan: *mut FerroattnPlan) {
    if !plan.is_null() {
        // SAFETY: the handle is that of `FerroattnPlan::boxed`, and this call its last.
        drop(unsafe { Box::from_raw(plan) });
    }
}

/// Loads the kernels of plans, several at once, and launches nothing: no call with such a plan then waits for a compiler.
///
/// # Safety
/// `device` is NULL or an open device's; `plans` is NULL or has `count` handles, each NULL or that of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_prepare(
    device: *const FerroattnDevice,
    plans: *const *const FerroattnPlan,
    count: usize,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let device = unsafe { opened(device)? };
        let handles = pointer::checked(plans, "plans")?;
        let plan = |i| {
            // SAFETY: the caller's word.
            let plan = unsafe { pointer::shared(*handles.add(i), "a plan") };
            plan.map(|plan: &FerroattnPlan| plan.plan.clone())
        };
        let plans = (0..count).map(plan).collect::<Result<Vec<_>, _>>()?;
        Ok(device.device.warm_up(&plans)?)
    })
}
