//! The blocks of a launch. Each runs to its end, in parallel. Where blocks change the same numbers or wait for each other,
//! some are resident and take turns.

use crate::block::{Block, Progress};
use crate::cluster::Cluster;
use crate::counters::Tally;
use crate::error::Fault;
use crate::kernel::Kernel;
use crate::random::Random;
use crate::setting::Setting;
use rayon::prelude::*;
use std::rc::Rc;

/// The most blocks that are resident at a time.
const MOST_RESIDENT: u64 = 8;
/// The most turns of its warps in a turn of a block.
const MAX_TURN: u64 = 256;
/// So many turns in a row in which blocks look in vain for what others do are a deadlock.
const MOST_IN_VAIN: u32 = 1000;
/// The most instructions of a warp that looks and sleeps.
const MOST_OF_A_LOOK: u64 = 8;

impl Setting {
    fn blocks(&self) -> u64 {
        self.grid.into_iter().map(u64::from).product()
    }

    /// A cluster of this launch.
    fn new_cluster(&self) -> Rc<Cluster> {
        let warps = self.options.cluster * self.threads().div_ceil(32);
        Rc::new(Cluster::new(warps))
    }

    fn position(&self, index: u64) -> [u32; 3] {
        let [width, height, _] = self.grid.map(u64::from);
        [
            index % width,
            index / width % height,
            index / width / height,
        ]
        .map(|i| i as u32)
    }
}

/// A tally for each instruction.
fn tallies_of(kernel: &Kernel) -> Vec<Tally> {
    vec![Tally::default(); kernel.instructions.len()]
}

/// Runs each block to its end, several in parallel; what they executed, by instruction.
pub(crate) fn in_parallel(kernel: &Kernel, launch: &Setting) -> Result<Vec<Tally>, Box<Fault>> {
    let tallies = (0..launch.blocks()).into_par_iter().try_fold(
        || tallies_of(kernel),
        |mut tallies, index| -> Result<_, Box<Fault>> {
            let (position, cluster) = (launch.position(index), launch.new_cluster());
            Block::new(kernel, launch, position, cluster).run(&mut tallies)?;
            Ok(tallies)
        },
    );
    let sum = tallies.try_reduce_with(|mut sum, tallies| {
        for (sum, tally) in sum.iter_mut().zip(&tallies) {
            sum.add(tally);
        }
        Ok(sum)
    });
    sum.expect("the grid is not empty")
}

/// Runs the blocks as the seed says: clusters begin in their order, one to eight blocks are resident at a time, or a whole cluster, and
/// these take turns.
pub(crate) fn interleaved(kernel: &Kernel, launch: &Setting) -> Result<Vec<Tally>, Box<Fault>> {
    let mut random = Random::new(launch.options.seed, launch.grid);
    let cluster = launch.options.cluster as usize;
    let slots = (1 + random.below(MOST_RESIDENT) as usize).max(cluster);
    let mut tallies = tallies_of(kernel);
    let mut waiting = 0..launch.blocks();
    let mut resident: Vec<Block> = Vec::new();
    let mut in_vain = 0;
    loop {
        while resident.len() + cluster <= slots && !waiting.is_empty() {
            let shared = launch.new_cluster();
            let begin = waiting
                .by_ref()
                .take(cluster)
                .map(|index| launch.position(index));
            resident.extend(begin.map(|at| Block::new(kernel, launch, at, shared.clone())));
        }
        if resident.is_empty() {
            return Ok(tallies);
        }
        let chosen = random.below(resident.len() as u64) as usize;
        let turns = 1 + random.below(MAX_TURN);
        let block = &mut resident[chosen];
        let before = block.executed();
        let progress = block.go_on(&mut tallies, turns)?;
        let looked = block.executed() - before <= MOST_OF_A_LOOK * block.warp_count();
        in_vain = match progress {
            Progress::Ended => {
                resident.swap_remove(chosen);
                0
            }
            _ if !looked => 0,
            Progress::Sleeps => in_vain + 1,
            Progress::GoesOn => in_vain,
        };
        if in_vain == MOST_IN_VAIN {
            return Err(resident[chosen].deadlock());
        }
    }
}
