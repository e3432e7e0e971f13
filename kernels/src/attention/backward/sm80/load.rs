//! What a block loads: keys and values once, queries in each step.

use super::block::Block;
use super::kernel::Kernel;
use crate::attention::backward::job::Step;
use crate::attention::options::score::Score;
use crate::ptx::cp_async;
use crate::tile::Copier;
use crate::tile::registers::again;

impl<K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'_, K, MT, DT, NT> {
    /// Loads K and V.
    ///
    /// # Safety
    /// All threads call it, between the acquire and the commit of the first buffers.
    #[inline(always)]
    pub unsafe fn load_keys(&self) {
        let (job, forward) = (self.job(), self.forward);
        let rows = |tensor, dim| {
            let rows = job.sequence.head_rows(tensor, job.kv_head, dim);
            Copier::new(rows, self.thread(0), K::THREADS)
        };
        let exist = job.sequence.keys - job.first_key;
        let (k, v) = (self.memory.k, self.memory.v);
        // SAFETY: the caller's promise.
        unsafe {
            rows(&forward.k, forward.dim).load(k, job.first_key, K::BC, exist);
            rows(&forward.v, K::Score::value_dim(forward)).load(v, job.first_key, K::BC, exist);
        }
    }

    /// Loads Q, dO and the row statistics of a step, if the job has it.
    ///
    /// # Safety
    /// All threads of side 0 call it, between the acquire and the commit of the stage's buffers.
    #[inline(always)]
    pub unsafe fn load_queries(&self, stage: u32, step: Step) {
        if !self.more(step) {
            return;
        }
        let (params, forward) = (self.params, self.forward);
        // Held over the loop, the thread spills 44 to 88 bytes at D = 64.
        let (job, thread) = again(|| (self.job(), self.thread(step.tile)));
        let first = job.query_tile(step) * Self::BR;
        let head = job.head(forward, step.head);
        let exist = job.sequence.queries - first;
        let rows = |tensor, dim| {
            let rows = job.sequence.head_rows(tensor, head, dim);
            Copier::new(rows, thread, K::THREADS / 2)
        };
        let (q, d_o) = (self.memory.q(stage), self.memory.d_o(stage));
        // SAFETY: the caller's promise.
        unsafe {
            rows(&forward.q, forward.dim).load(q, first, Self::BR, exist);
            rows(&params.d_o, K::Score::value_dim(forward)).load(d_o, first, Self::BR, exist);
        }
        // lse of all rows of a head come before delta: as many 16-byte pieces of each.
        let pieces = Self::BR / 4;
        if thread < 2 * pieces {
            let lse = params.statistics(job.head_index(forward, step.head), first);
            let delta = lse + 4 * u64::from(params.padded_rows);
            let rows = if thread < pieces { lse } else { delta };
            let from = rows + u64::from(thread % pieces * 16);
            // SAFETY: the caller's promise.
            unsafe { cp_async::copy16(self.memory.statistics(stage) + 16 * thread, from, 16) }
        }
    }
}
