//! The product with no shared memory: each lane loads its own elements of the operands.
//!
//! The price is loads: every warp reads all rows of A and B that it needs, four bytes a lane at a time. Only the
//! L1 cache shares them between warps.

use super::place::CTile;
use crate::abi::GemmParams;
use crate::layout::rows::{Rows as _, Strided};
use crate::layout::{element, fragment};
use crate::ptx::{global, special};
use crate::tile::{Accumulate, Element, Operand};

/// Computes the block's tile of C.
///
/// The block has `WM` warps down and `WN` across, each with `MT` by `NT` tiles of 16x16.
///
/// # Safety
/// The conditions of [`multistage`](super::multistage).
#[inline(always)]
pub unsafe fn simple<
    E: Element,
    Acc: Accumulate<E>,
    const WM: usize,
    const WN: usize,
    const MT: usize,
    const NT: usize,
>(
    params: &GemmParams,
) {
    let (warp_rows, warp_columns) = (16 * MT as u32, 16 * NT as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * (WM * WN) as u32) };
    let (lane, warp) = (thread % 32, thread / 32);
    let own = CTile::of_block(params, WM as u32 * warp_rows, WN as u32 * warp_columns);
    let own = own.of_warp(warp, WN as u32, warp_rows, warp_columns);
    if own.row >= params.m || own.column >= params.n {
        return;
    }
    let mut a = Rows::<MT>::new(
        params.a.rows(own.row, 0, params.k),
        lane,
        params.m - own.row,
    );
    let mut b = Rows::<NT>::new(
        params.b.rows(own.column, 0, params.k),
        lane,
        params.n - own.column,
    );

    let mut sums = [[Acc::ZERO; NT]; MT];
    let mut left = params.k;
    while left > 0 {
        // Half of the last step may be missing.
        let whole = left >= E::K;
        // SAFETY: what the lane loads exists, and every lane of the warp takes the same steps.
        unsafe {
            let a = a.load_next(whole);
            // Rows of A are (g, g + 8) by pairs of k, of B pairs of k by (g, g + 8).
            let b = b
                .load_next(whole)
                .map(|Operand([b0, b2, b1, b3])| Operand([b0, b1, b2, b3]));
            for mt in 0..MT {
                for nt in 0..NT {
                    sums[mt][nt].mma(a[mt], b[nt]);
                }
            }
        }
        left = left.saturating_sub(E::K);
    }

    for mt in 0..MT {
        for nt in 0..NT {
            let pairs = sums[mt][nt].to_operand().0;
            for r in 0..4 {
                let (row, column) = fragment::operand_a(lane, r as u32);
                let row = own.row + 16 * mt as u32 + row;
                let column = own.column + 16 * nt as u32 + column;
                if row < params.m && column < params.n {
                    let address = params.c.rows(row, column, params.n).address;
                    // SAFETY: only this lane stores the element and, if it exists, the next one.
                    unsafe {
                        if params.c_aligned != 0 {
                            global::store_u32(address, pairs[r]);
                        } else {
                            global::store_u16(address, pairs[r] as u16);
                            if column + 1 < params.n {
                                global::store_u16(element::at(address, 1), (pairs[r] >> 16) as u16);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Addresses of a lane's elements of `T` tiles of 16 rows: in each tile rows `g` and `g + 8`, from column `2t` on.
struct Rows<const T: usize>([[u64; 2]; T]);

impl<const T: usize> Rows<T> {
    /// The rows past the last of `exist` rows are that row again: their products are never stored.
    #[inline(always)]
    fn new(rows: Strided, lane: u32, exist: u32) -> Self {
        let mut addresses = [[0; 2]; T];
        for t in 0..T {
            for r in 0..2 {
                let (row, column) = fragment::operand_a(lane, r as u32);
                let row = (16 * t as u32 + row).min(exist - 1);
                addresses[t][r] = element::at(rows.skip(row).address, column);
            }
        }
        Rows(addresses)
    }

    /// The next 32 bytes of each row or, unless `whole`, 16 bytes and zeros; register `r` as in
    /// [`fragment::operand_a`].
    ///
    /// # Safety
    /// The columns exist.
    #[inline(always)]
    unsafe fn load_next(&mut self, whole: bool) -> [Operand; T] {
        let mut operands = [Operand::ZERO; T];
        for t in 0..T {
            for r in 0..4 {
                if r < 2 || whole {
                    let address = self.0[t][r % 2] + 16 * (r / 2) as u64;
                    // SAFETY: the caller's promise; rows start at multiples of 16 bytes.
                    operands[t].0[r] = unsafe { global::load_u32(address) };
                }
            }
            self.0[t] = self.0[t].map(|address| address + 32);
        }
        operands
    }
}
