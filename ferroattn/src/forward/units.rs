//! Units in place of splits: where entries have lengths, each has as many blocks as its keys take.

use super::Problem;
use super::main_kernel::MainKernel;
use super::schedule::{SPLIT_STEPS, Schedule};
use crate::device::Facts;
use crate::error::Result;
use crate::options::Units;
use crate::plan::grid;

/// Keys of all entries, at most: [`UnitsRef::keys`](kernels::abi::UnitsRef::keys) has no more.
const MOST_KEYS: u32 = 1 << 30;

impl Schedule {
    /// As many units as splits of all entries or, where a GPU has no more places than blocks of one split, as there are places; none where
    /// there is nothing to divide.
    ///
    /// Blocks that are more would run when all others are done.
    pub fn units(&self, kernel: &MainKernel, problem: &Problem, facts: &Facts) -> Option<Units> {
        let (batch, least) = (problem.batch as u32, SPLIT_STEPS * kernel.keys);
        let all = u64::from(batch) * problem.seqlen_kv as u64;
        let all = u32::try_from(all).ok().filter(|&all| all <= MOST_KEYS)?;
        let whole = match self.splits {
            1 => {
                let slots = facts.multiprocessors * kernel.resident_blocks(facts);
                let places = slots / (self.blocks / batch).max(1);
                // Where lengths differ, the longest take half as many more.
                places.saturating_sub(batch).max(batch / 2)
            }
            splits => batch * (splits - 1),
        };
        let divides = batch > 1 && problem.seqlen_kv > least as usize;
        divides.then(|| Units {
            whole: whole.min(all / least),
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
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Units are no more than the splits of all, where there are several, or than there are places; and whatever lengths entries have, their
        /// units are no more than these: a block behind the last one would find no keys, but keys without a block would be lost.
        #[test]
        fn units_take_the_place_of_splits(
            batch in 2usize..300, heads in 1usize..20, seqlen_kv in 300usize..200_000, parts in vec(0f64..1.0, 1..9), power in 0..9,
        ) {
            let problem = problem([batch, 4 * heads, 1], [heads, seqlen_kv], 128);
            let kernel = kernel("decode_optional_f16_d128");
            let schedule = scheduled(&kernel, &problem, &H200, Division::Best).expect("a grid");
            let units = schedule.units(&kernel, &problem, &H200).expect("several entries of many keys");
            let (batch, count) = (batch as u32, batch as u32 + units.whole);
            let slots = H200.multiprocessors * kernel.resident_blocks(&H200);
            let most = match schedule.splits {
                1 => (slots / heads as u32).max(batch * 3 / 2),
                splits => batch * splits,
            };
            prop_assert!(batch < count && count <= most, "{count} units of {batch} entries for {most}");
            let part = |entry: u32| parts[entry as usize % parts.len()].powi(power);
            let lengths = (0..batch).map(|entry| (part(entry) * seqlen_kv as f64).round() as u32);
            let lengths: Vec<u32> = lengths.collect();
            let units_of = |keys| lengths.iter().map(|length| length.div_ceil(keys).max(1)).sum::<u32>();
            let keys = units.of_kernels(batch).keys(lengths.iter().sum(), units_of);
            prop_assert!(keys.is_multiple_of(kernel.keys) && keys >= units.least);
            prop_assert!(units_of(keys) <= count, "{} units of {keys} keys for {count} blocks", units_of(keys));
        }
    }
}
