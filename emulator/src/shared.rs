//! A block's shared memory, with a shadow that knows who touched each cell and when.
//!
//! Time is counted by warps: a warp's clock advances at every barrier it takes part in, and a
//! barrier tells each participant the others' clocks (vector clocks). An access is ordered after an
//! earlier one if the same thread made both, or if the earlier thread's clock has since passed to
//! this warp through a barrier. Two accesses that are not ordered, one of them a write, are a race,
//! whatever the order in which the emulator happens to run them.
//!
//! The shadow's cells are 2 bytes: accesses of different threads to the two bytes of one cell count
//! as accesses to the same address.

use crate::error::{Access, Rule, Violation};

/// Shared-window address of the first byte. Not 0, so that a null address faults; a multiple of the
/// largest alignment that a variable may ask for.
pub(crate) const SHARED_BASE: u32 = 1024;

const CELL_BYTES: usize = 2;

/// When a thread touched a cell: its warp's clock, and its lane in the low bits. Zero is never.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Stamp(u32);

impl Stamp {
    const LANE_BITS: u32 = 6;

    fn new(clock: u32, lane: u32) -> Self {
        Stamp(clock << Self::LANE_BITS | lane)
    }

    fn clock(self) -> u32 {
        self.0 >> Self::LANE_BITS
    }

    fn lane(self) -> u32 {
        self.0 % (1 << Self::LANE_BITS)
    }
}

/// The largest clock; a warp's instruction budget keeps it from getting there.
pub(crate) const MAX_CLOCK: u32 = u32::MAX >> Stamp::LANE_BITS;

/// The lane of an access that a whole warp makes together: it is like no single lane.
pub(crate) const ALL_LANES: u32 = 32;

/// Who makes an access.
#[derive(Clone, Copy)]
pub(crate) struct Accessor<'a> {
    pub warp: usize,
    /// 0 to 31, or [`ALL_LANES`].
    pub lane: u32,
    /// What the warp knows of every warp's clock.
    pub clocks: &'a [u32],
    /// Line of the instruction.
    pub line: u32,
}

impl Accessor<'_> {
    fn stamp(&self) -> Stamp {
        Stamp::new(self.clocks[self.warp], self.lane)
    }

    /// Whether an access by `warp` happened before this one.
    fn is_after(&self, stamp: Stamp, warp: usize) -> bool {
        let same_thread = warp == self.warp && stamp.lane() == self.lane && self.lane != ALL_LANES;
        stamp.clock() < self.clocks[warp] || same_thread
    }
}

#[derive(Clone, Copy, Default)]
struct Cell {
    written: Stamp,
    /// The writing instruction, or the `cp.async` that is under way.
    line: u32,
    warp: u8,
    /// Which of the bytes were ever written.
    defined: u8,
    /// Whether a `cp.async` to this cell is under way.
    pending: bool,
}

/// The shared memory of one block.
pub(crate) struct Shared {
    bytes: Vec<u8>,
    cells: Vec<Cell>,
    /// The last read of every cell by every warp, `[cell][warp]`.
    reads: Vec<Stamp>,
    warps: usize,
}

impl Shared {
    pub fn new(bytes: u32, warps: usize) -> Self {
        let cells = (bytes as usize).div_ceil(CELL_BYTES);
        Shared {
            bytes: vec![0; bytes as usize],
            cells: vec![Cell::default(); cells],
            reads: vec![Stamp::default(); cells * warps],
            warps,
        }
    }

