//! Units in place of splits: where entries have lengths, each has as many blocks as its keys take.

use super::Problem;
use super::main_kernel::MainKernel;
use super::schedule::{SPLIT_STEPS, Schedule};
use crate::error::Result;
use crate::options::Units;
use crate::plan::grid;
use kernels::abi::UnitsRef;

impl Schedule {
    /// Units of about these splits, of which each entry has as many as its keys take; none where there is nothing to divide.
    ///
    /// The last unit of each entry is smaller, so there may be one more for each: units are larger than splits by as much, and together
    /// no more. Else the last few would run when all others are done.
    pub fn units(&self, kernel: &MainKernel, problem: &Problem) -> Option<Units> {
        let all = problem.batch as u64 * problem.seqlen_kv as u64;
        let most = u32::try_from(all).ok()?;
        let keys = match self.splits {
            1 => self.split_keys,
            splits => (problem.seqlen_kv as u32).div_ceil(splits - 1),
        };
        let keys = keys.next_multiple_of(kernel.keys);
        let count = problem.batch as u64 + u64::from(most.div_ceil(keys));
        let least = SPLIT_STEPS * kernel.keys;
        let divides = problem.batch > 1 && problem.seqlen_kv > least as usize;
        divides.then_some(Units {
            count: u32::try_from(count).ok()?,
            keys,
            step: kernel.keys,
            least,
            counters: self.counters(kernel, problem).unwrap_or(0),
        })
    }

    /// Counters of the tiles, if the last block of each combines its units.
    fn counters(&self, kernel: &MainKernel, problem: &Problem) -> Option<u32> {
        let rows = u32::try_from(problem.seqlen_q)
            .ok()?
            .checked_mul(self.packed)?;
        let tiles = problem.batch as u64 * problem.heads as u64 / u64::from(self.packed);
        let (tiles, sizes) = (u32::try_from(tiles).ok()?, [rows, problem.dim_v as u32]);
        let combines = UnitsRef::last_combines(tiles, sizes, kernel.entry.threads / 32);
        (kernel.may_combine && combines).then_some(tiles)
    }

    /// The schedule by units in place of splits.
    ///
    /// # Errors
    /// If there are too many blocks.
    pub fn of_units(self, kernel: &MainKernel, problem: &Problem, units: Units) -> Result<Self> {
        let tiles = problem.heads as u64 / u64::from(self.packed) * u64::from(self.q_tiles);
        Ok(Schedule {
            splits: units.count,
            blocks: grid(
                kernel.entry.name,
                u128::from(tiles) * u128::from(units.count),
            )?,
            has_units: true,
            last_combines: units.counters > 0,
            waves: [1, 1],
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::forward::schedule::Division;
    use crate::forward::schedule::tests::{H200, kernel, problem, scheduled};
    use proptest::prelude::*;

    proptest! {
        /// Whatever lengths entries have, units are no more than the splits of all, where there are several, and no fewer than half.
        #[test]
        fn units_take_the_place_of_splits(batch in 2usize..300, heads in 1usize..20, seqlen_kv in 300usize..200_000) {
            let problem = problem([batch, 4 * heads, 1], [heads, seqlen_kv], 128);
            let kernel = kernel("decode_optional_f16_d128");
            let schedule = scheduled(&kernel, &problem, &H200, Division::Best).expect("a grid");
            let units = schedule.units(&kernel, &problem).expect("several entries of many keys");
            let all = batch as u32 * schedule.splits;
            prop_assert_eq!(units.keys % kernel.keys, 0);
            if schedule.splits > 1 {
                prop_assert!((all.div_ceil(2)..=all).contains(&units.count), "{} units for {all} splits", units.count);
            }
        }
    }
}
