//! The shadow of shared memory: who touched each cell of 2 bytes, and when.
//!
//! Most accesses are of 16 aligned bytes: rows of `ldmatrix`, chunks of copies and of products. So 16 bytes, a *granule*,
//! have one state as long as their cells agree. The first access to a part of a granule gives each of its words of 4 bytes
//! a state of its own, and one to a part of a word gives one to each of its cells.
//!
//! A state is a record of some words: what the last write left, then who read since then. One line of the host's cache
//! holds all of it.

use crate::host;
use std::ops::Range;

const CELL_BYTES: usize = 2;
const WORD_BYTES: usize = 4;
const GRANULE_BYTES: usize = 16;

/// When a lane of a known warp read a cell: the clock, and the lane in the low bits. Zero is never.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub const LANE_BITS: u32 = 6;

    #[inline(always)]
    fn of(bits: u32) -> Self {
        Stamp(bits)
    }

    pub fn new(clock: u32, lane: u32) -> Self {
        Stamp(clock << Self::LANE_BITS | lane)
    }

    pub fn clock(self) -> u32 {
        self.0 >> Self::LANE_BITS
    }

    pub fn lane(self) -> u32 {
        self.0 % (1 << Self::LANE_BITS)
    }
}

/// The content of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Content {
    #[default]
    Data,
    /// The destination of a `cp.async` under way.
    Copying,
    /// The destination of a bulk copy under way.
    BulkCopying,
    /// A part of an mbarrier.
    Mbarrier,
}

impl Content {
    /// By number.
    const ALL: [Content; 4] = [
        Content::Data,
        Content::Copying,
        Content::BulkCopying,
        Content::Mbarrier,
    ];
}

/// The state of a cell, other than its reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Clock of the last write; 0 is never. For a bulk copy, the phase of its mbarrier.
    pub written: u32,
    /// The writing instruction, or the copy that is under way.
    pub line: u32,
    /// Slot of the last writer.
    pub writer: u16,
    /// Which of the bytes were ever written.
    pub defined: u8,
    pub content: Content,
    /// Whether a thread read it since the last write.
    pub is_read: bool,
}

/// Words of a record before the reads: two of a cell's numbers, its [properties](Cell::properties), and where the records
/// of its parts begin, or 0 while it is whole.
const HEADER: usize = 4;
const WRITTEN: usize = 0;
const LINE: usize = 1;
const PROPERTIES: usize = 2;
const PARTS: usize = 3;

const DEFINED_SHIFT: u32 = u16::BITS;
const CONTENT_SHIFT: u32 = DEFINED_SHIFT + 2;
const IS_READ: u32 = 1 << (CONTENT_SHIFT + 2);

impl Cell {
    /// Its last writer and when it wrote, as one number.
    #[inline(always)]
    pub fn origin(&self) -> u64 {
        u64::from(self.writer) << u32::BITS | u64::from(self.written)
    }

    /// The state after some of its bytes are written.
    #[inline(always)]
    pub fn rewritten(&self, writer: usize, clock: u32, line: u32, mask: u8) -> Self {
        Cell {
            written: clock,
            line,
            writer: writer as u16,
            defined: self.defined | mask,
            content: Content::Data,
            is_read: false,
        }
    }

    /// All but the clock and the line.
    #[inline(always)]
    fn properties(&self) -> u32 {
        let is_read = if self.is_read { IS_READ } else { 0 };
        let content = (self.content as u32) << CONTENT_SHIFT;
        u32::from(self.writer) | u32::from(self.defined) << DEFINED_SHIFT | content | is_read
    }
}

/// Bytes of an access that have one state.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Where its record begins.
    record: usize,
    /// Offset of the first of them.
    pub start: usize,
    /// Which bytes of a cell, or of each cell of several, the access touches.
    pub mask: u8,
}

