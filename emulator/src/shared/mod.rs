//! A block's shared memory, with a shadow that knows who touched each cell and when.
//!
//! An access must come after each earlier one that conflicts with it: by the same thread, or ordered
//! by [vector clocks](crate::clocks). Two accesses that are not ordered, one of them a write, are a
//! race, whatever the order in which the emulator happens to run them.
//!
//! The [shadow](crate::shadow)'s cells are 2 bytes: accesses of different threads to the two bytes of one cell count
//! as accesses to the same address.

mod checks;

use crate::bytes::copy;
use crate::clocks::{ALL_LANES, Knowledge, slot};
use crate::error::{Access, Rule, Violation};
use crate::registers::Row;
use crate::shadow::{self, Content, Place, Shadow, Stamp};
use std::cell::Cell;
use std::mem::take;

/// Shared-window address of the first byte. Not 0, so that a null address faults; a multiple of the
/// largest alignment that a variable may have.
pub(crate) const SHARED_BASE: u32 = 1024;

/// Bytes of an mbarrier, and its alignment.
pub(crate) const MBARRIER_BYTES: usize = 8;

/// Alignment of a bulk copy's addresses and size.
pub(crate) const BULK_ALIGNMENT: u32 = 16;

/// The largest clock; a warp's instruction budget keeps it from getting there.
pub(crate) const MAX_CLOCK: u32 = u32::MAX >> Stamp::LANE_BITS;

/// Who makes an access.
#[derive(Clone, Copy)]
pub(crate) struct Accessor<'a> {
    pub warp: usize,
    /// 0 to 31, or [`ALL_LANES`].
    pub lane: u32,
    /// The warp's clock.
    pub clock: u32,
    /// The thread's knowledge of others.
    pub knowledge: &'a Knowledge,
    /// Line of the instruction.
    pub line: u32,
}

impl Accessor<'_> {
    pub fn slot(&self) -> usize {
        slot(self.warp, self.lane)
    }

    /// Whether an access happened before this one.
    #[inline(always)]
    pub fn is_after(&self, slot: usize, clock: u32) -> bool {
        let same_thread = slot == self.slot() && self.lane != ALL_LANES;
        self.knowledge.has_seen(slot, clock) || same_thread
    }
}

/// The source of a bulk copy to global memory that may not have been read.
struct BulkSource {
    address: u32,
    bytes: u32,
    line: u32,
}

/// The shared memory of one block.
pub(crate) struct Shared {
    bytes: Vec<u8>,
    shadow: Shadow,
    warps: usize,
    bulk_sources: Vec<BulkSource>,
    /// By warpgroup: the line of each product, from number 1. There are none in a kernel without `wgmma`.
    products: Vec<Vec<u32>>,
}

/// The memory of a block that has ended.
#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    shadow: Shadow,
}

thread_local! {
    /// Memory for the next block of this thread: new memory costs a fault for each page.
    static SPARE: Cell<Memory> = Cell::default();
}

impl Drop for Shared {
    fn drop(&mut self) {
        let memory = Memory {
            bytes: take(&mut self.bytes),
            shadow: take(&mut self.shadow),
        };
        // A thread that ends needs none.
        let _ = SPARE.try_with(|spare| spare.set(memory));
    }
}

/// The [origin](shadow::Cell::origin) of a cell that a check has found to be in order; the next cells that a thread or warp
/// accesses in an instruction mostly have it, too.
pub(crate) type Settled = Option<u64>;

impl Shared {
    /// `warpgroups` is the number of warpgroups that may execute `wgmma`.
    pub fn new(bytes: u32, warps: usize, warpgroups: usize) -> Self {
        let mut memory = SPARE.take();
        memory.bytes.clear();
        memory.bytes.resize(bytes as usize, 0);
        memory.shadow.reset(bytes as usize, warps, warpgroups);
        Shared {
            bytes: memory.bytes,
            shadow: memory.shadow,
            warps,
            bulk_sources: Vec::new(),
            products: vec![Vec::new(); warpgroups],
        }
    }

