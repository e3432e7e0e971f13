//! Lengths, slots, pages and positions of new keys, and whether the cache has them.

use super::RawAppend;
use crate::device::{Device, RawStream};
use crate::error::{Error, Result};
use crate::tensor::RawTensor;
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
    let mut taken = HashSet::new();
    let of_entry = |entry: usize| {
        // SAFETY: the caller's word.
        let places = unsafe { places_of(device, args, entry)? };
        for &[entry, key] in places.rows.iter().flatten() {
            if !taken.insert([entry, key]) {
                return Err(Error::Taken { entry, key });
            }
        }
        expect_positions(args, entry, &places)?;
        Ok(places)
    };
    (0..args.k.shape[0]).map(of_entry).collect()
}

/// Checks that the rotary embedding, if there is one, has the positions of an entry's keys and queries.
fn expect_positions(args: &RawAppend, entry: usize, places: &Places) -> Result<()> {
    let Some(rotary) = args.rotary else {
        return Ok(());
    };
    let queries = args.q.map_or(0, |[q, _]| match rotary.q_at_first {
        true => q.shape[2].min(1),
        false => q.shape[2],
    });
    let rows = 0..queries.max(args.k.shape[2]);
    let last = rows.map(|row| places.position(row)).max();
    let positions = rotary.cos.shape[0];
    match last.filter(|&last| last >= positions) {
        None => Ok(()),
        Some(position) => Err(Error::Position {
            entry,
            position,
            positions,
        }),
    }
}

/// The places of an entry's new keys.
///
/// # Safety
/// The conditions of [`places`].
unsafe fn places_of(device: &Device, args: &RawAppend, entry: usize) -> Result<Places> {
    // SAFETY: the caller's word.
    let first = unsafe { keys_before(device, args, entry)? };
    // SAFETY: as above.
    let row = |positions: RawTensor<2>| unsafe {
        positions.row(entry, size_of::<i32>()).load::<i32>(device)
    };
    let positions = args.positions.map(row).transpose()?;
    let mut numbered = positions.iter().flatten().enumerate();
    if let Some((row, &position)) = numbered.find(|(_, position)| **position < 0) {
        return Err(wrong("positions", row, position, i32::MAX as usize));
    }
    // SAFETY: as above.
    let rows = unsafe {
        match (args.slots, args.pages) {
            (Some(slots), _) => in_slots(device, args, entry, slots)?,
            (None, Some(pages)) => in_pages(device, args, entry, pages, first)?,
            (None, None) => in_entry(device, args, entry, first)?,
        }
    };
    Ok(Places {
        rows,
        first,
        positions,
    })
}

/// Keys that an entry has before; behind them there is room for the new ones, unless slots say where those go.
///
/// # Safety
/// The conditions of [`places`].
unsafe fn keys_before(device: &Device, args: &RawAppend, entry: usize) -> Result<usize> {
    let (rows, keys) = (args.k.shape[2], args.k_cache.shape[2]);
    let capacity = args.pages.map_or(keys, |pages| pages.shape[1] * keys);
    // SAFETY: the caller's word.
    let found = unsafe { number_of(device, args.lengths, entry)? }.unwrap_or(0);
    let before = usize::try_from(found);
    let before = before.map_err(|_| wrong("lengths", entry, found, capacity))?;
    match args.slots.is_some() || before + rows <= capacity {
        true => Ok(before),
        false => Err(Error::Full {
            entry,
            before,
            rows,
            capacity,
        }),
    }
}

/// The rows of the cache that slots name.
///
/// # Safety
/// The conditions of [`places`].
unsafe fn in_slots(
    device: &Device,
    args: &RawAppend,
    entry: usize,
    slots: RawTensor<2>,
) -> Result<Vec<Option<[usize; 2]>>> {
    let [entries, _, keys, _] = args.k_cache.shape;
    // SAFETY: the caller's word.
    let slots = unsafe { slots.row(entry, size_of::<i64>()).load::<i64>(device)? };
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
    slots.into_iter().enumerate().map(place).collect()
}

/// The rows of an entry's pages behind the first `before` keys.
///
/// # Safety
/// The conditions of [`places`].
unsafe fn in_pages(
    device: &Device,
    args: &RawAppend,
    entry: usize,
    pages: RawTensor<2>,
    before: usize,
) -> Result<Vec<Option<[usize; 2]>>> {
    let [count, _, keys, _] = args.k_cache.shape;
    let behind = before + args.k.shape[2];
    // SAFETY: the caller's word.
    let table = unsafe { pages.row(entry, size_of::<i32>()).load::<i32>(device)? };
    let place = |key: usize| {
        let (index, value) = (key / keys, table[key / keys]);
        match usize::try_from(value) {
            Ok(page) if page < count => Ok(Some([page, key % keys])),
            _ => Err(Error::PageNumber {
                entry,
                index,
                value,
                max: count.saturating_sub(1),
                keys: behind,
            }),
        }
    };
    (before..behind).map(place).collect()
}

/// The rows behind the first `before` keys of the entry of the cache that serves an entry.
///
/// # Safety
/// The conditions of [`places`].
unsafe fn in_entry(
    device: &Device,
    args: &RawAppend,
    entry: usize,
    before: usize,
) -> Result<Vec<Option<[usize; 2]>>> {
    let entries = args.k_cache.shape[0];
    // SAFETY: the caller's word.
    let found = unsafe { number_of(device, args.cache_entries, entry)? };
    let found = found.unwrap_or(entry as i32);
    let number = usize::try_from(found)
        .ok()
        .filter(|&number| number < entries);
    let most = entries.saturating_sub(1);
    let number = number.ok_or_else(|| wrong("cache_entries", entry, found, most))?;
    let rows = before..before + args.k.shape[2];
    Ok(rows.map(|key| Some([number, key])).collect())
}

fn wrong(argument: &'static str, index: usize, value: i32, max: usize) -> Error {
    Error::Entry {
        argument,
        index,
        value,
        min: 0,
        max,
    }
}

/// An entry's number in a list, if there is one.
///
/// # Safety
/// The conditions of [`places`].
unsafe fn number_of(
    device: &Device,
    list: Option<RawTensor<1>>,
    entry: usize,
) -> Result<Option<i32>> {
    let number = |list: RawTensor<1>| {
        let number = RawTensor {
            address: list.address + (entry * size_of::<i32>()) as u64,
            ..RawTensor::row_major([1])
        };
        // SAFETY: the caller's word.
        unsafe { number.load::<i32>(device) }.map(|numbers| numbers[0])
    };
    list.map(number).transpose()
}
