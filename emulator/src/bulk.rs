//! Bulk copies under way (`cp.async.bulk`), which the asynchronous proxy makes.
//!
//! A load, from global to shared memory, lands when no warp can go on without it: as late as the
//! rules allow. A store, from shared to global memory, reads its source and writes its destination
//! when its thread waits for that. A reduction adds to its destination at some moment until then, in an
//! order among the block's reductions that is drawn from the launch's seed.

use crate::clocks::Knowledge;
use crate::counters::Tally;
use crate::error::{Rule, Violation};
use crate::mbarrier::Mbarriers;
use crate::memory::Global;
use crate::random::Random;
use crate::shared::{Accessor, BULK_ALIGNMENT, Shared};
use crate::tensor_map::{CHUNK, TensorMap};

/// The global memory that a copy reads or writes.
pub(crate) enum Place {
    /// Adjacent bytes, from an address on.
    Bytes(u64),
    /// A box of a tensor, at coordinates.
    Box(Box<TensorMap>, [i32; 5]),
}

/// A copy to shared memory that has not landed.
pub(crate) struct Load {
    /// Number of the mbarrier that counts its bytes.
    pub mbarrier: usize,
    pub to: u32,
    pub from: Place,
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
    pub to: Place,
    pub bytes: u32,
    pub line: u32,
    /// Whether the source is added to the destination, as f32.
    pub adds: bool,
    /// Whether it was added already.
    pub added: bool,
    /// The source, once its thread has waited for its reading.
    pub read: Option<Vec<u8>>,
}

/// A rule that a copy broke after its instruction: warp and line of the instruction, and the rule.
pub(crate) type Late = (usize, u32, Box<Violation>);

/// The bulk copies of a block.
pub(crate) struct BulkCopies {
    pub loads: Vec<Load>,
    pub stores: Vec<Store>,
    /// Decides when reductions add.
    random: Random,
}

impl BulkCopies {
    pub fn new(random: Random) -> Self {
        BulkCopies {
            loads: Vec::new(),
            stores: Vec::new(),
            random,
        }
    }

    /// Lets some of the reductions that are under way add to their destinations.
    pub fn drift(&mut self, global: &Global, shared: &Shared) -> Result<(), Late> {
        while self.random.below(2) == 0 {
            let waiting = |store: &&mut Store| store.adds && !store.added;
            let count = self.stores.iter_mut().filter(waiting).count() as u64;
            if count == 0 {
                break;
            }
            let chosen = self.random.below(count) as usize;
            let mut stores = self.stores.iter_mut().filter(waiting);
            let store = stores.nth(chosen).expect("chosen among them");
            let source = match &store.read {
                Some(source) => source,
                // Nobody may change it until its thread has waited.
                None => shared.peek(store.from, store.bytes),
            };
            write(global, store, source).map_err(|v| (store.thread.0, store.line, v))?;
            store.added = true;
        }
        Ok(())
    }

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
        let mut due: Vec<_> = self.stores.extract_if(.., is_due).collect();
        self.random.shuffle(&mut due);
        due.iter().try_for_each(|store| finish(global, store))
    }

    /// Ends the block: no load may be under way, and no store may still read its source.
    pub fn finish(&mut self, global: &Global) -> Result<(), Late> {
        let unfinished = |(warp, lane), line, address: u32| {
            let rule = Rule::UnfinishedBulkCopy;
            Err((warp, line, Violation::at(rule, lane, address.into())))
        };
        if let Some(load) = self.loads.first() {
            return unfinished(load.thread, load.line, load.to);
        }
        self.random.shuffle(&mut self.stores);
        for store in &self.stores {
            if store.read.is_none() {
                return unfinished(store.thread, store.line, store.from);
            }
            let late = |violation| (store.thread.0, store.line, violation);
            finish(global, store).map_err(late)?;
        }
        Ok(())
    }
}

/// The bytes of a load, as they lie in shared memory.
pub(crate) fn fetch(global: &Global, load: &Load) -> Result<Vec<u8>, Box<Violation>> {
    let lane = load.thread.1;
    let mut bytes = vec![0; load.bytes as usize];
    match &load.from {
        Place::Bytes(address) => global.read(lane, *address, BULK_ALIGNMENT, &mut bytes)?,
        Place::Box(map, coordinates) => {
            for (start, part) in map.rows(*coordinates) {
                if let Some(part) = part {
                    let to = &mut bytes[(start + part.offset) as usize..][..part.bytes as usize];
                    global.read(lane, part.address, map.element_bytes, to)?;
                }
            }
            for (from, to) in map.swizzled_chunks(load.to) {
                // Two chunks that change places, once.
                if from < to {
                    let (head, tail) = bytes.split_at_mut(to);
                    head[from..from + CHUNK].swap_with_slice(&mut tail[..CHUNK]);
                }
            }
        }
    }
    Ok(bytes)
}

/// Checks that the destination of a store may be written and, where it is added to, read.
pub(crate) fn check_destination(global: &Global, store: &Store) -> Result<(), Box<Violation>> {
    let lane = store.thread.1;
    match &store.to {
        Place::Bytes(address) => {
            let mut bytes = vec![0; store.bytes as usize];
            global.check_writable(lane, *address, BULK_ALIGNMENT, bytes.len())?;
            if store.adds {
                global.read(lane, *address, BULK_ALIGNMENT, &mut bytes)?;
            }
        }
        Place::Box(map, coordinates) => {
            for part in map.rows(*coordinates).filter_map(|(_, part)| part) {
                let (element, bytes) = (map.element_bytes, part.bytes as usize);
                global.check_writable(lane, part.address, element, bytes)?;
            }
        }
    }
    Ok(())
}

/// Writes the destination of a store that has read its source, unless it was added already.
fn finish(global: &Global, store: &Store) -> Result<(), Box<Violation>> {
    match &store.read {
        Some(source) if !store.added => write(global, store, source),
        Some(_) => Ok(()),
        None => unreachable!("it was read first"),
    }
}

/// Writes the bytes of its source to the destination of a store, or adds them.
fn write(global: &Global, store: &Store, bytes: &[u8]) -> Result<(), Box<Violation>> {
    let lane = store.thread.1;
    match &store.to {
        Place::Bytes(address) if store.adds => global.add_f32(lane, *address, bytes),
        Place::Bytes(address) => global.write(lane, *address, BULK_ALIGNMENT, bytes),
        Place::Box(map, coordinates) => {
            let mut rows = bytes.to_vec();
            for (to, from) in map.swizzled_chunks(store.from) {
                rows[to..to + CHUNK].copy_from_slice(&bytes[from..from + CHUNK]);
            }
            for (start, part) in map.rows(*coordinates) {
                if let Some(part) = part {
                    let from = &rows[(start + part.offset) as usize..][..part.bytes as usize];
                    global.write(lane, part.address, map.element_bytes, from)?;
                }
            }
            Ok(())
        }
    }
}

impl Place {
    /// Counts what a copy of `bytes` bytes moves.
    pub fn count(&self, bytes: u32, writes: bool, tally: &mut Tally) {
        tally.count_bulk(bytes);
        match self {
            Place::Bytes(address) => tally.count_row(*address, bytes, writes),
            Place::Box(map, coordinates) => {
                for part in map.rows(*coordinates).filter_map(|(_, part)| part) {
                    tally.count_row(part.address, part.bytes, writes);
                }
            }
        }
    }
}
