//! The rows of Q, which consumers negate or copy before the products.

use super::consumer::Consumer;
use crate::abi::ForwardParams;
use crate::attention::WorkTile;
use crate::attention::heads::Heads;
use crate::layout::rows::Rows;
use crate::ptx::{bulk, global, shared, special};
use crate::tile::registers::opaque;

impl<T, const DT: usize, const OT: usize, const NT: usize, const S: u32>
    Consumer<T, DT, OT, NT, S>
{
    /// Negates the 16 rows of Q of a warp, from `row` on, so that scores have the order of scaled ones. Products may read
    /// them after a barrier of the warpgroup.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call; Q has landed, and no product reads it.
    #[inline(always)]
    pub unsafe fn negate_q(&self, row: u32) {
        let q = self.memory.q(self.slot);
        let (mut i, end) = (special::lane(), opaque(16 * 2 * DT as u32));
        while i < end {
            let address = q.chunk(row + i % 16, i / 16 * 8);
            // SAFETY: the caller's promise.
            unsafe {
                let pairs = shared::load_u32x4(address);
                shared::store_u32x4(address, pairs.map(|pair| pair ^ 0x8000_8000));
            }
            i += 32;
        }
        bulk::fence();
    }

    /// Copies the 16 rows of Q of a warp, the rows from `first` on of `work`, to row `row` of the warpgroup's on. Products
    /// may read them after a barrier of the warpgroup. A row before row 0 is a copy of row 0, which nothing stores.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call, and nothing else uses these rows of the warpgroup's Q.
    #[inline(always)]
    pub unsafe fn copy_q<H: Heads>(
        &self,
        params: &ForwardParams,
        work: &WorkTile<H>,
        first: i32,
        row: u32,
    ) {
        /// Chunks of 8 elements that a lane loads at once.
        const AT_ONCE: usize = 8;
        const { assert!(H::STRIDED || DT <= AT_ONCE || DT.is_multiple_of(AT_ONCE)) }
        let q = self.memory.q(self.slot);
        let rows = work.q_rows(&params.q);
        let (mut chunk, end) = (special::lane(), 32 * DT as u32);
        while chunk < end {
            // Row and column of the lane's chunk number `i` from here.
            let place = |i: usize| {
                let chunk = chunk + 32 * i as u32;
                (chunk / (2 * DT as u32), chunk % (2 * DT as u32) * 8)
            };
            let mut chunks = [[0; 4]; AT_ONCE];
            // SAFETY: the caller's promise; chunks that exist are readable.
            unsafe {
                for i in 0..AT_ONCE.min(DT) {
                    let (below, column) = place(i);
                    let exists = column < rows.elements();
                    let address = rows.at((first + below as i32).max(0) as u32);
                    let address = address + u64::from(if exists { 2 * column } else { 0 });
                    let [a, b, c, d] = global::load_u32x4(address);
                    let keep = if exists { u32::MAX } else { 0 };
                    chunks[i] = [a & keep, b & keep, c & keep, d & keep];
                }
                for i in 0..AT_ONCE.min(DT) {
                    let (below, column) = place(i);
                    shared::store_u32x4(q.chunk(row + below, column), chunks[i]);
                }
            }
            chunk = opaque(chunk + 32 * AT_ONCE as u32);
        }
        bulk::fence();
    }
}
