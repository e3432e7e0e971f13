//! The product on Hopper: a producer loads tiles by TMA, and warpgroups of consumers multiply them by `wgmma`.
//!
//! ```text
//! producer   wait until a stage is empty · load a tile of A and one of B into it · next stage ...
//! consumers  wait until a stage is full · multiply · give the stage before back · next stage ... · store C
//! ```
//!
//! Blocks are persistent: each takes the tile of C with its own number, then tiles as many further as there are blocks.
//! The producer does not wait for the store of C: meanwhile it loads for the next tile.

use super::place::CTile;
use crate::abi::{GemmParams, HopperGemmParams};
use crate::layout::descriptor::Panels;
use crate::layout::element;
use crate::layout::rows::Rows as _;
use crate::ptx::{barrier, global, mbarrier, setmaxnreg, shared, shuffle, special, tensor};
use crate::tile::wgmma::{self, Product};
use crate::tile::whole::row_chunk;
use crate::tile::{Accumulator, Element, Ring};

/// Rows of C of a warpgroup.
const ROWS: u32 = 64;

/// Columns of A and B that a stage holds: one panel.
const DEPTH: u32 = 128 / element::BYTES;

/// Computes tiles of C, of `64 * W` rows and `16 * NT` columns.
///
/// `W` warpgroups consume, 64 rows each, and one more produces, through `S` stages. `GIVEN` registers stay with the
/// producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// Launched as [`HopperGemmParams`] and the kernel's row of the [catalog](crate::catalog) say, with matrices that are
/// readable (a, b) and writable (c) in full; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn hopper<
    E: Element,
    const W: u32,
    const NT: usize,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &HopperGemmParams,
    maps: u64,
) where
    [Accumulator; NT]: Product,
{
    // SAFETY: the launch has this many threads a block. All of them reach the barrier; then each warpgroup has its
    // role.
    unsafe {
        let thread = special::thread(128 * (W + 1));
        if thread == 0 {
            for i in 0..S {
                let stage = Stage::<S>::at::<W, NT>(Ring(i));
                mbarrier::init(stage.full, 1);
                // The first lane of each warp of consumers releases the stage.
                mbarrier::init(stage.full + 8, 4 * W);
            }
            mbarrier::fence_init();
        }
        barrier::block();
        let warpgroup = shuffle::first(thread / 128);
        if warpgroup == W {
            setmaxnreg::decrease::<GIVEN>();
            if thread == 128 * W {
                produce::<W, NT, S>(params, maps);
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            consume::<E, W, NT, S>(params, warpgroup);
        }
    }
}

/// A stage in shared memory. Tiles of all stages come first, A before B, then two barriers for each stage.
#[derive(Clone, Copy)]
struct Stage<const S: u32> {
    a: Panels,
    b: Panels,
    /// The first of a [`Ring`]'s two barriers.
    full: u32,
    /// Its place in the stream of tiles.
    place: Ring<S>,
}

impl<const S: u32> Stage<S> {
    /// The stage of a place in the stream.
    #[inline(always)]
    fn at<const W: u32, const NT: usize>(place: Ring<S>) -> Self {
        let panel = |base, rows| Panels {
            base,
            rows,
            width: DEPTH,
        };
        let a = panel(0, W * ROWS);
        let b = panel(a.panel_bytes(), 16 * NT as u32);
        let bytes = b.base + b.panel_bytes();
        let base = shared::base() + place.stage() * bytes;
        Stage {
            a: panel(base, a.rows),
            b: panel(base + b.base, b.rows),
            full: shared::base() + S * bytes + place.stage() * 16,
            place,
        }
    }
}

/// Loads the tiles of A and B for all of the block's tiles of C.
///
/// # Safety
/// The conditions of [`hopper`], with initialised barriers, in one thread of the block.
#[inline(always)]
unsafe fn produce<const W: u32, const NT: usize, const S: u32>(
    params: &HopperGemmParams,
    maps: u64,
) {
    let [a_map, b_map] = [maps, maps + 128];
    let mut place = Ring(0);
    let mut tile = special::block();
    while tile < params.tiles {
        let c = CTile::at(&params.gemm, tile, W * ROWS, 16 * NT as u32);
        let mut k = 0;
        while k < params.gemm.k {
            let Stage { a, b, full, .. } = Stage::<S>::at::<W, NT>(place);
            // Elements past the last row or column arrive as zeros, and count.
            // SAFETY: the barriers count the bytes of both tiles; the boxes fit their places.
            unsafe {
                place.acquire(full);
                mbarrier::arrive_expect(full, a.panel_bytes() + b.panel_bytes());
                tensor::load(a.base, a_map, k as i32, c.row as i32, 0, 0, full);
                tensor::load(b.base, b_map, k as i32, c.column as i32, 0, 0, full);
            }
            place = place.next();
            k += DEPTH;
        }
        tile += special::blocks();
    }
}

/// Computes a warpgroup's rows of the block's tiles of C.
///
/// # Safety
/// The conditions of [`produce`], in all threads of the warpgroup.
#[inline(always)]
unsafe fn consume<E: Element, const W: u32, const NT: usize, const S: u32>(
    params: &HopperGemmParams,
    warpgroup: u32,
) where
    [Accumulator; NT]: Product,
{
    let mut place = Ring(0);
    let mut tile = special::block();
    // SAFETY: every stage is waited for before it is read, and released after the wait for its products. All branches
    // depend on the launch and the warpgroup alone.
    unsafe {
        while tile < params.tiles {
            let mut sums = [Accumulator::ZERO; NT];
            let mut stage = Stage::<S>::at::<W, NT>(place);
            multiply::<E, NT, S>(&mut sums, &stage, warpgroup, false);
            // While the products of a stage run, the next stage's products are issued behind them.
            let mut steps = params.gemm.k.div_ceil(DEPTH) - 1;
            while steps > 0 {
                steps -= 1;
                let last = stage;
                stage = Stage::at::<W, NT>(last.place.next());
                multiply::<E, NT, S>(&mut sums, &stage, warpgroup, true);
                wgmma::wait::<1>();
                last.place.release(last.full);
            }
            wgmma::wait::<0>();
            wgmma::pin(&mut sums);
            stage.place.release(stage.full);
            place = stage.place.next();
            let c = CTile::at(&params.gemm, tile, W * ROWS, 16 * NT as u32);
            store::<E, W, NT>(&params.gemm, c, &sums);
            tile += special::blocks();
        }
    }
}

/// Waits for a stage and issues its products as a group: `sums = A B^T`, or `sums += A B^T` where `add` says so.
///
/// # Safety
/// The conditions of [`consume`].
#[inline(always)]
unsafe fn multiply<E: Element, const NT: usize, const S: u32>(
    sums: &mut [Accumulator; NT],
    stage: &Stage<S>,
    warpgroup: u32,
    add: bool,
) where
    [Accumulator; NT]: Product,
{
    let (a, b) = (stage.a.rows(ROWS * warpgroup), stage.b.rows(0));
    // SAFETY: the caller's promise.
    unsafe {
        stage.place.wait(stage.full);
        wgmma::fence();
        for slice in 0..DEPTH / E::K {
            let (a, b) = (
                a.skip(stage.a.to_columns(slice)),
                b.skip(stage.b.to_columns(slice)),
            );
            sums.rows::<E>(a, b, add || slice > 0);
        }
        wgmma::commit();
    }
}

/// Stores a warp's 16 rows of a tile, rounded.
///
/// # Safety
/// The conditions of [`consume`]; every lane of the warp makes the same call.
#[inline(always)]
unsafe fn store<E: Element, const W: u32, const NT: usize>(
    params: &GemmParams,
    tile: CTile,
    sums: &[Accumulator; NT],
) {
    // SAFETY: the block has this many threads. Only this warp stores these rows; no branch on a row or column holds an
    // instruction of a warp.
    unsafe {
        let thread = special::thread(128 * (W + 1));
        let lane = thread % 32;
        for pair in 0..NT / 2 {
            for r in 0..2 {
                let chunk = row_chunk::<E>([sums[2 * pair], sums[2 * pair + 1]], r, lane);
                let row = tile.row + thread / 32 * 16 + lane / 4 + 8 * r as u32;
                let column = tile.column + 32 * pair as u32 + 8 * (lane % 4);
                if row < params.m && column < params.n {
                    let c = params.c.rows(row, column, params.n);
                    match params.c_aligned {
                        0 => global::store_elements(c.address, chunk, c.elements()),
                        _ => global::store_u32x4(c.address, chunk),
                    }
                }
            }
        }
    }
}
