//! FP8: inputs that a call rounds to e4m3, and inputs that hold it.

use crate::options::{FerroattnOptions, flag, optional};
use crate::status::Failure;
use crate::tensor::{FerroattnTensor, Use};
use ferroattn::{Dtype, Fp8, RawE4m3, RawE4m3Cache, RawOptions};

/// How q, k and v are rounded to e4m3.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FerroattnFp8 {
    /// They are not.
    None = 0,
    /// Scaled, then rounded.
    Rounded = 1,
    /// Rows of q and k are rotated before, which spreads outliers. Since version 6.
    Hadamard = 2,
}

/// Inputs that hold e4m3, one byte each. They stand for these numbers times descales.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FerroattnE4m3 {
    /// None.
    None = 0,
    /// q, k and v: the `FerroattnDtype` is that of o alone.
    Inputs = 1,
    /// k and v, a cache beside q and o of the `FerroattnDtype`.
    Cache = 2,
}

/// The rounding that a number of [`FerroattnFp8`] means.
pub(crate) fn rounding(number: u32) -> Result<Option<Fp8>, Failure> {
    const NONE: u32 = FerroattnFp8::None as u32;
    const ROUNDED: u32 = FerroattnFp8::Rounded as u32;
    const HADAMARD: u32 = FerroattnFp8::Hadamard as u32;
    match number {
        NONE => Ok(None),
        ROUNDED => Ok(Some(Fp8::new())),
        HADAMARD => Ok(Some(Fp8::new().hadamard(true))),
        _ => Err(Failure::argument(format!(
            "fp8 is {number}, which is no FerroattnFp8"
        ))),
    }
}

/// The inputs of e4m3 that options name: q, k and v, or a cache.
///
/// # Safety
/// Each pointer is null, or the tensor behind it is valid.
pub(crate) unsafe fn inputs(
    given: &FerroattnOptions,
    of: Use,
) -> Result<(Option<RawE4m3>, Option<RawE4m3Cache>), Failure> {
    const NONE: u32 = FerroattnE4m3::None as u32;
    const INPUTS: u32 = FerroattnE4m3::Inputs as u32;
    const CACHE: u32 = FerroattnE4m3::Cache as u32;
    let descales = [given.k_descale, given.v_descale];
    // SAFETY: the caller's word.
    let (q, cache) = unsafe {
        (
            optional(of, "q_descale", given.q_descale, 4)?,
            cache(of, descales, given.page_descales)?,
        )
    };
    match given.e4m3 {
        NONE if q.is_none() && cache == RawE4m3Cache::default() => Ok((None, None)),
        NONE => Err(Failure::argument("descales need inputs of e4m3")),
        INPUTS if cache.of_pages => Err(Failure::argument(
            "page_descales is 1; descales of pages need a cache of e4m3",
        )),
        INPUTS => {
            let mut inputs = RawE4m3::default();
            (inputs.q, inputs.k, inputs.v) = (q, cache.k, cache.v);
            Ok((Some(inputs), None))
        }
        CACHE if q.is_some() => Err(Failure::argument("q_descale needs q of e4m3")),
        CACHE => Ok((None, Some(cache))),
        other => Err(Failure::argument(format!(
            "e4m3 is {other}, which is no FerroattnE4m3"
        ))),
    }
}

/// A cache of e4m3 with these descales of k and v.
///
/// # Safety
/// Each pointer is null, or the tensor behind it is valid.
pub(crate) unsafe fn cache(
    of: Use,
    [k, v]: [*const FerroattnTensor; 2],
    page_descales: u32,
) -> Result<RawE4m3Cache, Failure> {
    let of_pages = flag(page_descales, "page_descales")?;
    // SAFETY: the caller's word.
    let (k, v) = unsafe {
        (
            optional(of, "k_descale", k, 4)?,
            optional(of, "v_descale", v, 4)?,
        )
    };
    Ok(RawE4m3Cache { k, v, of_pages })
}

/// Bytes of elements of q, and of those of k and v, in a call of this type.
pub(crate) fn input_bytes(options: &RawOptions, dtype: Dtype) -> [u64; 2] {
    let bytes = dtype.bytes() as u64;
    match (options.e4m3, options.e4m3_cache) {
        (Some(_), _) => [1; 2],
        (_, Some(_)) => [bytes, 1],
        _ => [bytes; 2],
    }
}
