//! Which keys a query sees by a window or, where a batch consists of sequences, by ranges from tables; less what a
//! boolean mask hides.

use super::mask::{Interval, Mask, Span, Window};
use super::pairs::Pairs;
use super::seen::{KeyLine, QueryLine, Seen, element_bytes, has_mask, place};
use crate::abi::{ForwardParams, KeyRange, QueryRange};
use crate::attention::workload::lengths;
use crate::attention::workload::sequence::{Sequence, Split};
use crate::ptx::{global, switch};

/// A [`Window`] or, where [`Switch::Ranges`](crate::abi::Switch::Ranges) is on, ranges from tables; less what a boolean mask
/// hides.
#[derive(Clone, Copy)]
pub struct Ranges {
    window: Window,
    keys: i32,
    queries: i32,
    /// Keys before the split, and of all splits.
    before: i32,
    all_keys: i32,
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
        let of_batch =
            |rows: u32, bytes: usize| bytes as u64 * u64::from(sequence.batch) * u64::from(rows);
        Ranges {
            window: Window::new(params, sequence, split),
            keys: split.keys as i32,
            queries: sequence.queries as i32,
            before: split.first as i32,
            all_keys: sequence.keys as i32,
            batch: sequence.batch,
            key_ranges: options.key_ranges + of_batch(params.seqlen_q, size_of::<KeyRange>()),
            query_ranges: options.query_ranges
                + of_batch(params.seqlen_kv, size_of::<QueryRange>()),
            pairs: Pairs::default(),
        }
    }

    #[inline(always)]
    fn of_head(mut self, params: &ForwardParams, head: u32) -> Self {
        if has_mask() {
            let mask = &params.options.mask;
            self.pairs = Pairs::new(mask, [self.batch, head], element_bytes());
        }
        self
    }

    #[inline(always)]
    fn keys(self, query: i32) -> Self::Keys {
        self.seen_by(query, self.key_span(query), 0)
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Self::Queries {
        let span = self.query_span(key);
        let mut line = QueryLine::default();
        if has_mask() {
            let (element, bit) = place(key as u32);
            line = QueryLine {
                address: self.pairs.at(0, element),
                query_bytes: self.pairs.query_bytes,
                bit,
                ends: [0, self.queries - 1],
            };
        }
        Seen {
            span,
            line,
            has_gaps: true,
        }
    }

    /// Key tiles of few heads, with many sequences one after another, are in work at a time. From the last one on they reach
    /// a query tile in the order in which they begin.
    #[inline(always)]
    fn descends() -> bool {
        switch::ranges()
    }

    #[inline(always)]
    fn keys_begun(self, query: i32) -> u32 {
        if query >= self.queries {
            return self.all_keys as u32;
        }
        // SAFETY: a launch has a range for each query.
        let [.., begun] = unsafe { load_range(self.key_ranges, self.queries, query) };
        begun
    }

    #[inline(always)]
    fn keys_of_block(self, query: i32, first_key: i32) -> Self::Keys {
        self.seen_by(query, self.span_of_block(query, first_key), first_key)
    }
}

impl Ranges {
    /// The keys of a query, before the boolean mask.
    #[inline(always)]
    fn key_span(self, query: i32) -> Span {
        if switch::ranges() {
            self.range(query)
        } else {
            self.window.keys(query)
        }
    }

    /// [`key_span`](Self::key_span), counted from a block's first key.
    #[inline(always)]
    fn span_of_block(self, query: i32, first_key: i32) -> Span {
        if switch::ranges() {
            self.range(query).counted_from(first_key)
        } else {
            self.window.keys_of_block(query, first_key)
        }
    }

    /// The queries of a key, before the boolean mask.
    #[inline(always)]
    fn query_span(self, key: i32) -> Span {
        if switch::ranges() {
            let address = self.query_ranges + size_of::<QueryRange>() as u64 * key as u64;
            // SAFETY: a launch has a range for each key.
            let [start, end] = unsafe { global::load_u32x2(address) };
            Span {
                start: start as i32,
                end: end as i32,
            }
        } else {
            self.window.queries(key)
        }
    }

    /// The range of a query, in the split.
    #[inline(always)]
    fn range(self, query: i32) -> Span {
        // SAFETY: a launch has a range for each query.
        let [start, end, ..] = unsafe { load_range(self.key_ranges, self.queries, query) };
        self.in_split([start as i32, end as i32])
    }

    /// The keys of a range that lie in the split.
    #[inline(always)]
    fn in_split(self, [start, end]: [i32; 2]) -> Span {
        let in_split = |key: i32| (key - self.before).max(0).min(self.keys);
        Span {
            start: in_split(start),
            end: in_split(end),
        }
    }

    /// The keys that a query sees of a span, which counts from `first_key` of the split.
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
        Seen {
            span,
            line,
            has_gaps: true,
        }
    }
}

/// [`Ranges`] without a boolean mask, which heads may differ in: for tiles with rows of several heads. Where
/// [`Switch::Lengths`](crate::abi::Switch::Lengths) is on, lengths take the place of tables.
#[derive(Clone, Copy)]
pub struct Spans {
    ranges: Ranges,
    /// The queries and the keys of the entry's sequence, where lengths tell them.
    own: [[i32; 2]; 2],
    /// The window's bounds.
    bounds: [i32; 2],
}

impl Mask for Spans {
    const UNIFORM: bool = false;
    type Keys = Span;
    type Queries = Span;

    #[inline(always)]
    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        let mut own = [[0; 2]; 2];
        if switch::lengths() {
            // SAFETY: the switch is on.
            own = unsafe { lengths::of_options(params, sequence.batch) };
        }
        Spans {
            ranges: Ranges::new(params, sequence, split),
            own,
            bounds: [params.options.left, params.options.right],
        }
    }

    #[inline(always)]
    fn keys(self, query: i32) -> Span {
        match switch::lengths() {
            true => self.of_sequence(query),
            false => self.ranges.key_span(query),
        }
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Span {
        self.ranges.query_span(key)
    }

    #[inline(always)]
    fn keys_of_block(self, query: i32, first_key: i32) -> Span {
        match switch::lengths() {
            true => self.of_sequence(query).counted_from(first_key),
            false => self.ranges.span_of_block(query, first_key),
        }
    }
}

impl Spans {
    /// The keys of a query by the sequence's lengths; none, at the end, for one behind it.
    #[inline(always)]
    fn of_sequence(self, query: i32) -> Span {
        let [queries, keys] = self.own;
        let mut range = [keys[1]; 2];
        if query < queries[1] {
            range = lengths::seen(query + keys[1] - queries[1], self.bounds, keys);
        }
        self.ranges.in_split(range)
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

/// Whether a query of a batch entry is part of a sequence: where the batch does not [consist](KeyRange) of sequences, all are.
///
/// # Safety
/// A launch with ranges has one for each query.
#[inline(always)]
pub unsafe fn is_in_sequence(params: &ForwardParams, sequence: Sequence, query: u32) -> bool {
    let ranges = params.options.key_ranges;
    if ranges == 0 {
        return true;
    }
    let of_batch = u64::from(sequence.batch) * u64::from(params.seqlen_q);
    let address = ranges + size_of::<KeyRange>() as u64 * of_batch;
    // SAFETY: the caller's promise.
    let [.., offset, _] = unsafe { load_range(address, sequence.queries as i32, query as i32) };
    offset as i32 != KeyRange::ALONE
}
