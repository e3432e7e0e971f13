//! The two sides between their products: side 0 makes P of S, and side 1 dS of P and dP.

use super::block::{Block, QueryTile};
use super::kernel::Kernel;
use super::pass::{multiply_by, pass};
use crate::attention::backward::job::below;
use crate::attention::options::score::Score;
use crate::ptx::{barrier, math, shared, special};
use crate::tile::whole::{to_operands, zero};
use crate::tile::{Accumulator, Operand};

/// # Safety
/// All functions here: all lanes of the warp make the same call; the other warp of the pair calls those of its side.
impl<K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'_, K, MT, DT, NT> {
    /// Waits for the other warp of the pair. Barrier 0 is of all threads, the next ones are of the pairs.
    #[inline(always)]
    unsafe fn pair_barrier(&self, tile: QueryTile<DT>) {
        // SAFETY: the caller's promise.
        unsafe { barrier::some(1 + self.pair(tile.step.head), 64) }
    }

    /// Whether P without the derivatives of the scores passes from side to side, too.
    #[inline(always)]
    fn passes_twice() -> bool {
        !K::Score::SCALED && K::Score::adds_underived()
    }

    /// P = exp(S - lse), and P times the derivatives of the scores.
    #[inline(always)]
    pub unsafe fn probabilities(
        &self,
        mut s: [[Accumulator; NT]; MT],
        tile: QueryTile<DT>,
    ) -> [[[Operand; NT]; MT]; 2] {
        if K::Score::SCALED {
            let scale = self.forward.scale * core::f32::consts::LOG2_E;
            // SAFETY: the caller's promise.
            unsafe {
                map_columns(&mut s, tile.rows, |s, lse| {
                    math::exp2(math::fma(s, scale, -lse))
                });
            }
            if tile.masked {
                zero(&mut s, self.seen::<MT>(tile, 0));
            }
            let p = to_operands::<K::Element, MT, NT>(s);
            [p, p]
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.probabilities_deriving(s, tile) }
        }
    }

    /// [`probabilities`](Self::probabilities) of scores that are more than scaled products.
    #[inline(always)]
    unsafe fn probabilities_deriving(
        &self,
        s: [[Accumulator; NT]; MT],
        tile: QueryTile<DT>,
    ) -> [[[Operand; NT]; MT]; 2] {
        let job = self.job();
        let head = job.head(self.forward, tile.step.head);
        let score = K::Score::new(self.forward, job.sequence.batch, head);
        let corner = self.corner(&job, tile);
        let scale = score.scale().signed();
        let mut p = [[Operand::ZERO; NT]; MT];
        let mut slopes = p;
        for mt in 0..MT {
            let seen = tile.masked.then(|| self.seen::<1>(tile, mt));
            for nt in 0..NT {
                let mut x = [[s[mt][nt]]];
                let derivatives = score.apply_deriving(&mut x[0][0], corner.skip::<true>(mt, nt));
                let rows = tile.rows + 64 * nt as u32;
                // SAFETY: the caller's promise.
                unsafe {
                    map_columns(&mut x, rows, |s, lse| math::exp2(math::fma(s, scale, -lse)));
                }
                if let Some(seen) = seen {
                    zero(&mut x, [below(seen[0], nt)]);
                }
                let [[mut p_tile]] = x;
                p[mt][nt] = p_tile.to_operand::<K::Element>();
                for i in 0..8 {
                    p_tile.0[i] *= derivatives.0[i];
                }
                slopes[mt][nt] = p_tile.to_operand::<K::Element>();
            }
        }
        [p, slopes]
    }

    /// Passes P times the derivatives to side 1, after P where it adds underived gradients.
    #[inline(always)]
    pub unsafe fn pass_on(
        &self,
        p: [[Operand; NT]; MT],
        slopes: [[Operand; NT]; MT],
        tile: QueryTile<DT>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::passes_twice() {
                pass(self.passed(tile).base, p);
                self.pair_barrier(tile);
                self.pair_barrier(tile);
            }
            pass(self.passed(tile).base, slopes);
            self.pair_barrier(tile);
        }
    }

    /// dS = P * (dP - delta), also written for dQ.
    #[inline(always)]
    pub unsafe fn gradients(
        &self,
        mut x: [[Accumulator; NT]; MT],
        tile: QueryTile<DT>,
    ) -> [[Operand; NT]; MT] {
        // SAFETY: the caller's promise.
        unsafe {
            map_columns(&mut x, tile.rows, |dp, delta| dp - delta);
            if Self::passes_twice() {
                self.pair_barrier(tile);
                self.add_underived(&x, tile);
                self.pair_barrier(tile);
            }
            self.pair_barrier(tile);
            multiply_by::<K::Element, MT, NT>(&mut x, self.passed(tile).base);
            if tile.masked {
                zero(&mut x, self.seen::<MT>(tile, 0));
            }
            if !K::Score::SCALED && !K::Score::adds_underived() {
                let job = self.job();
                let head = [job.sequence.batch, job.head(self.forward, tile.step.head)];
                let corner = self.corner(&job, tile);
                K::Score::add_gradients::<MT, NT, false>(self.params, head, &x, corner);
            }
            let ds = to_operands::<K::Element, MT, NT>(x);
            // All lanes have read P.
            barrier::warp();
            self.passed(tile).set_operands::<MT, NT>(0, ds);
            ds
        }
    }

    /// Adds the gradients of the scores without the derivatives, tile by tile: `x` is dP - delta.
    #[inline(always)]
    unsafe fn add_underived(&self, x: &[[Accumulator; NT]; MT], tile: QueryTile<DT>) {
        let job = self.job();
        let head = [job.sequence.batch, job.head(self.forward, tile.step.head)];
        let corner = self.corner(&job, tile);
        let seen = tile.masked.then(|| self.seen::<MT>(tile, 0));
        let from = self.passed(tile).base;
        for mt in 0..MT {
            for nt in 0..NT {
                let mut tile = [[x[mt][nt]]];
                // SAFETY: the caller's promise.
                unsafe {
                    let from = from + 512 * (mt * NT + nt) as u32;
                    multiply_by::<K::Element, 1, 1>(&mut tile, from);
                    if let Some(seen) = seen {
                        zero(&mut tile, [below(seen[mt], nt)]);
                    }
                    let corner = corner.skip::<true>(mt, nt);
                    K::Score::add_gradients::<1, 1, false>(self.params, head, &tile, corner);
                }
            }
        }
    }
}

/// Replaces each element of tiles, whose columns are queries, by `f` of it and of its query's statistic.
///
/// # Safety
/// The statistics at the shared address `rows` are written and visible.
#[inline(always)]
unsafe fn map_columns<const MT: usize, const NT: usize>(
    x: &mut [[Accumulator; NT]; MT],
    rows: u32,
    f: impl Fn(f32, f32) -> f32,
) {
    let lane = special::lane();
    for nt in 0..NT {
        for half in 0..2 {
            let column = 16 * nt as u32 + 8 * half as u32 + 2 * (lane % 4);
            // SAFETY: the caller's promise.
            let pair = unsafe { shared::load_f32x2(rows + 4 * column) };
            for mt in 0..MT {
                for i in 0..4 {
                    let x = &mut x[mt][nt].0[4 * half + i];
                    *x = f(*x, pair[i % 2]);
                }
            }
        }
    }
}
