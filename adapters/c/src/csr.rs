//! Pages in the CSR form, as a table of pages and lengths.

use crate::device::{FerroattnDevice, opened};
use crate::options::flag;
use crate::plan::FerroattnPlan;
use crate::pointer::{self, Parameters};
use crate::status::{Failure, FerroattnStatus, guarded};
use crate::tensor::{FerroattnTensor, Use};
use ferroattn::{RawCsrPages, csr_pages_plan, csr_pages_raw};
use std::ffi::c_void;

/// Pages of all entries one after another, and the table and lengths that they become. All tensors are `int32`, with stride 1 in the last
/// axis. Since version 4.
///
/// Entry `b` has pages `indices[indptr[b]]` to `indices[indptr[b + 1] - 1]`, in the order of its keys.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnCsrPages {
    /// `sizeof(FerroattnCsrPages)`.
    pub struct_size: u32,
    /// Whether a GPU checks all numbers before it writes, and the call waits for that. The CPU always does.
    pub check_lengths: u32,
    /// Keys of a page, a power of 2.
    pub page: u64,
    /// Where the pages of each entry begin, and where the last one's end, `[batch + 1]`.
    pub indptr: FerroattnTensor,
    /// Page numbers, `[n]`.
    pub indices: FerroattnTensor,
    /// Keys of each entry's last page, `[batch]`.
    pub last_page: FerroattnTensor,
    /// The table, an output, `[batch, most]`. Numbers behind an entry's last page stay as they are.
    pub table: FerroattnTensor,
    /// Keys of each entry, another output, `[batch]`.
    pub lengths: FerroattnTensor,
}

// SAFETY: numbers and structs of numbers, the size first.
unsafe impl Parameters for FerroattnCsrPages {
    const NAME: &'static str = "FerroattnCsrPages";
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// A call as the library takes it.
///
/// # Safety
/// The pointer is null, or the struct behind it is valid.
unsafe fn read(args: *const FerroattnCsrPages, of: Use) -> Result<RawCsrPages, Failure> {
    // SAFETY: the caller's word.
    let args = unsafe { pointer::parameters(args, "args")? };
    let page = usize::try_from(args.page).map_err(|_| Failure::argument("page is out of range"))?;
    let inputs = [
        of.tensor("indptr", &args.indptr, 4)?,
        of.tensor("indices", &args.indices, 4)?,
        of.tensor("last_page", &args.last_page, 4)?,
    ];
    let table = of.tensor("table", &args.table, 4)?;
    let lengths = of.tensor("lengths", &args.lengths, 4)?;
    let mut call = RawCsrPages::new(page, inputs, (table, lengths));
    call.check_lengths = flag(args.check_lengths, "check_lengths")?;
    Ok(call)
}

/// Plans a call that makes a table, and writes the plan's handle. Plans may be made for tensors at address 0. Since version 4.
///
/// # Safety
/// `device` is NULL or an open device's, `args` is NULL or valid. `plan` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_csr_pages(
    device: *const FerroattnDevice,
    args: *const FerroattnCsrPages,
    plan: *mut *mut FerroattnPlan,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, args) = unsafe { (opened(device)?, read(args, Use::Plan)?) };
        let planned = || {
            let plan = csr_pages_plan(device.device.facts(), &args)?;
            Ok(FerroattnPlan::boxed(plan))
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(plan, "plan", planned) }
    })
}

/// Writes the table and the lengths, which `ferroattn_forward` then reads as `pages` and `sequences_kv`, without a workspace. On a GPU the
/// call returns before the work is done.
///
/// Since version 4. The stream is as for `ferroattn_forward`.
///
/// # Safety
/// - `device` is NULL or an open device's; `args` is NULL or valid during the call.
/// - Each element of the tensors is live memory of the device until the work is done.
/// - Until then nothing else writes inputs, or touches the table or the lengths, which hold no elements of other tensors.
/// - The stream is NULL or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_csr_pages(
    device: *const FerroattnDevice,
    args: *const FerroattnCsrPages,
    stream: *mut c_void,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, args) = unsafe { (opened(device)?, read(args, Use::Run)?) };
        // SAFETY: the caller's word.
        let done = unsafe { csr_pages_raw(&device.device, &args, stream) };
        Ok(done?)
    })
}
