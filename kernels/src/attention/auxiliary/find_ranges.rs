//! The kernel that finds which keys queries see, and which queries see keys, in a batch of sequences.

use crate::abi::{KeyRange, QueryRange, QueryTile, RangesParams, first_spread_row};
use crate::attention::workload::lengths::{load, of_entry, seen};
use crate::ptx::{global, shuffle, special};
use crate::tile::registers::opaque;

/// A sequence of a batch entry, in its rows.
#[derive(Clone, Copy)]
struct Place {
    /// The first query and the first one after.
    queries: [i32; 2],
    /// The first key and the first one after.
    keys: [i32; 2],
    /// The key behind those that follow, of no sequence.
    keys_behind: i32,
    /// The sequence's number.
    number: u32,
}

/// Queries or keys: offsets or lengths as they lie in memory.
#[derive(Clone, Copy)]
struct Side {
    address: u64,
    /// Rows from a sequence to the next one, where all are alike.
    step: u32,
    /// Rows of a batch entry.
    rows: i32,
    /// Address of the first row of each entry; 0 where all begin with row 0.
    first: u64,
    /// The step at whose multiples sequences begin; 0 where they follow one another.
    spread: u32,
    /// Rows of a batch entry, spread or not.
    all: u32,
}

impl Side {
    /// The row at which a sequence begins, by its offset.
    #[inline(always)]
    fn begin(self, offset: i32, sequence: u32) -> i32 {
        match self.spread {
            0 => offset,
            step => first_spread_row(offset as u32, sequence, step) as i32,
        }
    }

    /// The rows of a sequence that is steps apart from others, whose length and first row are at this entry; of any numbers, rows
    /// that it has.
    ///
    /// # Safety
    /// The entry is readable, if there are lengths or first rows.
    #[inline(always)]
    unsafe fn of_sequence(self, sequence: u32, entry: u32) -> [i32; 2] {
        let start = (sequence * self.step) as i32;
        // SAFETY: the caller's promise.
        let rows = unsafe { of_entry(self.address, self.first, self.step as i32, entry) };
        rows.map(|row| start + row)
    }
}

