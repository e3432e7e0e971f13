//! Which keys a query sees by ranges from a table, where a batch consists of sequences, and by a boolean mask.

use super::mask::{Interval, Mask, Span, Window};
use super::pairs::Pairs;
use super::sequence::{Sequence, Split};
use crate::abi::{ForwardParams, KeyRange, RangesParams};
use crate::ptx::{global, special, switch};

/// A [`Window`] or, where [`Switch::Ranges`](crate::abi::Switch::Ranges) is on, ranges from tables; less what a boolean mask
/// hides.
#[derive(Clone, Copy)]
pub struct Ranges {
    window: Window,
    keys: i32,
    queries: i32,
    /// Keys before the split.
    before: i32,
    batch: u32,
    /// Addresses of the batch entry's ranges.
    key_ranges: u64,
    query_ranges: u64,
    /// The boolean mask of the head.
    pairs: Pairs,
}

impl Mask for Ranges {
    const UNIFORM: bool = false;
    const HAS_HEADS: bool = true;
    type Keys = Seen<KeyLine>;
    type Queries = Seen<QueryLine>;

    #[inline(always)]
    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        let options = &params.options;
        let of_batch = |rows: u32, bytes: u64| bytes * u64::from(sequence.batch) * u64::from(rows);
        Ranges {
            window: Window::new(params, sequence, split),
            keys: split.keys as i32,
            queries: sequence.queries as i32,
            before: split.first as i32,
            batch: sequence.batch,
            key_ranges: options.key_ranges + of_batch(params.seqlen_q, 16),
            query_ranges: options.query_ranges + of_batch(params.seqlen_kv, 8),
            pairs: Pairs::default(),
        }
    }

    #[inline(always)]
    fn of_head(mut self, params: &ForwardParams, head: u32) -> Self {
        if has_mask() {
            let bytes = if switch::mask_bits() { 4 } else { 1 };
            self.pairs = Pairs::new(&params.options.mask, [self.batch, head], bytes);
        }
        self
    }

    #[inline(always)]
    fn keys(self, query: i32) -> Self::Keys {
        let span = if switch::ranges() {
            self.range(query)
        } else {
            self.window.keys(query)
        };
        self.seen_by(query, span, 0)
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Self::Queries {
        let span = if switch::ranges() {
            // SAFETY: a launch has a range for each key.
            let [start, end] = unsafe { global::load_u32x2(self.query_ranges + 8 * key as u64) };
            Span {
                start: start as i32,
                end: end as i32,
            }
        } else {
            self.window.queries(key)
        };
        let mut line = QueryLine::default();
        if has_mask() {
            let (element, bit) = place(key as u32);
            line = QueryLine {
                address: self.pairs.at(0, element),
                query_bytes: self.pairs.query_bytes,
                bit,
            };
        }
        Seen { span, line }
    }

    #[inline(always)]
    fn keys_of_block(self, query: i32, first_key: i32) -> Self::Keys {
        let span = if switch::ranges() {
            self.range(query).counted_from(first_key)
        } else {
            self.window.keys_of_block(query, first_key)
        };
        self.seen_by(query, span, first_key)
    }
}

impl Ranges {
    /// The range of a query, in the split.
    #[inline(always)]
    fn range(self, query: i32) -> Span {
        // SAFETY: a launch has a range for each query.
        let [start, end, ..] = unsafe { load_range(self.key_ranges, self.queries, query) };
        let in_split = |key: u32| (key as i32 - self.before).max(0).min(self.keys);
        Span {
            start: in_split(start),
            end: in_split(end),
        }
    }

    /// What a query sees of a span of keys that counts from `first_key` of the split.
    #[inline(always)]
    fn seen_by(self, query: i32, span: Span, first_key: i32) -> Seen<KeyLine> {
        let mut line = KeyLine::default();
        if has_mask() {
            let query = query.max(0).min(self.queries - 1);
            line = KeyLine {
                address: self.pairs.at(query as u32, 0),
                first: self.before + first_key,
            };
        }
        Seen { span, line }
    }
}

/// Whether there is a boolean mask.
#[inline(always)]
fn has_mask() -> bool {
    switch::mask_bytes() || switch::mask_bits()
}

/// The element of the mask that has a key, and its bit.
#[inline(always)]
fn place(key: u32) -> (u32, u32) {
    if switch::mask_bits() {
        (key / 32, key % 32)
    } else {
        (key, 0)
    }
}

/// Whether an element of the mask lets a pair see each other.
///
/// # Safety
/// The element is readable.
#[inline(always)]
unsafe fn shows(address: u64, bit: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if switch::mask_bits() {
            global::load_u32(address) >> bit & 1 != 0
        } else {
            global::load_u8(address) != 0
        }
    }
}

/// A span of numbers, less those that a line of the mask hides.
#[derive(Clone, Copy, Default)]
pub struct Seen<L> {
    span: Span,
    line: L,
}

impl<L> Seen<L> {
    /// What lies in another span, too.
    #[inline(always)]
    #[must_use]
    pub fn within(mut self, Span { start, end }: Span) -> Self {
        self.span.start = self.span.start.max(start);
        self.span.end = self.span.end.min(end);
        self
    }
}

