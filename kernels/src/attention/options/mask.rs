//! Which keys a query sees, and which queries see a key.
//!
//! Both are intervals whose ends never move back: a later query sees neither an earlier first key nor an
//! earlier last key. From what the first and the last row of a tile see follow the blocks that the tile
//! sees: [some of it](seen_blocks), or [all of it](whole_blocks), where no score needs masking. This holds for
//! query tiles and blocks of keys, and for key tiles and blocks of queries.
//!
//! A mask is a type, and so are its intervals: what a mask knows at compile time costs nothing in a kernel.

#[cfg(target_arch = "nvptx64")]
use super::score::Score;
use crate::abi::{Coverage, ForwardParams};
use crate::attention::workload::sequence::{Sequence, Split};
#[cfg(target_arch = "nvptx64")]
use crate::attention::{guard::multiply_seen, steps::warp::Warp};
pub use crate::layout::interval::{Interval, Prefix, Span};
#[cfg(target_arch = "nvptx64")]
use crate::tile::{Accumulator, Arrangement, Element, Numbers, Operand, SharedTile, whole};
use core::ops::Range;

/// An interval of keys or queries that rows see, as kernels use it.
pub trait Visible: Interval {
    /// The interval where a boolean mask shows this coverage of numbers between its ends.
    #[inline(always)]
    #[must_use]
    fn of_coverage(self, _coverage: Coverage) -> Self {
        self
    }

    /// Puts -inf in the place of scores that two rows of a lane do not see; all rows of the tile have gaps, or none.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn mask<const NT: usize>(s: &mut [[Accumulator; NT]; 1], keys: [Self; 2]) {
        whole::mask(s, [keys]);
    }

    /// [`Warp::accumulate_guarded`] of intervals.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    unsafe fn accumulate_guarded<
        B: Numbers,
        const MT: usize,
        const DT: usize,
        const OT: usize,
        const QT: usize,
        const NT: usize,
        const VT: usize,
        A: Arrangement,
        C: Score,
    >(
        warp: &mut Warp<MT, DT, OT, QT, A, C>,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<VT, A>,
        keys: [[Self; 2]; MT],
    ) {
        // SAFETY: the caller's promise.
        unsafe { warp.accumulate_guarded::<B, NT, VT>(p, v_tile, keys) }
    }

    /// [`multiply_seen`](crate::attention::guard::multiply_seen) of intervals; `next(kt)`, called with 0, 1, ... in turn, is a slice
    /// `a(.., kt)`.
    ///
    /// # Safety
    /// The conditions of [`multiply_seen`](crate::attention::guard::multiply_seen).
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    unsafe fn multiply_seen<E: Element, const MT: usize, const KT: usize, const NT: usize>(
        sum: &mut [[Accumulator; NT]; MT],
        a: impl Fn(usize, usize) -> Operand,
        _next: impl FnMut(u32) -> [Operand; MT],
        b: impl Fn(u32, usize) -> Operand,
        seen: [[Self; 2]; MT],
    ) {
        // SAFETY: the caller's promise.
        unsafe { multiply_seen::<E, MT, KT, NT>(sum, a, b, seen) }
    }
}

impl Visible for Prefix {}

impl Visible for Span {}

/// The blocks of `size` numbers of which some row of a tile sees something, from what the tile's first and last
/// rows see. The others need not be loaded.
#[inline(always)]
pub fn seen_blocks([first, last]: [impl Interval; 2], size: u32) -> Range<u32> {
    let start = first.start() as u32 / size;
    if first.start() > 0 && first.start() >= last.end() {
        return start..start;
    }
    start..(last.end() as u32).div_ceil(size)
}

/// The blocks of `size` numbers that every row of a tile sees whole, from what the tile's first and last rows see.
/// The other [seen](seen_blocks) blocks need masking.
#[inline(always)]
pub fn whole_blocks<I: Interval>(ends: [I; 2], size: u32) -> Range<u32> {
    match I::may_have_gaps() {
        true => 0..0,
        false => whole_spans(ends, size),
    }
}

/// [`whole_blocks`] of intervals with gaps, which other blocks show.
#[inline(always)]
pub fn whole_spans([first, last]: [impl Interval; 2], size: u32) -> Range<u32> {
    (last.start() as u32).div_ceil(size)..first.end() as u32 / size
}

/// The visible pairs of queries and keys, with the keys of one [`Split`].
pub trait Mask: Copy {
    /// Whether all queries see the same keys.
    const UNIFORM: bool;

    /// Whether heads may differ: then [`of_head`](Self::of_head) makes a head's own.
    const HAS_HEADS: bool = false;

    /// The keys of a query.
    type Keys: Visible;

    /// The queries of a key.
    type Queries: Visible;

    /// The mask of a launch, on one batch entry and one split of its keys.
    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self;

    /// The mask of a query head.
    #[inline(always)]
    #[must_use]
    fn of_head(self, _params: &ForwardParams, _head: u32) -> Self {
        self
    }

    /// The keys that `query` sees, from 0 to the split's number of keys.
    fn keys(self, query: i32) -> Self::Keys;

    /// The queries that see `key`, from 0 to the number of queries.
    fn queries(self, key: i32) -> Self::Queries;