    /// Reads `to.len()` bytes, a power of two.
    pub fn read(
        &mut self,
        who: Accessor,
        address: u32,
        to: &mut [u8],
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, to.len())?;
        let stamp = who.stamp();
        for (index, cell_bytes) in cells(start, to.len()) {
            let cell = &self.cells[index];
            if cell.pending {
                return Err(self.violation(who, index, Rule::PendingCopy { line: cell.line }));
            }
            if cell.defined & cell_bytes != cell_bytes {
                return Err(self.violation(who, index, Rule::SharedUninitialised));
            }
            if !who.is_after(cell.written, usize::from(cell.warp)) {
                return Err(self.race(who, index, Access::Read, None));
            }
            let last = &mut self.reads[index * self.warps + who.warp];
            let several = last.clock() == stamp.clock() && last.lane() != stamp.lane();
            *last = if several {
                Stamp::new(stamp.clock(), ALL_LANES)
            } else {
                stamp
            };
        }
        to.copy_from_slice(&self.bytes[start..start + to.len()]);
        Ok(())
    }

    /// Writes bytes, a power of two of them.
    pub fn write(
        &mut self,
        who: Accessor,
        address: u32,
        from: &[u8],
    ) -> Result<(), Box<Violation>> {
        self.claim(who, address, from.len(), false)?;
        self.store(who, address, from);
        Ok(())
    }

    /// Starts a copy: until it lands, nobody may touch the bytes.
    pub fn start_copy(
        &mut self,
        who: Accessor,
        address: u32,
        bytes: usize,
    ) -> Result<(), Box<Violation>> {
        self.claim(who, address, bytes, true)
    }

    /// Lands a copy, as a write by the thread that waited for it.
    pub fn land_copy(&mut self, who: Accessor, address: u32, from: &[u8]) {
        self.store(who, address, from);
    }

    /// Checks that `who` may write here.
    fn claim(
        &mut self,
        who: Accessor,
        address: u32,
        bytes: usize,
        pending: bool,
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, bytes)?;
        for (index, _) in cells(start, bytes) {
            let cell = &self.cells[index];
            if cell.pending {
                return Err(self.violation(who, index, Rule::PendingCopy { line: cell.line }));
            }
            if !who.is_after(cell.written, usize::from(cell.warp)) {
                return Err(self.race(who, index, Access::Write, None));
            }
            for warp in 0..self.warps {
                if !who.is_after(self.reads[index * self.warps + warp], warp) {
                    return Err(self.race(who, index, Access::Write, Some(warp)));
                }
            }
            self.cells[index].pending = pending;
            if pending {
                self.cells[index].line = who.line;
            }
        }
        Ok(())
    }

    fn store(&mut self, who: Accessor, address: u32, from: &[u8]) {
        let start = (address - SHARED_BASE) as usize;
        self.bytes[start..start + from.len()].copy_from_slice(from);
        for (index, cell_bytes) in cells(start, from.len()) {
            let cell = &mut self.cells[index];
            *cell = Cell {
                written: who.stamp(),
                line: who.line,
                warp: who.warp as u8,
                defined: cell.defined | cell_bytes,
                pending: false,
            };
        }
    }

    /// The offset of an access that is aligned and in bounds.
    fn locate(&self, lane: u32, address: u32, bytes: usize) -> Result<usize, Box<Violation>> {
        let fail = |rule| Err(Violation::at(rule, lane % ALL_LANES, u64::from(address)));
        let size = bytes as u32;
        let offset = address.wrapping_sub(SHARED_BASE) as usize;
        if offset >= self.bytes.len() || bytes > self.bytes.len() - offset {
            return fail(Rule::SharedOutOfBounds { bytes: size });
        }
        if !address.is_multiple_of(size) {
            return fail(Rule::SharedMisaligned { bytes: size });
        }
        Ok(offset)
    }

    fn violation(&self, who: Accessor, cell: usize, rule: Rule) -> Box<Violation> {
        let address = u64::from(SHARED_BASE) + (cell * CELL_BYTES) as u64;
        let mut violation = Violation::at(rule, who.lane, address);
        violation.lane = violation.lane.filter(|lane| *lane != ALL_LANES);
        violation
    }

    /// A race with the last write of a cell, or with its last read by a warp.
    fn race(
        &self,
        who: Accessor,
        index: usize,
        access: Access,
        reader: Option<usize>,
    ) -> Box<Violation> {
        let cell = &self.cells[index];
        let (earlier, stamp, warp, line) = match reader {
            Some(warp) => (
                Access::Read,
                self.reads[index * self.warps + warp],
                warp,
                None,
            ),
            None => (
                Access::Write,
                cell.written,
                usize::from(cell.warp),
                Some(cell.line),
            ),
        };
        let thread = match stamp.lane() {
            ALL_LANES => format!("warp {warp}"),
            lane => format!("warp {warp}, lane {lane}"),
        };
        let rule = Rule::SharedRace {
            access,
            earlier,
            thread,
            line,
        };
        self.violation(who, index, rule)
    }
}

/// The cells that `bytes` bytes from `start` touch, each with the mask of its bytes among them.
fn cells(start: usize, bytes: usize) -> impl Iterator<Item = (usize, u8)> {
    let mask = if bytes == 1 {
        1 << (start % CELL_BYTES)
    } else {
        0b11
    };
    let first = start / CELL_BYTES;
    (first..first + bytes.div_ceil(CELL_BYTES)).map(move |cell| (cell, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warp_is_no_single_thread() {
        let mut shared = Shared::new(4, 1);
        let mut who = Accessor {
            warp: 0,
            lane: ALL_LANES,
            clocks: &[1],
            line: 1,
        };
        shared.write(who, SHARED_BASE, &[1; 4]).unwrap();
        let race = shared.read(who, SHARED_BASE, &mut [0; 4]).unwrap_err();
        assert!(matches!(race.rule, Rule::SharedRace { .. }));
        assert_eq!(race.lane, None);
        who.clocks = &[2];
        shared.read(who, SHARED_BASE, &mut [0; 4]).unwrap();
    }
}
