//! Keys and values that all entries of a batch share.

use crate::options::{FerroattnOptions, both, optional};
use crate::status::Failure;
use crate::tensor::Use;
use ferroattn::{Dtype, RawPrefix};

/// The prefix that options name, of a call on elements of this type.
///
/// # Safety
/// Each pointer is null, or the tensor behind it is valid.
pub(crate) unsafe fn read(
    given: &FerroattnOptions,
    dtype: Dtype,
    of: Use,
) -> Result<Option<RawPrefix>, Failure> {
    let tensors = [("prefix_k", given.prefix_k), ("prefix_v", given.prefix_v)];
    // SAFETY: the caller's word.
    let (tensors, table) = unsafe {
        (
            both(of, tensors, dtype.bytes() as u64)?,
            optional(of, "prefix_pages", given.prefix_pages, 4)?,
        )
    };
    let keys = usize::try_from(given.prefix_keys)
        .map_err(|_| Failure::argument("prefix_keys is out of range"))?;
    match (tensors, table) {
        (Some(_), Some(_)) => Err(Failure::argument(
            "prefix_pages is given beside prefix_k and prefix_v; a call has one prefix",
        )),
        (None, Some(table)) => Ok(Some(RawPrefix::Pages { table, keys })),
        _ if keys > 0 => Err(Failure::argument(format!(
            "prefix_keys is {keys}; without prefix_pages it must be 0"
        ))),
        (tensors, None) => Ok(tensors.map(|[k, v]| RawPrefix::Keys { dtype, k, v })),
    }
}
