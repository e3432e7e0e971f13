//! Bulk copies under way (`cp.async.bulk`), which the asynchronous proxy makes.
//!
//! A load, from global to shared memory, lands when no warp can go on without it: as late as the
//! rules allow. A store, from shared to global memory, reads its source and writes its destination
//! when its thread waits for that.

use crate::clocks::Knowledge;
use crate::error::{Rule, Violation};
use crate::mbarrier::Mbarriers;
use crate::memory::Global;
use crate::shared::{Accessor, BULK_ALIGNMENT, Shared};

/// A copy to shared memory that has not landed.
pub(crate) struct Load {
    /// Number of the mbarrier that counts its bytes.
    pub mbarrier: usize,
    pub to: u32,
    pub from: u64,
    pub bytes: u32,
    /// The thread that started it, as warp and lane.
    pub thread: (usize, u32),
    pub line: u32,
}

/// A copy to global memory that has not landed.
pub(crate) struct Store {
    /// The thread that waits for it, as warp and lane.
    pub thread: (usize, u32),
    /// The group of its thread, counted from 0.
    pub group: u32,
    pub from: u32,
    pub to: u64,
    pub bytes: u32,
    pub line: u32,
    /// The source, once read.
    pub read: Option<Vec<u8>>,
}

/// A rule that a copy broke after its instruction: warp and line of the instruction, and the rule.
pub(crate) type Late = (usize, u32, Box<Violation>);

/// The bulk copies of a block.
#[derive(Default)]
pub(crate) struct BulkCopies {
    pub loads: Vec<Load>,
    pub stores: Vec<Store>,
}

impl BulkCopies {
    /// Lands a load.
    pub fn land(
        &mut self,
        index: usize,
        global: &Global,
        mbarriers: &mut Mbarriers,
        shared: &mut Shared,
        of_block: &Knowledge,
    ) -> Result<(), Late> {
        let load = self.loads.swap_remove(index);
        let (warp, lane) = load.thread;
        let bytes = fetch(global, &load).map_err(|violation| (warp, load.line, violation))?;
        let (slot, phase) = mbarriers
            .land(load.mbarrier, load.bytes, of_block)
            .map_err(|rule| (warp, load.line, Violation::at(rule, lane, load.to.into())))?;
        shared.land_bulk_load(slot, phase, load.line, load.to, &bytes);
        Ok(())
    }

    /// Makes the stores of a thread read their sources, and unless `reads_only` write their
    /// destinations, for groups before `group`.
    pub fn wait(
        &mut self,
        who: Accessor,
        group: u32,
        reads_only: bool,
        global: &Global,
        shared: &mut Shared,
    ) -> Result<(), Box<Violation>> {
        let thread = (who.warp, who.lane);
        let is_due = |store: &mut Store| store.thread == thread && store.group < group;
        for store in self.stores.iter_mut() {
            if is_due(store) && store.read.is_none() {
                let line = store.line;
                let who = Accessor { line, ..who };
                store.read = Some(shared.end_bulk_store(who, store.from, store.bytes));
            }
        }
        if reads_only {
            return Ok(());
        }
        let due: Vec<_> = self.stores.extract_if(.., is_due).collect();
        due.iter().try_for_each(|store| write(global, store))
    }

    /// Ends the block: no load may be under way, and no store may still read its source.
    pub fn finish(&self, global: &Global) -> Result<(), Late> {
        let unfinished = |(warp, lane), line, address: u32| {
            let rule = Rule::UnfinishedBulkCopy;
            Err((warp, line, Violation::at(rule, lane, address.into())))
        };
        if let Some(load) = self.loads.first() {
            return unfinished(load.thread, load.line, load.to);
        }
        for store in &self.stores {
            if store.read.is_none() {
                return unfinished(store.thread, store.line, store.from);
            }
            let late = |violation| (store.thread.0, store.line, violation);
            write(global, store).map_err(late)?;
        }
        Ok(())
    }
}

/// The bytes of a load.
pub(crate) fn fetch(global: &Global, load: &Load) -> Result<Vec<u8>, Box<Violation>> {
    let mut bytes = vec![0; load.bytes as usize];
    global.read(load.thread.1, load.from, BULK_ALIGNMENT, &mut bytes)?;
    Ok(bytes)
}

/// Writes the destination of a store that has read its source.
fn write(global: &Global, store: &Store) -> Result<(), Box<Violation>> {
    let bytes = store.read.as_ref().expect("it was read first");
    global.write(store.thread.1, store.to, BULK_ALIGNMENT, bytes)
}
