//! What a boolean mask lets a query or a key see: spans of numbers with gaps.

use super::mask::{Interval, Span};
use crate::abi::{Share, Switch};
use crate::ptx::{global, switch};
use crate::tile::{Accumulator, whole};

const BITS: u32 = Switch::MaskBits.constant().1;

/// Whether there is a boolean mask.
#[inline(always)]
pub fn has_mask() -> bool {
    switch::mask() != 0
}

/// Bytes of an element of the mask.
#[inline(always)]
pub fn element_bytes() -> u32 {
    if switch::mask() == BITS { 4 } else { 1 }
}

/// The element of the mask that has a key, and its bit.
#[inline(always)]
pub fn place(key: u32) -> (u32, u32) {
    if switch::mask() == BITS {
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
        if switch::mask() == BITS {
            global::load_u32(address) >> bit & 1 != 0
        } else {
            global::load_u8(address) != 0
        }
    }
}

/// A span of numbers, less the numbers that a line of the mask hides.
#[derive(Clone, Copy)]
pub struct Seen<L> {
    /// The numbers before the mask.
    pub span: Span,
    /// The line of the mask, where there is one.
    pub line: L,
    /// Whether the line hides some of them.
    pub has_gaps: bool,
}

impl<L: Default> Default for Seen<L> {
    /// No number.
    #[inline(always)]
    fn default() -> Self {
        Seen {
            span: Span::default(),
            line: L::default(),
            has_gaps: true,
        }
    }
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

    /// Whether it shows a number or, if that does not exist, the nearest one.
    fn shows_nearest(self, number: i32) -> bool;
}

/// A query's row of the mask.
#[derive(Clone, Copy, Default)]
pub struct KeyLine {
    /// Address of the row's first element.
    pub address: u64,
    /// The key that has number 0.
    pub first: i32,
    /// The last key.
    pub last: i32,
}

impl KeyLine {
    #[inline(always)]
    fn shows_key(self, key: i32) -> bool {
        let (element, bit) = place(key as u32);
        // SAFETY: a launch with a mask has it for each pair that exists.
        unsafe { shows(self.address + u64::from(element_bytes() * element), bit) }
    }
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
        self.shows_key(self.first + number)
    }

    #[inline(always)]
    fn shows_nearest(self, number: i32) -> bool {
        self.shows_key((self.first + number).max(0).min(self.last))
    }
}

/// A key's column of the mask.
#[derive(Clone, Copy, Default)]
pub struct QueryLine {
    /// Address of the element of the query that has number 0.
    pub address: u64,
    /// Bytes from a query's element to the next one's.
    pub query_bytes: i64,
    /// The key's bit in the element.
    pub bit: u32,
    /// The numbers of the first and the last query.
    pub ends: [i32; 2],
}

impl Line for QueryLine {
    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        let bytes = i64::from(origin) * self.query_bytes;
        let [first, last] = self.ends;
        QueryLine {
            address: self.address.wrapping_add_signed(bytes),
            ends: [first - origin, last - origin],
            ..self
        }
    }

    #[inline(always)]
    fn shows(self, number: i32) -> bool {
        let bytes = i64::from(number) * self.query_bytes;
        // SAFETY: a launch with a mask has it for each pair that exists.
        unsafe { shows(self.address.wrapping_add_signed(bytes), self.bit) }
    }

    #[inline(always)]
    fn shows_nearest(self, number: i32) -> bool {
        let [first, last] = self.ends;
        self.shows(number.max(first).min(last))
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
            ..self
        }
    }

    #[inline(always)]
    fn contains(self, number: i32) -> bool {
        let mut contains = self.span.contains(number);
        if self.has_gaps() && contains {
            contains = self.line.shows(number);
        }
        contains
    }

    #[inline(always)]
    fn contains_by_load(self, number: i32) -> bool {
        let mut contains = self.span.contains(number);
        if self.has_gaps() {
            contains &= self.line.shows_nearest(number);
        }
        contains
    }

    #[inline(always)]
    fn may_have_gaps() -> bool {
        has_mask()
    }

    #[inline(always)]
    fn has_gaps(self) -> bool {
        has_mask() && self.has_gaps
    }

    #[inline(always)]
    fn unbounded() -> Self {
        Seen {
            span: Span {
                start: 0,
                end: i32::MAX,
            },
            line: L::default(),
            has_gaps: false,
        }
    }

    #[inline(always)]
    fn of_share(mut self, share: Share) -> Self {
        if has_mask() {
            self.has_gaps = share == Share::Some;
            if share == Share::None {
                self.span.end = self.span.start;
            }
        }
        self
    }

    #[inline(always)]
    fn mask<const NT: usize>(s: &mut [[Accumulator; NT]; 1], keys: [Self; 2]) {
        let spans = keys.map(|keys| keys.span);
        let covers = |span: Span| span.start <= 0 && span.end >= 16 * NT as i32;
        if keys[0].has_gaps() {
            whole::mask(s, [[ByLoad(keys[0]), ByLoad(keys[1])]]);
        } else if !has_mask() || !(covers(spans[0]) && covers(spans[1])) {
            // With a mask, most other blocks are whole.
            whole::mask(s, [spans]);
        }
    }
}

/// An interval that finds what it contains [without branches](Interval::contains_by_load).
#[derive(Clone, Copy, Default)]
struct ByLoad<I>(I);

impl<I: Interval> Interval for ByLoad<I> {
    const HAS_START: bool = I::HAS_START;

    #[inline(always)]
    fn start(self) -> i32 {
        self.0.start()
    }

    #[inline(always)]
    fn end(self) -> i32 {
        self.0.end()
    }

    #[inline(always)]
    fn counted_from(self, origin: i32) -> Self {
        ByLoad(self.0.counted_from(origin))
    }

    #[inline(always)]
    fn contains(self, number: i32) -> bool {
        self.0.contains_by_load(number)
    }
}
