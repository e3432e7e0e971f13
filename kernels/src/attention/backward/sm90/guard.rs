//! Infinities and NaN in pairs that the mask hides: `0 * NaN` must not appear.
//!
//! In a block at the edge of the mask, dS and P are 0 where it hides a pair, but Q, dO and K may hold infinities and NaN
//! there. A warpgroup searches them. Where it finds one, each warp adds its products by `mma.sync`, guarded as in the
//! forward pass, and the `wgmma` that follows reads zeros. So no `wgmma` stands behind a branch.

use crate::attention::mask::{Interval, Mask};
use crate::layout::descriptor::{Descriptor, Panels};
use crate::ptx::special;
use crate::tile::registers::opaque;

/// The first of the barriers by which each warpgroup shares what it found.
pub const SEARCH: u32 = 9;

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
        if !M::UNIFORM {
            if leave_out {
                // Without strides all rows and columns are the same few.
                first.low = zeros / 16;
                first.high &= !0xffff;
                step = 0;
            }
            // Opaque, so that the compiler makes no branches of the choice.
            first.low = opaque(first.low);
            first.high = opaque(first.high);
            step = opaque(step);
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

/// The keys that two rows of a lane see, of the 16 queries from `first` on; counted from key `origin`.
#[inline(always)]
pub fn keys_of_rows<M: Mask>(mask: M, first: i32, origin: i32) -> [M::Keys; 2] {
    let query = first + (special::lane() / 4) as i32;
    let [upper, lower] = [mask.keys(query), mask.keys(query + 8)];
    [upper.counted_from(origin), lower.counted_from(origin)]
}
