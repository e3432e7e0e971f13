//! Uses of a barrier of the block: an arrival, perhaps with a vote, perhaps with a wait.

use crate::context::Context;
use crate::error::Violation;
use crate::registers::{Pred, Reg};

/// An instruction that uses a barrier of the block.
pub(crate) struct BarrierUse {
    pub barrier: Reg<u32>,
    /// Threads that complete the barrier; none for all of the block.
    pub threads: Option<Reg<u32>>,
    pub waits: bool,
    pub vote: Option<(Pred, Pred, Vote)>,
}

/// The operation of `bar.red`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    And,
    Or,
}

/// A warp's arrival at a barrier.
pub(crate) struct Arrival {
    pub barrier: u32,
    pub threads: Option<u32>,
    pub waits: bool,
    pub ballot: Option<Ballot>,
}

/// A warp's part in a vote.
#[derive(Clone, Copy)]
pub(crate) struct Ballot {
    pub vote: Vote,
    /// The result of its lanes.
    pub says: bool,
    /// Where the result of all warps goes.
    pub to: Pred,
}

impl Vote {
    /// The result of two parts of the threads together.
    pub fn of(self, a: bool, b: bool) -> bool {
        match self {
            Vote::And => a && b,
            Vote::Or => a || b,
        }
    }
}

impl BarrierUse {
    /// Reads the operands. All lanes of the warp must be there.
    pub fn arrive(&self, c: &Context) -> Result<Arrival, Box<Violation>> {
        c.require(c.warp.threads)?;
        let threads = self.threads.map(|t| c.read_uniform(t, "the thread count"));
        let cast = |(to, from, vote)| {
            let set = c.warp.registers.read_predicate(from, c.active)? & c.active;
            let says = match vote {
                Vote::And => set == c.active,
                Vote::Or => set != 0,
            };
            Ok(Ballot { vote, says, to })
        };
        let ballot: Option<Result<_, Box<Violation>>> = self.vote.map(cast);
        Ok(Arrival {
            barrier: c.read_uniform(self.barrier, "the barrier")?,
            threads: threads.transpose()?,
            waits: self.waits,
            ballot: ballot.transpose()?,
        })
    }
}
