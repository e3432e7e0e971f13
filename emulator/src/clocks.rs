//! Vector clocks: which accesses to shared memory happen before which, whatever the order they ran in.
//!
//! A warp counts time: its clock advances where its lanes synchronise. Each access carries its
//! thread's *slot* and the clock. A thread knows, by slot, the clock before which all accesses
//! happened before it; barriers and mbarriers pass this knowledge on.

use crate::host;
use crate::registers::LANES;

/// Slots of a warp: one for each lane, and one for accesses that the whole warp makes together.
const SLOTS: usize = LANES + 1;

/// The lane of an access that a whole warp makes together.
pub(crate) const ALL_LANES: u32 = LANES as u32;

/// The slot of a lane, or of a whole warp for [`ALL_LANES`].
pub(crate) fn slot(warp: usize, lane: u32) -> usize {
    SLOTS * warp + lane as usize
}

/// Warp and lane of a thread's slot.
pub(crate) fn thread(slot: usize) -> (usize, u32) {
    (slot / SLOTS, (slot % SLOTS) as u32)
}

/// A thread's knowledge of the accesses before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// By slot of a thread: accesses at smaller clocks happened before.
    seen: Vec<u32>,
    /// By slot of a thread: writes at smaller clocks happened before a `fence.proxy.async` that
    /// happened before. Empty until there is such a fence.
    fenced: Vec<u32>,
    /// By number of an mbarrier: phases that are known to be complete.
    phases: Vec<u32>,
    /// By number of a warpgroup: its products that are known to be complete, as their largest number.
    products: Vec<u32>,
}

impl Knowledge {
    /// The knowledge of a block's threads at its start: nothing happened yet, and clocks start at 1.
    pub fn at_start(warps: usize) -> Self {
        Knowledge {
            seen: vec![1; SLOTS * warps],
            ..Knowledge::default()
        }
    }

    /// Whether an access happened before. Slots beyond the threads' are mbarriers', whose phases
    /// count as clocks.
    #[inline(always)]
    pub fn has_seen(&self, slot: usize, clock: u32) -> bool {
        match self.seen.get(slot) {
            Some(seen) => clock < *seen,
            None => self.has_seen_phase(slot - self.seen.len(), clock),
        }
    }

    fn has_seen_phase(&self, mbarrier: usize, phase: u32) -> bool {
        self.phases.get(mbarrier).is_some_and(|seen| phase < *seen)
    }

    /// Whether the asynchronous proxy sees a write: a `fence.proxy.async` lies between, or it made
    /// the write itself.
    pub fn has_fenced(&self, slot: usize, clock: u32) -> bool {
        let is_threads = slot < self.seen.len();
        let fenced = self.fenced.get(slot).is_some_and(|fenced| clock < *fenced);
        !is_threads || clock == 0 || fenced
    }

    /// The slot of an mbarrier.
    pub fn mbarrier_slot(&self, number: usize) -> usize {
        self.seen.len() + number
    }

    /// Takes over what another thread knew.
    pub fn join(&mut self, other: &Knowledge) {
        match host::is_wide() {
            // SAFETY: the host was asked.
            true => unsafe { host::call_wide(|| self.join_clocks(other)) },
            false => self.join_clocks(other),
        }
    }

    #[inline(always)]
    fn join_clocks(&mut self, other: &Knowledge) {
        join(&mut self.seen, &other.seen);
        join(&mut self.phases, &other.phases);
        join(&mut self.products, &other.products);
        lift_whole_warps(&mut self.seen);
        if !other.fenced.is_empty() {
            join(&mut self.fenced, &other.fenced);
            lift_whole_warps(&mut self.fenced);
        }
    }

    /// Takes note of a completed phase of an mbarrier.
    pub fn complete_phase(&mut self, mbarrier: usize, phases: u32) {
        raise(&mut self.phases, mbarrier, phases);
    }

