//! The product through shared memory: a ring of tiles that `cp.async` fills ahead.
//!
//! In a step along k a warp multiplies the slices of a tile one after the other. It reads the
//! operands of the next slice, of this tile or the next, before it multiplies this slice: so the
//! tensor cores never wait for `ldmatrix`.

use super::place::CTile;
use crate::abi::GemmParams;
use crate::ptx::{barrier, shared, special};
use crate::tile::registers::again;
use crate::tile::{Accumulate, Copier, CpAsync, Element, Operand, Pipeline, SharedTile};

/// Computes the block's tile of C.
///
/// The block has `WM` warps down and `WN` across, each with `MT` by `NT` tiles of 16x16; a step takes
/// `KT` slices of `E::K`, and there are `S` stages.
///
/// # Safety
/// Launched as [`GemmParams`] and the kernel's row of the [catalog](crate::catalog) say: grid, block size
/// and shared memory, with matrices that are readable (a, b) and writable (c) in full.
#[inline(always)]
pub unsafe fn multistage<
    E: Element,
    Acc: Accumulate<E>,
    const WM: usize,
    const WN: usize,
    const MT: usize,
    const NT: usize,
    const KT: usize,
    const S: usize,
>(
    params: &GemmParams,
) {
    let (warp_rows, warp_columns) = (16 * MT as u32, 16 * NT as u32);
    let (bm, bn, bk) = (
        WM as u32 * warp_rows,
        WN as u32 * warp_columns,
        E::K * KT as u32,
    );
    let threads = 32 * (WM * WN) as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let (lane, warp) = (thread % 32, thread / 32);
    let block = CTile::of_block(params, bm, bn);
    let (a_rows, b_rows) = (params.m - block.row, params.n - block.column);
    let mut a = Copier::<KT, _>::new(params.a.rows(block.row, 0, params.k), thread, threads);
    let mut b = Copier::<KT, _>::new(params.b.rows(block.column, 0, params.k), thread, threads);

    // A ring of buffers: each holds a tile of A, and B below it. After the last comes the first.
    let first = || SharedTile::<KT>::new(shared::base());
    let end = first().skip((bm + bn) * S as u32).base;
    let after = |tile: SharedTile<KT>| match tile.skip(bm + bn) {
        next if next.base == end => first(),
        next => next,
    };
    let mut filled = first();
    // Past the last column of A and B it loads zeros.
    // SAFETY: called between the acquire and the commit of the buffer.
    let mut load_next = || unsafe {
        a.load(filled, 0, bm, a_rows);
        b.load(filled.skip(bm), 0, bn, b_rows);
        a = a.skip_columns(bk);
        b = b.skip_columns(bk);
        filled = after(filled);
    };
    let (a_row, b_row) = (
        warp / WN as u32 * warp_rows,
        warp % WN as u32 * warp_columns,
    );
    // SAFETY: called for visible tiles.
    let read = |tile: SharedTile<KT>, kt: usize| unsafe {
        let (a_tile, b_tile) = (tile.skip(a_row), tile.skip(bm + b_row));
        let (mut a, mut b) = ([Operand::ZERO; MT], [Operand::ZERO; NT]);
        for mt in 0..MT {
            a[mt] = a_tile.a(lane, mt, kt);
        }
        for nt in 0..NT {
            b[nt] = b_tile.b(lane, nt, kt);
        }
        (a, b)
    };

    let mut pipeline = CpAsync::<S>;
    let mut sums = [[Acc::ZERO; NT]; MT];
    // SAFETY: every branch here depends on the launch alone, so that all threads reach every barrier
    // and all lanes every tensor-core instruction. A step releases its tile after its last read, and fills
    // the buffer of the tile before.
    unsafe {
        for _ in 1..S {
            pipeline.fill(&mut load_next);
        }
        pipeline.wait();
        let mut tile = first();
        let mut operands = read(tile, 0);
        // One step of zeros if k = 0.
        let mut steps = params.k.div_ceil(bk).max(1);
        while steps > 0 {
            steps -= 1;
            for kt in 0..KT {
                let (a, b) = operands;
                operands = read(tile, (kt + 1) % KT);
                if kt == 0 {
                    pipeline.fill(&mut load_next);
                }
                for mt in 0..MT {
                    for nt in 0..NT {
                        sums[mt][nt].mma(a[mt], b[nt]);
                    }
                }
                if kt + 2 == KT {
                    pipeline.release();
                    pipeline.wait();
                    tile = after(tile);
                }
            }
        }
        // C takes the place of the tiles of A and B.
        pipeline.drain();
        // Held over the loop, they take 8 to 12 registers more.
        let (thread, block) = again(|| (special::thread(threads), CTile::of_block(params, bm, bn)));
        let (lane, warp) = (thread % 32, thread / 32);
        let own = block.of_warp(warp, WN as u32, warp_rows, warp_columns);
        let c_tile = SharedTile::<NT>::new(shared::base());
        let c_tile = c_tile.skip(warp * warp_rows);
        for mt in 0..MT {
            for nt in 0..NT {
                c_tile.set(lane, mt, nt, sums[mt][nt].to_operand());
            }
        }
        barrier::warp();
        let exist = params.m.saturating_sub(own.row);
        let c = Copier::<NT, _>::new(params.c.rows(own.row, own.column, params.n), lane, 32);
        c.store(c_tile, 0, warp_rows, exist, params.c_aligned != 0);
    }
}
