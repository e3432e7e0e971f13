//! The rows of Q, which consumers negate or copy before the products.

use super::consumer::Consumer;
use super::job::Part;
use super::kernel::Kernel;
use crate::abi::ForwardParams;
use crate::attention::WorkTile;
use crate::attention::workload::heads::Heads;
use crate::layout::{element, rows::Rows};
use crate::ptx::{barrier, bulk, global, shared, special};
use crate::tile::registers::opaque;

impl<K: Kernel, const OT: usize, const NT: usize, const S: u32> Consumer<K, OT, NT, S> {
    /// Q ready for the products of the rows of `part`: copied where their rows are no box of a map, negated if the scale is.
    ///
    /// # Safety
    /// Every lane of the warpgroup makes the same call; Q has landed, and no product reads it.
    #[inline(always)]
    pub unsafe fn prepare_q(&self, params: &ForwardParams, part: &Part<K>, is_negative: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            if !K::Heads::are_strided() {
                let row = K::warp_row();
                self.copy_q(params, &part.work, part.first + row as i32, row);
                barrier::some(1 + K::consumer(), 128);
            }
            if is_negative {
                self.negate_q(K::warp_row());
                barrier::some(1 + K::consumer(), 128);
            }
        }
    }

    /// Negates the 16 rows of Q of a warp, from `row` on, so that scores have the order of scaled ones. Products may read
    /// them after a barrier of the warpgroup.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call; Q has landed, and no product reads it.
    #[inline(always)]
    unsafe fn negate_q(&self, row: u32) {
        let q = self.memory.q(self.slot);
        // Opaque: the loop stays one, up to 40 instructions fewer.
        let (mut i, end) = (special::lane(), opaque(16 * K::D / element::CHUNK));
        while i < end {
            let address = q.chunk(row + i % 16, i / 16 * element::CHUNK);
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
    unsafe fn copy_q(
        &self,
        params: &ForwardParams,
        work: &WorkTile<K::Heads>,
        first: i32,
        row: u32,
    ) {
        /// The most chunks that a lane loads at once.
        const AT_ONCE: usize = 8;
        // A lane has a chunk for each 16 columns.
        let at_once = match K::D {
            192 => AT_ONCE / 2,
            d => AT_ONCE.min(d as usize / 16),
        };
        const { assert!(K::D <= 128 || K::D == 192 || K::D.is_multiple_of(128)) }
        let q = self.memory.q(self.slot);
        let rows = work.q_rows(&params.q);
        let (mut chunk, end) = (special::lane(), 16 * K::D / element::CHUNK);
        while chunk < end {
            // Row and column of the lane's chunk number `i` from here.
            let place = |i: usize| {
                let chunk = chunk + 32 * i as u32;
                (
                    chunk / (K::D / element::CHUNK),
                    chunk % (K::D / element::CHUNK) * element::CHUNK,
                )
            };
            let mut chunks = [[0; 4]; AT_ONCE];
            // SAFETY: the caller's promise; chunks that exist are readable.
            unsafe {
                for i in 0..at_once {
                    let (below, column) = place(i);
                    let exists = column < rows.elements();
                    let address = rows.at((first + below as i32).max(0) as u32);
                    let right = if exists { column } else { 0 };
                    let address = element::at(address, right);
                    let [a, b, c, d] = global::load_u32x4(address);
                    let keep = if exists { u32::MAX } else { 0 };
                    chunks[i] = [a & keep, b & keep, c & keep, d & keep];
                }
                for i in 0..at_once {
                    let (below, column) = place(i);
                    shared::store_u32x4(q.chunk(row + below, column), chunks[i]);
                }
            }
            chunk += 32 * at_once as u32;
        }
        bulk::fence();
    }
}
