//! Tables of pages on the CPU.

use super::RawCsrPages;
use super::numbers::pages;
use crate::device::Device;
use crate::error::Result;

/// Writes the table and the lengths of a call whose shapes are checked.
///
/// # Safety
/// The conditions of [`csr_pages_raw`](crate::csr_pages_raw) on the CPU.
pub unsafe fn csr_pages_raw(args: &RawCsrPages) -> Result<()> {
    let cpu = Device::cpu();
    // SAFETY: the caller vouches for the memory.
    let (all, numbers) = unsafe { (pages(&cpu, args)?, args.indices.load::<i32>(&cpu)?) };
    // SAFETY: the caller vouches for the memory, and that nothing else touches it. The call found a place for every number.
    let (mut table, mut lengths) = unsafe {
        (
            args.table.view_mut::<i32, _>(),
            args.lengths.view_mut::<i32, _>(),
        )
    };
    let rows = table.rows_mut().into_iter().zip(&mut lengths);
    for ((row, length), pages) in rows.zip(all) {
        *length = pages.keys as i32;
        for (place, number) in row.into_iter().zip(&numbers[pages.indices]) {
            *place = *number;
        }
    }
    Ok(())
}
