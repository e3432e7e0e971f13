//! The numbers of K and V in shared memory, and what tensor cores multiply in their place.
//!
//! Numbers of e4m3 are half as large as those that they are multiplied by. A lane gets four neighbours of a row where it
//! would get two of 16 bits, so fragments have the columns of a slice in another order:
//!
//! ```text
//! place in a fragment     2t    2t+1   2t+8   2t+9      t = lane % 4
//! column of 16 bits       2t    2t+1   2t+8   2t+9
//! column of e4m3          4t    4t+1   4t+2   4t+3
//! ```
//!
//! Q is [moved](Numbers::arrange) to that order once, and O [is in it](Numbers::sorted) in the end.

use super::{Accumulator, Arrangement, Element, Half, Operand, SharedTile};
use crate::ptx::{barrier, convert, special};
use core::marker::PhantomData;

/// Where the lanes' pairs of columns lie in a slice of 16.
#[derive(Clone, Copy)]
pub struct Pairs {
    /// Columns from a lane's first pair to the next lane's.
    pub lane: u32,
    /// Columns from a lane's first pair to its second one.
    pub half: u32,
}

impl Pairs {
    /// In operands and accumulators of 16-bit elements.
    pub const OF_OPERANDS: Self = Pairs { lane: 2, half: 8 };
}

/// How tiles of K and V hold their numbers.
pub trait Numbers {
    /// Elements of Q and O, which K is multiplied by.
    type Element: Element;
    /// Elements that P is rounded to, which V is multiplied by.
    type Values: Element;
    /// Slices of 16 columns in 32 bytes of a row.
    const SLICES: usize;
    /// Where the lanes' pairs of columns lie in a slice.
    const PAIRS: Pairs;

    /// Columns `32 / SLICES` bytes wide of 16 rows, as B operands with `k` along the row: K, for Q K^T. All but the first
    /// [`SLICES`](Self::SLICES) are zeros.
    ///
    /// # Safety
    /// The conditions of [`SharedTile::a`].
    unsafe fn keys<const KT: usize, A: Arrangement>(
        tile: SharedTile<KT, A>,
        lane: u32,
        row16: usize,
        slice: usize,
    ) -> [Operand; 2];

    /// Likewise with `k` down the rows: V, for P V.
    ///
    /// # Safety
    /// The conditions of [`SharedTile::a`].
    unsafe fn values<const VT: usize, A: Arrangement>(
        tile: SharedTile<VT, A>,
        lane: u32,
        row16: usize,
        slice: usize,
    ) -> [Operand; 2];

    /// Moves 16 rows of Q to the order of fragments.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call, the tile is written and visible, and no other warp uses these rows.
    unsafe fn arrange<const DT: usize>(q_tile: SharedTile<DT>);

    /// A tile of O with its columns where [`PAIRS`](Self::PAIRS) says.
    fn sorted(o: Accumulator) -> Accumulator;
}

/// Elements of 16 bits are what tensor cores multiply.
impl<E: Element> Numbers for E {
    type Element = E;
    type Values = E;
    const SLICES: usize = 1;
    const PAIRS: Pairs = Pairs::OF_OPERANDS;

    #[inline(always)]
    unsafe fn keys<const KT: usize, A: Arrangement>(
        tile: SharedTile<KT, A>,
        lane: u32,
        row16: usize,
        slice: usize,
    ) -> [Operand; 2] {
        // SAFETY: the caller's promise.
        [unsafe { tile.b(lane, row16, slice) }, Operand::ZERO]
    }

    #[inline(always)]
    unsafe fn values<const VT: usize, A: Arrangement>(
        tile: SharedTile<VT, A>,
        lane: u32,
        row16: usize,
        slice: usize,
    ) -> [Operand; 2] {
        // SAFETY: the caller's promise.
        [unsafe { tile.b_trans(lane, row16, slice) }, Operand::ZERO]
    }

    #[inline(always)]
    unsafe fn arrange<const DT: usize>(_q_tile: SharedTile<DT>) {}

    #[inline(always)]
    fn sorted(o: Accumulator) -> Accumulator {
        o
    }
}

/// Numbers of e4m3, beside Q and O of `E`. They become elements of `E`, and values f16, which holds every number of e4m3 and
/// every probability.
pub struct E4m3<E>(PhantomData<E>);

impl<E: Element> Numbers for E4m3<E> {
    type Element = E;
    type Values = Half;
    const SLICES: usize = 2;
    const PAIRS: Pairs = Pairs { lane: 4, half: 2 };

    #[inline(always)]
    unsafe fn keys<const KT: usize, A: Arrangement>(
        tile: SharedTile<KT, A>,
        lane: u32,
        row16: usize,
        slice: usize,
    ) -> [Operand; 2] {
        // SAFETY: the caller's promise.
        let Operand([a, b, c, d]) = unsafe { tile.b(lane, row16, slice) };
        let left = [E::of_e4m3(a), E::of_e4m3(c)];
        let right = [E::of_e4m3(b), E::of_e4m3(d)];
        [
            Operand([left[0][0], left[0][1], left[1][0], left[1][1]]),
            Operand([right[0][0], right[0][1], right[1][0], right[1][1]]),
        ]
    }

    /// Pairs of neighbours pass `ldmatrix` as one element each. The even columns of a slice are the first B operand, the odd
    /// ones the second.
    #[inline(always)]
    unsafe fn values<const VT: usize, A: Arrangement>(
        tile: SharedTile<VT, A>,
        lane: u32,
        row16: usize,
        slice: usize,
    ) -> [Operand; 2] {
        // SAFETY: the caller's promise.
        let Operand([a, b, c, d]) = unsafe { tile.b_trans(lane, row16, slice) };
        let apart = |pairs| Half::of_e4m3(convert::even_bytes_first(pairs));
        let (left, right) = ([apart(a), apart(b)], [apart(c), apart(d)]);
        [
            Operand([left[0][0], left[1][0], left[0][1], left[1][1]]),
            Operand([right[0][0], right[1][0], right[0][1], right[1][1]]),
        ]
    }

    #[inline(always)]
    unsafe fn arrange<const DT: usize>(q_tile: SharedTile<DT>) {
        let lane = special::lane();
        for dt in 0..DT {
            // SAFETY: the caller's promise. All lanes have read the slice before one writes it.
            unsafe {
                let operand = q_tile.get_pairs(lane, 0, dt, Self::PAIRS);
                barrier::warp();
                q_tile.set(lane, 0, dt, operand);
                barrier::warp();
            }
        }
    }

    /// Accumulators have even columns, then odd ones.
    #[inline(always)]
    fn sorted(o: Accumulator) -> Accumulator {
        let [a, c, e, g, b, d, f, h] = o.0;
        Accumulator([a, b, e, f, c, d, g, h])
    }
}
