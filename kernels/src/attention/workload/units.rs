//! Units: parts of the keys of all batch entries, one for each block. A block finds its own by the entries' lengths.

use super::lengths;
use crate::abi::ForwardParams;
use crate::ptx::{global, shuffle, special, vote};
use crate::tile::registers::opaque;
use core::hint::assert_unchecked;

/// A part of the keys of a batch entry.
#[derive(Clone, Copy)]
pub struct Unit {
    /// The batch entry.
    pub entry: u32,
    /// The first key.
    pub first: u32,
    /// How many keys.
    pub keys: u32,
    /// Its number among the units of the entry, and how many these are.
    pub number: u32,
    pub count: u32,
}

/// Unit number `number` of a launch with units; none if there are fewer.
///
/// All units have the same number of keys, but the last one of each entry, which may be smaller. An entry without keys has an empty unit.
///
/// # Safety
/// All lanes of the warp make the same call; lengths are readable.
#[inline(always)]
pub unsafe fn find(params: &ForwardParams, number: u32) -> Option<Unit> {
    let (lane, units) = (special::lane(), &params.options.units);
    let entries = units.entries();
    // SAFETY: the caller's promise: all lanes are here, as they are everywhere below.
    let keys = unsafe {
        let all = sum(params, |[start, end]| end - start);
        units.keys(all, |keys| sum(params, |seen| units_of_entry(seen, keys)))
    };
    let (mut before, mut first) = (0, 0);
    while first < entries {
        let entry = first + lane;
        let (mut start, mut end, mut count) = (0, 0, 0);
        if entry < entries {
            // SAFETY: the caller's promise.
            [start, end] = unsafe { seen_of_entry(params, entry) };
            count = units_of_entry([start, end], keys);
        }
        // SAFETY: as above.
        unsafe {
            let behind = before + shuffle::add_up_to(count, lane);
            // The entry has the first of the lanes whose units end behind this one.
            let owner = vote::ballot(behind <= number).count_ones();
            if owner < 32 {
                let of_owner = |own| shuffle::number_of_lane(own, owner);
                let (count, end) = (of_owner(count), of_owner(end));
                let number = number + count - of_owner(behind);
                let start = of_owner(start) + number * keys;
                return Some(Unit {
                    entry: first + owner,
                    first: start,
                    keys: keys.min(end - start),
                    number,
                    count,
                });
            }
            before = shuffle::number_of_lane(behind, 31);
        }
        first = opaque(first + 32);
    }
    None
}

/// What the keys that are seen of each entry add up to.
///
/// # Safety
/// The conditions of [`find`].
#[inline(always)]
unsafe fn sum(params: &ForwardParams, of: impl Fn([u32; 2]) -> u32) -> u32 {
    let (mut sum, mut entry) = (0, special::lane());
    // SAFETY: the caller's promise.
    unsafe {
        while entry < params.options.units.entries() {
            sum += of(seen_of_entry(params, entry));
            // Opaque: the loop stays one.
            entry = opaque(entry + 32);
        }
        shuffle::add(sum)
    }
}

/// Units of so many keys, not 0, that keys of an entry make: one, if there are none.
#[inline(always)]
fn units_of_entry([start, end]: [u32; 2], keys: u32) -> u32 {
    // SAFETY: the caller has some.
    unsafe { assert_unchecked(keys > 0) }
    (end - start).div_ceil(keys).max(1)
}

/// Writes where the units of a unit's entry begin, by the entry's first unit, which is number `number` of all; and the end of the last entry's.
///
/// # Safety
/// The offsets are writable. One thread makes the call for each unit.
#[inline(always)]
pub unsafe fn write_offset(params: &ForwardParams, number: u32, unit: Unit) {
    if unit.number > 0 {
        return;
    }
    let units = &params.options.units;
    let offset = units.offsets + 4 * u64::from(unit.entry);
    // SAFETY: the caller's promise.
    unsafe {
        global::store_u32(offset, number);
        if unit.entry == units.entries() - 1 {
            global::store_u32(offset + 4, number + unit.count);
        }
    }
}

/// The keys that queries of a batch entry see by its lengths and a window's left bound, from the begin of a step on.
///
/// # Safety
/// The lengths are readable.
#[inline(always)]
unsafe fn seen_of_entry(params: &ForwardParams, entry: u32) -> [u32; 2] {
    // SAFETY: the caller's promise.
    let [[first, queries], [start, end]] = unsafe { lengths::of_options(params, entry) };
    let behind = (queries - first) as u32 + params.options.left as u32;
    let start = (end as u32).saturating_sub(behind).max(start as u32);
    let (_, in_step) = params.options.units.step.divide(start);
    [start - in_step, end as u32]
}
