//! Splits in clusters: blocks that have the splits of a tile run at the same time, wait for each other, and combine what they computed.
//! That is a launch less, which counts where calls are short.

use super::Problem;
use super::main_kernel::MainKernel;
use super::schedule::{Costs, Division, STEP_SPLITS, Schedule};
use crate::device::Facts;

/// Blocks of a cluster, at most: Hopper has no more.
const MOST: u32 = 16;

/// Steps of a split in a cluster, at most, where multiprocessors hold several of its blocks: longer ones are bound by memory, and blocks
/// alone find their places sooner.
const STEPS: u32 = 4;

/// Costs in eighths of a step, as the times of [schedules](Costs), fitted to layers in a graph: of clusters beside their keys, and of each of
/// their blocks.
const COST: u32 = 18;
const BLOCK_COST: u32 = 1;

/// Steps of a split in a cluster, at most, where lengths may differ: then the longest takes no more time than the launch that combines units.
const UNITS_STEPS: u32 = 8;

/// Steps of keys of 16 bits that take as long as one of e4m3, whose numbers become 16 bits.
const E4M3_STEPS: u32 = 2;

impl Schedule {
    /// The schedule, or one with clusters that takes less time; than [units](super::units), if the call would have some. Splits that a
    /// call asks for stay: in clusters or not, they have the same bits.
    pub fn in_clusters(
        self,
        kernel: &MainKernel,
        problem: &Problem,
        facts: &Facts,
        division: Division,
        has_units: bool,
    ) -> Self {
        // Timed on Hopper alone.
        if !kernel.may_combine || facts.compute_capability.0 != 9 {
            return self;
        }
        let tiles = self.blocks / self.splits;
        let slots = facts.multiprocessors * kernel.resident_blocks(facts);
        let key_blocks = (problem.seqlen_kv as u32).div_ceil(kernel.keys);
        // A cluster waits for places that are near each other: with more blocks, up to a half more time.
        let most = match 2 * tiles <= facts.multiprocessors {
            true => MOST.min(slots * 2 / 3 / tiles),
            false => 0,
        };
        let split_blocks = match division {
            Division::Best if !facts.has_pools => key_blocks,
            Division::Best => {
                let steps = if kernel.reads_e4m3 { E4M3_STEPS } else { 1 };
                let longest = if has_units {
                    UNITS_STEPS / steps
                } else {
                    key_blocks
                };
                let costs = Costs::of(kernel);
                let apart = costs.time(self.splits, tiles, key_blocks * steps, slots);
                let time = |n: u32| {
                    let keys = u64::from(STEP_SPLITS * steps) * u64::from(key_blocks.div_ceil(n));
                    keys + u64::from(COST + n * BLOCK_COST)
                };
                let fits = |n: u32| {
                    let (own, is_alone) =
                        (key_blocks.div_ceil(n), tiles * n <= facts.multiprocessors);
                    own <= longest && (is_alone || own <= STEPS)
                };
                let fitting = (2..=most.min(key_blocks)).filter(|&n| fits(n));
                let best = fitting.min_by_key(|&n| time(n));
                let best = best.filter(|&n| time(n) < apart);
                best.map_or(key_blocks, |n| key_blocks.div_ceil(n))
            }
            _ => self.split_keys / kernel.keys,
        };
        let splits = key_blocks.div_ceil(split_blocks);
        if !(2..=most).contains(&splits) {
            return self;
        }
        Schedule {
            splits,
            split_keys: split_blocks * kernel.keys,
            blocks: tiles * splits,
            cluster: splits,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Attention;
    use crate::device::{Class, Facts};
    use crate::forward::RawForward;
    use crate::forward::schedule::tests::{H200, kernel, problem, scheduled};
    use crate::forward::schedule::{Division, Schedule};
    use crate::tensor::Dtype;
    use proptest::prelude::*;

    /// The schedule of `[batch, heads]` queries, 4 to a group, on so many keys, by a kernel.
    fn of(
        name: &str,
        [batch, heads]: [usize; 2],
        seqlen_kv: usize,
        asked: Division,
    ) -> [Schedule; 2] {
        let dim = name.rsplit('d').next().and_then(|dim| dim.parse().ok());
        let problem = problem(
            [batch, heads, 1],
            [heads / 4, seqlen_kv],
            dim.expect("a head dim"),
        );
        let kernel = kernel(name);
        let apart = scheduled(&kernel, &problem, &H200, asked).expect("a grid");
        [
            apart,
            apart.in_clusters(&kernel, &problem, &H200, asked, false),
        ]
    }

    #[test]
    fn short_calls_are_in_clusters() {
        let calls = [
            // One block has few steps.
            ("decode_f16_d128", 1, 64, 1),
            ("decode_f16_d64", 1, 128, 1),
            ("decode_f16_d128", 1, 128, 4),
            ("decode_f16_d128", 1, 256, 8),
            ("decode_f16_d128", 1, 1024, 16),
            ("decode_f16_d128", 1, 2048, 16),
            ("decode_f16_d256", 1, 128, 8),
            ("decode_e4m3_f16_d128", 1, 256, 6),
            ("decode_e4m3_f16_d128", 1, 1024, 11),
            // As many blocks as clusters find places for.
            ("decode_f16_d128", 4, 1024, 8),
            ("decode_f16_d128", 8, 256, 4),
            ("decode_f16_d256", 1, 1024, 16),
            // Many blocks alone deliver the keys sooner.
            ("decode_f16_d128", 1, 4096, 1),
            ("decode_f16_d128", 4, 2048, 1),
            ("decode_f16_d128", 8, 1024, 1),
            ("decode_f16_d128", 16, 256, 1),
            ("decode_f16_d256", 16, 512, 1),
            // Not a kernel of few rows.
            ("packed_f16_d128", 1, 1024, 1),
        ];
        let found = calls.map(|(name, batch, keys, _)| {
            let [apart, found] = of(name, [batch, 32], keys, Division::Best);
            assert!(found.cluster > 1 || found == apart);
            (name, batch, keys, found.cluster)
        });
        assert_eq!(found, calls);
        let problem = problem([1, 32, 1], [8, 1024], 128);
        for class in [Class::Sm80, Class::Sm86, Class::Sm100] {
            let (kernel, facts) = (kernel("decode_f16_d128"), Facts::emulated(class));
            let apart = scheduled(&kernel, &problem, &facts, Division::Best).expect("a grid");
            let found = apart.in_clusters(&kernel, &problem, &facts, Division::Best, false);
            assert_eq!(found, apart, "{class:?}");
        }
    }

    /// Blocks of a cluster have the splits of a tile, and combine them, on Hopper alone: other devices take a launch more.
    #[test]
    fn short_decoding_is_one_launch_on_hopper() {
        let problem = problem([2, 8, 1], [2, 1024], 128);
        let args = RawForward::row_major(&problem);
        let launches = |class, splits| {
            let attention = Attention::new().splits(splits);
            let plan = attention.plan(Some(&Facts::emulated(class)), Dtype::F16, &args);
            let plan = plan.expect("a kernel for it");
            assert!(plan.workspace_bytes > 0);
            let steps = plan.steps.iter();
            let steps: Vec<_> = steps.map(|step| [step.blocks, step.cluster]).collect();
            (plan.splits, steps)
        };
        assert_eq!(launches(Class::Sm90, 3), (3, vec![[12, 3]]));
        assert_eq!(launches(Class::Sm90, 16), (16, vec![[64, 16]]));
        // More than a cluster has.
        assert_eq!(launches(Class::Sm90, 32).1.len(), 2);
        let (splits, steps) = launches(Class::Sm90, 0);
        assert_eq!(steps, [[4 * splits, splits]]);
        for class in [Class::Sm80, Class::Sm86, Class::Sm100] {
            let (_, steps) = launches(class, 3);
            assert_eq!((steps[0], steps.len()), ([12, 1], 2));
        }
    }

    proptest! {
        /// Every key lies in one split, and a grid has whole clusters, which find their places.
        #[test]
        fn clusters_cover_the_keys(
            batch in 1usize..40, groups in 1usize..9, seqlen_kv in 1usize..9000, splits in 1u32..20, keys in 1u32..3000,
            how in 0usize..3, kernel in prop::sample::select(&["decode_f16_d64", "decode_f16_d256", "decode_e4m3_f16_d128"][..]),
        ) {
            let asked = [Division::Best, Division::Splits(splits), Division::Keys(keys)][how];
            let [apart, found] = of(kernel, [batch, 4 * groups], seqlen_kv, asked);
            let (keys, last) = (found.split_keys as usize, found.splits as usize - 1);
            prop_assert!(last * keys < seqlen_kv && seqlen_kv <= (last + 1) * keys);
            prop_assert_eq!(found.blocks / found.splits, apart.blocks / apart.splits);
            if how > 0 {
                prop_assert_eq!([found.splits, found.split_keys], [apart.splits, apart.split_keys]);
            }
            prop_assert!(found.cluster == 1 || found.cluster == found.splits);
            let slots = 3 * H200.multiprocessors;
            prop_assert!(found.cluster <= 16 && (found.cluster == 1 || found.blocks <= slots));
        }
    }
}