    /// Whether key tiles of gradients begin from the last one to the first.
    #[inline(always)]
    fn descends() -> bool {
        false
    }

    /// Keys whose first query is `query`, which may not exist, or an earlier one.
    #[inline(always)]
    fn keys_begun(self, query: i32) -> u32 {
        self.keys(query).end() as u32
    }

    /// The keys that `query`, which exists, sees of the block that starts at `first_key`, counted from there:
    /// they may reach beyond the block.
    #[inline(always)]
    fn keys_of_block(self, query: i32, first_key: i32) -> Self::Keys {
        self.keys(query).counted_from(first_key)
    }
}

/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    keys: i32,
    queries: i32,
}

impl Mask for Full {
    const UNIFORM: bool = true;
    type Keys = Prefix;
    type Queries = Span;

    #[inline(always)]
    fn new(_params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        Full {
            keys: split.keys as i32,
            queries: sequence.queries as i32,
        }
    }

    #[inline(always)]
    fn keys(self, _query: i32) -> Prefix {
        Prefix { end: self.keys }
    }

    #[inline(always)]
    fn queries(self, _key: i32) -> Span {
        Span {
            start: 0,
            end: self.queries,
        }
    }
}

/// Query `i` sees keys up to `i + keys - queries`: the last query sees all keys (bottom-right alignment).
#[derive(Clone, Copy, Debug)]
pub struct Causal {
    keys: i32,
    queries: i32,
    /// How many keys query 0 sees; it may be negative, or more than there are.
    offset: i32,
}

impl Mask for Causal {
    const UNIFORM: bool = false;
    type Keys = Prefix;
    type Queries = Span;

    #[inline(always)]
    fn new(_params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        Causal {
            keys: split.keys as i32,
            queries: sequence.queries as i32,
            offset: sequence.keys as i32 - sequence.queries as i32 + 1 - split.first as i32,
        }
    }

    /// Rows after the last query, at a tile's ragged end, see all keys. `query + offset` stays within `i32`
    /// because both lengths are at most [`MAX_SEQLEN`](crate::abi::MAX_SEQLEN).
    #[inline(always)]
    fn keys(self, query: i32) -> Prefix {
        Prefix {
            end: query.saturating_add(self.offset).clamp(0, self.keys),
        }
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Span {
        Span {
            start: (key + 1).saturating_sub(self.offset).clamp(0, self.queries),
            end: self.queries,
        }
    }

    /// Leaves out the bounds of [`keys`](Mask::keys): an existing query of the last split stays below the upper
    /// one, and in other splits both are ends of blocks. One register then serves all rows of a lane.
    #[inline(always)]
    fn keys_of_block(self, query: i32, first_key: i32) -> Prefix {
        Prefix {
            end: query.wrapping_add(self.offset).wrapping_sub(first_key),
        }
    }
}

/// [`Full`] or [`Causal`], as the launch says.
#[derive(Clone, Copy, Debug)]
pub struct Either(Causal);

impl Mask for Either {
    const UNIFORM: bool = false;
    type Keys = Prefix;
    type Queries = Span;

    #[inline(always)]
    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        let mask = Causal::new(params, sequence, split);
        // Without a mask even query 0 sees more keys than there are.
        let offset = match params.causal {
            0 => i32::MAX - split.first as i32,
            _ => mask.offset,
        };
        Either(Causal { offset, ..mask })
    }

    #[inline(always)]
    fn keys(self, query: i32) -> Prefix {
        self.0.keys(query)
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Span {
        self.0.queries(key)
    }
}

/// Query `i` sees keys from `i + keys - queries - left` to `i + keys - queries + right`: a sliding window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    keys: i32,
    queries: i32,
    /// The first key that query 0 sees, and the first one after; both may be negative, or more than there are.
    first: i32,
    end: i32,
}

impl Mask for Window {
    const UNIFORM: bool = false;
    type Keys = Span;
    type Queries = Span;

    #[inline(always)]
    fn new(params: &ForwardParams, sequence: Sequence, split: Split) -> Self {
        let offset = sequence.keys as i32 - sequence.queries as i32;
        let from_split = |key: i32| key.saturating_sub(split.first as i32);
        Window {
            keys: split.keys as i32,
            queries: sequence.queries as i32,
            first: from_split(offset.saturating_sub(params.options.left)),
            end: from_split(
                offset
                    .saturating_add(params.options.right)
                    .saturating_add(1),
            ),
        }
    }

    #[inline(always)]
    fn keys(self, query: i32) -> Span {
        Span {
            start: query.saturating_add(self.first).max(0).min(self.keys),
            end: query.saturating_add(self.end).max(0).min(self.keys),
        }
    }

    #[inline(always)]
    fn queries(self, key: i32) -> Span {
        Span {
            start: (key + 1).saturating_sub(self.end).max(0).min(self.queries),
            end: (key + 1)
                .saturating_sub(self.first)
                .max(0)
                .min(self.queries),
        }
    }

    /// Leaves out the bounds of [`keys`](Mask::keys) that no key passes. The others keep what is counted from here in `i32`.
    #[inline(always)]
    fn keys_of_block(self, query: i32, first_key: i32) -> Span {
        Span {
            start: query.saturating_add(self.first).max(0) - first_key,
            end: query.saturating_add(self.end).min(self.keys) - first_key,
        }
    }
}