    /// Whether a product of a warpgroup is known to be complete.
    pub fn has_seen_product(&self, warpgroup: usize, number: u32) -> bool {
        let complete = self.products.get(warpgroup);
        complete.is_some_and(|complete| number <= *complete)
    }

    /// Takes note that the products of a warpgroup are complete, up to this number.
    pub fn complete_products(&mut self, warpgroup: usize, number: u32) {
        raise(&mut self.products, warpgroup, number);
    }

    /// Takes note of the accesses at smaller clocks by some lanes of a warp.
    pub fn see(&mut self, warp: usize, lanes: u32, clock: u32) {
        set(&mut self.seen, warp, lanes, clock);
    }

    /// Takes note of a `fence.proxy.async` by some lanes of a warp, after their accesses at smaller
    /// clocks.
    pub fn fence(&mut self, warp: usize, lanes: u32, clock: u32) {
        let Knowledge { seen, fenced, .. } = self;
        join(fenced, seen);
        set(fenced, warp, lanes, clock);
    }
}

/// The larger of each pair of clocks; a missing one is 0.
#[inline(always)]
fn join(own: &mut Vec<u32>, other: &[u32]) {
    if own.len() < other.len() {
        own.resize(other.len(), 0);
    }
    for (own, other) in own.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}

/// Raises the clock of a place.
fn raise(clocks: &mut Vec<u32>, place: usize, clock: u32) {
    if clocks.len() <= place {
        clocks.resize(place + 1, 0);
    }
    clocks[place] = clocks[place].max(clock);
}

/// Sets the clock of some lanes of a warp, and of the warp as a whole if these are all.
fn set(clocks: &mut [u32], warp: usize, lanes: u32, clock: u32) {
    for lane in crate::registers::lanes(lanes) {
        clocks[slot(warp, lane as u32)] = clock;
    }
    if lanes == u32::MAX {
        clocks[slot(warp, ALL_LANES)] = clock;
    }
}

/// A whole warp is as far as its last lane.
#[inline(always)]
fn lift_whole_warps(clocks: &mut [u32]) {
    for warp in clocks.chunks_exact_mut(SLOTS) {
        let (whole, lanes) = warp.split_last_mut().expect("a warp has slots");
        let least = lanes.iter().copied().min().expect("a warp has lanes");
        *whole = (*whole).max(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_warp_is_seen_with_its_last_lane() {
        let mut knowledge = Knowledge::at_start(2);
        let mut other = Knowledge::at_start(2);
        other.see(1, u32::MAX >> 1, 5);
        knowledge.join(&other);
        assert!(knowledge.has_seen(slot(1, 30), 4));
        assert!(!knowledge.has_seen(slot(1, 31), 4));
        assert!(!knowledge.has_seen(slot(1, ALL_LANES), 4));
        other.see(1, 1 << 31, 5);
        knowledge.join(&other);
        assert!(knowledge.has_seen(slot(1, ALL_LANES), 4));
        assert!(!knowledge.has_seen(slot(1, ALL_LANES), 5));
    }

    #[test]
    fn a_fence_covers_what_was_seen_before_it() {
        let mut knowledge = Knowledge::at_start(2);
        knowledge.see(1, 1, 4);
        assert!(!knowledge.has_fenced(slot(1, 0), 3));
        knowledge.fence(0, 1, 9);
        assert!(knowledge.has_fenced(slot(1, 0), 3));
        assert!(knowledge.has_fenced(slot(0, 0), 8));
        assert!(!knowledge.has_fenced(slot(0, 0), 9));
        assert!(!knowledge.has_fenced(slot(0, 1), 8));
    }

    #[test]
    fn phases_are_known_by_mbarrier() {
        let mut knowledge = Knowledge::at_start(1);
        let slot = knowledge.mbarrier_slot(2);
        assert!(!knowledge.has_seen(slot, 0));
        knowledge.complete_phase(2, 1);
        assert!(knowledge.has_seen(slot, 0));
        assert!(!knowledge.has_seen(slot, 1));
        assert!(knowledge.has_fenced(slot, 1));
    }
}
