//! Warps that share query rows.

use crate::attention::{Softmax, Total};
use crate::ptx::{barrier, shared, special};

/// A warp's place among the `T` warps of its team, which share query rows: each has a part of the keys in
/// `Q K^T`, and a part of O's columns.
#[derive(Clone, Copy)]
pub struct Team<const T: usize> {
    /// The team's number in the block.
    number: u32,
    /// The warp's number in the team.
    pub side: u32,
    /// The team's first row in its block.
    pub row: u32,
    /// Rows of the block.
    rows: u32,
    /// Shared address of `f32[T][rows][4]`: a number for each lane that holds a part of a row.
    exchange: u32,
}

impl Team<1> {
    /// A team of one warp.
    pub const ALONE: Self = Team {
        number: 0,
        side: 0,
        row: 0,
        rows: 0,
        exchange: 0,
    };
}

impl<const T: usize> Team<T> {
    /// The place of warp `warp` in a block of `rows` rows, `team_rows` of them a team. `exchange` is the shared
    /// address of `f32[T][rows][4]`.
    #[inline(always)]
    pub fn of_warp(warp: u32, team_rows: u32, rows: u32, exchange: u32) -> Self {
        let number = warp / T as u32;
        Team {
            number,
            side: warp % T as u32,
            row: number * team_rows,
            rows,
            exchange,
        }
    }

    /// Waits for all lanes of the team; their shared-memory accesses before it are visible after it.
    ///
    /// # Safety
    /// Every lane of the team must reach the same call.
    #[inline(always)]
    pub unsafe fn sync(&self) {
        // SAFETY: the caller's promise; barrier 0 is the block's.
        unsafe {
            if T == 1 {
                barrier::warp();
            } else {
                barrier::some(1 + self.number, 32 * T as u32);
            }
        }
    }

    /// m and l of every row, over the keys of all warps of the team.
    ///
    /// # Safety
    /// The conditions of [`combine`](Self::combine).
    #[inline(always)]
    pub unsafe fn totals<const MT: usize>(&self, softmax: &Softmax<MT>) -> [[Total; 2]; MT] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut totals = softmax.totals();
            let sums = self.combine(totals.map(|rows| rows.map(|total| total.sum)), |a, b| a + b);
            for mt in 0..MT {
                for r in 0..2 {
                    totals[mt][r].sum = sums[mt][r];
                }
            }
            totals
        }
    }

    /// Combines the numbers of each row, lane by lane, over the warps of the team. All warps get the same
    /// results, because each applies `f` in the order of the warps.
    ///
    /// # Safety
    /// The conditions of [`sync`](Self::sync); and the team passes a barrier between two calls.
    #[inline(always)]
    pub unsafe fn combine<const MT: usize>(
        &self,
        values: [[f32; 2]; MT],
        f: impl Fn(f32, f32) -> f32,
    ) -> [[f32; 2]; MT] {
        if T == 1 {
            return values;
        }
        let lane = special::lane();
        let at = |side: u32, mt: usize, r: usize| {
            let row = side * self.rows + self.row + (16 * mt + 8 * r) as u32;
            self.exchange + 4 * (4 * row + lane)
        };
        let mut combined = [[0.0; 2]; MT];
        // SAFETY: each lane of the team stores its own number, and reads after the barrier.
        unsafe {
            for mt in 0..MT {
                for r in 0..2 {
                    shared::store_u32(at(self.side, mt, r), values[mt][r].to_bits());
                }
            }
            self.sync();
            for mt in 0..MT {
                for r in 0..2 {
                    combined[mt][r] = shared::load_f32(at(0, mt, r));
                    for side in 1..T as u32 {
                        combined[mt][r] = f(combined[mt][r], shared::load_f32(at(side, mt, r)));
                    }
                }
            }
        }
        combined
    }
}
