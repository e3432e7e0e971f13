//! Spans of numbers with gaps: the pairs that a boolean mask shows to a query or a key.

use super::mask::{Interval, Span, Visible};
use super::score::Score;
use crate::abi::{Coverage, Switch};
use crate::attention::guard::{in_turn, multiply_guarded};
use crate::attention::steps::warp::Warp;
use crate::layout::fragment;
use crate::ptx::{global, special, switch};
use crate::tile::registers::fence;
use crate::tile::{Accumulator, Arrangement, Element, Numbers, Operand, SharedTile, whole};

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

/// How a mask has its elements, as data, which many reads share: bits are read as bytes, since key `j` is bit `j % 8` of byte
/// `j / 8`.
#[derive(Clone, Copy)]
pub struct Elements {
    /// A key shifted by this is a byte of the row.
    shift: u32,
    /// The bits of a key that are its bit in the byte.
    of_bit: u32,
    /// The bits of a shifted byte that show the key.
    shown: u32,
}

impl Elements {
    /// The elements of the launch's mask, by its switch.
    #[inline(always)]
    pub fn read() -> Self {
        let is_bits = switch::mask() == BITS;
        Elements {
            shift: if is_bits { 3 } else { 0 },
            of_bit: if is_bits { 7 } else { 0 },
            shown: if is_bits { 1 } else { !0 },
        }
    }

    /// The byte of a row that has a key, and its bit.
    #[inline(always)]
    fn place(self, key: u32) -> (u32, u32) {
        (key >> self.shift, key & self.of_bit)
    }

    /// Whether a byte's bit is set, where the pair `exists`.
    ///
    /// # Safety
    /// The byte is readable if the pair exists.
    #[inline(always)]
    unsafe fn show(self, address: u64, bit: u32, exists: bool) -> bool {
        // SAFETY: the caller's promise.
        let byte = unsafe { global::load_u8_if(address, u32::from(exists)) };
        byte >> bit & self.shown != 0
    }
}

/// Whether an element of the mask lets a pair see each other.
///
/// # Safety
/// The element is readable.
#[inline(always)]
unsafe fn shows(address: u64, bit: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { global::load_bit_or_u8(address, bit, u32::from(switch::mask() == BITS)) != 0 }
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
    /// Intersects with another span.
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
    /// The line counted from number `origin`.
    #[must_use]
    fn counted_from(self, origin: i32) -> Self;

    /// Whether it shows a number, which exists.
    fn shows(self, number: i32) -> bool;

    /// Whether it shows a number or, if that does not exist, the nearest one.
    #[inline(always)]
    fn shows_nearest(self, number: i32) -> bool {
        self.shows(number)
    }

    /// Whether it shows a number, if that `exists`; else it does not. Elements are the mask's, read once for many numbers.
    #[inline(always)]
    fn shows_if(self, exists: bool, number: i32, _elements: Elements) -> bool {
        exists & self.shows_nearest(number)
    }
}

/// A query's row of the mask.
#[derive(Clone, Copy, Default)]
pub struct KeyLine {
    /// Address of the row's first element.
    pub address: u64,
    /// The key that has number 0.
    pub first: i32,
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
    fn shows_if(self, exists: bool, number: i32, elements: Elements) -> bool {
        let (byte, bit) = elements.place((self.first + number) as u32);
        // SAFETY: a launch with a mask has it for each pair that exists.
        unsafe { elements.show(self.address + u64::from(byte), bit, exists) }
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
}

impl<L: Line> Visible for Seen<L> {
    #[inline(always)]
    fn of_coverage(mut self, coverage: Coverage) -> Self {
        if has_mask() {
            self.has_gaps = coverage == Coverage::Some;
            if coverage == Coverage::None {
                self.span.end = self.span.start;
            }
        }
        self
    }

    /// Loads of the elements of two tiles are on their way at a time: those of all take more registers than there are.
    #[inline(always)]
    fn mask<const NT: usize>(s: &mut [[Accumulator; NT]; 1], keys: [Self; 2]) {
        let spans = keys.map(|keys| keys.span);
        let covers = |span: Span| span.start <= 0 && span.end >= 16 * NT as i32;
        if keys[0].has_gaps() {
            let (elements, lane) = (Elements::read(), special::lane());
            let keys = keys.map(|keys| keys.counted_from(fragment::accumulator(lane, 0).1 as i32));
            for nt in 0..NT {
                if nt % 2 == 0 {
                    // SAFETY: all lanes of the warp mask their scores together. Else sums of far rows take 2 registers more.
                    unsafe { fence() }
                }
                for i in 0..8 {
                    let number = 16 * nt as i32 + fragment::accumulator(0, i as u32).1 as i32;
                    let Seen { span, line, .. } = keys[i / 2 % 2];
                    if !line.shows_if(span.contains(number), number, elements) {
                        s[0][nt].0[i] = f32::NEG_INFINITY;
                    }
                }
            }
        } else if !has_mask() || !(covers(spans[0]) && covers(spans[1])) {
            // With a mask, most other blocks are whole.
            whole::mask(s, [spans]);
        }
    }

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
        unsafe {
            if MT * OT >= 16 {
                // O leaves no registers for a loop.
                return warp.accumulate_guarded::<B, NT, VT>(p, v_tile, keys);
            }
            let v = |nt: u32, dt: usize| {
                // Else the assembler reads V far ahead: 25 registers more.
                fence();
                let v_tile = v_tile.skip(16 * nt);
                B::values(v_tile, special::lane(), 0, dt / B::SLICES)[dt % B::SLICES]
            };
            multiply_guarded::<B::Values, MT, NT, OT>(&mut warp.o, in_turn(p), v, keys);
        }
    }

    /// By slices of the keys: what a row sees, which takes loads, is found once.
    #[inline(always)]
    unsafe fn multiply_seen<E: Element, const MT: usize, const KT: usize, const NT: usize>(
        sum: &mut [[Accumulator; NT]; MT],
        _a: impl Fn(usize, usize) -> Operand,
        next: impl FnMut(u32) -> [Operand; MT],
        b: impl Fn(u32, usize) -> Operand,
        seen: [[Self; 2]; MT],
    ) {
        let b = |kt: u32, nt: usize| {
            // SAFETY: the caller's promise. Without the fence the assembler reads `b` far ahead: 7 registers more,
            // and with a mask 36 more bytes of spills at D = 128.
            unsafe { fence() }
            b(kt, nt)
        };
        // SAFETY: the caller's promise.
        unsafe { multiply_guarded::<E, MT, KT, NT>(sum, next, b, seen) }
    }
}
