//! [Guarded products](crate::attention::guard) by `wgmma`: it reads zeros where a warp adds the product by itself.
//!
//! In a block at the edge of the mask, dS and P are 0 where it hides a pair, but Q, dO and K may hold infinities and NaN
//! there. A warpgroup searches them. Where it finds one, each warp adds the guarded product by `mma.sync`, and the `wgmma`
//! reads zeros. So no `wgmma` stands behind a branch.

use super::roles::thread;
use crate::attention::guard::panels::{add_guarded_rows, has_non_finite};
use crate::attention::options::mask::{Interval, Mask};
use crate::layout::descriptor::{Descriptor, Panels};
use crate::ptx::special;
use crate::tile::{Accumulator, Element};
use core::hint::cold_path;

/// The first of the barriers by which each warpgroup shares what it found.
const SEARCH: u32 = 9;

/// The operands that the products of a step leave out.
#[derive(Clone, Copy, Default)]
pub struct LeaveOut {
    /// Q and dO.
    pub queries: bool,
    /// K.
    pub keys: bool,
}

/// An operand whose columns lie along memory, in slices of 16 rows: a tile, or zeros in its place.
#[derive(Clone, Copy)]
pub struct Columns {
    first: Descriptor,
    /// From a slice to the next, as a descriptor counts.
    step: u32,
}

impl Columns {
    /// The columns of `tile`, or zeros where it is to be left out, which only a mask that hides pairs asks for.
    #[inline(always)]
    pub fn new<M: Mask>(tile: Panels, zeros: u32, leave_out: bool) -> Self {
        let (mut first, mut step) = (tile.columns(), tile.to_rows(1) / 16);
        if !M::UNIFORM && leave_out {
            // Without strides all rows and columns are the same few.
            first.low = zeros / 16;
            first.high &= !0xffff;
            step = 0;
        }
        Columns { first, step }
    }

    /// The operand of slice `slice`.
    #[inline(always)]
    pub fn slice(self, slice: u32) -> Descriptor {
        Descriptor {
            low: self.first.low + slice * self.step,
            ..self.first
        }
    }
}

/// Whether a tile of `16 * ROWS` rows holds an infinity or a NaN: the same answer for the whole warpgroup.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with the tile landed.
#[inline(always)]
pub unsafe fn search<E: Element, const DT: usize, const ROWS: usize>(
    tile: Panels,
    warpgroup: u32,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { has_non_finite::<E, DT, ROWS>(tile, thread(), SEARCH + warpgroup) }
}

/// Adds product 5, which was left out: of a warpgroup's 64 queries, from row `row` of dS on, and a tile of 128 keys. `first` are the
/// first query and key.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with dS and K landed.
#[inline(always)]
pub unsafe fn add_left_out<E: Element, M: Mask, const DT: usize>(
    mask: M,
    first: [i32; 2],
    (ds, row): (Panels, u32),
    k: Panels,
    dq: &mut [Accumulator; DT],
) {
    cold_path();
    let warp_row = thread() / 32 * 16;
    let query = first[0] + (warp_row + special::lane() / 4) as i32;
    let [upper, lower] = [mask.keys(query), mask.keys(query + 8)];
    let keys = [upper, lower].map(|keys| keys.counted_from(first[1]));
    // SAFETY: the caller's promise.
    unsafe { add_guarded_rows::<E, DT, 8>((ds, row + warp_row), k, dq, keys) }
}
