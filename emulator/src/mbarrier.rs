//! Mbarriers: barriers in shared memory that count arrivals and the bytes of bulk copies.
//!
//! An mbarrier is in a phase, from 0. The phase is complete when no arrival is pending and the
//! transaction count is zero; the next phase begins at once, with all arrivals pending. A copy
//! lowers the transaction count by its bytes when it lands, which may be before a thread raises it:
//! the count may be negative for a time. (PTX manual, "mbarrier".)

use crate::clocks::Knowledge;
use crate::error::{Rule, Violation};
use crate::shared::{Accessor, Shared};

/// The most arrivals, and the largest size of a transaction count.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// One mbarrier.
struct Mbarrier {
    address: u32,
    is_valid: bool,
    /// Arrivals that complete a phase.
    expected: u32,
    /// Arrivals that the phase still lacks.
    pending: u32,
    /// Bytes that the phase still lacks: the transaction count.
    bytes: i64,
    /// The current phase, counted over all mbarriers that lay at this address.
    phase: u32,
    /// The phase that counts as phase 0 since `mbarrier.init`.
    first: u32,
    /// Whether a wait saw that the phase before is complete.
    is_observed: bool,
    /// The knowledge of the threads that arrived in this phase.
    arriving: Knowledge,
    /// The knowledge that a wait gives: that of the threads as they arrived in complete phases.
    completed: Knowledge,
    /// Slot and clock of its `mbarrier.init`.
    initialised: (usize, u32),
    /// Slot and clock of the `fence.mbarrier_init` after it.
    announced: Option<(usize, u32)>,
}

/// Which phase a wait is for.
#[derive(Clone, Copy)]
pub(crate) enum Awaited {
    /// The current phase or the one before, whichever has this parity.
    Parity(u32),
    /// The phase of an arrival, by what `mbarrier.arrive` gave.
    Token(u64),
}

/// The mbarriers of a block.
#[derive(Default)]
pub(crate) struct Mbarriers {
    all: Vec<Mbarrier>,
    /// Goes up with every change that may let a warp go on.
    pub changes: u64,
}

impl Mbarriers {
    /// `mbarrier.init`
    pub fn initialise(
        &mut self,
        shared: &mut Shared,
        who: Accessor,
        address: u32,
        expected: u32,
    ) -> Result<(), Box<Violation>> {
        let mut all = self.all.iter_mut();
        let before = all.find(|mbarrier| mbarrier.address == address);
        if before.as_ref().is_some_and(|mbarrier| mbarrier.is_valid) {
            let what = "mbarrier.init of an mbarrier that mbarrier.inval did not end";
            return Err(misused(who, address, what));
        }
        if !(1..=MAX_COUNT).contains(&expected) {
            let what = "an mbarrier expects 1 to 2^20 - 1 arrivals";
            return Err(misused(who, address, what));
        }
        shared.place_mbarrier(who, address)?;
        let phase = before.as_ref().map_or(0, |mbarrier| mbarrier.phase + 1);
        let mbarrier = Mbarrier {
            address,
            is_valid: true,
            expected,
            pending: expected,
            bytes: 0,
            phase,
            first: phase,
            is_observed: true,
            arriving: Knowledge::default(),
            completed: Knowledge::default(),
            initialised: (who.slot(), who.clock),
            announced: None,
        };
        match before {
            Some(before) => *before = mbarrier,
            None => self.all.push(mbarrier),
        }
        Ok(())
    }

    /// `mbarrier.inval`; `in_use` says whether a copy under way or a waiting warp needs the mbarrier
    /// of a number.
    pub fn invalidate(
        &mut self,
        shared: &mut Shared,
        who: Accessor,
        address: u32,
        in_use: impl Fn(usize) -> bool,
    ) -> Result<(), Box<Violation>> {
        let number = self.find(shared, who, address)?;
        if in_use(number) {
            let what = "mbarrier.inval of an mbarrier that a bulk copy under way names";
            return Err(misused(who, address, what));
        }
        shared.remove_mbarrier(who, address)?;
        self.all[number].is_valid = false;
        Ok(())
    }

    /// `fence.mbarrier_init` by a lane: bulk copies may name the mbarriers that it initialised.
    pub fn announce(&mut self, who: Accessor) {
        for mbarrier in &mut self.all {
            if mbarrier.initialised.0 == who.slot() {
                mbarrier.announced = Some((who.slot(), who.clock));
            }
        }
    }

    /// The number of the mbarrier at an address.
    pub fn find(
        &self,
        shared: &mut Shared,
        who: Accessor,
        address: u32,
    ) -> Result<usize, Box<Violation>> {
        shared.use_mbarrier(who, address)?;
        let mut all = self.all.iter();
        let number = all.position(|mbarrier| mbarrier.is_valid && mbarrier.address == address);
        number.ok_or_else(|| violation(who, address, Rule::MbarrierNotInitialised))
    }