/// The states of a block's shared memory.
#[derive(Default)]
pub(crate) struct Shadow {
    /// The records of every granule, and after them of the parts of what fell apart. After the header, a record has the
    /// last read by every warp, and the last product of every warpgroup that read it, by its number; 0 is never.
    records: Vec<u32>,
    /// Words of a record.
    size: usize,
    warps: usize,
}

impl Shadow {
    /// Forgets a block, for one with this much memory.
    pub fn reset(&mut self, bytes: usize, warps: usize, warpgroups: usize) {
        self.size = HEADER + warps + warpgroups;
        self.warps = warps;
        self.records.clear();
        let granules = bytes.div_ceil(GRANULE_BYTES);
        self.records.resize(granules * self.size, 0);
    }

    /// Brings the record of a granule to the host's cache.
    #[inline(always)]
    pub fn prefetch(&self, start: usize) {
        if let Some(record) = self.records.get(start / GRANULE_BYTES * self.size) {
            host::prefetch(record);
        }
    }

    /// The first place of an access, which is left with the rest. An access to a single byte, or to whole cells.
    #[inline(always)]
    pub fn next(&mut self, access: &mut Range<usize>) -> Option<Place> {
        let start = access.start;
        if start == access.end {
            return None;
        }
        let mut record = start / GRANULE_BYTES * self.size;
        let mut bytes = GRANULE_BYTES;
        loop {
            let mut parts = self.records[record + PARTS] as usize;
            if parts == 0 {
                let is_whole = start.is_multiple_of(bytes) && access.len() >= bytes;
                if is_whole || bytes == CELL_BYTES {
                    break;
                }
                parts = self.fall_apart(record, bytes);
            }
            let part = part_bytes(bytes);
            record = parts + start % bytes / part * self.size;
            bytes = part;
        }
        let mut mask = 0b11;
        if access.len() == 1 {
            (mask, bytes) = (1 << (start % CELL_BYTES), 1);
        }
        access.start += bytes;
        Some(Place {
            record,
            start,
            mask,
        })
    }

    /// Gives each part of a granule or word the state that they had together; where their records begin.
    #[cold]
    fn fall_apart(&mut self, record: usize, bytes: usize) -> usize {
        let parts = self.records.len();
        for _ in 0..bytes / part_bytes(bytes) {
            self.records.extend_from_within(record..record + self.size);
        }
        self.records[record + PARTS] = parts as u32;
        parts
    }

    #[inline(always)]
    fn header(&self, place: Place) -> &[u32; HEADER] {
        let header = self.records[place.record..].first_chunk();
        header.expect("a record has a header")
    }

    #[inline(always)]
    fn header_mut(&mut self, place: Place) -> &mut [u32; HEADER] {
        let header = self.records[place.record..].first_chunk_mut();
        header.expect("a record has a header")
    }

    #[inline(always)]
    pub fn cell(&self, place: Place) -> Cell {
        let header = self.header(place);
        let properties = header[PROPERTIES];
        Cell {
            written: header[WRITTEN],
            line: header[LINE],
            writer: properties as u16,
            defined: (properties >> DEFINED_SHIFT & 0b11) as u8,
            content: Content::ALL[(properties >> CONTENT_SHIFT & 0b11) as usize],
            is_read: properties & IS_READ != 0,
        }
    }

    #[inline(always)]
    pub fn set_cell(&mut self, place: Place, cell: Cell) {
        let header = self.header_mut(place);
        header[WRITTEN] = cell.written;
        header[LINE] = cell.line;
        header[PROPERTIES] = cell.properties();
    }

    /// The last reads, by warp.
    #[inline(always)]
    pub fn reads(&self, place: Place) -> impl Iterator<Item = Stamp> {
        let reads = &self.records[place.record + HEADER..][..self.warps];
        reads.iter().map(|bits| Stamp::of(*bits))
    }

    /// Changes the last read by a warp, as a read since the last write.
    #[inline(always)]
    pub fn note_read(&mut self, place: Place, warp: usize, change: impl FnOnce(Stamp) -> Stamp) {
        let record = &mut self.records[place.record..][..self.size];
        record[PROPERTIES] |= IS_READ;
        let last = &mut record[HEADER + warp];
        *last = change(Stamp::of(*last)).0;
    }

