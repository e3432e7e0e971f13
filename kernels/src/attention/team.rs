//! Warps that share query rows.

use crate::attention::{Softmax, Total};
use crate::ptx::{barrier, shared, special};

/// The place of a warp among the `T` warps that share its rows: each has a part of the keys in
/// `Q K^T`, and a part of O's columns.
#[derive(Clone, Copy)]
pub struct Team<const T: usize> {
    /// The team's among those of the block.
    number: u32,
    /// The warp's among those of the team.
    pub side: u32,
    /// The team's first row in its block.
    pub row: u32,
    /// Rows of the block.
    rows: u32,
    /// Shared address of `f32[T][rows][4]`: a number for each lane that has a part of a row.
    exchange: u32,
}

impl Team<1> {
    /// A warp that has its rows for itself.
    pub const ALONE: Self = Team {
        number: 0,
        side: 0,
        row: 0,
        rows: 0,
        exchange: 0,
    };
}

impl<const T: usize> Team<T> {
    /// That of warp `warp` in a block of `rows` rows, `team_rows` for each team, with `f32[T][rows][4]`
    /// in shared memory at `exchange`.
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

    /// The maximum and the sum of every row over the keys of all warps of the team.
    ///
    /// # Safety
    /// As [`combine`](Self::combine).
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

    /// Combines what the warps have of each row, lane by lane: all get the same, for each applies `f` to the
    /// warps in the same order.
    ///
    /// # Safety
    /// As [`sync`](Self::sync); and a barrier of the team is between two calls.
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
        // SAFETY: the numbers are the team's, and each is one lane's.
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
