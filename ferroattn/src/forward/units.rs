//! Units in place of splits: where entries have lengths, each has as many blocks as its keys take.

use super::Problem;
use super::main_kernel::MainKernel;
use super::schedule::{SPLIT_STEPS, Schedule};
use crate::error::Result;
use crate::options::Units;
use crate::plan::grid;

/// Keys of all entries, at most: [`UnitsRef::keys`](kernels::abi::UnitsRef::keys) has no more.
const MOST_KEYS: u32 = 1 << 30;

impl Schedule {
    /// Units of about these splits, of which each entry has as many as its keys take; none where there is nothing to divide.
    ///
    /// The last unit of each entry is smaller, so there may be one more for each: units are larger than splits by as much, and together
    /// no more. Else the last few would run when all others are done.
    pub fn units(&self, kernel: &MainKernel, problem: &Problem) -> Option<Units> {
        let all = problem.batch as u64 * problem.seqlen_kv as u64;
        let all = u32::try_from(all).ok().filter(|&all| all <= MOST_KEYS)?;
        let keys = match self.splits {
            1 => self.split_keys,
            splits => (problem.seqlen_kv as u32).div_ceil(splits - 1),
        };
        let least = SPLIT_STEPS * kernel.keys;
        let divides = problem.batch > 1 && problem.seqlen_kv > least as usize;
        divides.then(|| Units {
            whole: all.div_ceil(keys.next_multiple_of(kernel.keys)),
            step: kernel.keys,
            least,
        })
    }

    /// The schedule by units in place of splits.
    ///
    /// # Errors
    /// If there are too many blocks.
    pub fn of_units(self, kernel: &MainKernel, problem: &Problem, units: Units) -> Result<Self> {
        let tiles = problem.heads as u64 / u64::from(self.packed) * u64::from(self.q_tiles);
        // No overflow: neither is more than there are keys.
        let count = units.whole + problem.batch as u32;
        Ok(Schedule {
            splits: count,
            blocks: grid(kernel.entry.name, u128::from(tiles) * u128::from(count))?,
            has_units: true,
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
            let (all, count) = (batch as u32 * schedule.splits, batch as u32 + units.whole);
            if schedule.splits > 1 {
                prop_assert!((all.div_ceil(2)..=all).contains(&count), "{count} units for {all} splits");
            }
        }
    }
}
