//! The sequence of a batch entry, by its lengths in memory.

use crate::abi::{ForwardParams, LengthsRef};
use crate::ptx::global;

/// The rows of an entry's sequence, of `rows` that there are: those before its length, from its first one on. Any numbers give rows that there
/// are. Address 0 stands for all rows, and for first row 0.
///
/// # Safety
/// The entry's numbers are readable, if there are some.
#[inline(always)]
pub unsafe fn of_entry(lengths: u64, firsts: u64, rows: i32, entry: u32) -> [i32; 2] {
    let (mut first, mut length) = (0, rows);
    // SAFETY: the caller's promise.
    unsafe {
        if lengths != 0 {
            length = load(lengths, entry).max(0).min(length);
        }
        if firsts != 0 {
            first = load(firsts, entry).max(0).min(length);
        }
    }
    [first, length]
}

/// The queries and the keys of a batch entry's sequence, in a launch whose options have [lengths](crate::abi::Options::lengths).
///
/// # Safety
/// [`Switch::Lengths`](crate::abi::Switch::Lengths) is on: each batch entry has its numbers.
#[inline(always)]
pub unsafe fn of_options(params: &ForwardParams, entry: u32) -> [[i32; 2]; 2] {
    let LengthsRef { q, kv, first_keys } = params.options.lengths;
    // SAFETY: the caller's promise.
    unsafe {
        [
            of_entry(q, 0, params.seqlen_q as i32, entry),
            of_entry(kv, first_keys, params.seqlen_kv as i32, entry),
        ]
    }
}

/// Entry `index` of an array of numbers.
///
/// # Safety
/// The entry is readable.
#[inline(always)]
pub unsafe fn load(address: u64, index: u32) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { global::load_u32(address + 4 * u64::from(index)) as i32 }
}

/// The rows around `center` that exist, from `before` ones before it to `behind` ones behind it.
#[inline(always)]
pub fn seen(center: i32, [before, behind]: [i32; 2], [first, end]: [i32; 2]) -> [i32; 2] {
    let start = center.saturating_sub(before);
    let stop = center.saturating_add(behind).saturating_add(1);
    [start, stop].map(|row| row.max(first).min(end))
}
