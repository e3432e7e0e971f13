//! A block's shared memory, with a shadow that knows who touched each cell and when.
//!
//! An access must come after each earlier one that conflicts with it: by the same thread, or ordered
//! by [vector clocks](crate::clocks). Two accesses that are not ordered, one of them a write, are a
//! race, whatever the order in which the emulator happens to run them.
//!
//! The [shadow](crate::shadow)'s cells are 2 bytes: accesses of different threads to the two bytes of one cell count
//! as accesses to the same address.

use crate::bytes::copy;
use crate::clocks::{ALL_LANES, Knowledge, slot, thread};
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

    /// Checks that `who` may read a cell.
    #[inline(always)]
    fn check_read(
        &self,
        who: Accessor,
        place: Place,
        settled: &mut Settled,
    ) -> Result<(), Box<Violation>> {
        let cell = self.shadow.cell(place);
        if cell.content != Content::Data {
            return Err(self.misuse(who, place));
        }
        if cell.defined & place.mask != place.mask {
            return Err(self.violation(who, place, Rule::SharedUninitialised));
        }
        if *settled != Some(cell.origin()) {
            if !who.is_after(usize::from(cell.writer), cell.written) {
                return Err(self.race(who, place, Access::Read, None));
            }
            *settled = Some(cell.origin());
        }
        Ok(())
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

    /// Checks that `who` may write a cell; the cell, which nobody has read since: an access after the write comes after
    /// the reads before it.
    #[inline(always)]
    fn check_write(
        &self,
        who: Accessor,
        place: Place,
        settled: &mut Settled,
    ) -> Result<shadow::Cell, Box<Violation>> {
        let cell = self.shadow.cell(place);
        if cell.content != Content::Data {
            return Err(self.misuse(who, place));
        }
        if *settled != Some(cell.origin()) {
            if !who.is_after(usize::from(cell.writer), cell.written) {
                return Err(self.race(who, place, Access::Write, None));
            }
            *settled = Some(cell.origin());
        }
        if cell.is_read {
            for (warp, read) in self.shadow.reads(place).enumerate() {
                if !who.is_after(slot(warp, read.lane()), read.clock()) {
                    return Err(self.race(who, place, Access::Write, Some(warp)));
                }
            }
        }
        self.check_products(who, place)?;
        if !self.bulk_sources.is_empty() {
            self.check_bulk_sources(who, place)?;
        }
        Ok(shadow::Cell {
            is_read: false,
            ..cell
        })
    }

    /// Checks that no product may still read a cell.
    #[inline(always)]
    fn check_products(&self, who: Accessor, place: Place) -> Result<(), Box<Violation>> {
        for (warpgroup, product) in self.shadow.products(place).iter().enumerate() {
            if *product > 0 && !who.knowledge.has_seen_product(warpgroup, *product) {
                let line = self.products[warpgroup][*product as usize - 1];
                return Err(self.violation(who, place, Rule::ProductSource { line }));
            }
        }
        Ok(())
    }

    /// Checks that no bulk copy may still read a cell.
    fn check_bulk_sources(&self, who: Accessor, place: Place) -> Result<(), Box<Violation>> {
        let address = SHARED_BASE + place.start as u32;
        let mut sources = self.bulk_sources.iter();
        match sources.find(|source| address.wrapping_sub(source.address) < source.bytes) {
            Some(BulkSource { line, .. }) => {
                Err(self.violation(who, place, Rule::BulkCopySource { line: *line }))
            }
            None => Ok(()),
        }
    }

    /// Checks that a `fence.proxy.async` lies between what threads wrote and a bulk copy.
    fn check_fences(
        &mut self,
        who: Accessor,
        start: usize,
        bytes: u32,
    ) -> Result<(), Box<Violation>> {
        let mut settled = None;
        let mut access = start..start + bytes as usize;
        while let Some(place) = self.shadow.next(&mut access) {
            let cell = self.shadow.cell(place);
            if settled == Some(cell.origin()) {
                continue;
            }
            let (writer, written, line) = (usize::from(cell.writer), cell.written, cell.line);
            let is_ordered = cell.content == Content::Data && who.is_after(writer, written);
            if is_ordered && !who.knowledge.has_fenced(writer, written) {
                return Err(self.violation(who, place, Rule::MissingProxyFence { line }));
            }
            settled = Some(cell.origin());
        }
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

    fn violation(&self, who: Accessor, place: Place, rule: Rule) -> Box<Violation> {
        // A cell's address, also where one byte of it is meant.
        let address = u64::from(SHARED_BASE) + place.start as u64 / 2 * 2;
        let mut violation = Violation::at(rule, who.lane, address);
        violation.lane = violation.lane.filter(|lane| *lane != ALL_LANES);
        violation
    }

    /// An access to a cell that holds no data.
    #[cold]
    fn misuse(&self, who: Accessor, place: Place) -> Box<Violation> {
        let shadow::Cell { line, content, .. } = self.shadow.cell(place);
        let rule = match content {
            Content::Data | Content::Copying => Rule::PendingCopy { line },
            Content::BulkCopying => Rule::PendingBulkCopy { line },
            Content::Mbarrier => Rule::MbarrierAccessed { line },
        };
        self.violation(who, place, rule)
    }

    /// A race with the last write of a cell, or with its last read by a warp.
    #[cold]
    fn race(
        &self,
        who: Accessor,
        place: Place,
        access: Access,
        reader: Option<usize>,
    ) -> Box<Violation> {
        let cell = self.shadow.cell(place);
        let (earlier, slot, line) = match reader {
            Some(warp) => {
                let read = self.shadow.reads(place).nth(warp);
                let read = read.expect("a read by each warp");
                (Access::Read, slot(warp, read.lane()), None)
            }
            None => (Access::Write, usize::from(cell.writer), Some(cell.line)),
        };
        let (warp, lane) = thread(slot);
        if warp >= self.warps {
            // An mbarrier's slot: a bulk copy that landed in a phase that this thread did not see.
            let line = cell.line;
            return self.violation(who, place, Rule::PendingBulkCopy { line });
        }
        let thread = match lane {
            ALL_LANES => format!("warp {warp}"),
            lane => format!("warp {warp}, lane {lane}"),
        };
        let rule = Rule::SharedRace {
            access,
            earlier,
            thread,
            line,
        };
        self.violation(who, place, rule)
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
