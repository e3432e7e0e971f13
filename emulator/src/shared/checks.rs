//! The rules of accesses: what a thread may read, and what it may write.

use super::{Accessor, BulkSource, SHARED_BASE, Settled, Shared};
use crate::clocks::{ALL_LANES, slot, thread};
use crate::error::{Access, Rule, Violation};
use crate::shadow::{self, Content, Place};

impl Shared {
    /// Checks that `who` may read a cell.
    #[inline(always)]
    pub(super) fn check_read(
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

    /// Checks that `who` may write a cell; the cell, which nobody has read since: an access after the write comes after
    /// the reads before it.
    #[inline(always)]
    pub(super) fn check_write(
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
    pub(super) fn check_fences(
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

    pub(super) fn violation(&self, who: Accessor, place: Place, rule: Rule) -> Box<Violation> {
        // A cell's address, also where one byte of it is meant.
        let address = u64::from(SHARED_BASE) + place.start as u64 / 2 * 2;
        let mut violation = Violation::at(rule, who.lane, address);
        violation.lane = violation.lane.filter(|lane| *lane != ALL_LANES);
        violation
    }

    /// An access to a cell that holds no data.
    #[cold]
    pub(super) fn misuse(&self, who: Accessor, place: Place) -> Box<Violation> {
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
    pub(super) fn race(
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
