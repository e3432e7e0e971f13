//! A warp: its registers, where its lanes are in the program, and what they know of other threads.

use crate::clocks::{ALL_LANES, Knowledge};
use crate::copies::Copies;
use crate::products::Products;
use crate::registers::{Registers, lanes as lanes_of};
use crate::shared::Accessor;

/// Warps of a warpgroup.
pub(crate) const WARPS: usize = 4;

/// Whether a warp can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// At the barrier of this number.
    AtBarrier(usize),
    /// A wait found an mbarrier in this phase, and gave false. The warp goes on when the phase is
    /// complete, or when no other can.
    Polling {
        mbarrier: usize,
        phase: u32,
    },
    /// At a `setmaxnreg` to this count, until the block has enough.
    AwaitingRegisters(u32),
    /// In `nanosleep`, until no other warp can go on.
    Sleeping,
    /// At an instruction of the warpgroup, until its other warps are there.
    AtWarpgroup,
    /// At the barrier of its cluster, until this phase is complete.
    AtCluster(u32),
    Exited,
}

/// Lanes that are at the same instruction.
#[derive(Clone, Copy, Debug)]
struct Frame {
    pc: usize,
    lanes: u32,
    /// Where they join the frame below.
    until: Option<usize>,
}

/// 32 lanes in lockstep.
///
/// Lanes that took different ways at a branch are frames of a stack. The topmost frame runs until
/// it reaches the branch's immediate post-dominator and is dropped there: the frame below waits at
/// this place with the lanes of both ways.
pub(crate) struct Warp {
    pub index: usize,
    pub registers: Registers,
    /// Clock of its accesses from now on; see [`crate::clocks`].
    pub clock: u32,
    /// The knowledge that all lanes have of other threads.
    knowledge: Knowledge,
    /// The knowledge of single lanes beyond that, since the warp last synchronised.
    ahead: Vec<(u32, Knowledge)>,
    /// Copies by `cp.async` under way.
    pub copies: Copies,
    /// Groups of bulk stores that each lane has closed.
    pub bulk_groups: [u32; 32],
    /// Products of its warpgroup under way.
    pub products: Products,
    pub state: State,
    /// The phase of its cluster's barrier in which it arrived, until it waits.
    pub cluster_phase: Option<u32>,
    /// Lanes that exist: fewer than 32 in the last warp of an odd block.
    pub threads: u32,
    /// Instructions executed.
    pub executed: u64,
    /// The instruction executed last, or where it waits for other warps of its warpgroup.
    pub last: usize,
    frames: Vec<Frame>,
}

impl Warp {
    pub fn new(index: usize, warps: usize, threads: u32, registers: Registers) -> Self {
        let frame = Frame {
            pc: 0,
            lanes: threads,
            until: None,
        };
        Warp {
            index,
            registers,
            clock: 1,
            knowledge: Knowledge::at_start(warps),
            ahead: Vec::new(),
            copies: Copies::default(),
            bulk_groups: [0; 32],
            products: Products::default(),
            state: State::Running,
            cluster_phase: None,
            threads,
            executed: 0,
            last: 0,
            frames: vec![frame],
        }
    }

    /// The next instruction and the lanes that execute it, once lanes that meet again are joined.
    pub fn position(&mut self) -> (usize, u32) {
        while let [.., _, top] = self.frames[..] {
            if top.until != Some(top.pc) {
                break;
            }
            self.frames.pop();
        }
        let top = self.top();
        (top.pc, top.lanes)
    }

    fn top(&mut self) -> &mut Frame {
        self.frames
            .last_mut()
            .expect("a warp that has not exited has a frame")
    }

    /// Goes on with the next instruction.
    pub fn advance(&mut self) {
        self.top().pc += 1;
    }

    /// The lanes in `taken` jump, the others go on; `meeting` is where they join again.
    pub fn branch(&mut self, taken: u32, target: usize, meeting: Option<usize>) {
        let top = self.top();
        let (lanes, next) = (top.lanes, top.pc + 1);
        if taken == lanes {
            top.pc = target;
        } else if taken == 0 {
            top.pc = next;
        } else {
            match meeting {
                Some(meeting) => top.pc = meeting,
                None => {
                    self.frames.pop();
                }
            }
            for (lanes, pc) in [(lanes & !taken, next), (taken, target)] {
                self.frames.push(Frame {
                    pc,
                    lanes,
                    until: meeting,
                });
            }
        }
    }