    /// The last products that read it, by warpgroup.
    #[inline(always)]
    pub fn products(&self, place: Place) -> &[u32] {
        &self.records[place.record..][HEADER + self.warps..self.size]
    }

    /// The last product of a warpgroup that read it.
    #[inline(always)]
    pub fn product_mut(&mut self, place: Place, warpgroup: usize) -> &mut u32 {
        &mut self.records[place.record + HEADER + self.warps + warpgroup]
    }
}

/// Bytes of the parts that a granule or word falls into.
#[inline(always)]
fn part_bytes(bytes: usize) -> usize {
    match bytes {
        GRANULE_BYTES => WORD_BYTES,
        _ => CELL_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(bytes: usize, warps: usize, warpgroups: usize) -> Shadow {
        let mut shadow = Shadow::default();
        shadow.reset(bytes, warps, warpgroups);
        shadow
    }

    fn places(shadow: &mut Shadow, mut access: Range<usize>) -> Vec<Place> {
        std::iter::from_fn(|| shadow.next(&mut access)).collect()
    }

    #[test]
    fn whole_granules_are_one_place_each() {
        let mut shadow = new(64, 1, 1);
        let starts: Vec<_> = places(&mut shadow, 16..48)
            .iter()
            .map(|p| p.start)
            .collect();
        assert_eq!(starts, [16, 32]);
    }

    #[test]
    fn a_granule_that_falls_apart_keeps_what_it_knew() {
        let mut shadow = new(48, 2, 2);
        let [whole] = places(&mut shadow, 16..32)[..] else {
            panic!("a granule is one place");
        };
        let cell = |line| Cell {
            line,
            ..Cell::default()
        };
        shadow.set_cell(whole, cell(7));
        shadow.note_read(whole, 1, |_| Stamp::new(5, 3));
        *shadow.product_mut(whole, 1) = 9;
        let [one] = places(&mut shadow, 20..22)[..] else {
            panic!("a cell is one place");
        };
        shadow.set_cell(one, cell(8));
        shadow.note_read(one, 0, |_| Stamp::new(6, 2));
        let parts = places(&mut shadow, 16..32);
        let starts: Vec<_> = parts.iter().map(|p| p.start).collect();
        assert_eq!(starts, [16, 20, 22, 24, 28]);
        let lines: Vec<_> = parts.iter().map(|p| shadow.cell(*p).line).collect();
        assert_eq!(lines, [7, 8, 7, 7, 7]);
        for part in parts {
            let reads: Vec<_> = shadow.reads(part).collect();
            assert_eq!(reads[0].clock(), if part.start == 20 { 6 } else { 0 });
            assert_eq!((reads[1].clock(), reads[1].lane()), (5, 3));
            assert_eq!(shadow.products(part), [0, 9]);
        }
        // Its neighbours are whole.
        assert_eq!(places(&mut shadow, 0..16).len(), 1);
        assert_eq!(places(&mut shadow, 32..48).len(), 1);
    }

    #[test]
    fn a_cell_comes_back() {
        let mut shadow = new(16, 1, 0);
        for content in Content::ALL {
            for is_read in [false, true] {
                let cell = Cell {
                    written: 1 << 25,
                    line: 70_000,
                    writer: u16::MAX,
                    defined: 0b10,
                    content,
                    is_read,
                };
                let place = places(&mut shadow, 0..16)[0];
                shadow.set_cell(place, cell);
                assert_eq!(shadow.cell(place), cell);
            }
        }
    }

    #[test]
    fn a_byte_is_half_a_cell() {
        let mut shadow = new(18, 1, 0);
        let masks: Vec<_> = [3..4, 4..5, 4..6, 17..18]
            .into_iter()
            .map(|access| places(&mut shadow, access)[0].mask)
            .collect();
        assert_eq!(masks, [0b10, 0b01, 0b11, 0b10]);
    }
}