/// A row or a column of the mask.
pub trait Line: Copy + Default {
    /// The same, counted from number `origin`.
    #[must_use]
    fn counted_from(self, origin: i32) -> Self;

    /// Whether it shows a number, which exists.
    fn shows(self, number: i32) -> bool;
}

/// A query's row of the mask.
#[derive(Clone, Copy, Default)]
pub struct KeyLine {
    address: u64,
    /// The key that has number 0.
    first: i32,
}

impl Line for KeyLine {
    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        KeyLine {
            first: self.first + origin,
            ..self
        }
    }

    #[inline(always)]
    fn shows(self, number: i32) -> bool {
        let (element, bit) = place((self.first + number) as u32);
        let bytes = if switch::mask_bits() { 4 } else { 1 };
        // SAFETY: a launch with a mask has it for each pair that exists.
        unsafe { shows(self.address + u64::from(bytes * element), bit) }
    }
}

/// A key's column of the mask.
#[derive(Clone, Copy, Default)]
pub struct QueryLine {
    /// Address of the element of the query that has number 0.
    address: u64,
    query_bytes: i64,
    bit: u32,
}

impl Line for QueryLine {
    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        let bytes = i64::from(origin) * self.query_bytes;
        QueryLine {
            address: self.address.wrapping_add_signed(bytes),
            ..self
        }
    }

    #[inline(always)]
    fn shows(self, number: i32) -> bool {
        let bytes = i64::from(number) * self.query_bytes;
        // SAFETY: a launch with a mask has it for each pair that exists.
        unsafe { shows(self.address.wrapping_add_signed(bytes), self.bit) }
    }
}

impl<L: Line> Interval for Seen<L> {
    const HAS_START: bool = true;

    #[inline(always)]
    fn start(self) -> i32 {
        self.span.start
    }

    #[inline(always)]
    fn end(self) -> i32 {
        self.span.end
    }

    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        let mut line = self.line;
        if has_mask() {
            line = line.counted_from(origin);
        }
        Seen {
            span: self.span.counted_from(origin),
            line,
        }
    }

    #[inline(always)]
    fn contains(self, number: i32) -> bool {
        let mut contains = self.span.contains(number);
        if has_mask() && contains {
            contains = self.line.shows(number);
        }
        contains
    }

    #[inline(always)]
    fn has_gaps(self) -> bool {
        has_mask()
    }
}

/// Reads the [`KeyRange`] of a query, or of the nearest one that exists.
///
/// # Safety
/// The table of ranges at `address` has one for each of `queries` queries.
#[inline(always)]
pub unsafe fn load_range(address: u64, queries: i32, query: i32) -> [u32; 4] {
    let query = query.max(0).min(queries - 1) as u64;
    // SAFETY: the caller's promise.
    unsafe { global::load_u32x4(address + size_of::<KeyRange>() as u64 * query) }
}

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
    /// Entries: lengths or, of packed sequences, offsets.
    entries: u32,
    rows: i32,
}

impl Bounds {
    /// An entry, moved to what is allowed.
    ///
    /// # Safety
    /// The entry is readable.
    #[inline(always)]
    unsafe fn at(self, entry: u32) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { self.load(entry) }.max(0).min(self.rows)
    }

    #[inline(always)]
    unsafe fn load(self, entry: u32) -> i32 {
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
pub unsafe fn ranges<const W: u32>(params: &RangesParams) {
    let packed = params.sequences > 0;
    let entries = if packed {
        params.sequences + 1
    } else {
        params.batch
    };
    let [q, kv] =
        [(params.q, params.seqlen_q), (params.kv, params.seqlen_kv)].map(|(address, rows)| {
            Bounds {
                address,
                entries,
                rows: rows as i32,
            }
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
            let [start, end] = match inside {
                true => seen(
                    query as i32 + offset,
                    [params.left, params.right],
                    place.keys,
                ),
                false => [place.keys[1]; 2],
            };
            let range = [start, end, offset, 0].map(|number| number as u32);
            global::store_u32x4(params.key_ranges + 16 * number, range);
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
            let range = match inside {
                true => seen(
                    key as i32 - offset,
                    [params.right, params.left],
                    place.queries,
                ),
                // Key tiles before the first sequence have no part in query tiles, whose first keys come later: steps
                // of the backward pass count on that.
                false if key < place.keys[1] => [0; 2],
                false => [place.queries[1]; 2],
            };
            global::store_u32x2(
                params.query_ranges + 8 * number,
                range.map(|number| number as u32),
            );
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
        // The first offset above the row, by halving.
        let (mut low, mut high) = (0, own.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            if own.at(middle) <= row {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // Before the first sequence or behind the last one.
        if low == 0 || low == own.entries {
            let edge = low.min(own.entries - 1);
            let [queries, keys] = [own, other].map(|bounds| [bounds.at(edge); 2]);
            return (Place { queries, keys }, false);
        }
        let between = |bounds: Bounds| {
            let start = bounds.at(low - 1);
            [start, bounds.at(low).max(start)]
        };
        (
            Place {
                queries: between(own),
                keys: between(other),
            },
            true,
        )
    }
}