    /// Brings to the host's cache what accesses of some lanes need: most of their time is the wait for it.
    #[inline(always)]
    pub fn prefetch(&self, addresses: &Row<u64>, active: u32) {
        for (lane, address) in addresses.iter().enumerate() {
            let start = (*address as u32).wrapping_sub(SHARED_BASE) as usize;
            if active >> lane & 1 != 0 {
                self.shadow.prefetch(start);
            }
        }
    }

    /// Reads `to.len()` bytes, a power of two.
    #[inline(always)]
    pub fn read(
        &mut self,
        who: Accessor,
        address: u32,
        to: &mut [u8],
        settled: &mut Settled,
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, to.len(), to.len() as u32)?;
        let mut access = start..start + to.len();
        while let Some(place) = self.shadow.next(&mut access) {
            self.check_read(who, place, settled)?;
            self.note_read(who, place);
        }
        copy(to, &self.bytes[start..start + to.len()]);
        Ok(())
    }

    /// Writes bytes, a power of two of them.
    #[inline(always)]
    pub fn write(
        &mut self,
        who: Accessor,
        address: u32,
        from: &[u8],
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, from.len(), from.len() as u32)?;
        self.overwrite(who, start, from)
    }

    /// Starts a `cp.async`: until it lands, nobody may touch the bytes.
    pub fn start_copy(
        &mut self,
        who: Accessor,
        address: u32,
        bytes: usize,
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, bytes, bytes as u32)?;
        self.claim(who, start, bytes, Content::Copying)
    }

    /// Lands a `cp.async`, as a write by the thread that waited for it.
    pub fn land_copy(&mut self, who: Accessor, address: u32, from: &[u8]) {
        let start = (address - SHARED_BASE) as usize;
        self.store(who.slot(), who.clock, who.line, start, from);
    }

    /// Starts a bulk copy to shared memory: until a thread has waited for the phase of its mbarrier,
    /// the thread may not touch the bytes.
    pub fn start_bulk_load(
        &mut self,
        who: Accessor,
        address: u32,
        bytes: u32,
        alignment: u32,
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, bytes as usize, alignment)?;
        self.check_fences(who, start, bytes)?;
        self.claim(who, start, bytes as usize, Content::BulkCopying)
    }

    /// Lands a bulk copy in a phase of the mbarrier that `writer` is the slot of.
    pub fn land_bulk_load(
        &mut self,
        writer: usize,
        phase: u32,
        line: u32,
        address: u32,
        from: &[u8],
    ) {
        let start = (address - SHARED_BASE) as usize;
        self.store(writer, phase, line, start, from);
    }

    /// Starts a bulk copy from shared memory: until its thread has waited for it, nobody may write
    /// the bytes.
    pub fn start_bulk_store(
        &mut self,
        who: Accessor,
        address: u32,
        bytes: u32,
        alignment: u32,
    ) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, bytes as usize, alignment)?;
        let mut access = start..start + bytes as usize;
        while let Some(place) = self.shadow.next(&mut access) {
            self.check_read(who, place, &mut None)?;
        }
        self.check_fences(who, start, bytes)?;
        let line = who.line;
        self.bulk_sources.push(BulkSource {
            address,
            bytes,
            line,
        });
        Ok(())
    }

    /// Ends a bulk copy's reading, as a read by the thread that waited for it; what it read.
    pub fn end_bulk_store(&mut self, who: Accessor, address: u32, bytes: u32) -> Vec<u8> {
        let mut sources = self.bulk_sources.iter();
        let is_it = |source: &BulkSource| {
            (source.address, source.bytes, source.line) == (address, bytes, who.line)
        };
        let index = sources.position(is_it).expect("it was started");
        self.bulk_sources.swap_remove(index);
        let start = (address - SHARED_BASE) as usize;
        let mut access = start..start + bytes as usize;
        while let Some(place) = self.shadow.next(&mut access) {
            self.note_read(who, place);
        }
        self.bytes[start..start + bytes as usize].to_vec()
    }

    /// The source of a bulk copy that was started and not waited for.
    pub fn peek(&self, address: u32, bytes: u32) -> &[u8] {
        &self.bytes[(address - SHARED_BASE) as usize..][..bytes as usize]
    }

    /// Starts a product of a warpgroup; its number.
    pub fn start_product(&mut self, warpgroup: usize, line: u32) -> u32 {
        let lines = &mut self.products[warpgroup];
        lines.push(line);
        lines.len() as u32
    }

    /// Reads 16 bytes, a multiple of them from the start, as an operand of a warpgroup's product, for
    /// all its warps. Until the product is known to be complete, nobody may write the bytes.
    #[inline(always)]
    pub fn read_operand(
        &mut self,
        warps: &[Accessor],
        (warpgroup, product): (usize, u32),
        address: u32,
        settled: &mut Settled,
    ) -> Result<[u8; 16], Box<Violation>> {
        let start = self.locate(ALL_LANES, address, 16, 16)?;
        let mut access = start..start + 16;
        while let Some(place) = self.shadow.next(&mut access) {
            let cell = self.shadow.cell(place);
            let (writer, written, line) = (usize::from(cell.writer), cell.written, cell.line);
            if cell.content != Content::Data || cell.defined != 0b11 {
                let checked = self.check_read(warps[0], place, &mut None);
                checked.map_err(|violation| violation.by(warps[0].warp))?;
            }
            if *settled != Some(cell.origin()) {
                for who in warps {
                    let checked = self.check_read(*who, place, &mut None);
                    checked.map_err(|violation| violation.by(who.warp))?;
                    if !who.knowledge.has_fenced(writer, written) {
                        let rule = Rule::MissingProxyFence { line };
                        return Err(self.violation(*who, place, rule).by(who.warp));
                    }
                }
                *settled = Some(cell.origin());
            }
            *self.shadow.product_mut(place, warpgroup) = product;
        }
        let bytes = &self.bytes[start..start + 16];
        Ok(bytes.try_into().expect("16 bytes"))
    }

    /// Makes 8 bytes an mbarrier.
    pub fn place_mbarrier(&mut self, who: Accessor, address: u32) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, MBARRIER_BYTES, MBARRIER_BYTES as u32)?;
        self.overwrite(who, start, &[0; MBARRIER_BYTES])?;
        self.change(start, MBARRIER_BYTES, |cell| {
            cell.content = Content::Mbarrier
        });
        Ok(())
    }

    /// Checks that an mbarrier lies at the address, and that its `mbarrier.init` happened before.
    pub fn use_mbarrier(&mut self, who: Accessor, address: u32) -> Result<(), Box<Violation>> {
        let start = self.locate(who.lane, address, MBARRIER_BYTES, MBARRIER_BYTES as u32)?;
        let mut access = start..start + MBARRIER_BYTES;
        while let Some(place) = self.shadow.next(&mut access) {
            let cell = self.shadow.cell(place);
            if cell.content != Content::Mbarrier {
                return Err(self.violation(who, place, Rule::MbarrierNotInitialised));
            }
            if !who.is_after(usize::from(cell.writer), cell.written) {
                return Err(self.race(who, place, Access::Read, None));
            }
            self.note_read(who, place);
        }
        Ok(())
    }

    /// Whether the asynchronous proxy sees the `mbarrier.init` of the mbarrier at the address.
    pub fn has_fenced_mbarrier(&mut self, who: Accessor, address: u32) -> bool {
        let start = (address - SHARED_BASE) as usize;
        let place = self.shadow.next(&mut (start..start + MBARRIER_BYTES));
        let cell = self.shadow.cell(place.expect("it has bytes"));
        who.knowledge
            .has_fenced(usize::from(cell.writer), cell.written)
    }

    /// Gives the 8 bytes of an mbarrier back. All uses of the mbarrier must have happened before.
    pub fn remove_mbarrier(&mut self, who: Accessor, address: u32) -> Result<(), Box<Violation>> {
        self.use_mbarrier(who, address)?;
        let start = (address - SHARED_BASE) as usize;
        self.change(start, MBARRIER_BYTES, |cell| cell.content = Content::Data);
        self.overwrite(who, start, &[0; MBARRIER_BYTES])?;
        self.change(start, MBARRIER_BYTES, |cell| cell.defined = 0);
        Ok(())
    }

    /// Changes the states of some bytes.
    fn change(&mut self, start: usize, bytes: usize, change: impl Fn(&mut shadow::Cell)) {
        let mut access = start..start + bytes;
        while let Some(place) = self.shadow.next(&mut access) {
            let mut cell = self.shadow.cell(place);
            change(&mut cell);
            self.shadow.set_cell(place, cell);
        }
    }

    #[inline(always)]
    fn note_read(&mut self, who: Accessor, place: Place) {
        self.shadow.note_read(place, who.warp, |last| {
            let several = last.clock() == who.clock && last.lane() != who.lane;
            let lane = if several { ALL_LANES } else { who.lane };
            Stamp::new(who.clock, lane)
        });
    }

    /// Checks that `who` may write some cells, and says what they hold until then.
    fn claim(
        &mut self,
        who: Accessor,
        start: usize,
        bytes: usize,
        content: Content,
    ) -> Result<(), Box<Violation>> {
        let mut settled = None;
        let mut access = start..start + bytes;
        while let Some(place) = self.shadow.next(&mut access) {
            let cell = self.check_write(who, place, &mut settled)?;
            let claimed = shadow::Cell {
                line: who.line,
                content,
                ..cell
            };
            self.shadow.set_cell(place, claimed);
        }
        Ok(())
    }

    /// Checks that `who` may write some cells, and writes them.
    #[inline(always)]
    fn overwrite(
        &mut self,
        who: Accessor,
        start: usize,
        from: &[u8],
    ) -> Result<(), Box<Violation>> {
        let mut settled = None;
        let mut access = start..start + from.len();
        while let Some(place) = self.shadow.next(&mut access) {
            let cell = self.check_write(who, place, &mut settled)?;
            let written = cell.rewritten(who.slot(), who.clock, who.line, place.mask);
            self.shadow.set_cell(place, written);
        }
        copy(&mut self.bytes[start..start + from.len()], from);
        Ok(())
    }

    fn store(&mut self, writer: usize, clock: u32, line: u32, start: usize, from: &[u8]) {
        copy(&mut self.bytes[start..start + from.len()], from);
        let mut access = start..start + from.len();
        while let Some(place) = self.shadow.next(&mut access) {
            let cell = self.shadow.cell(place);
            let cell = cell.rewritten(writer, clock, line, place.mask);
            self.shadow.set_cell(place, cell);
        }
    }

    /// The offset of an access that is aligned and in bounds.
    #[inline(always)]
    fn locate(
        &self,
        lane: u32,
        address: u32,
        bytes: usize,
        alignment: u32,
    ) -> Result<usize, Box<Violation>> {
        let fail = |rule| Err(Violation::at(rule, lane % ALL_LANES, u64::from(address)));
        let offset = address.wrapping_sub(SHARED_BASE) as usize;
        if offset >= self.bytes.len() || bytes > self.bytes.len() - offset {
            let bytes = bytes as u32;
            return fail(Rule::SharedOutOfBounds { bytes });
        }
        if !address.is_multiple_of(alignment) {
            return fail(Rule::SharedMisaligned { bytes: alignment });
        }
        Ok(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warp_is_no_single_thread() {
        let mut shared = Shared::new(4, 1, 0);
        let mut knowledge = Knowledge::at_start(1);
        fn who(knowledge: &Knowledge) -> Accessor<'_> {
            Accessor {
                warp: 0,
                lane: ALL_LANES,
                clock: 1,
                knowledge,
                line: 1,
            }
        }
        let first = who(&knowledge);
        shared.write(first, SHARED_BASE, &[1; 4]).unwrap();
        let race = shared
            .read(first, SHARED_BASE, &mut [0; 4], &mut None)
            .unwrap_err();
        assert!(matches!(race.rule, Rule::SharedRace { .. }));
        assert_eq!(race.lane, None);
        knowledge.see(0, u32::MAX, 2);
        let later = who(&knowledge);
        shared
            .read(later, SHARED_BASE, &mut [0; 4], &mut None)
            .unwrap();
    }
}