    /// The number of the mbarrier that a bulk copy names: the asynchronous proxy must see its
    /// `mbarrier.init`.
    pub fn find_fenced(
        &self,
        shared: &mut Shared,
        who: Accessor,
        address: u32,
    ) -> Result<usize, Box<Violation>> {
        let number = self.find(shared, who, address)?;
        let announced = self.all[number].announced;
        let is_announced = announced.is_some_and(|(slot, clock)| who.is_after(slot, clock));
        if is_announced || shared.has_fenced_mbarrier(who, address) {
            return Ok(number);
        }
        Err(violation(who, address, Rule::MbarrierNotFenced))
    }

    /// Raises the transaction count: `mbarrier.expect_tx`.
    pub fn expect(
        &mut self,
        who: Accessor,
        number: usize,
        bytes: u32,
    ) -> Result<(), Box<Violation>> {
        let mbarrier = &mut self.all[number];
        mbarrier.bytes += i64::from(bytes);
        let address = mbarrier.address;
        self.check_bytes(number)
            .map_err(|rule| violation(who, address, rule))
    }

    /// Counts arrivals of a thread, whose knowledge is released if there is any; gives the token of
    /// the phase.
    pub fn arrive(
        &mut self,
        who: Accessor,
        number: usize,
        count: u32,
        released: Option<&Knowledge>,
    ) -> Result<u64, Box<Violation>> {
        let mbarrier = &mut self.all[number];
        let address = mbarrier.address;
        if !mbarrier.is_observed {
            let phase = mbarrier.phase - mbarrier.first - 1;
            return Err(violation(who, address, Rule::MbarrierUnobserved { phase }));
        }
        if count == 0 || count > mbarrier.pending {
            let (expected, pending) = (mbarrier.expected, mbarrier.pending);
            let rule = Rule::MbarrierArrivals {
                count,
                pending,
                expected,
            };
            return Err(violation(who, address, rule));
        }
        if let Some(released) = released {
            mbarrier.arriving.join(released);
        }
        let token = u64::from(mbarrier.phase);
        mbarrier.pending -= count;
        self.changes += 1;
        self.complete(number);
        Ok(token)
    }

    /// Lands the bytes of a copy: lowers the transaction count. Gives slot and phase of the write.
    pub fn land(
        &mut self,
        number: usize,
        bytes: u32,
        of_block: &Knowledge,
    ) -> Result<(usize, u32), Rule> {
        let mbarrier = &mut self.all[number];
        let phase = mbarrier.phase;
        mbarrier.bytes -= i64::from(bytes);
        self.check_bytes(number)?;
        self.changes += 1;
        self.complete(number);
        Ok((of_block.mbarrier_slot(number), phase))
    }

    fn check_bytes(&self, number: usize) -> Result<(), Rule> {
        let bytes = self.all[number].bytes;
        match bytes.unsigned_abs() <= u64::from(MAX_COUNT) {
            true => Ok(()),
            false => Err(Rule::MbarrierBytes { bytes }),
        }
    }

    /// Begins the next phase if the current one lacks nothing.
    fn complete(&mut self, number: usize) {
        let mbarrier = &mut self.all[number];
        if mbarrier.pending > 0 || mbarrier.bytes != 0 {
            return;
        }
        let arrived = std::mem::take(&mut mbarrier.arriving);
        mbarrier.completed.join(&arrived);
        mbarrier.phase += 1;
        mbarrier.completed.complete_phase(number, mbarrier.phase);
        mbarrier.pending = mbarrier.expected;
        mbarrier.is_observed = false;
    }

    /// Whether the phase that a thread waits for is complete.
    pub fn test(
        &mut self,
        who: Accessor,
        number: usize,
        awaited: Awaited,
    ) -> Result<bool, Box<Violation>> {
        let mbarrier = &mut self.all[number];
        let is_complete = match awaited {
            Awaited::Parity(parity) => parity % 2 != (mbarrier.phase - mbarrier.first) % 2,
            Awaited::Token(token) if token == u64::from(mbarrier.phase) => false,
            Awaited::Token(token) if token + 1 == u64::from(mbarrier.phase) => true,
            Awaited::Token(_) => {
                let what = "a wait is for the current phase of an mbarrier or the one before";
                return Err(misused(who, mbarrier.address, what));
            }
        };
        mbarrier.is_observed |= is_complete;
        Ok(is_complete)
    }

    /// The knowledge that a thread gains whose wait gave true.
    pub fn completed(&self, number: usize) -> &Knowledge {
        &self.all[number].completed
    }

    /// The current phase, to be compared with later ones.
    pub fn phase(&self, number: usize) -> u32 {
        self.all[number].phase
    }

    /// The arrivals and bytes that the current phase of an mbarrier lacks, in words.
    pub fn describe(&self, number: usize) -> String {
        let mbarrier = &self.all[number];
        let Mbarrier {
            address,
            pending,
            expected,
            bytes,
            ..
        } = mbarrier;
        let phase = mbarrier.phase - mbarrier.first;
        format!(
            "phase {phase} of the mbarrier at {address:#x}, which lacks {pending} of {expected} \
             arrivals and {bytes} bytes"
        )
    }
}

fn violation(who: Accessor, address: u32, rule: Rule) -> Box<Violation> {
    Violation::at(rule, who.lane, u64::from(address))
}

fn misused(who: Accessor, address: u32, what: &'static str) -> Box<Violation> {
    violation(who, address, Rule::MbarrierMisused { what })
}
