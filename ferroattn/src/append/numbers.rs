//! Lengths, slots, pages and positions of new keys, and whether the cache has them.

use super::RawAppend;
use crate::device::{Device, RawStream};
use crate::error::{Error, Result};
use crate::tensor::RawTensor;
use bytemuck::Pod;
use std::collections::HashSet;

/// Where the new keys of an entry of the batch go, and their positions.
pub(super) struct Places {
    /// The entry or page of the cache and the row of it; none for a negative slot.
    pub rows: Vec<Option<[usize; 2]>>,
    /// The position of a row; behind the new ones, too.
    first: usize,
    positions: Option<Vec<i32>>,
}

impl Places {
    /// Keys that the entry has before.
    #[cfg(feature = "cpu")]
    pub fn before(&self) -> usize {
        self.first
    }

    /// The position of a row.
    pub fn position(&self, row: usize) -> usize {
        match &self.positions {
            Some(positions) => positions[row] as usize,
            None => self.first + row,
        }
    }
}

/// Checks all numbers, in the memory of any device.
///
/// # Safety
/// The conditions of [`append_raw`](super::append_raw).
pub(super) unsafe fn expect_numbers(
    device: &Device,
    args: &RawAppend,
    stream: RawStream,
) -> Result<()> {
    if let Some(gpu) = device.gpu() {
        // SAFETY: the stream is valid by the caller's word.
        unsafe { gpu.driver().wait(stream)? };
    }
    // SAFETY: the caller's word.
    unsafe { places(device, args).map(drop) }
}

/// Where all new keys go, if the cache has these places, and no two have one place.
///
/// # Safety
/// The numbers are in the device's memory, and nothing writes them.
pub(super) unsafe fn places(device: &Device, args: &RawAppend) -> Result<Vec<Places>> {
    let [batch, _, rows, _] = args.k.shape;
    let mut taken = HashSet::new();
    let of_entry = |entry: usize| {
        // SAFETY: the caller's word.
        let places = unsafe { places_of(device, args, entry)? };
        for place in places.rows.iter().flatten() {
            if !taken.insert(*place) {
                return Err(Error::Taken {
                    entry: place[0],
                    key: place[1],
                });
            }
        }
        let [q_rows, positions] = [args.q.map_or(0, |[q, _]| q.shape[2]), rows];
        let last = (0..q_rows.max(positions))
            .map(|row| places.position(row))
            .max();
        if let (Some(rotary), Some(last)) = (args.rotary, last)
            && last >= rotary.cos.shape[0]
        {
            return Err(Error::Position {
                entry,
                position: last,
                positions: rotary.cos.shape[0],
            });
        }
        Ok(places)
    };
    (0..batch).map(of_entry).collect()
}

/// # Safety
/// The conditions of [`places`].
unsafe fn places_of(device: &Device, args: &RawAppend, entry: usize) -> Result<Places> {
    let [entries, _, keys, _] = args.k_cache.shape;
    let rows = args.k.shape[2];
    let one = |tensor: Option<RawTensor<1>>| {
        // SAFETY: the caller's word.
        let of = |tensor: RawTensor<1>| unsafe { load::<i32>(device, tensor, entry, 1) };
        tensor.map(of).transpose()
    };
    let before = one(args.lengths)?.map_or(0, |lengths| lengths[0]);
    let wrong = |argument, index, value, max| Error::Entry {
        argument,
        index,
        value,
        min: 0,
        max,
    };
    let capacity = args.pages.map_or(keys, |pages| pages.shape[1] * keys);
    let most = capacity.saturating_sub(if args.slots.is_some() { 0 } else { rows });
    let fits = usize::try_from(before).is_ok_and(|before| before <= most);
    if !fits && (args.slots.is_none() || before < 0) {
        return Err(match before {
            0.. if args.slots.is_none() => Error::Full {
                entry,
                before: before as usize,
                rows,
                capacity,
            },
            _ => wrong("lengths", entry, before, most),
        });
    }
    let first = before as usize;
    let positions = match args.positions {
        None => None,
        // SAFETY: the caller's word.
        Some(positions) => Some(unsafe { load_row::<i32>(device, positions, entry)? }),
    };
    if let Some((row, &position)) = positions
        .iter()
        .flatten()
        .enumerate()
        .find(|(_, p)| **p < 0)
    {
        return Err(wrong("positions", row, position, i32::MAX as usize));
    }
    let rows = if let Some(slots) = args.slots {
        // SAFETY: the caller's word.
        let slots = unsafe { load_row::<i64>(device, slots, entry)? };
        let place = |(row, slot): (usize, i64)| match usize::try_from(slot) {
            Err(_) => Ok(None),
            Ok(found) if found < entries * keys => Ok(Some([found / keys, found % keys])),
            Ok(_) => Err(Error::Slot {
                entry,
                row,
                slot,
                slots: entries * keys,
            }),
        };
        slots
            .into_iter()
            .enumerate()
            .map(place)
            .collect::<Result<_>>()?
    } else if let Some(pages) = args.pages {
        // SAFETY: the caller's word.
        let table = unsafe { load_row::<i32>(device, pages, entry)? };
        let place = |key: usize| {
            let (index, number) = (key / keys, table[key / keys]);
            match usize::try_from(number) {
                Ok(page) if page < entries => Ok(Some([page, key % keys])),
                _ => Err(Error::PageNumber {
                    entry,
                    index,
                    value: number,
                    max: entries.saturating_sub(1),
                    keys: first + rows,
                }),
            }
        };
        (first..first + rows).map(place).collect::<Result<_>>()?
    } else {
        let number = one(args.cache_entries)?.map_or(entry as i32, |entries| entries[0]);
        if !usize::try_from(number).is_ok_and(|number| number < entries) {
            return Err(wrong(
                "cache_entries",
                entry,
                number,
                entries.saturating_sub(1),
            ));
        }
        (first..first + rows)
            .map(|key| Some([number as usize, key]))
            .collect()
    };
    Ok(Places {
        rows,
        first,
        positions,
    })
}

/// The row of an entry of the batch, in the device's memory.
///
/// # Safety
/// The conditions of [`places`], of these elements.
unsafe fn load_row<T: Pod>(device: &Device, table: RawTensor<2>, entry: usize) -> Result<Vec<T>> {
    let bytes = entry as i64 * table.used_strides()[0] as i64 * size_of::<T>() as i64;
    let row = RawTensor {
        address: table.address.wrapping_add_signed(bytes),
        ..RawTensor::row_major([table.shape[1]])
    };
    // SAFETY: the caller's word.
    unsafe { load(device, row, 0, table.shape[1]) }
}

/// So many elements of a tensor with stride 1, in the device's memory.
///
/// # Safety
/// The conditions of [`places`], of these elements.
unsafe fn load<T: Pod>(
    device: &Device,
    tensor: RawTensor<1>,
    first: usize,
    count: usize,
) -> Result<Vec<T>> {
    let mut numbers = vec![T::zeroed(); count];
    let address = tensor.address + (first * size_of::<T>()) as u64;
    let bytes = bytemuck::cast_slice_mut(&mut numbers);
    match device.gpu() {
        _ if count == 0 => {}
        // SAFETY: the caller's word.
        Some(gpu) => unsafe { gpu.driver().download(address, bytes)? },
        None => {
            let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
            // SAFETY: the caller's word; the vector is not the tensor's memory.
            unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        }
    }
    Ok(numbers)
}
