//! A block: its warps, interleaved in an order drawn from a seed, its barriers and shared memory.

use crate::barrier::{Arrival, Ballot};
use crate::bulk::{BulkCopies, Late};
use crate::clocks::Knowledge;
use crate::cluster::{Cluster, ClusterUse};
use crate::context::Context;
use crate::counters::Tally;
use crate::decode::Action;
use crate::error::{Fault, Rule, Violation};
use crate::kernel::{Instruction, Kernel};
use crate::mbarrier::Mbarriers;
use crate::pool::Pool;
use crate::products::Products;
use crate::random::Random;
use crate::setting::Setting;
use crate::shared::Shared;
use crate::warp::{State, WARPS, Warp};
use crate::warpgroup::Warpgroup;
use std::rc::Rc;

/// Named barriers of a block.
const BARRIERS: usize = 16;
/// The most instructions of a turn, after which another warp may run.
const MAX_TURN: u64 = 64;

/// A barrier and the warps that have arrived at it.
#[derive(Default)]
struct Barrier {
    /// Threads that complete it; 0 when idle.
    expected: u32,
    /// Warps that arrived, whether they wait, and how they voted.
    arrived: Vec<(usize, bool, Option<Ballot>)>,
    /// The knowledge of these warps.
    knowledge: Knowledge,
}

/// One block while it runs.
pub(crate) struct Block<'a> {
    kernel: &'a Kernel,
    launch: &'a Setting,
    /// Whether it has waited for the launches before, or need not.
    has_waited: bool,
    position: [u32; 3],
    warps: Vec<Warp>,
    shared: Shared,
    barriers: [Barrier; BARRIERS],
    mbarriers: Mbarriers,
    bulk: BulkCopies,
    pool: Option<Pool>,
    cluster: Rc<Cluster>,
    /// Of two phases of the cluster's barrier, even and odd ones: the last, and the knowledge of this block's warps that arrived in it.
    at_cluster: [(u32, Knowledge); 2],
    /// Chooses the warp that takes a turn.
    random: Random,
    stall: Stall,
}

/// How a block stands after some turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    GoesOn,
    /// All of its warps wait, some of them for other blocks.
    Sleeps,
    Ended,
}

impl<'a> Block<'a> {
    pub fn new(
        kernel: &'a Kernel,
        launch: &'a Setting,
        position: [u32; 3],
        cluster: Rc<Cluster>,
    ) -> Self {
        let threads = launch.threads();
        let warps = threads.div_ceil(32) as usize;
        let has_products = kernel.has_products;
        let new_warp = |index| {
            let lanes = (threads - 32 * index as u32).min(32);
            let registers = kernel.registers.clone();
            let mut warp = Warp::new(index, warps, u32::MAX >> (32 - lanes), registers);
            if has_products {
                warp.products = Products::new(&kernel.in_products);
            }
            warp
        };
        let warpgroups = if has_products { warps / WARPS } else { 0 };
        Block {
            kernel,
            launch,
            has_waited: launch.early.is_none(),
            position,
            warps: (0..warps).map(new_warp).collect(),
            shared: Shared::new(launch.shared_bytes, warps, warpgroups),
            barriers: Default::default(),
            mbarriers: Mbarriers::default(),
            bulk: BulkCopies::new(Random::new(!launch.options.seed, position)),
            pool: kernel
                .registers_at_launch
                .map(|registers| Pool::new(registers, warps)),
            cluster,
            at_cluster: Default::default(),
            random: Random::new(launch.options.seed, position),
            stall: Stall::default(),
        }
    }

    /// Runs a block that waits for no other to its end; `tallies` has an element for each instruction.
    pub fn run(mut self, tallies: &mut [Tally]) -> Result<(), Box<Fault>> {
        let progress = self.go_on(tallies, u64::MAX)?;
        assert_eq!(
            progress,
            Progress::Ended,
            "kernels that sleep are interleaved"
        );
        Ok(())
    }

