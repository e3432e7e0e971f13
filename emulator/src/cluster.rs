//! A cluster: blocks that are resident at the same time, and the barrier that they share.

use crate::error::{Rule, Violation};
use crate::warp::Warp;
use std::cell::Cell;

/// An instruction of the barrier of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterUse {
    Arrive,
    Wait,
}

/// What the blocks of a cluster share.
pub(crate) struct Cluster {
    /// Warps of all its blocks.
    warps: u32,
    barrier: Cell<Barrier>,
}

/// The barrier of a cluster. A phase is complete when all warps that have not exited have arrived.
#[derive(Clone, Copy, Default)]
struct Barrier {
    phase: u32,
    arrived: u32,
    exited: u32,
}

impl Cluster {
    /// A cluster of blocks with so many warps in all.
    pub fn new(warps: u32) -> Self {
        Cluster {
            warps,
            barrier: Cell::default(),
        }
    }

    /// The phase that is not complete.
    pub fn phase(&self) -> u32 {
        self.barrier.get().phase
    }

    /// A warp arrives: in this phase.
    pub fn arrive(&self, warp: &mut Warp) -> Result<u32, Box<Violation>> {
        let phase = self.phase();
        match warp.cluster_phase.replace(phase) {
            None => self.count(1, 0),
            Some(_) => return Err(misused("a warp arrives twice at its cluster's barrier")),
        }
        Ok(phase)
    }

    /// A warp begins to wait: for the end of this phase.
    pub fn wait(&self, warp: &mut Warp) -> Result<u32, Box<Violation>> {
        let arrived = warp.cluster_phase.take();
        arrived.ok_or_else(|| misused("a warp waits for its cluster, and has not arrived"))
    }

    /// A warp exits.
    pub fn exit(&self, warp: &Warp) -> Result<(), Box<Violation>> {
        if warp.cluster_phase.is_some() {
            return Err(misused("a warp exits that has not waited for its cluster"));
        }
        self.count(0, 1);
        Ok(())
    }

    fn count(&self, arrived: u32, exited: u32) {
        let mut barrier = self.barrier.get();
        barrier.arrived += arrived;
        barrier.exited += exited;
        if barrier.arrived > 0 && barrier.arrived + barrier.exited == self.warps {
            barrier.phase += 1;
            barrier.arrived = 0;
        }
        self.barrier.set(barrier);
    }
}

fn misused(what: &'static str) -> Box<Violation> {
    Violation::of_warp(Rule::BarrierMisused { what })
}
