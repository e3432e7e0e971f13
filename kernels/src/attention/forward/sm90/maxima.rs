//! Line 9 of Algorithm 1: scores become probabilities, relative to exact maxima or to those of the blocks before.

use super::consumer::Consumer;
use super::kernel::Kernel;
use super::tile::Tile;
use crate::attention::Softmax;
use crate::attention::options::mask::Visible;
use crate::attention::options::score::{Score, is_exact};
use crate::ptx::{barrier, vote};
use crate::tile::Accumulator;
use crate::tile::wgmma::Product;
use core::hint::cold_path;

/// How a step finds the rows' maxima.
pub trait Maxima {
    /// Turns the scores of block `j` into probabilities, with 0 where a row does not see a key of a block that `is_edge`.
    /// Returns the factors of the rows of O, if they are not 1.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, once the scores are there.
    unsafe fn probabilities<K: Kernel, const OT: usize, const NT: usize, const S: u32>(
        softmax: &mut Softmax<1>,
        s: &mut [Accumulator; NT],
        consumer: &Consumer<K, OT, NT, S>,
        tile: &Tile<K>,
        j: u32,
        is_edge: bool,
    ) -> Option<[f32; 2]>
    where
        [Accumulator; OT]: Product,
        [Accumulator; NT]: Product;
}

/// The maxima of all scores so far.
pub struct Exact;

impl Maxima for Exact {
    #[inline(always)]
    unsafe fn probabilities<K: Kernel, const OT: usize, const NT: usize, const S: u32>(
        softmax: &mut Softmax<1>,
        s: &mut [Accumulator; NT],
        _consumer: &Consumer<K, OT, NT, S>,
        tile: &Tile<K>,
        j: u32,
        is_edge: bool,
    ) -> Option<[f32; 2]>
    where
        [Accumulator; OT]: Product,
        [Accumulator; NT]: Product,
    {
        let mut tiles = [*s];
        Visible::mask(&mut tiles, tile.keys(j, is_edge));
        [*s] = tiles;
        // SAFETY: the caller's promise.
        Some(unsafe { update(softmax, s) })
    }
}

/// The maxima of the blocks before, as long as probabilities are not too large: see [`Softmax`].
pub struct Lazy;

impl Maxima for Lazy {
    #[inline(always)]
    unsafe fn probabilities<K: Kernel, const OT: usize, const NT: usize, const S: u32>(
        softmax: &mut Softmax<1>,
        s: &mut [Accumulator; NT],
        consumer: &Consumer<K, OT, NT, S>,
        tile: &Tile<K>,
        j: u32,
        _is_edge: bool,
    ) -> Option<[f32; 2]>
    where
        [Accumulator; OT]: Product,
        [Accumulator; NT]: Product,
    {
        // SAFETY: the caller's promise. The cold paths hold instructions of a warp alone.
        unsafe {
            if is_exact::<K::Score>() {
                return Some(update(softmax, s));
            }
            let mut tiles = [*s];
            if K::CHUNKS {
                // K is gone, so its scores are compared while they are there.
                if vote::any(!softmax.serves(&tiles)) {
                    cold_path();
                    return Some(update(softmax, s));
                }
                let sums = softmax.apply(&mut tiles);
                [*s] = tiles;
                softmax.add(sums);
                return None;
            }
            let sums = softmax.apply(&mut tiles);
            [*s] = tiles;
            // The branch keeps the exponentials before the wait for O, which the assembler would move up.
            if vote::any(!sums.fit()) {
                *s = consumer.warp_scores(K::warp_row());
                tile.apply(s, j);
                barrier::warp();
                return Some(update(softmax, s));
            }
            softmax.add(sums);
            None
        }
    }
}

/// Probabilities relative to exact maxima, and the factors of O.
///
/// # Safety
/// Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn update<const NT: usize>(softmax: &mut Softmax<1>, s: &mut [Accumulator; NT]) -> [f32; 2] {
    // SAFETY: the caller's promise.
    let maxima = unsafe { softmax.maxima(s) };
    softmax.update(0, s, maxima)
}