    /// Runs the block until it ends, until all of its warps wait for other blocks, or for this many turns of warps.
    pub fn go_on(&mut self, tallies: &mut [Tally], turns: u64) -> Result<Progress, Box<Fault>> {
        self.end_sleep();
        self.wake();
        for _ in 0..turns {
            let is_running = |w: &&Warp| w.state == State::Running;
            let running = self.warps.iter().filter(is_running).count() as u64;
            if running == 0 {
                match self.resolve_stall()? {
                    Resolved::GoOn => continue,
                    Resolved::Sleep => return Ok(Progress::Sleeps),
                    Resolved::End => return self.finish().map(|()| Progress::Ended),
                }
            }
            let chosen = self.random.below(running) as usize;
            let warp = self.warps.iter().filter(is_running).nth(chosen);
            let warp = warp.expect("chosen among them").index;
            for _ in 0..=self.random.below(MAX_TURN) {
                self.step(warp, tallies)?;
                if self.warps[warp].state != State::Running {
                    break;
                }
            }
            self.wake();
        }
        Ok(Progress::GoesOn)
    }

    /// Instructions that its warps have executed.
    pub fn executed(&self) -> u64 {
        self.warps.iter().map(|warp| warp.executed).sum()
    }

    pub fn warp_count(&self) -> u64 {
        self.warps.len() as u64
    }

    /// Lets warps go on whose phase is complete by now, or for which there are enough registers.
    fn wake(&mut self) {
        let phase = self.cluster.phase();
        for warp in &mut self.warps {
            let may_go_on = match warp.state {
                State::Polling { mbarrier, phase } => self.mbarriers.phase(mbarrier) != phase,
                State::AwaitingRegisters(count) => {
                    let pool = self.pool.as_mut();
                    pool.is_some_and(|pool| pool.resize(warp.index, count))
                }
                State::AtCluster(awaited) if awaited != phase => {
                    warp.learn(warp.threads, &self.at_cluster[awaited as usize % 2].1);
                    true
                }
                _ => false,
            };
            if may_go_on {
                warp.state = State::Running;
            }
        }
    }

    /// Resolves a state in which no warp can go on by itself. A copy lands that a warp waits for; if
    /// there is none, waits at mbarriers end, as they do on a GPU after some time.
    fn resolve_stall(&mut self) -> Result<Resolved, Box<Fault>> {
        let is_awaited = |number: usize| {
            let mut states = self.warps.iter().map(|warp| warp.state);
            states.any(|s| matches!(s, State::Polling { mbarrier, .. } if mbarrier == number))
        };
        let loads = self.bulk.loads.iter().enumerate();
        let awaited: Vec<usize> = loads
            .filter(|(_, load)| is_awaited(load.mbarrier))
            .map(|(index, _)| index)
            .collect();
        if !awaited.is_empty() {
            let load = awaited[self.random.below(awaited.len() as u64) as usize];
            let Block {
                bulk,
                mbarriers,
                shared,
                ..
            } = self;
            let common = self.warps[0].common();
            bulk.land(load, &self.launch.global, mbarriers, shared, common)
                .map_err(|late| self.late_fault(late))?;
            self.wake();
            return Ok(Resolved::GoOn);
        }
        let waits = |warp: &Warp| matches!(warp.state, State::Sleeping | State::AtCluster(_));
        if self.warps.iter().any(waits) {
            return Ok(Resolved::Sleep);
        }
        let polling = |warp: &Warp| matches!(warp.state, State::Polling { .. });
        let waiting = self.warps.iter().filter(|warp| polling(warp)).count();
        if waiting == 0 {
            return self.check_exits().map(|()| Resolved::End);
        }
        if !self.stall.has_hope(self.mbarriers.changes, waiting) {
            return Err(self.deadlock());
        }
        for warp in self.warps.iter_mut().filter(|warp| polling(warp)) {
            warp.state = State::Running;
        }
        Ok(Resolved::GoOn)
    }

    /// Wakes the warps that sleep: other blocks may have changed what they wait for.
    fn end_sleep(&mut self) {
        let sleeps = |warp: &&mut Warp| warp.state == State::Sleeping;
        for warp in self.warps.iter_mut().filter(sleeps) {
            warp.state = State::Running;
        }
    }

