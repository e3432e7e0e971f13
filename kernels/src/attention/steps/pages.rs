//! Line 10 with pages whose values have descales of their own.

use super::warp::{Warp, lane_in_step};
use crate::attention::options::mask::{Interval, Mask, Visible};
use crate::attention::options::score::Score;
use crate::tile::{Accumulator, Fixed, Numbers, Operand, SharedTile};

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize, C: Score>
    Warp<MT, DT, OT, QT, Fixed, C>
{
    /// Line 10 of a block whose rows see `keys`, or all without them; with descales of each slice of values, if pages have their own.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate_values<
        B: Numbers,
        M: Mask,
        I: Visible,
        const NT: usize,
        const VT: usize,
    >(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<VT>,
        keys: Option<[[I; 2]; MT]>,
        descales: Option<[f32; NT]>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match (descales, keys) {
                (Some(descales), keys) => {
                    self.accumulate_pages::<B, I, NT, VT>(p, v_tile, keys, descales);
                }
                (None, Some(keys)) => {
                    self.accumulate_masked::<B, M, I, NT, VT>(p, v_tile, keys);
                }
                (None, None) => self.accumulate::<B, NT, VT>(p, v_tile),
            }
        }
    }

    /// `O += P V`, where each slice of 16 values has a descale, and each row sees only `keys` of the block; all of them without
    /// `keys`. Products of a slice are summed before they are multiplied: P has no bits to spare for descales far apart.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    unsafe fn accumulate_pages<B: Numbers, I: Interval, const NT: usize, const VT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<VT>,
        keys: Option<[[I; 2]; MT]>,
        descales: [f32; NT],
    ) {
        let lane = lane_in_step(v_tile);
        for nt in 0..NT {
            for vt in 0..VT {
                // SAFETY: the caller's promise.
                let values = unsafe { B::values(v_tile, lane, nt, vt) };
                for i in 0..B::SLICES {
                    let ot = B::SLICES * vt + i;
                    for mt in 0..MT {
                        let mut sum = Accumulator::ZERO;
                        let mut count = Accumulator::ZERO;
                        // SAFETY: the caller's promise.
                        unsafe {
                            match keys {
                                None => sum.mma::<B::Values>(p[mt][nt], values[i]),
                                Some(keys) => {
                                    let keys = keys[mt].map(|k| k.counted_from(16 * nt as i32));
                                    let seen = Operand::ones::<B::Values>(lane, keys);
                                    let (finite, non_finite) =
                                        values[i].split_non_finite::<B::Values>();
                                    sum.mma::<B::Values>(p[mt][nt], finite);
                                    count.mma::<B::Values>(seen, non_finite);
                                }
                            }
                        }
                        self.o[mt][ot].add_times(sum, descales[nt]);
                        if keys.is_some() {
                            self.o[mt][ot].spoil(count);
                        }
                    }
                }
            }
        }
    }
}
