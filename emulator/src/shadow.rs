//! The shadow of shared memory: who touched each cell of 2 bytes, and when.
//!
//! Most accesses are of 16 aligned bytes: rows of `ldmatrix`, chunks of copies and of products. So 16 bytes, a *granule*,
//! have one state as long as their cells agree. The first access to a part of a granule gives each of its cells a state
//! of its own.

use std::ops::Range;

const CELL_BYTES: usize = 2;
const GRANULE_BYTES: usize = 16;
const CELLS: usize = GRANULE_BYTES / CELL_BYTES;

/// When a lane of a known warp read a cell: the clock, and the lane in the low bits. Zero is never.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub const LANE_BITS: u32 = 6;

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

/// The state of a cell, other than its reads.
#[derive(Clone, Copy, Default)]
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

/// Bytes of an access that have one state.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    state: usize,
    /// Offset of the first of them.
    pub start: usize,
    /// Which bytes of a cell, or of each cell of a granule, the access touches.
    pub mask: u8,
}

/// The states of a block's shared memory.
#[derive(Default)]
pub(crate) struct Shadow {
    /// Of every granule, and after them of the cells of granules that fell apart.
    cells: Vec<Cell>,
    /// By granule: the number of its first cell's state, or 0 while it is whole.
    parts: Vec<u32>,
    /// The last read by every warp, `[state][warp]`.
    reads: Vec<Stamp>,
    warps: usize,
    /// The last product of every warpgroup that read it, `[state][warpgroup]`, by its number; 0 is never.
    products: Vec<u32>,
    warpgroups: usize,
}

impl Shadow {
    /// Forgets a block, for one with this much memory.
    pub fn reset(&mut self, bytes: usize, warps: usize, warpgroups: usize) {
        fn fill<T: Clone + Default>(states: &mut Vec<T>, count: usize) {
            states.clear();
            states.resize(count, T::default());
        }
        let granules = bytes.div_ceil(GRANULE_BYTES);
        fill(&mut self.cells, granules);
        fill(&mut self.parts, granules);
        fill(&mut self.reads, granules * warps);
        fill(&mut self.products, granules * warpgroups);
        (self.warps, self.warpgroups) = (warps, warpgroups);
    }

    /// The first place of an access, which is left with the rest. An access to a single byte, or to whole cells.
    #[inline(always)]
    pub fn next(&mut self, access: &mut Range<usize>) -> Option<Place> {
        let start = access.start;
        if start == access.end {
            return None;
        }
        let granule = start / GRANULE_BYTES;
        if self.parts[granule] == 0 {
            if start.is_multiple_of(GRANULE_BYTES) && access.len() >= GRANULE_BYTES {
                access.start += GRANULE_BYTES;
                return Some(Place {
                    state: granule,
                    start,
                    mask: 0b11,
                });
            }
            self.fall_apart(granule);
        }
        let (mask, bytes) = match access.len() {
            1 => (1 << (start % CELL_BYTES), 1),
            _ => (0b11, CELL_BYTES),
        };
        access.start += bytes;
        let state = self.parts[granule] as usize + start % GRANULE_BYTES / CELL_BYTES;
        Some(Place { state, start, mask })
    }

    /// Gives each cell of a granule the state that they had together.
    #[cold]
    fn fall_apart(&mut self, granule: usize) {
        self.parts[granule] = self.cells.len() as u32;
        let (cell, warps, warpgroups) = (self.cells[granule], self.warps, self.warpgroups);
        self.cells.extend([cell; CELLS]);
        for _ in 0..CELLS {
            let reads = granule * warps;
            self.reads.extend_from_within(reads..reads + warps);
            let products = granule * warpgroups;
            self.products
                .extend_from_within(products..products + warpgroups);
        }
    }

    #[inline(always)]
    pub fn cell(&self, place: Place) -> &Cell {
        &self.cells[place.state]
    }

    #[inline(always)]
    pub fn cell_mut(&mut self, place: Place) -> &mut Cell {
        &mut self.cells[place.state]
    }

    /// The last reads, by warp.
    #[inline(always)]
    pub fn reads(&self, place: Place) -> &[Stamp] {
        &self.reads[place.state * self.warps..][..self.warps]
    }

    /// The last read by a warp.
    #[inline(always)]
    pub fn read_mut(&mut self, place: Place, warp: usize) -> &mut Stamp {
        &mut self.reads[place.state * self.warps + warp]
    }

    /// The last products that read it, by warpgroup.
    #[inline(always)]
    pub fn products(&self, place: Place) -> &[u32] {
        &self.products[place.state * self.warpgroups..][..self.warpgroups]
    }

    /// The last product of a warpgroup that read it.
    #[inline(always)]
    pub fn product_mut(&mut self, place: Place, warpgroup: usize) -> &mut u32 {
        &mut self.products[place.state * self.warpgroups + warpgroup]
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
        shadow.cell_mut(whole).line = 7;
        *shadow.read_mut(whole, 1) = Stamp::new(5, 3);
        *shadow.product_mut(whole, 1) = 9;
        let [one] = places(&mut shadow, 20..22)[..] else {
            panic!("a cell is one place");
        };
        shadow.cell_mut(one).line = 8;
        *shadow.read_mut(one, 0) = Stamp::new(6, 2);
        let parts = places(&mut shadow, 16..32);
        let lines: Vec<_> = parts.iter().map(|p| shadow.cell(*p).line).collect();
        assert_eq!(lines, [7, 7, 8, 7, 7, 7, 7, 7]);
        for part in parts {
            let (first, second) = (shadow.reads(part)[0], shadow.reads(part)[1]);
            assert_eq!(first.clock(), if part.start == 20 { 6 } else { 0 });
            assert_eq!((second.clock(), second.lane()), (5, 3));
            assert_eq!(shadow.products(part), [0, 9]);
        }
        // Its neighbours are whole.
        assert_eq!(places(&mut shadow, 0..16).len(), 1);
        assert_eq!(places(&mut shadow, 32..48).len(), 1);
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
