//! Infinities and NaN in V that some rows must not see.
//!
//! A block of keys on the edge of the causal mask is seen whole by some rows and in part by others,
//! and the product P V takes it whole for all: what a row does not see, it multiplies by P = 0. That
//! is exact unless V holds an infinity or a NaN there, for 0 times it is NaN. Blocks at the edge are
//! few, so they are searched for such elements, and one that holds any takes a slower product.

use super::warp::Warp;
use crate::ptx::{barrier, shuffle, special};
use crate::tile::registers;
use crate::tile::{Accumulate, Accumulator, Arrangement, Element, Operand, SharedTile};

/// 16x16 tiles of V that a look takes at a time, where it is a loop.
const LOOK: usize = 2;

/// Whether a tile of V holds an infinity or a NaN in the slices of 16 columns `column(0..OT)`: the same
/// answer in all lanes.
///
/// # Safety
/// Every lane of the warp makes the same call, and the tile is written and visible.
#[inline(always)]
pub unsafe fn has_non_finite<
    E: Element,
    A: Arrangement,
    const NT: usize,
    const OT: usize,
    const VT: usize,
>(
    v_tile: SharedTile<VT, A>,
    column: impl Fn(usize) -> usize,
) -> bool {
    let lane = special::lane();
    let mut found = 0;
    for nt in 0..NT {
        for ot in 0..OT {
            // SAFETY: the caller's promise.
            found |= unsafe { v_tile.b_trans(lane, nt, column(ot)) }.non_finite::<E>();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { shuffle::or(found) != 0 }
}

impl<A: Arrangement, const MT: usize, const DT: usize, const OT: usize, const QT: usize>
    Warp<MT, DT, OT, QT, A>
{
    /// As [`accumulate_masked`](Warp::accumulate_masked), where the look and the guarded product are loops over
    /// slices of 16 keys that are not unrolled: they hold less.
    ///
    /// # Safety
    /// As [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate_masked_by_slices<E: Element, S: Accumulate<E>, const NT: usize>(
        &mut self,
        mut p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT, A>,
        visible: impl Fn() -> [[i32; 2]; MT],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let windows = OT.div_ceil(LOOK);
            let (mut guarded, mut window) = (false, 0);
            while !guarded && window < registers::opaque((NT * windows) as u32) {
                let (nt, ot) = (window as usize / windows, window as usize % windows * LOOK);
                let column = |i: usize| (ot + i).min(OT - 1);
                let v_tile = v_tile.skip(16 * nt as u32);
                guarded = has_non_finite::<E, A, 1, LOOK, DT>(v_tile, column);
                window += 1;
            }
            if !guarded {
                return self.accumulate::<E, S, NT>(p, v_tile);
            }
            let mut nt = 0;
            while nt < registers::opaque(NT as u32) {
                let first = p.map(|row| [row[0]]);
                let visible = visible().map(|rows| rows.map(|v| v - 16 * nt as i32));
                self.accumulate_guarded::<E, 1>(first, v_tile.skip(16 * nt), visible);
                // Registers have no index: what is next moves up. All the way round, or else the compiler
                // would unroll the turns until nothing changes.
                for mt in 0..MT {
                    let first = p[mt][0];
                    for nt in 1..NT {
                        p[mt][nt - 1] = p[mt][nt];
                    }
                    p[mt][NT - 1] = first;
                }
                nt += 1;
            }
        }
    }

    /// `O += P V` with the elements of V that are not finite taken as 0; then O becomes NaN where a
    /// row sees one: where the product of visibility and non-finiteness, both 0 or 1, is not 0.
    ///
    /// # Safety
    /// As [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate_guarded<E: Element, const NT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT, A>,
        visible: [[i32; 2]; MT],
    ) {
        let lane = special::lane();
        for dt in 0..OT {
            for mt in 0..MT {
                let mut count = Accumulator::ZERO;
                // SAFETY: the caller's promise. The barrier keeps the assembler from reading V far
                // ahead here, at the price of spilled registers in the whole kernel.
                unsafe { barrier::warp() }
                for nt in 0..NT {
                    let limits = visible[mt].map(|v| v - 16 * nt as i32);
                    let seen = Operand::ones_below::<E>(lane, limits);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let v = v_tile.b_trans(lane, nt, dt);
                        let (finite, non_finite) = v.split_non_finite::<E>();
                        self.o[mt][dt].mma::<E>(p[mt][nt], finite);
                        count.mma::<E>(seen, non_finite);
                    }
                }
                self.o[mt][dt].spoil(count);
            }
        }
    }
}

/// As [`accumulate_guarded`](Warp::accumulate_guarded) of `16 * KT` keys, with P from shared memory: in a loop
/// that is not unrolled, because what it then holds is little. `column` gives the slice of 16 columns of V
/// that one of O is.
///
/// # Safety
/// As [`Warp::new`].
#[inline(always)]
pub unsafe fn multiply_guarded<
    E: Element,
    A: Arrangement,
    const MT: usize,
    const KT: usize,
    const PT: usize,
    const OT: usize,
    const VT: usize,
>(
    o: &mut [[Accumulator; OT]; MT],
    (p_tile, first): (SharedTile<PT>, usize),
    v_tile: SharedTile<VT, A>,
    visible: [[i32; 2]; MT],
    column: impl Fn(usize) -> usize,
) {
    let end = registers::opaque(KT as u32);
    let mut kt = 0;
    while kt < end {
        let lane = special::lane();
        let limits = visible.map(|rows| rows.map(|v| v - 16 * kt as i32));
        let seen = limits.map(|limits| Operand::ones_below::<E>(lane, limits));
        // SAFETY: the caller's promise.
        unsafe {
            let p: [[Operand; 1]; MT] = p_tile.operands(first + kt as usize);
            for ot in 0..OT {
                let v = v_tile.skip(16 * kt).b_trans(lane, 0, column(ot));
                let (finite, non_finite) = v.split_non_finite::<E>();
                for mt in 0..MT {
                    let mut count = Accumulator::ZERO;
                    count.mma::<E>(seen[mt], non_finite);
                    o[mt][ot].mma::<E>(p[mt][0], finite);
                    o[mt][ot].spoil(count);
                }
            }
        }
        kt += 1;
    }
}
