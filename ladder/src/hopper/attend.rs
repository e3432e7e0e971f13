//! The main loop of the rungs for Hopper: Algorithm 1 of FlashAttention-2 (Dao 2023), a warpgroup with 64 query rows.

use super::tiles::Tiles;
use crate::options::HopperMemory;
use crate::work::Work;
use kernels::abi::ForwardParams;
use kernels::attention::forward::sm90::store::store_rows;
use kernels::attention::guard::panels::{add_guarded, has_non_finite};
use kernels::attention::options::mask::Mask;
use kernels::attention::options::score::Scaled;
use kernels::attention::workload::heads::OneHead;
use kernels::attention::{Softmax, SoftmaxScale, WorkTile};
use kernels::ptx::{barrier, special};
use kernels::tile::registers::again;
use kernels::tile::wgmma::{self, Product};
use kernels::tile::whole::{map_rows, mask, scale_rows, to_operands};
use kernels::tile::{Accumulator, Element};

/// Computes O and lse of a warpgroup's 64 rows, where `W` warpgroups share a tile. Two that take `TURNS` exponentiate in
/// turns, so that the softmax of one runs beside the products of the other.
///
/// # Safety
/// All lanes of the warpgroup make the same call; `tiles` gives K and V of the block's keys in turns.
#[inline(always)]
pub unsafe fn attend<
    E: Element,
    T: Tiles,
    const TURNS: bool,
    const W: u32,
    const DT: usize,
    const NT: usize,
>(
    p: &ForwardParams,
    memory: HopperMemory,
    warpgroup: u32,
    tiles: &mut T,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let (br, bc) = (64 * W, 16 * NT as u32);
    // Read again where it is used: over the loop it would hold registers.
    // SAFETY: the block has at most so many threads.
    let thread = || unsafe { special::thread(128 * (W + 1)) };
    let warp_row = || thread() / 32 * 16;
    let Work { blocks, whole, .. } = Work::of_block(p, br, bc);
    let q = memory.q(warpgroup);
    let scale = SoftmaxScale::new(p.scale);
    let mut softmax = Softmax::<1>::new(scale);
    let mut o = [Accumulator::ZERO; DT];
    let turns = Turns::<TURNS>(warpgroup);

    // SAFETY: every tile is waited for before it is read. Branches depend on the block or the warpgroup alone.
    unsafe {
        if blocks > 0 {
            tiles.wait_q();
            turns.start();
        }
        let mut j = blocks;
        while j > 0 {
            j -= 1;
            // The keys of block j that the lane's rows see.
            let keys = || {
                let Work { place, mask, .. } = again(|| Work::of_block(p, br, bc));
                let row = place.first + warp_row();
                map_rows::<_, 1>(|i| mask.keys_of_block((row + i) as i32, (j * bc) as i32))
            };

            // S = Q K^T.
            let k = tiles.wait();
            let mut s = [Accumulator::ZERO; NT];
            wgmma::fence();
            for dt in 0..DT as u32 {
                let a = q.rows(0).skip(q.to_columns(dt));
                let b = k.rows(0).skip(k.to_columns(dt));
                s.rows::<E>(a, b, dt > 0);
            }
            wgmma::commit();
            wgmma::wait::<0>();
            wgmma::pin(&mut s);
            tiles.release();

            // P = softmax(S), relative to the maxima so far.
            turns.take();
            if scale.negative {
                s = s.map(Accumulator::negate);
            }
            let mut s = [s];
            if j >= whole {
                mask(&mut s, keys());
            }
            let maxima = softmax.maxima(&s[0]);
            let factors = softmax.update(0, &mut s[0], maxima);
            scale_rows(&mut o, factors);
            let [mut probabilities] = to_operands::<E, 1, NT>(s);
            turns.pass(j);

            // O += P V.
            let v = tiles.wait();
            if j >= whole && has_non_finite::<E, DT, NT>(v, thread() % 128, 1 + warpgroup) {
                let [keys] = keys();
                add_guarded::<E, DT, NT>(v, &mut o, &mut probabilities, keys);
                barrier::warp();
            } else {
                wgmma::pin(&mut o);
                wgmma::fence();
                for nt in 0..NT {
                    let b = v.columns().skip(v.to_rows(nt as u32));
                    o.columns::<E>(probabilities[nt], b);
                }
                wgmma::commit();
                wgmma::wait::<0>();
                wgmma::pin(&mut o);
            }
            tiles.release();
        }
        let place = again(|| WorkTile::<OneHead>::of_block::<Scaled>(p, br));
        let first = (place.first + warp_row()) as i32;
        store_rows::<E, Scaled, OneHead, DT>(p, &place, [first, 0], special::lane(), o, &softmax);
    }
}

/// Whose turn it is to exponentiate, where `TAKEN`: of warpgroups 0 and 1, this one.
struct Turns<const TAKEN: bool>(u32);

impl<const TAKEN: bool> Turns<TAKEN> {
    /// Barrier of warpgroup 0's turns; the next one is of warpgroup 1's.
    const FIRST: u32 = 8;

    /// Warpgroup 0 has the first turn.
    ///
    /// # Safety
    /// The conditions of all functions here: all lanes of both warpgroups make the same calls, the same number of times.
    #[inline(always)]
    unsafe fn start(&self) {
        if TAKEN && self.0 == 1 {
            // SAFETY: the caller's promise.
            unsafe { barrier::arrive(Self::FIRST, 256) }
        }
    }

    /// Waits for this warpgroup's turn.
    #[inline(always)]
    unsafe fn take(&self) {
        if TAKEN {
            // SAFETY: the caller's promise.
            unsafe { barrier::some(Self::FIRST + self.0, 256) }
        }
    }

    /// Gives the turn to the other warpgroup, which has one more unless this one is warpgroup 1 and has none `left`.
    #[inline(always)]
    unsafe fn pass(&self, left: u32) {
        if TAKEN && (self.0 == 0 || left > 0) {
            // SAFETY: the caller's promise.
            unsafe { barrier::arrive(Self::FIRST + 1 - self.0, 256) }
        }
    }
}
