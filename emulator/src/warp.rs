//! A warp: its registers, where its lanes are in the program, and what it knows of other warps.

use crate::instructions::Copies;
use crate::registers::Registers;

/// Whether a warp can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// At the barrier of this number.
    Waiting(usize),
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
/// Lanes that took different ways at a branch are frames of a stack: the topmost runs until it
/// reaches the branch's immediate post-dominator, where it is dropped, for the frame below waits
/// there with all lanes of both ways.
pub(crate) struct Warp {
    pub index: usize,
    pub registers: Registers,
    /// The clock of every warp of the block, as far as this one knows; see [`crate::shared`].
    pub clocks: Vec<u32>,
    /// Its `cp.async` copies under way.
    pub copies: Copies,
    pub state: State,
    /// Lanes that exist: fewer than 32 in the last warp of an odd block.
    pub threads: u32,
    /// Instructions executed.
    pub executed: u64,
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
            clocks: vec![1; warps],
            copies: Copies::default(),
            state: State::Running,
            threads,
            executed: 0,
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

    /// Orders this warp's accesses so far before what comes after: a barrier was reached.
    pub fn tick(&mut self) {
        self.clocks[self.index] += 1;
    }

    /// Learns what the participants of a barrier knew.
    pub fn learn(&mut self, clocks: &[u32]) {
        for (own, other) in self.clocks.iter_mut().zip(clocks) {
            *own = (*own).max(*other);
        }
    }
}
