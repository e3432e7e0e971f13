//! The exchange between two sides of a block: O, m and l of their keys.

use crate::attention::{Softmax, Total};
use crate::layout::sm90::Sm90Memory;
use crate::ptx::shared;
use crate::tile::Accumulator;

/// Where a thread of the second side leaves its part of O, m and l, and a thread of the first side finds it. The two have
/// the same rows and columns.
pub struct Exchange(u32);

impl Exchange {
    /// The place of thread number `thread` of a warpgroup, behind the memory of all sides.
    #[inline(always)]
    pub fn new<const DT: usize>(memory: Sm90Memory, warpgroup: u32, thread: u32) -> Self {
        let bytes = Sm90Memory::exchange_bytes(16 * DT as u32);
        Exchange(memory.base() + warpgroup * bytes + 16 * thread)
    }

    /// Leaves the part.
    ///
    /// # Safety
    /// No other thread uses the place.
    #[inline(always)]
    pub unsafe fn give<const DT: usize>(&self, o: &[Accumulator; DT], softmax: &Softmax<1>) {
        let [a, b] = softmax.of_lane(0);
        // SAFETY: the caller's promise.
        unsafe {
            self.store(0, [a.max, a.sum, b.max, b.sum]);
            for dt in 0..DT {
                for r in 0..2 {
                    self.store(1 + 2 * dt + r, o[dt].row(r));
                }
            }
        }
    }

    /// Adds what another thread left there.
    ///
    /// # Safety
    /// The other thread left it, before a barrier.
    #[inline(always)]
    pub unsafe fn take<const DT: usize>(
        &self,
        o: &mut [Accumulator; DT],
        softmax: &mut Softmax<1>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let [max, sum, max8, sum8] = self.load(0);
            let totals = [
                Total { max, sum },
                Total {
                    max: max8,
                    sum: sum8,
                },
            ];
            for r in 0..2 {
                let [own, other] = softmax.join(0, r, totals[r]);
                for dt in 0..DT {
                    let [a, b, c, d] = self.load(1 + 2 * dt + r);
                    let [e, f, g, h] = o[dt].row(r);
                    let sums = [
                        e * own + a * other,
                        f * own + b * other,
                        g * own + c * other,
                        h * own + d * other,
                    ];
                    o[dt].set_row(r, sums);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, i: usize, numbers: [f32; 4]) {
        // SAFETY: the callers' promise.
        unsafe { shared::store_u32x4(self.0 + 2048 * i as u32, numbers.map(f32::to_bits)) }
    }

    #[inline(always)]
    unsafe fn load(&self, i: usize) -> [f32; 4] {
        // SAFETY: the callers' promise.
        unsafe { shared::load_u32x4(self.0 + 2048 * i as u32) }.map(f32::from_bits)
    }
}
