//! The work of a warp by itself, by `mma.sync` from the same tiles: scores that do not fit the maxima so far, and
//! products with infinities and NaN that some rows must not see.

use super::consumer::Consumer;
use super::kernel::Kernel;
use crate::attention::guard::panels::{add_guarded, has_non_finite};
use crate::attention::options::mask::Interval;
use crate::layout::{element, fragment};
use crate::ptx::{ldmatrix, special};
use crate::tile::registers::opaque;
use crate::tile::{Accumulator, Element, Operand};

impl<K: Kernel, const OT: usize, const NT: usize, const S: u32> Consumer<K, OT, NT, S> {
    /// Line 8 for the 16 rows of a warp from `row` on.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call, with Q and K of the block landed.
    #[inline(always)]
    pub unsafe fn warp_scores(&self, row: u32) -> [Accumulator; NT] {
        let (q, k) = (self.memory.q(self.slot), self.memory.k(self.block.stage()));
        let lane = special::lane();
        let (a_row, a_chunk) = fragment::ldmatrix_rows_first(lane);
        let (b_row, b_chunk) = fragment::ldmatrix_chunks_first(lane);
        let mut s = [Accumulator::ZERO; NT];
        // Opaque: unrolled, 16 bytes of spills at D = 96 and 600 instructions where heads share rows.
        let (mut column, end) = (0, opaque(K::D));
        while column < end {
            // SAFETY: the caller's promise; the addresses lie in the tiles.
            unsafe {
                let a = ldmatrix::x4(q.chunk(row + a_row, column + element::CHUNK * a_chunk));
                for nt in 0..NT {
                    let b_row = 16 * nt as u32 + b_row;
                    let b = ldmatrix::x4(k.chunk(b_row, column + element::CHUNK * b_chunk));
                    s[nt].mma::<K::Element>(Operand(a), Operand(b));
                }
            }
            column += K::Element::K;
        }
        s
    }

    /// Whether V of the block holds an infinity or a NaN: the same answer for the whole warpgroup, where the thread is
    /// number `thread`.
    ///
    /// # Safety
    /// Every lane of the warpgroup makes the same call.
    #[inline(always)]
    pub unsafe fn has_non_finite(&self, thread: u32) -> bool {
        let v = self.memory.v(self.block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(self.memory.v_full(self.block.stage()));
            if K::CHUNKS {
                self.block.wait(self.memory.v_full(self.block.stage()) + 16);
            }
            has_non_finite::<K::Element, OT, NT>(v, thread, 1 + K::consumer())
        }
    }

    /// Line 10 for the 16 rows of a warp: with 0 for the elements of V that are not finite, and NaN where a row sees such an
    /// element.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call, with V of the block landed.
    #[inline(always)]
    pub unsafe fn add_guarded(
        &self,
        o: &mut [Accumulator; OT],
        p: &mut [Operand; NT],
        keys: [impl Interval; 2],
    ) {
        let v = self.memory.v(self.block.stage());
        // SAFETY: the caller's promise.
        unsafe { add_guarded::<K::Element, OT, NT>(v, o, p, keys) }
    }
}
