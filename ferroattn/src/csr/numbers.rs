//! Offsets and keys of last pages, and whether they are allowed.

use super::RawCsrPages;
use crate::device::{Device, RawStream};
use crate::error::{Error, Result};
use std::ops::Range;

/// The pages of an entry of the batch.
pub(super) struct Pages {
    /// Their places among the indices.
    #[cfg_attr(
        not(feature = "cpu"),
        expect(dead_code, reason = "the CPU copies them")
    )]
    pub indices: Range<usize>,
    /// Keys of all of them.
    #[cfg_attr(
        not(feature = "cpu"),
        expect(dead_code, reason = "the CPU copies them")
    )]
    pub keys: usize,
}

/// Checks all numbers in the memory of a GPU, when the stream has done its work.
///
/// # Safety
/// The conditions of [`csr_pages_raw`](super::csr_pages_raw).
pub(super) unsafe fn expect_numbers(
    device: &Device,
    args: &RawCsrPages,
    stream: RawStream,
) -> Result<()> {
    if let Some(gpu) = device.gpu() {
        // SAFETY: the stream is valid by the caller's word.
        unsafe { gpu.driver().wait(stream)? };
    }
    // SAFETY: the caller's word.
    unsafe { pages(device, args).map(drop) }
}

/// The pages of all entries, if all numbers are allowed and the table has room.
///
/// # Safety
/// The numbers are in the device's memory, and nothing writes them.
pub(super) unsafe fn pages(device: &Device, args: &RawCsrPages) -> Result<Vec<Pages>> {
    // SAFETY: the caller's word.
    let [indptr, last_page] =
        [args.indptr, args.last_page].map(|numbers| unsafe { numbers.load::<i32>(device) });
    let (indptr, last_page) = (indptr?, last_page?);
    let mut before = 0;
    for (index, &value) in indptr.iter().enumerate() {
        if value < before || value as usize > args.indices.shape[0] {
            return Err(Error::Entry {
                argument: "indptr",
                index,
                value,
                min: before,
                max: args.indices.shape[0],
            });
        }
        before = value;
    }
    let most = args.table.shape[1];
    let of_entry = |(entry, (bounds, &keys)): (usize, (&[i32], &i32))| {
        let indices = bounds[0] as usize..bounds[1] as usize;
        let last = usize::try_from(keys).unwrap_or(0);
        match indices.len() {
            0 => Ok(Pages { indices, keys: 0 }),
            pages if pages > most => Err(Error::Pages { entry, pages, most }),
            pages if (1..=args.page).contains(&last) => Ok(Pages {
                indices,
                keys: (pages - 1) * args.page + last,
            }),
            _ => Err(Error::LastPage {
                entry,
                keys,
                page: args.page,
            }),
        }
    };
    let entries = indptr.windows(2).zip(&last_page).enumerate();
    entries.map(of_entry).collect()
}
