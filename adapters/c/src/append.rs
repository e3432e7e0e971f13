//! New keys and values of a cache.

use crate::device::{FerroattnDevice, opened};
use crate::fp8;
use crate::options::{both, flag, optional};
use crate::plan::FerroattnPlan;
use crate::pointer::{self, Parameters};
use crate::status::{Failure, FerroattnStatus, guarded};
use crate::tensor::{FerroattnTensor, Use, dtype};
use ferroattn::{Dtype, RawAppend, RawE4m3Cache, RawRotary, append_plan, append_raw};
use std::ffi::c_void;
use std::mem::offset_of;

/// Tensors of new keys and values, the cache that gets them, and options. Zeros turn an option off, and flags are 0 or 1.
///
/// New row `i` of entry `b` becomes key `lengths[b] + i`: of entry `b` of the cache, of entry `cache_entries[b]`, or of the
/// pages of row `b` of the table. Or `slots` says where each row goes. A call has one of these three at most.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FerroattnAppend {
    /// `sizeof(FerroattnAppend)`.
    pub struct_size: u32,
    /// The `FerroattnDtype` of k, v, q and rotated, and of the caches unless `e4m3_cache` is 1.
    pub dtype: u32,
    /// New keys, `[batch, kv_heads, rows, dim]`; like all tensors of four axes, with stride 1 in the last one.
    pub k: FerroattnTensor,
    /// New values, `[batch, kv_heads, rows, dim_v]`.
    pub v: FerroattnTensor,
    /// Keys of the cache, an output: `[entries or pages, kv_heads, keys, dim]`.
    pub k_cache: FerroattnTensor,
    /// Values of the cache, an output: `[entries or pages, kv_heads, keys, dim_v]`.
    pub v_cache: FerroattnTensor,
    /// Queries `[batch, heads, any rows, dim]`, which are rotated like the keys.
    pub q: *const FerroattnTensor,
    /// Rotated queries, an output of q's shape; q's own place is fine.
    pub rotated: *const FerroattnTensor,
    /// The pages of each entry of the batch, `int32[batch, most]` with stride 1 in the last axis. A page has a power of 2 of keys.
    pub pages: *const FerroattnTensor,
    /// The entry of the cache for each entry of the batch, `int32[batch]` with stride 1.
    pub cache_entries: *const FerroattnTensor,
    /// How many keys each entry of the batch has before, `int32[batch]` with stride 1; NULL for none.
    pub lengths: *const FerroattnTensor,
    /// How many keys each entry has behind, another output, `int32[batch]` with stride 1, in memory of its own.
    pub new_lengths: *const FerroattnTensor,
    /// Where each new row goes, `int64[batch, rows]` with stride 1 in the last axis: row `slot % keys` of entry or page
    /// `slot / keys`; nowhere if it is negative.
    pub slots: *const FerroattnTensor,
    /// The position of each new row, and of the query beside it, `int32[batch, rows]` with stride 1 in the last axis; NULL for
    /// `lengths[b] + i`.
    pub positions: *const FerroattnTensor,
    /// Cosines of a rotary embedding, `[positions, rotary_dim / 2]` with stride 1 in the last axis.
    pub cos: *const FerroattnTensor,
    /// Sines, of the cosines' shape.
    pub sin: *const FerroattnTensor,
    /// The `FerroattnDtype` of cosines and sines: `F32`, or that of the rows.
    pub rotary_dtype: u32,
    /// Whether elements `2i` and `2i + 1` are a pair; otherwise `i` and `i + rotary_dim / 2` are.
    pub interleaved: u32,
    /// Whether all queries of an entry have the position of the first one; otherwise row `i` is `i` positions behind.
    pub q_at_first: u32,
    /// Whether a GPU checks all numbers before it writes, and the call waits for that. The CPU always does.
    pub check_lengths: u32,
    /// What multiplies a head's keys of a cache of e4m3, `float[batch, kv_heads]` or `float[pages, kv_heads]` of any strides: rows are
    /// divided by it and rounded, to 448 if they are larger. NULL for 1. Since version 6.
    pub k_descale: *const FerroattnTensor,
    /// What multiplies a head's values, likewise. Since version 6.
    pub v_descale: *const FerroattnTensor,
    /// Whether k_cache and v_cache hold e4m3, in bytes. Since version 6.
    pub e4m3_cache: u32,
    /// Whether each page, or entry of the cache beside `slots`, has a row of `k_descale` and `v_descale`. Since version 6.
    pub page_descales: u32,
}

// SAFETY: numbers, pointers and structs of numbers, the size first.
unsafe impl Parameters for FerroattnAppend {
    const NAME: &'static str = "FerroattnAppend";
    const SIZES: &'static [usize] = &[offset_of!(Self, k_descale), size_of::<Self>()];
}