/// Writes the ranges of the block's queries and keys, with `W` warps a block.
///
/// # Safety
/// Launched as [`RangesParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable offsets or lengths
/// and writable ranges.
#[inline(always)]
pub unsafe fn find_ranges<const W: u32>(params: &RangesParams) {
    let all = |spread, rows, spread_rows| match spread {
        0 => rows,
        _ => spread_rows,
    };
    let q = Side {
        address: params.q,
        step: params.queries,
        rows: params.seqlen_q as i32,
        first: 0,
        spread: params.spread_q,
        all: all(params.spread_q, params.seqlen_q, params.rows_q),
    };
    let kv = Side {
        address: params.kv,
        step: params.keys,
        rows: params.seqlen_kv as i32,
        first: params.first_keys,
        spread: params.spread_kv,
        all: all(params.spread_kv, params.seqlen_kv, params.rows_kv),
    };
    // SAFETY: the launch has this many threads a block; the entries are readable, and each thread writes ranges of its own.
    unsafe {
        if params.tiles != 0 && special::block() == special::blocks() - 1 {
            if special::thread(32 * W) < 32 {
                divide_queries(params, q);
            }
            return;
        }
        let number =
            u64::from(special::block()) * u64::from(32 * W) + u64::from(special::thread(32 * W));
        let queries = u64::from(params.batch) * u64::from(q.all);
        if number < queries {
            let rows = u64::from(q.all);
            let (batch, query) = ((number / rows) as u32, (number % rows) as i32);
            let (place, inside) = sequence_of(params, [q, kv], batch, query);
            // Rows of no sequence see no key, at the end of the sequence before.
            let offset = place.keys[1] - place.queries[1];
            let ([start, end], offset) = match inside {
                true => (
                    seen(query + offset, [params.left, params.right], place.keys),
                    offset,
                ),
                false => ([place.keys[1]; 2], KeyRange::ALONE),
            };
            // Keys behind a sequence have the query behind it for their first one.
            let begun = match query < place.queries[1] {
                true => end,
                false => place.keys_behind,
            };
            let to = params.key_ranges + size_of::<KeyRange>() as u64 * number;
            let range = [start, end, offset, begun].map(|number| number as u32);
            global::store_u32x4(to, range);
            if params.slopes != 0 {
                write_slopes(params, place.number, [query as u32, q.all]);
            }
        } else if params.query_ranges != 0
            && number < queries + u64::from(params.batch) * u64::from(kv.all)
        {
            let number = number - queries;
            let rows = u64::from(kv.all);
            let (batch, key) = ((number / rows) as u32, (number % rows) as i32);
            let (place, inside) = sequence_of(params, [kv, q], batch, key);
            let place = Place {
                queries: place.keys,
                keys: place.queries,
                ..place
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

/// Divides packed queries into tiles of one sequence each, the last of each smaller. Queries before the first sequence and behind the
/// last one, which see no key, have tiles as if they were sequences. Offsets are those of [`by_offsets`]: so each query has one tile, in
/// the sequence of its range.
///
/// # Safety
/// One warp makes the call, all lanes; offsets are readable, tiles writable.
#[inline(always)]
unsafe fn divide_queries(params: &RangesParams, q: Side) {
    let (lane, rows) = (special::lane(), params.tile_rows);
    let (mut before, mut begin, mut first) = (0, 0, 0);
    // The queries before offset 0, those before each other one, and those behind the last.
    while first < params.sequences + 2 {
        let part = first + lane;
        // SAFETY: the caller's promise.
        let read = |middle| [unsafe { load(q.address, middle) }];
        let is_before = |_, middle| middle < part;
        let (.., [end]) = descend(params.sequences + 1, [q.rows], read, is_before);
        let end = end as u32 * params.group;
        // SAFETY: all lanes are here.
        let [mut start, last] = unsafe {
            [lane.wrapping_sub(1) % 32, 31].map(|from| shuffle::number_of_lane(end, from))
        };
        if lane == 0 {
            start = begin;
        }
        begin = last;
        let count = (end - start).div_ceil(rows);
        // SAFETY: as above.
        let (sum, of_all) = unsafe {
            let sum = shuffle::add_up_to(count, lane);
            (sum, shuffle::number_of_lane(sum, 31))
        };
        let mut number = 0;
        while number < count {
            let tile = QueryTile {
                sequence: part.max(1).min(params.sequences) - 1,
                first: start + number * rows,
                start,
                end,
            };
            // SAFETY: the caller's promise; each lane has tiles of its own.
            unsafe { write_tile(params, before + sum - count + number, tile) };
            // Opaque: the loop stays one.
            number = opaque(number + 1);
        }
        before += of_all;
        first += 32;
    }
    let mut tile = before + lane;
    while tile < params.tile_count {
        // SAFETY: as above.
        unsafe { write_tile(params, tile, QueryTile::default()) };
        tile += 32;
    }
}

/// # Safety
/// The tile is writable by this lane alone, if it is one of the launch.
#[inline(always)]
unsafe fn write_tile(params: &RangesParams, number: u32, tile: QueryTile) {
    if number < params.tile_count {
        let address = params.tiles + size_of::<QueryTile>() as u64 * u64::from(number);
        let QueryTile {
            sequence,
            first,
            start,
            end,
        } = tile;
        // SAFETY: the caller's promise.
        unsafe { global::store_u32x4(address, [sequence, first, start, end]) };
    }
}

/// Writes the slopes of a sequence as those of a query, of so many.
///
/// # Safety
/// There are slopes of all sequences, and the query's are writable.
#[inline(always)]
unsafe fn write_slopes(params: &RangesParams, sequence: u32, [query, queries]: [u32; 2]) {
    let mut head = 0;
    while head < params.heads {
        let from =
            i64::from(sequence) * params.slopes_sequence + i64::from(head) * params.slopes_head;
        let to = u64::from(head) * u64::from(queries) + u64::from(query);
        // SAFETY: the caller's promise.
        unsafe {
            let slope = global::load_u32(params.slopes.wrapping_add_signed(4 * from));
            global::store_u32(params.query_slopes + 4 * to, slope);
        }
        // Opaque: the loop stays one, 250 instructions fewer.
        head = opaque(head + 1);
    }
}

/// The sequence of a row, whose own side `own` bounds, and whether the row lies in it; the last sequence before it else.
#[inline(always)]
unsafe fn sequence_of(
    params: &RangesParams,
    [own, other]: [Side; 2],
    batch: u32,
    row: i32,
) -> (Place, bool) {
    // SAFETY: the entries exist.
    unsafe {
        if own.step == 0 {
            return by_offsets(params.sequences + 1, [own, other], row);
        }
        let sequence = row as u32 / own.step;
        let entry = (batch * params.sequences + sequence) / params.sharing;
        let [queries, keys] = [own, other].map(|side| side.of_sequence(sequence, entry));
        let place = Place {
            queries,
            keys,
            keys_behind: ((sequence + 1) * other.step) as i32,
            number: sequence,
        };
        (place, (queries[0]..queries[1]).contains(&row))
    }
}

/// Finds a place among so many offsets by halving: `is_before` says whether an offset, by its number, is before it. Gives how many are, the
/// last one of these, and the first one behind it, of `N` sides.
///
/// Offsets are read as a tree: each is moved to between those of the nodes above it, and all to between 0 and `ends`. So those that rise stay, and
/// any others become some that rise, the same ones whatever is looked for.
#[inline(always)]
fn descend<const N: usize>(
    offsets: u32,
    ends: [i32; N],
    read: impl Fn(u32) -> [i32; N],
    is_before: impl Fn([i32; N], u32) -> bool,
) -> (u32, [i32; N], [i32; N]) {
    let (mut low, mut high) = (0, offsets);
    let (mut before, mut behind) = ([0; N], ends);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut found = read(middle);
        for side in 0..N {
            found[side] = found[side].max(before[side]).min(behind[side]);
        }
        if is_before(found, middle) {
            low = middle + 1;
            before = found;
        } else {
            high = middle;
            behind = found;
        }
    }
    (low, before, behind)
}

/// The sequence of a row by offsets, and whether the row lies in it.
///
/// `own` and `other` change places for keys: the [tree](descend) of offsets is the same in both directions.
///
/// # Safety
/// There are so many offsets.
#[inline(always)]
unsafe fn by_offsets(offsets: u32, [own, other]: [Side; 2], row: i32) -> (Place, bool) {
    // Lengths of entries of their own bound the others.
    let has_lengths = other.step != 0;
    // SAFETY: the caller's promise.
    let read = |middle| unsafe {
        let of_other = match has_lengths {
            true => 0,
            false => load(other.address, middle),
        };
        [load(own.address, middle), of_other]
    };
    let (low, before, mut behind) =
        descend(offsets, [own.rows, other.rows], read, |found, middle| {
            own.begin(found[0], middle) <= row
        });
    let begins = |[of_own, of_other]: [i32; 2], sequence| {
        [own.begin(of_own, sequence), other.begin(of_other, sequence)]
    };
    let none = |[queries, keys]: [i32; 2], keys_behind| Place {
        queries: [queries; 2],
        keys: [keys; 2],
        keys_behind,
        // Rows of no sequence see no key, whatever their slope.
        number: 0,
    };
    // Before the first sequence or behind the last one.
    let all = other.all as i32;
    if has_lengths {
        behind[1] = 0;
    }
    let Some(number) = low.checked_sub(1) else {
        return (none(begins(behind, 0), all), false);
    };
    if low == offsets {
        return (none(begins(before, number), all), false);
    }
    let [query, key] = begins(before, number);
    let queries = [query, query + behind[0] - before[0]];
    let mut keys = [key, key + behind[1] - before[1]];
    if has_lengths {
        // SAFETY: the caller's promise: there is a length for each sequence.
        keys = unsafe { other.of_sequence(0, number) };
    }
    if row >= queries[1] {
        // Between two that are spread: behind the tiles of the first one.
        let behind = match other.spread {
            0 => keys[1],
            step => keys[1].cast_unsigned().next_multiple_of(step).cast_signed(),
        };
        return (none([row, behind], behind), false);
    }
    let place = Place {
        queries,
        keys,
        keys_behind: all,
        number,
    };
    (place, true)
}
