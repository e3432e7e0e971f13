//! A block: its warps, interleaved in an order drawn from a seed, its barriers and shared memory.

use crate::counters::Tally;
use crate::decode::Action;
use crate::error::{Fault, Rule, Violation};
use crate::instructions::{Arrival, Ballot};
use crate::launch::Launch;
use crate::module::Instruction;
use crate::registers::{LANES, Reg, Row, Value};
use crate::shared::{Accessor, Shared};
use crate::warp::{State, Warp};

/// Named barriers of a block.
const BARRIERS: usize = 16;
/// The longest a warp runs before another may.
const MAX_TURN: u64 = 64;

/// What an instruction works on: the active lanes of a warp and all they can reach.
pub(crate) struct Context<'a> {
    /// The lanes that execute it.
    pub active: u32,
    /// Its line.
    pub line: u32,
    pub warp: &'a mut Warp,
    pub shared: &'a mut Shared,
    pub launch: &'a Launch<'a>,
    /// The block's position in the grid.
    pub block: [u32; 3],
    pub tally: &'a mut Tally,
}

impl Context<'_> {
    #[inline(always)]
    pub fn read<T: Value>(&self, reg: Reg<T>) -> Result<Row<T>, Box<Violation>> {
        self.warp.registers.read(reg, self.active)
    }

    #[inline(always)]
    pub fn write<T: Value>(&mut self, reg: Reg<T>, value: Row<T>) {
        self.warp.registers.write(reg, self.active, value);
    }

    /// Reads an operand that must be the same in all active lanes.
    pub fn read_uniform<T: Value + PartialEq>(
        &self,
        reg: Reg<T>,
        what: &'static str,
    ) -> Result<T, Box<Violation>> {
        let row = self.read(reg)?;
        let first = row[self.active.trailing_zeros() as usize];
        let differs = |lane: &usize| self.active >> lane & 1 != 0 && row[*lane] != first;
        match (0..LANES).find(differs) {
            None => Ok(first),
            Some(lane) => Err(Violation::of_lanes(Rule::NotUniform { what }, 1 << lane)),
        }
    }

    /// Fails unless all lanes of `needed` execute the instruction together.
    pub fn require(&self, needed: u32) -> Result<(), Box<Violation>> {
        let reached = self.active;
        if needed & !reached == 0 {
            return Ok(());
        }
        Err(Violation::of_lanes(
            Rule::MissingLanes { needed, reached },
            needed & !reached,
        ))
    }

    /// The shared memory, and the identity under which a lane accesses it.
    pub fn shared_as(&mut self, lane: u32) -> (&mut Shared, Accessor<'_>) {
        let who = Accessor {
            warp: self.warp.index,
            lane,
            clocks: &self.warp.clocks,
            line: self.line,
        };
        (self.shared, who)
    }
}

/// Who has arrived at a barrier.
#[derive(Default)]
struct Barrier {
    /// Threads it waits for; 0 when idle.
    expected: u32,
    /// Warps that arrived, whether they wait, and how they voted.
    arrived: Vec<(usize, bool, Option<Ballot>)>,
    /// What they knew of the warps' clocks.
    clocks: Vec<u32>,
}

/// One block while it runs.
pub(crate) struct Block<'a> {
    launch: &'a Launch<'a>,
    position: [u32; 3],
    warps: Vec<Warp>,
    shared: Shared,
    barriers: [Barrier; BARRIERS],
}

impl<'a> Block<'a> {
    pub fn new(launch: &'a Launch<'a>, position: [u32; 3]) -> Self {
        let threads = launch.threads();
        let warps = threads.div_ceil(32) as usize;
        let new_warp = |index| {
            let lanes = (threads - 32 * index as u32).min(32);
            let registers = launch.kernel.registers.clone();
            Warp::new(index, warps, u32::MAX >> (32 - lanes), registers)
        };
        Block {
            launch,
            position,
            warps: (0..warps).map(new_warp).collect(),
            shared: Shared::new(launch.shared_bytes, warps),
            barriers: Default::default(),
        }
    }