    /// Executes a warp's next instruction.
    fn step(&mut self, index: usize, tallies: &mut [Tally]) -> Result<(), Box<Fault>> {
        let warp = &mut self.warps[index];
        let (pc, lanes) = warp.position();
        warp.last = pc;
        let Some(instruction) = self.kernel.instructions.get(pc) else {
            let last = pc.saturating_sub(1);
            return Err(self.fault(index, last, *Violation::of_warp(Rule::NoReturn)));
        };
        self.execute(index, instruction, lanes, &mut tallies[pc])
            .map_err(|violation| self.fault(index, pc, *violation))
    }

    fn execute(
        &mut self,
        index: usize,
        instruction: &Instruction,
        lanes: u32,
        tally: &mut Tally,
    ) -> Result<(), Box<Violation>> {
        let warp = &mut self.warps[index];
        let budget = self.launch.options.instruction_budget;
        if warp.executed == budget {
            return Err(Violation::of_warp(Rule::Budget { budget }));
        }
        warp.executed += 1;
        let mut active = lanes;
        if let Some((predicate, negated)) = instruction.guard {
            let value = warp.registers.read_predicate(predicate, lanes)?;
            active &= if negated { !value } else { value };
        }
        tally.executed += 1;
        tally.lanes += u64::from(active.count_ones());
        if active != 0 {
            let (now, line, registers) = (warp.executed, instruction.line, &warp.registers);
            warp.products
                .access(&instruction.words, now, line, registers)?;
        }
        let mut context = Context {
            active,
            line: instruction.line,
            warp,
            shared: &mut self.shared,
            mbarriers: &mut self.mbarriers,
            bulk: &mut self.bulk,
            launch: match &self.launch.early {
                Some(early) if !self.has_waited => early,
                _ => self.launch,
            },
            has_waited: &mut self.has_waited,
            block: self.position,
            tally,
        };
        match &instruction.action {
            Action::Branch { target, uniform } => {
                if *uniform && active != 0 && active != lanes {
                    return Err(Violation::of_warp(Rule::DivergentUniformBranch));
                }
                context.warp.branch(active, *target, instruction.meeting);
            }
            _ if active == 0 => context.warp.advance(),
            Action::Lanes(operation) => {
                operation.execute(&mut context)?;
                context.warp.advance();
            }
            Action::Exit => {
                context.warp.exit(active);
                if let Some(line) = context.warp.products.unfinished() {
                    return Err(Violation::of_warp(Rule::UnfinishedProduct { line }));
                }
                if context.warp.state == State::Exited {
                    self.cluster.exit(context.warp)?;
                }
            }
            Action::Trap => return Err(Violation::of_lanes(Rule::Trap, active)),
            Action::Barrier(barrier) => {
                let arrival = barrier.arrive(&context)?;
                context.warp.advance();
                self.arrive(index, &arrival)?;
            }
            Action::Cluster(side) => {
                context.require(context.warp.threads)?;
                context.warp.advance();
                self.meet_cluster(index, *side)?;
            }
            Action::Warpgroup(operation) => {
                context.require(u32::MAX)?;
                context.warp.state = State::AtWarpgroup;
                let number = index / WARPS;
                let Some(warps) = self.warps.chunks_exact_mut(WARPS).nth(number) else {
                    return Err(Violation::of_warp(Rule::IncompleteWarpgroup));
                };
                let place = warps[index % WARPS].last;
                let is_there = |warp: &Warp| warp.state == State::AtWarpgroup && warp.last == place;
                if warps.iter().all(is_there) {
                    for warp in &mut *warps {
                        warp.state = State::Running;
                        warp.advance();
                    }
                    operation.execute(&mut Warpgroup {
                        number,
                        warps,
                        shared: &mut self.shared,
                        pool: self.pool.as_mut(),
                        line: instruction.line,
                        tally,
                        counters: self.launch.options.counters,
                        truncates_sums: self.launch.options.truncated_fp8_sums,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Records a warp's arrival at a barrier; the last warp lets all go on.
    fn arrive(&mut self, index: usize, arrival: &Arrival) -> Result<(), Box<Violation>> {
        let number = arrival.barrier as usize;
        let misused = |what| Err(Violation::of_warp(Rule::BarrierMisused { what }));
        let Some(barrier) = self.barriers.get_mut(number) else {
            return misused("a barrier number is 0 to 15");
        };
        let in_block = self.launch.threads().next_multiple_of(32);
        let expected = arrival.threads.unwrap_or(in_block);
        if expected == 0 || !expected.is_multiple_of(32) || expected > in_block {
            return misused("a barrier's thread count is a multiple of 32, at most the block's");
        }
        if !barrier.arrived.is_empty() && barrier.expected != expected {
            return misused("warps give the barrier different thread counts");
        }
        if barrier.arrived.iter().any(|(warp, ..)| *warp == index) {
            return misused("a warp arrives twice at a barrier that waits for others");
        }
        let kind = |ballot: Option<Ballot>| ballot.map(|ballot| ballot.vote);
        let is_other = |ballot| kind(ballot) != kind(arrival.ballot);
        if barrier.arrived.iter().any(|(.., ballot)| is_other(*ballot)) {
            return misused("bar.red meets bar.sync or another vote at a barrier");
        }
        let warp = &mut self.warps[index];
        warp.synchronise(warp.threads);
        barrier.knowledge.join(warp.common());
        barrier.expected = expected;
        barrier.arrived.push((index, arrival.waits, arrival.ballot));
        if arrival.waits {
            warp.state = State::AtBarrier(number);
        }
        if barrier.arrived.len() as u32 * 32 == expected {
            let ballots = barrier.arrived.iter().filter_map(|(.., ballot)| *ballot);
            let result = ballots
                .map(|ballot| (ballot.vote, ballot.says))
                .reduce(|(vote, a), (_, b)| (vote, vote.of(a, b)));
            for (waiting, _, ballot) in barrier.arrived.iter().filter(|(_, waits, _)| *waits) {
                let warp = &mut self.warps[*waiting];
                warp.state = State::Running;
                warp.learn(warp.threads, &barrier.knowledge);
                if let (Some(ballot), Some((_, result))) = (ballot, result) {
                    let lanes = if result { u32::MAX } else { 0 };
                    warp.registers
                        .write_predicate(ballot.to, warp.threads, lanes);
                }
            }
            *barrier = Barrier::default();
        }
        Ok(())
    }

    /// Records what a warp does at the barrier of its cluster.
    fn meet_cluster(&mut self, index: usize, side: ClusterUse) -> Result<(), Box<Violation>> {
        let warp = &mut self.warps[index];
        match side {
            ClusterUse::Arrive => {
                let phase = self.cluster.arrive(warp)?;
                warp.synchronise(warp.threads);
                let known = &mut self.at_cluster[phase as usize % 2];
                if known.0 != phase {
                    *known = (phase, Knowledge::default());
                }
                known.1.join(warp.common());
            }
            ClusterUse::Wait => warp.state = State::AtCluster(self.cluster.wait(warp)?),
        }
        Ok(())
    }

    /// The block ends if every warp has exited; otherwise the others wait for something that never
    /// comes.
    fn check_exits(&mut self) -> Result<(), Box<Fault>> {
        let mut waiting = self.warps.iter().filter(|warp| warp.state != State::Exited);
        let Some(first) = waiting.next() else {
            return Ok(());
        };
        let State::AtBarrier(barrier) = first.state else {
            return Err(self.deadlock());
        };
        if waiting.any(|warp| !matches!(warp.state, State::AtBarrier(_))) {
            return Err(self.deadlock());
        }
        let arrived = &self.barriers[barrier].arrived;
        let absent = (0..self.warps.len()).filter(|w| arrived.iter().all(|(a, ..)| a != w));
        let rule = Rule::BarrierNotReached {
            barrier: barrier as u32,
            missing: self.describe(absent),
        };
        Err(self.fault(first.index, first.last, *Violation::of_warp(rule)))
    }

    /// The fault of warps that wait for what never comes.
    pub fn deadlock(&self) -> Box<Fault> {
        let waiting = self.describe(0..self.warps.len());
        let mut warps = self.warps.iter();
        let warp = warps.find(|warp| warp.state != State::Exited);
        let warp = warp.expect("a warp waits");
        let violation = Violation::of_warp(Rule::Deadlock { waiting });
        self.fault(warp.index, warp.last, *violation)
    }

    /// Where some warps are, in words.
    fn describe(&self, warps: impl Iterator<Item = usize>) -> String {
        let places = warps.map(|index| {
            let warp = &self.warps[index];
            let waits = match warp.state {
                State::Running | State::Exited => return format!("warp {index} has exited"),
                State::AtBarrier(number) => {
                    let barrier = &self.barriers[number];
                    let (arrived, expected) = (32 * barrier.arrived.len(), barrier.expected);
                    format!("at barrier {number}, which has {arrived} of {expected} threads")
                }
                State::Polling { mbarrier, .. } => {
                    format!("for {}", self.mbarriers.describe(mbarrier))
                }
                State::AwaitingRegisters(count) => {
                    let pool = self.pool.as_ref();
                    let free = pool.map_or(0, |pool| pool.free);
                    let owned = pool.map_or(0, |pool| pool.owned[index]);
                    format!("for {count} registers, and has {owned}; {free} are free for one warp")
                }
                State::Sleeping => "for the end of its sleep".to_owned(),
                State::AtWarpgroup => "for the other warps of its warpgroup".to_owned(),
                State::AtCluster(_) => "for the other blocks of its cluster".to_owned(),
            };
            let kernel = self.kernel;
            let instruction = &kernel.instructions[warp.last];
            let line = match kernel.files.source(instruction.location) {
                Some(source) => source.to_string(),
                None => format!("line {}", instruction.line),
            };
            format!("warp {index} waits {waits} ({line})")
        });
        places.collect::<Vec<_>>().join(", ")
    }

    /// Ends the block, once every warp has exited.
    fn finish(&mut self) -> Result<(), Box<Fault>> {
        if !self.has_waited {
            let violation = Violation::of_warp(Rule::NeverWaited);
            return Err(self.fault(0, self.warps[0].last, *violation));
        }
        let finished = self.bulk.finish(&self.launch.global);
        finished.map_err(|late| self.late_fault(late))
    }

    fn late_fault(&self, (warp, line, violation): Late) -> Box<Fault> {
        let mut instructions = self.kernel.instructions.iter();
        let pc = instructions.position(|instruction| instruction.line == line);
        self.fault(warp, pc.expect("the copy's instruction"), *violation)
    }

    fn fault(&self, warp: usize, pc: usize, violation: Violation) -> Box<Fault> {
        let warp = violation.warp.unwrap_or(warp);
        let kernel = self.kernel;
        let instruction = kernel.instructions.get(pc);
        let line = instruction.map_or(0, |i| i.line);
        Box::new(Fault {
            rule: violation.rule,
            file: kernel.file.clone(),
            entry: kernel.name.clone(),
            line,
            instruction: kernel.source_line(line).to_owned(),
            source: instruction.and_then(|i| kernel.files.source(i.location)),
            block: self.position,
            warp: warp as u32,
            lane: violation.lane,
            address: violation.address,
        })
    }
}

/// The consequence of a stall.
enum Resolved {
    GoOn,
    /// Warps wait for other blocks.
    Sleep,
    End,
}

/// Stalls in a row that nothing but the end of waits resolved.
#[derive(Default)]
struct Stall {
    /// Changes of mbarriers, and warps that wait at them, at the last stall.
    last: (u64, usize),
    in_vain: u32,
}

impl Stall {
    /// More such stalls are a deadlock. Fewer may be loops that do other work after some failed polls.
    const MOST_IN_VAIN: u32 = 100;

    /// Records a stall; whether to go on.
    fn has_hope(&mut self, changes: u64, waiting: usize) -> bool {
        if self.last == (changes, waiting) {
            self.in_vain += 1;
        } else {
            *self = Stall {
                last: (changes, waiting),
                in_vain: 0,
            };
        }
        self.in_vain < Self::MOST_IN_VAIN
    }
}
