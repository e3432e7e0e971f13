//! The host's own instructions for vectors, fused multiply-add and f16, where it has them.
//!
//! A program is compiled for any host of its architecture. What works on the lanes of a warp is compiled a second time for
//! newer ones, and the host decides at run time which it executes. Both give the same bits: compilers do not fuse
//! operations by themselves.

use crate::registers::{LANES, Row};

/// Whether the host has AVX2, FMA and F16C, as nearly all of x86-64 have since 2013.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_wide() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_wide() -> bool {
    false
}

/// Calls `f`, compiled for a host that [is wide](is_wide).
///
/// # Safety
/// The host must be.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn call_wide<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn call_wide<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Brings a value to the host's cache, while other work goes on.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, about memory that is there.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// A row of f32 rounded to f16, to nearest even.
///
/// # Safety
/// The host must be [wide](is_wide).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
pub(crate) unsafe fn round_to_f16(values: &Row<u32>) -> Row<u16> {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
    };
    let mut rounded = [0; LANES];
    for (values, rounded) in values.chunks_exact(8).zip(rounded.chunks_exact_mut(8)) {
        // SAFETY: both chunks have eight elements, and unaligned accesses may lie anywhere in them.
        unsafe {
            let eight = _mm256_loadu_ps(values.as_ptr().cast());
            let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight);
            _mm_storeu_si128(rounded.as_mut_ptr().cast(), eight);
        }
    }
    rounded
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn round_to_f16(_: &Row<u32>) -> Row<u16> {
    unreachable!("no such host is wide")
}
