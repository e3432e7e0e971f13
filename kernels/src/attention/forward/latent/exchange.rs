//! What two warps of equal rows, one of each warpgroup, tell each other.

use crate::attention::{Softmax, Total};
use crate::layout::latent::LatentMemory;
use crate::ptx::{barrier, shared};
use crate::tile::Operand;

/// Threads that share a barrier.
const THREADS: u32 = 64;

/// The place of a thread, and the barriers of its warp. Who writes it has read it last, so that one place serves both ways.
#[derive(Clone, Copy)]
pub struct Exchange {
    memory: LatentMemory,
    /// The number of the thread in its warpgroup, and of the warpgroup.
    thread: u32,
    side: u32,
}

impl Exchange {
    /// The place of a thread of a warpgroup.
    #[inline(always)]
    pub fn new(memory: LatentMemory, thread: u32, side: u32) -> Self {
        Exchange {
            memory,
            thread,
            side,
        }
    }

    /// The barrier at which the warp of a side says that it has written.
    #[inline(always)]
    fn barrier_of(self, side: u32) -> u32 {
        1 + 4 * side + self.thread / 32
    }

    /// Hands the probabilities of a block over, and the maxima that they are relative to.
    ///
    /// # Safety
    /// All lanes of the warp make the same call, and those of the other one [take](Self::take) as often.
    #[inline(always)]
    pub unsafe fn give<const NT: usize>(self, p: &[Operand; NT], softmax: &Softmax<1>) {
        const { assert!(NT == 2) }
        let [a, b] = softmax.of_lane(0);
        // SAFETY: the caller's promise.
        unsafe {
            for nt in 0..NT {
                let to = self.memory.exchange(nt as u32, self.thread);
                shared::store_u32x4(to, p[nt].0);
            }
            let maxima = [a.max.to_bits(), b.max.to_bits(), 0, 0];
            shared::store_u32x4(self.memory.exchange(2, self.thread), maxima);
            barrier::arrive(self.barrier_of(self.side), THREADS);
        }
    }

    /// Takes the probabilities of a block that the other warp has given, and its maxima; returns the factors of the rows of O.
    ///
    /// # Safety
    /// All lanes of the warp make the same call, and those of the other one [give](Self::give) as often.
    #[inline(always)]
    pub unsafe fn take<const NT: usize>(
        self,
        softmax: &mut Softmax<1>,
    ) -> ([Operand; NT], [f32; 2]) {
        let mut p = [Operand::ZERO; NT];
        let mut factors = [1.0; 2];
        // SAFETY: the caller's promise.
        unsafe {
            barrier::some(self.barrier_of(1 - self.side), THREADS);
            for nt in 0..NT {
                p[nt] = Operand(shared::load_u32x4(
                    self.memory.exchange(nt as u32, self.thread),
                ));
            }
            // All 16 bytes, so that no bank has two of them.
            let maxima = shared::load_u32x4(self.memory.exchange(2, self.thread));
            for r in 0..2 {
                let other = Total {
                    max: f32::from_bits(maxima[r]),
                    sum: 0.0,
                };
                [factors[r], _] = softmax.join(0, r, other);
            }
        }
        (p, factors)
    }

    /// Adds the sums of the other warp's blocks to the own ones, after the last block, when both have the same maxima.
    ///
    /// # Safety
    /// All lanes of both warps make the same call.
    #[inline(always)]
    pub unsafe fn add_sums(self, softmax: &mut Softmax<1>) {
        let totals = softmax.of_lane(0);
        let [a, b] = totals.map(|total| total.sum.to_bits());
        // SAFETY: the caller's promise. Before the first barrier a lane of the other warp may read what it took last.
        unsafe {
            barrier::some(self.barrier_of(0), THREADS);
            shared::store_u32x4(self.memory.exchange(self.side, self.thread), [a, b, 0, 0]);
            barrier::some(self.barrier_of(0), THREADS);
            let others = shared::load_u32x4(self.memory.exchange(1 - self.side, self.thread));
            for r in 0..2 {
                let sum = totals[r].sum + f32::from_bits(others[r]);
                softmax.resume(0, r, Total { sum, ..totals[r] });
            }
        }
    }
}