    /// The lanes in `exiting` end; the others go on.
    pub fn exit(&mut self, exiting: u32) {
        self.top().pc += 1;
        for frame in &mut self.frames {
            frame.lanes &= !exiting;
        }
        self.frames.retain(|frame| frame.lanes != 0);
        if self.frames.is_empty() {
            self.state = State::Exited;
        }
    }

    /// The knowledge of a lane, or for [`ALL_LANES`] the one that all lanes have.
    #[inline(always)]
    pub fn knowledge(&self, lane: u32) -> &Knowledge {
        let mut ahead = self.ahead.iter();
        let own = ahead.find_map(|(of, knowledge)| (*of == lane).then_some(knowledge));
        own.unwrap_or(&self.knowledge)
    }

    /// The knowledge of some lanes, to be changed alike: one copy if they are all lanes.
    fn knowledge_of(&mut self, lanes: u32) -> impl Iterator<Item = &mut Knowledge> {
        let all = lanes == self.threads;
        if !all {
            for lane in lanes_of(lanes) {
                if self.ahead.iter().all(|(of, _)| *of != lane as u32) {
                    self.ahead.push((lane as u32, self.knowledge.clone()));
                }
            }
        }
        let ahead = self.ahead.iter_mut();
        let ahead = ahead.filter(move |(lane, _)| lanes >> lane & 1 != 0);
        let common = all.then_some(&mut self.knowledge);
        ahead.map(|(_, knowledge)| knowledge).chain(common)
    }

    /// Lanes learn what others knew.
    pub fn learn(&mut self, lanes: u32, knowledge: &Knowledge) {
        self.knowledge_of(lanes).for_each(|own| own.join(knowledge));
    }

    /// The warp waited for products of its warpgroup, up to this number.
    pub fn complete_products(&mut self, number: u32) {
        let warpgroup = self.index / WARPS;
        for knowledge in self.knowledge_of(self.threads) {
            knowledge.complete_products(warpgroup, number);
        }
    }

    /// Lanes synchronise: each learns what all of them know and did.
    pub fn synchronise(&mut self, lanes: u32) {
        self.clock += 1;
        let (warp, clock) = (self.index, self.clock);
        if lanes == self.threads {
            for (_, ahead) in self.ahead.drain(..) {
                self.knowledge.join(&ahead);
            }
            self.knowledge.see(warp, u32::MAX, clock);
        } else {
            let mut together = self.knowledge.clone();
            together.see(warp, lanes, clock);
            for (_, ahead) in self.ahead.iter().filter(|(of, _)| lanes >> of & 1 != 0) {
                together.join(ahead);
            }
            self.learn(lanes, &together);
        }
    }

    /// The knowledge that another thread gains from a lane that releases: all that the lane knows and did. A
    /// [tick](Self::tick) must follow.
    pub fn release(&self, lane: u32) -> Knowledge {
        let mut released = self.knowledge(lane).clone();
        released.see(self.index, 1 << lane, self.clock + 1);
        released
    }

    /// Orders the accesses before it ahead of later accesses.
    pub fn tick(&mut self) {
        self.clock += 1;
    }

    /// Lanes execute `fence.proxy.async`.
    pub fn fence(&mut self, lanes: u32) {
        self.clock += 1;
        let (warp, clock) = (self.index, self.clock);
        let own = if lanes == self.threads {
            u32::MAX
        } else {
            lanes
        };
        for knowledge in self.knowledge_of(lanes) {
            knowledge.fence(warp, own, clock);
        }
    }

    /// The identity under which a lane accesses shared memory, in the instruction of a line.
    #[inline(always)]
    pub fn accessor(&self, lane: u32, line: u32) -> Accessor<'_> {
        Accessor {
            warp: self.index,
            lane,
            clock: self.clock,
            knowledge: self.knowledge(lane),
            line,
        }
    }

    /// The knowledge that all lanes have, after they synchronised.
    pub fn common(&self) -> &Knowledge {
        self.knowledge(ALL_LANES)
    }
}