impl FerroattnAppend {
    /// The call as the library takes it.
    ///
    /// # Safety
    /// Each pointer is null, or the tensor behind it is valid.
    unsafe fn call(&self, of: Use) -> Result<(Dtype, RawAppend), Failure> {
        let dtype = dtype(self.dtype, "dtype")?;
        let bytes = dtype.bytes() as u64;
        // SAFETY: the caller's word.
        let e4m3_cache = unsafe { self.e4m3_cache(of)? };
        let of_cache = e4m3_cache.map_or(bytes, |_| 1);
        let mut call = RawAppend::new(
            [
                of.tensor("k", &self.k, bytes)?,
                of.tensor("v", &self.v, bytes)?,
            ],
            [
                of.tensor("k_cache", &self.k_cache, of_cache)?,
                of.tensor("v_cache", &self.v_cache, of_cache)?,
            ],
        );
        call.e4m3_cache = e4m3_cache;
        call.check_lengths = flag(self.check_lengths, "check_lengths")?;
        // SAFETY: the caller's word.
        unsafe {
            call.q = both(of, [("q", self.q), ("rotated", self.rotated)], bytes)?;
            call.pages = optional(of, "pages", self.pages, 4)?;
            call.cache_entries = optional(of, "cache_entries", self.cache_entries, 4)?;
            call.lengths = optional(of, "lengths", self.lengths, 4)?;
            call.new_lengths = optional(of, "new_lengths", self.new_lengths, 4)?;
            call.slots = optional(of, "slots", self.slots, 8)?;
            call.positions = optional(of, "positions", self.positions, 4)?;
            call.rotary = self.rotary(of)?;
        }
        Ok((dtype, call))
    }

    /// Descales of the caches, if they hold e4m3.
    ///
    /// # Safety
    /// Each pointer is null, or the tensor behind it is valid.
    unsafe fn e4m3_cache(&self, of: Use) -> Result<Option<RawE4m3Cache>, Failure> {
        let descales = [self.k_descale, self.v_descale];
        // SAFETY: the caller's word.
        let cache = unsafe { fp8::cache(of, descales, self.page_descales)? };
        match flag(self.e4m3_cache, "e4m3_cache")? {
            true => Ok(Some(cache)),
            false if cache == RawE4m3Cache::default() => Ok(None),
            false => Err(Failure::argument("descales need a cache of e4m3")),
        }
    }

    /// The rotary embedding, if there is one.
    ///
    /// # Safety
    /// Each pointer is null, or the tensor behind it is valid.
    unsafe fn rotary(&self, of: Use) -> Result<Option<RawRotary>, Failure> {
        let interleaved = flag(self.interleaved, "interleaved")?;
        let q_at_first = flag(self.q_at_first, "q_at_first")?;
        if self.cos.is_null() && self.sin.is_null() {
            return Ok(None);
        }
        let dtype = dtype(self.rotary_dtype, "rotary_dtype")?;
        let tensors = [("cos", self.cos), ("sin", self.sin)];
        // SAFETY: the caller's word.
        let tensors = unsafe { both(of, tensors, dtype.bytes() as u64)? };
        Ok(tensors.map(|[cos, sin]| RawRotary {
            dtype,
            cos,
            sin,
            interleaved,
            q_at_first,
        }))
    }
}

/// A call as the library takes it.
///
/// # Safety
/// The pointer is null, or the struct and all that it points to are valid.
unsafe fn read(args: *const FerroattnAppend, of: Use) -> Result<(Dtype, RawAppend), Failure> {
    // SAFETY: the caller's word.
    unsafe { pointer::parameters(args, "args")?.call(of) }
}

/// Plans a call that appends, and writes the plan's handle. Plans may be made for tensors at address 0.
///
/// # Safety
/// `device` is NULL or an open device's, `args` and what it points to are NULL or valid. `plan` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_plan_append(
    device: *const FerroattnDevice,
    args: *const FerroattnAppend,
    plan: *mut *mut FerroattnPlan,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, (dtype, args)) = unsafe { (opened(device)?, read(args, Use::Plan)?) };
        let planned = || {
            let plan = append_plan(device.device.facts(), dtype, &args)?;
            Ok(FerroattnPlan::boxed(plan))
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(plan, "plan", planned) }
    })
}

/// Copies new keys and values to a cache, the keys rotated, without a workspace. On a GPU the call returns before the work is done.
///
/// The stream is as for `ferroattn_forward`, which then reads the cache with the same pages or entries, and with new_lengths.
///
/// # Safety
/// - `device` is NULL or an open device's; `args` and what it points to are NULL or valid during the call.
/// - Each element of the tensors is live memory of the device until the work is done. Elements have the types that the struct says.
/// - Until then nothing else writes inputs, or touches the caches, rotated or new_lengths. None of these holds elements of other
///   tensors, but rotated may be q.
/// - The stream is NULL or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_append(
    device: *const FerroattnDevice,
    args: *const FerroattnAppend,
    stream: *mut c_void,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let (device, (dtype, args)) = unsafe { (opened(device)?, read(args, Use::Run)?) };
        // SAFETY: the caller's word.
        let done = unsafe { append_raw(&device.device, dtype, &args, stream) };
        Ok(done?)
    })
}