    /// Runs the block to its end; `tallies` has an element for each instruction.
    pub fn run(mut self, tallies: &mut [Tally]) -> Result<(), Box<Fault>> {
        let mut random = Random::new(self.launch.options.seed, self.position);
        loop {
            let is_running = |w: &&Warp| w.state == State::Running;
            let running = self.warps.iter().filter(is_running).count() as u64;
            if running == 0 {
                return self.check_barriers();
            }
            let chosen = random.below(running) as usize;
            let warp = self.warps.iter().filter(is_running).nth(chosen);
            let warp = warp.expect("chosen among them").index;
            for _ in 0..=random.below(MAX_TURN) {
                self.step(warp, tallies)?;
                if self.warps[warp].state != State::Running {
                    break;
                }
            }
        }
    }

    /// Executes a warp's next instruction.
    fn step(&mut self, index: usize, tallies: &mut [Tally]) -> Result<(), Box<Fault>> {
        let warp = &mut self.warps[index];
        let (pc, lanes) = warp.position();
        let Some(instruction) = self.launch.kernel.instructions.get(pc) else {
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
        let mut context = Context {
            active,
            line: instruction.line,
            warp,
            shared: &mut self.shared,
            launch: self.launch,
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
                operation(&mut context)?;
                context.warp.advance();
            }
            Action::Exit => context.warp.exit(active),
            Action::Trap => return Err(Violation::of_lanes(Rule::Trap, active)),
            Action::Barrier(barrier) => {
                let arrival = barrier.arrive(&context)?;
                context.warp.advance();
                self.arrive(index, &arrival)?;
            }
        }
        Ok(())
    }

    /// Takes note of a warp at a barrier; the last one to arrive lets all go on.
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
        warp.tick();
        if barrier.clocks.is_empty() {
            barrier.clocks.clone_from(&warp.clocks);
        }
        for (known, clock) in barrier.clocks.iter_mut().zip(&warp.clocks) {
            *known = (*known).max(*clock);
        }
        barrier.expected = expected;
        barrier.arrived.push((index, arrival.waits, arrival.ballot));
        if arrival.waits {
            warp.state = State::Waiting(number);
        }
        if barrier.arrived.len() as u32 * 32 == expected {
            let ballots = barrier.arrived.iter().filter_map(|(.., ballot)| *ballot);
            let result = ballots
                .map(|ballot| (ballot.vote, ballot.says))
                .reduce(|(vote, a), (_, b)| (vote, vote.of(a, b)));
            for (waiting, _, ballot) in barrier.arrived.iter().filter(|(_, waits, _)| *waits) {
                let warp = &mut self.warps[*waiting];
                warp.state = State::Running;
                warp.learn(&barrier.clocks);
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

    /// No warp can go on: that is the end, unless one waits for a barrier.
    fn check_barriers(&mut self) -> Result<(), Box<Fault>> {
        let waiting = self.warps.iter().find_map(|warp| match warp.state {
            State::Waiting(barrier) => Some((warp.index, barrier)),
            _ => None,
        });
        let Some((index, barrier)) = waiting else {
            return Ok(());
        };
        let arrived = &self.barriers[barrier].arrived;
        let absent = (0..self.warps.len()).filter(|w| arrived.iter().all(|(a, ..)| a != w));
        let places: Vec<String> = absent
            .map(|warp| match self.warps[warp].state {
                State::Waiting(other) => format!("warp {warp} waits at barrier {other}"),
                _ => format!("warp {warp} has exited"),
            })
            .collect();
        let rule = Rule::BarrierNotReached {
            barrier: barrier as u32,
            missing: places.join(", "),
        };
        let (pc, _) = self.warps[index].position();
        Err(self.fault(index, pc - 1, *Violation::of_warp(rule)))
    }

    fn fault(&self, warp: usize, pc: usize, violation: Violation) -> Box<Fault> {
        let kernel = self.launch.kernel;
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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new(seed: u64, block: [u32; 3]) -> Self {
        let mut random = Random(seed);
        for part in block {
            random.0 = random.next() ^ u64::from(part);
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`, nearly uniform.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
