//! The fifth product: dQ of a step, added to the sums in device memory.

use super::block::Block;
use super::kernel::Kernel;
use crate::attention::backward::job::Step;
use crate::attention::options::mask::{Mask, Visible};
use crate::layout::sum;
use crate::ptx::{global, special};
use crate::tile::registers::{opaque, opaque_in};
use crate::tile::{Accumulator, Operand};

impl<K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'_, K, MT, DT, NT> {
    /// 5. dQ += dS K: the part of a warp of side 1, added to the sums. Hidden pairs are left out if K is `spoiled` by an infinity
    /// or a NaN.
    ///
    /// # Safety
    /// All lanes of the warp make the same call, with the tiles written and visible; the sums are writable.
    #[inline(always)]
    pub unsafe fn add_dq<const QM: usize, const QN: usize, const QC: usize, const KT: usize>(
        &self,
        step: Step,
        spoiled: bool,
    ) {
        let ds_tile = self.memory.ds(step.number(&self.job()) % 2);
        let k_tile = self.memory.k;
        let guarded = spoiled && self.masked(self.first_query(step));
        // Warps side by side, then one below the other.
        let (columns, row_warps) = ((DT / QN) as u32, NT / QM);
        let first = self.first_query(step);
        let down = self.pair(step.head) / columns;
        for chunk in 0..QN / QC {
            // Computed for each chunk: held, they take 2 registers more at D = 192.
            let right = self.pair(step.head) % columns;
            let lane = opaque_in(special::lane(), first);
            let beside = |nt: usize| (chunk * QC + nt) * DT / QN;
            let mut dq = [[Accumulator::ZERO; QC]; QM];
            // SAFETY: the caller's promise.
            unsafe {
                if guarded {
                    // Opaque: else its sums with `first` are held over all chunks.
                    let query = opaque(first + 16 * down + lane / 4);
                    let keys = |mt: usize, below: u32| {
                        let query = query + 16 * (mt * row_warps) as u32 + below;
                        self.job().of_head(self.forward, step.head).keys(query)
                    };
                    let mut seen = [[<K::Mask as Mask>::Keys::default(); 2]; QM];
                    for mt in 0..QM {
                        seen[mt] = [keys(mt, 0), keys(mt, 8)];
                    }
                    let ds = |mt, kt| ds_tile.a_trans(special::lane(), down, kt, mt * row_warps);
                    <K::Mask as Mask>::Keys::multiply_seen::<K::Element, QM, KT, QC>(
                        &mut dq,
                        ds,
                        |kt| core::array::from_fn(|mt| ds(mt, kt as usize)),
                        |kt, nt| {
                            let rows = k_tile.skip(16 * kt);
                            rows.b_trans_beside(special::lane(), right, 0, beside(nt))
                        },
                        seen,
                    );
                } else {
                    for kt in 0..KT {
                        let mut a = [Operand::ZERO; QM];
                        for mt in 0..QM {
                            a[mt] = ds_tile.a_trans(lane, down, kt, mt * row_warps);
                        }
                        for nt in 0..QC {
                            let b = k_tile.b_trans_beside(lane, right, kt, beside(nt));
                            for mt in 0..QM {
                                dq[mt][nt].mma::<K::Element>(a[mt], b);
                            }
                        }
                    }
                }
                let place = |row16: u64, column16: u32, lane: u32, i: usize| {
                    let tile = sum::tile(row16, column16, 16 * DT as u32);
                    4 * (256 * tile + u64::from(sum::place(lane, i as u32)))
                };
                let row = self.job().padded_row(self.params, step.head, first);
                let row16 = row / u64::from(sum::TILE) + u64::from(down);
                let to = self.params.dq_sum + place(row16, right, lane, 0);
                for mt in 0..QM {
                    for nt in 0..QC {
                        for i in 0..8 {
                            let further = place((mt * row_warps) as u64, beside(nt) as u32, 0, i);
                            global::add_f32(to + further, dq[mt][nt].0[i]);
                        }
                    }
                }
            }
        }
    }
}
