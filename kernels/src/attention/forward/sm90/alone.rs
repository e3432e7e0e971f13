//! The work of a warp by itself, by `mma.sync` from the same tiles: scores that do not fit the maxima so far, and
//! products with infinities and NaN that some rows must not see.

use super::consumer::Consumer;
use super::kernel::Kernel;
use crate::attention::mask::Interval;
use crate::layout::descriptor::Panels;
use crate::layout::fragment;
use crate::ptx::{barrier, ldmatrix, shared, special, vote};
use crate::tile::registers::{fence, opaque};
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
        let (mut column, end) = (0, opaque(K::D));
        while column < end {
            // SAFETY: the caller's promise; the addresses lie in the tiles.
            unsafe {
                let a = ldmatrix::x4(q.chunk(row + a_row, column + 8 * a_chunk));
                for nt in 0..NT {
                    let b_row = 16 * nt as u32 + b_row;
                    let b = ldmatrix::x4(k.chunk(b_row, column + 8 * b_chunk));
                    s[nt].mma::<K::Element>(Operand(a), Operand(b));
                }
            }
            column += 16;
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

/// Whether V of a block holds an infinity or a NaN: the same answer for the whole warpgroup, which shares barrier
/// `number` and where the thread is number `thread`.
///
/// # Safety
/// Every lane of the warpgroup makes the same call, with V landed.
#[inline(always)]
pub unsafe fn has_non_finite<E: Element, const DT: usize, const NT: usize>(
    v: Panels,
    thread: u32,
    number: u32,
) -> bool {
    // 16-byte chunks of a thread, a few of which are read at once.
    let chunks = NT * DT / 4;
    let at_once = if chunks.is_multiple_of(4) { 4 } else { 1 };
    let mut found = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let (mut skipped, end) = (0, opaque(2048 * chunks as u32));
        // The count of rounds and the answer are the same in all lanes, and the assembler sees it. Else it takes the
        // warps for divergent from here on, and moves each word of a descriptor to a uniform register.
        while skipped < end {
            for i in 0..at_once {
                let chunk = v.base + thread * 16 + skipped + 2048 * i;
                let pairs = shared::load_u32x4(chunk);
                for i in 0..4 {
                    found = E::add_zero_times(found, pairs[i]);
                }
            }
            skipped += 2048 * at_once;
        }
        vote::any(barrier::some_any(number, 128, found != 0))
    }
}

/// Line 10 for the 16 rows of a warp: with 0 for the elements of V that are not finite, and NaN where a row sees such an
/// element.
///
/// # Safety
/// Every lane of the warp makes the same call, with V of the block landed.
#[inline(always)]
pub unsafe fn add_guarded<E: Element, const DT: usize, const NT: usize>(
    v: Panels,
    o: &mut [Accumulator; DT],
    p: &mut [Operand; NT],
    keys: [impl Interval; 2],
) {
    let (mut row, end) = (0, opaque(16 * NT as u32));
    while row < end {
        let lane = special::lane();
        let (lane_row, chunk) = fragment::ldmatrix_rows_first(lane);
        let seen = Operand::ones::<E>(lane, keys.map(|keys| keys.counted_from(row as i32)));
        for dt in 0..DT {
            let mut count = Accumulator::ZERO;
            // SAFETY: the caller's promise; the address lies in the tile.
            unsafe {
                fence();
                let column = 16 * dt as u32 + 8 * chunk;
                let v = Operand(ldmatrix::x4_trans(v.chunk(row + lane_row, column)));
                let (finite, non_finite) = v.split_non_finite::<E>();
                o[dt].mma::<E>(p[0], finite);
                count.mma::<E>(seen, non_finite);
            }
            o[dt].spoil(count);
        }
        // Registers have no index, so the next slice moves to the front. In the end P is as before.
        let first = p[0];
        for nt in 1..NT {
            p[nt - 1] = p[nt];
        }
        p[NT - 1] = first;
        row += 16;
    }
}
