//! The kernel that finds which keys queries see, and which queries see keys, in a batch of sequences.

use crate::abi::{KeyRange, QueryRange, RangesParams};
use crate::ptx::{global, special};

/// A sequence of a batch entry, in its rows.
#[derive(Clone, Copy)]
struct Place {
    /// The first query and the first one after.
    queries: [i32; 2],
    /// The first key and the first one after.
    keys: [i32; 2],
}

/// Offsets or lengths as they lie in memory.
#[derive(Clone, Copy)]
struct Bounds {
    address: u64,
    /// From an offset to the next one, where they are in no memory; else 0.
    step: u32,
    /// Entries: lengths or, of packed sequences, offsets.
    entries: u32,
    rows: i32,
}

impl Bounds {
    /// An entry, moved to what is allowed.
    ///
    /// # Safety
    /// The entry is readable, where entries are in memory.
    #[inline(always)]
    unsafe fn at(self, entry: u32) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { self.load(entry) }.max(0).min(self.rows)
    }

    #[inline(always)]
    unsafe fn load(self, entry: u32) -> i32 {
        if self.step > 0 {
            return (self.step * entry) as i32;
        }
        // SAFETY: the caller's promise.
        unsafe { global::load_u32(self.address + 4 * u64::from(entry)) as i32 }
    }
}

/// Writes the ranges of the block's queries and keys, with `W` warps a block.
///
/// # Safety
/// Launched as [`RangesParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable offsets or lengths
/// and writable ranges.
#[inline(always)]
pub unsafe fn find_ranges<const W: u32>(params: &RangesParams) {
    let packed = params.sequences > 0;
    let entries = if packed {
        params.sequences + 1
    } else {
        params.batch
    };
    let of_queries = (params.q, params.queries, params.seqlen_q);
    let of_keys = (params.kv, params.keys, params.seqlen_kv);
    let [q, kv] = [of_queries, of_keys].map(|(address, step, rows)| Bounds {
        address,
        step,
        entries,
        rows: rows as i32,
    });
    // SAFETY: the launch has this many threads a block; the entries are readable, and each thread writes ranges of its own.
    unsafe {
        let number =
            u64::from(special::block()) * u64::from(32 * W) + u64::from(special::thread(32 * W));
        let queries = u64::from(params.batch) * u64::from(params.seqlen_q);
        if number < queries {
            let rows = u64::from(params.seqlen_q);
            let (batch, query) = ((number / rows) as u32, (number % rows) as i32);
            let (place, inside) = sequence_of(packed, [q, kv], batch, query);
            // Rows of no sequence see no key, at the end of the last sequence before.
            let offset = place.keys[1] - place.queries[1];
            let ([start, end], offset) = match inside {
                true => (
                    seen(query + offset, [params.left, params.right], place.keys),
                    offset,
                ),
                false => ([place.keys[1]; 2], KeyRange::ALONE),
            };
            // Keys behind the last sequence have the query behind it for their first one.
            let begun = match query < place.queries[1] {
                true => end,
                false => params.seqlen_kv as i32,
            };
            let to = params.key_ranges + size_of::<KeyRange>() as u64 * number;
            let range = [start, end, offset, begun].map(|number| number as u32);
            global::store_u32x4(to, range);
        } else if params.query_ranges != 0
            && number < queries + u64::from(params.batch) * u64::from(params.seqlen_kv)
        {
            let number = number - queries;
            let rows = u64::from(params.seqlen_kv);
            let (batch, key) = ((number / rows) as u32, (number % rows) as i32);
            let (place, inside) = sequence_of(packed, [kv, q], batch, key);
            let place = Place {
                queries: place.keys,
                keys: place.queries,
            };
            let offset = place.keys[1] - place.queries[1];
            let range: QueryRange = match inside {
                true => seen(key - offset, [params.right, params.left], place.queries),
                // Key tiles before the first sequence have no part in query tiles, whose first keys come later: steps
                // of the backward pass count on that.
                false if key < place.keys[1] => [0; 2],
                false => [place.queries[1]; 2],
            };
            let to = params.query_ranges + size_of::<QueryRange>() as u64 * number;
            global::store_u32x2(to, range.map(|number| number as u32));
        }
    }
}

/// The rows around `center` that exist, from `before` ones before it to `behind` ones behind it.
#[inline(always)]
fn seen(center: i32, [before, behind]: [i32; 2], [first, end]: [i32; 2]) -> [i32; 2] {
    let start = center.saturating_sub(before);
    let stop = center.saturating_add(behind).saturating_add(1);
    [start, stop].map(|row| row.max(first).min(end))
}

/// The sequence of a row, whose own side `own` bounds, and whether the row lies in it; the last sequence before it else.
///
/// Offsets are read as a tree, in which halving finds a place: each is moved to between those of the nodes above it. So those
/// that rise stay, and any others become some that rise, for all rows the same and in both directions: `own` and `other` change
/// places for keys.
#[inline(always)]
unsafe fn sequence_of(
    packed: bool,
    [own, other]: [Bounds; 2],
    batch: u32,
    row: i32,
) -> (Place, bool) {
    // SAFETY: the entries exist.
    unsafe {
        if !packed {
            let [queries, keys] = [[0, own.at(batch)], [0, other.at(batch)]];
            return (Place { queries, keys }, row < queries[1]);
        }
        // The first offset above the row, by halving. The last offsets that are not above it, and the first ones that are.
        let (mut low, mut high) = (0, own.entries);
        let (mut before, mut behind) = ([0; 2], [own.rows, other.rows]);
        while low < high {
            let middle = low + (high - low) / 2;
            let between =
                |bounds: Bounds, side: usize| bounds.at(middle).max(before[side]).min(behind[side]);
            let offsets = [between(own, 0), between(other, 1)];
            if offsets[0] <= row {
                low = middle + 1;
                before = offsets;
            } else {
                high = middle;
                behind = offsets;
            }
        }
        // Before the first sequence or behind the last one.
        let (queries, keys) = if low == 0 {
            ([behind[0]; 2], [behind[1]; 2])
        } else if low == own.entries {
            ([before[0]; 2], [before[1]; 2])
        } else {
            ([before[0], behind[0]], [before[1], behind[1]])
        };
        (Place { queries, keys }, low > 0 && low < own.entries)
    }
}
