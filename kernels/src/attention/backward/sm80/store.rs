//! dK and dV, stored.

use super::block::Block;
use super::kernel::Kernel;
use crate::attention::options::score::Score;
use crate::ptx::{barrier, special};
use crate::tile::registers::again;
use crate::tile::{Accumulator, Copier};

impl<K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'_, K, MT, DT, NT> {
    /// Stores dV on side 0, dK on side 1, through the warp's rows of K and V.
    ///
    /// # Safety
    /// All lanes of the warp make the same call, and no other warp uses these rows; the gradients are writable.
    #[inline(always)]
    pub unsafe fn store(&self, sum: [[Accumulator; DT]; MT]) {
        let (params, forward) = (self.params, self.forward);
        // Held over the loop, they spill 28 bytes at D = 128.
        let (job, own) = again(|| (self.job(), self.own(0)));
        let key = job.first_key + self.warp_key(0);
        if key >= job.sequence.keys {
            return;
        }
        let (tensor, aligned, factor) = if self.side(0) == 0 {
            (&params.dv, params.dv_aligned, 1.0)
        } else {
            (&params.dk, params.dk_aligned, forward.scale)
        };
        let dim = match K::Score::SCALED || self.side(0) != 0 {
            true => forward.dim,
            false => K::Score::value_dim(forward),
        };
        let lane = special::lane();
        // SAFETY: the caller's promise.
        unsafe {
            for mt in 0..MT {
                for dt in 0..DT {
                    let mut tile = sum[mt][dt];
                    tile.scale_rows([factor; 2]);
                    own.set(lane, mt, dt, tile.to_operand::<K::Element>());
                }
            }
            barrier::warp();
            let rows = job.sequence.head_rows(tensor, job.kv_head, dim);
            let (count, exist) = (16 * MT as u32, job.sequence.keys - key);
            Copier::new(rows, lane, 32).store(own, key, count, exist, aligned != 0);
        }
    }
}
