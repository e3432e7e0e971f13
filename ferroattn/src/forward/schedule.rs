//! Into how many blocks a launch is divided.
//!
//! A block computes a query tile. Where query tiles are few, most of a GPU has nothing to do; then
//! several blocks share a tile, each with a split of the keys, and a further kernel combines their
//! results (flash-decoding). More splits fill the GPU better and leave more to combine.

use super::Problem;
use super::main_kernel::MainKernel;
use super::waves::waves;
use crate::device::Facts;
use crate::error::Result;
use crate::options::RawOptions;
use crate::plan::grid;

/// Splits that the heuristic goes up to.
const MAX_SPLITS: u32 = 128;

/// Steps that a split of many rows has at least, as many as it costs, and a [unit](super::units).
pub(super) const SPLIT_STEPS: u32 = 8;

/// Steps that a split of few rows has at least.
const LEAST_STEPS: u32 = 2;

/// Splits that take as long as a step to combine.
pub(super) const STEP_SPLITS: u32 = 8;

/// What splits cost beside their keys, in eighths of a step of a block of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Each wave.
    wave: u32,
    /// The launch that combines.
    launch: u32,
    /// Partial results of 64 blocks.
    partials: u32,
    /// Each 32 splits but the first, whose weights the lanes of a warp find at a time.
    round: u32,
}

impl Costs {
    /// Of kernels that decode, fitted to 50 shapes of layers in a graph on an H200 (`docs/diary.md`): what they choose takes 2.0 % more than the
    /// best number in the mean, and 12 % at most.
    const FEW_ROWS: Self = Costs {
        wave: 0,
        launch: 24,
        partials: 2,
        round: 32,
    };

    /// Of kernels of many rows.
    const MANY_ROWS: Self = Costs {
        wave: SPLIT_STEPS * STEP_SPLITS,
        launch: 0,
        partials: 0,
        round: 0,
    };

    pub fn of(kernel: &MainKernel) -> Self {
        match kernel.may_combine {
            true => Self::FEW_ROWS,
            false => Self::MANY_ROWS,
        }
    }

    /// The time of `n` splits that a launch of its own combines, in eighths of a step.
    pub fn time(self, n: u32, blocks: u32, key_blocks: u32, slots: u32) -> u64 {
        let all = u64::from(blocks) * u64::from(n);
        let waves = all.div_ceil(u64::from(slots));
        let keys = waves * u64::from(key_blocks.div_ceil(n)) * u64::from(STEP_SPLITS);
        match n {
            1 => keys,
            _ => {
                let partials = all * u64::from(self.partials) / 64;
                let combine = self.launch + self.round * ((n - 1) / 32) + n;
                keys + waves * u64::from(self.wave) + partials + u64::from(combine)
            }
        }
    }
}

/// How much of the best time is good enough if it takes fewer splits.
const NEAR_BEST: f64 = 0.99;

/// The division of a problem for a kernel that computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Query heads that share a query tile.
    pub packed: u32,
    /// Query tiles of a head, or of the heads that share them.
    pub q_tiles: u32,
    /// Splits of the keys, none of them empty.
    pub splits: u32,
    /// Keys of each split but the last: a multiple of the kernel's step.
    pub split_keys: u32,
    /// Blocks in all.
    pub blocks: u32,
    /// Whether splits are units of all entries' keys.
    pub has_units: bool,
    /// Blocks of a cluster, which have all splits of a tile; 1 where blocks are alone.
    pub cluster: u32,
    /// Heads whose query tiles take turns, and at least as many in the last wave; each slice of O's columns counts.
    pub waves: [u32; 2],
}

/// How keys are to be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Into as many splits as suit the device.
    Best,
    /// Into so many splits, but no more than key blocks, and no more than it takes to share these out evenly.
    Splits(u32),
    /// Into splits of so many keys, rounded up to a multiple of the kernel's step.
    Keys(u32),
}

impl Division {
    /// What a call asks for, perhaps a number of splits. One split has the bits of any batch; so do splits of one size.
    pub fn new(splits: Option<u32>, options: &RawOptions) -> Self {
        match (splits, options.split_keys) {
            (Some(splits), _) => Division::Splits(splits),
            (None, 0) if options.batch_invariant => Division::Splits(1),
            (None, 0) => Division::Best,
            (None, keys) => Division::Keys(keys),
        }
    }
}

impl Schedule {
    /// Divides a [valid](Problem::validate) problem that the kernel serves. Query tiles have rows of one of the options'
    /// [parts](RawOptions::query_parts) of the queries.
    pub fn new(
        kernel: &MainKernel,
        problem: &Problem,
        facts: &Facts,
        division: Division,
        options: &RawOptions,
    ) -> Result<Self> {
        let packed = kernel.packed(problem);
        // No overflow in 128 bits: `validate` has `batch * heads` below 2^63 and lengths below 2^31.
        let heads = (problem.batch * problem.heads / packed) as u128 * u128::from(kernel.slices);
        let rows = problem.seqlen_q as u128 * packed as u128;
        // The last tile of each part may lack all rows but one.
        let missing = options.query_parts() as u128 * u128::from(kernel.q_rows - 1);
        let q_tiles = ((rows + missing) / u128::from(kernel.q_rows)).min(rows);
        let grid = |blocks| grid(kernel.entry.name, blocks);
        let tiles = grid(heads * q_tiles)?;
        // Kernels count query heads in 32 bits too.
        grid((problem.batch * problem.heads) as u128)?;
        let key_blocks = (problem.seqlen_kv as u32).div_ceil(kernel.keys);
        let slots = facts.multiprocessors * kernel.resident_blocks(facts);
        let split_blocks = match division {
            Division::Keys(keys) => keys.div_ceil(kernel.keys).clamp(1, key_blocks),
            Division::Splits(splits) => key_blocks.div_ceil(splits.max(1)),
            Division::Best if !facts.has_pools => key_blocks,
            // Partial results of many rows cost more than a last wave that is not full.
            Division::Best if tiles >= slots && !kernel.is_grouped => key_blocks,
            Division::Best => {
                let least = if kernel.is_grouped {
                    LEAST_STEPS
                } else {
                    SPLIT_STEPS
                };
                key_blocks.div_ceil(splits(Costs::of(kernel), tiles, [key_blocks, least], slots))
            }
        };
        let splits = key_blocks.div_ceil(split_blocks);
        Ok(Schedule {
            packed: packed as u32,
            q_tiles: q_tiles as u32,
            splits,
            split_keys: split_blocks * kernel.keys,
            blocks: grid(u128::from(tiles) * u128::from(splits))?,
            has_units: false,
            cluster: 1,
            waves: waves(kernel, problem, facts),
        })
    }
}

/// Into how many splits of `least` steps or more the keys of each of `blocks` blocks are best divided, on a GPU that holds `slots`
/// blocks.
///
/// Blocks run in waves, as many at a time as the GPU holds. A wave takes as long as its longest split and what a
/// split [costs](Costs), and each split is combined. The time of `n` splits, in steps, is at least
///
/// `ceil(blocks * n / slots) * (ceil(key_blocks / n) + wave) + launch + n / 8`.
///
/// The smallest `n` whose time is near the least will do. There are at most 128.
fn splits(costs: Costs, blocks: u32, [key_blocks, least]: [u32; 2], slots: u32) -> u32 {
    let most = (key_blocks / least).clamp(1, MAX_SPLITS);
    let time = |n: u32| costs.time(n, blocks, key_blocks, slots);
    let least = (1..=most).map(time).min().unwrap_or(0);
    let is_near = |&n: &u32| time(n) as f64 * NEAR_BEST <= least as f64;
    (1..=most).find(is_near).unwrap_or(1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        Costs, Division, LEAST_STEPS, MAX_SPLITS, NEAR_BEST, SPLIT_STEPS, Schedule, splits,
    };
    use crate::device::Class;
    use crate::device::Facts;
    use crate::error::{Error, Result};
    use crate::forward::Problem;
    use crate::forward::main_kernel::MainKernel;
    use crate::forward::request::request;
    use crate::options::RawOptions;
    use crate::plan::MAX_BLOCKS;
    use kernels::catalog::select::select;
    use kernels::catalog::{self, Dtype, KERNELS};
    use proptest::prelude::*;

    pub const H200: Facts = Facts {
        l2_bytes: 60 << 20,
        ..Facts::emulated(Class::Sm90)
    };

    pub fn kernel(name: &str) -> MainKernel {
        MainKernel::from(catalog::named(name).expect("in the catalog"))
    }

    pub fn problem(q: [usize; 3], kv: [usize; 2], dim: usize) -> Problem {
        let [batch, heads, seqlen_q] = q;
        let [kv_heads, seqlen_kv] = kv;
        let kv = [batch, kv_heads, seqlen_kv, dim];
        Problem::new([batch, heads, seqlen_q, dim], kv, kv, false, None).expect("valid")
    }

    /// The schedule of a call without options.
    pub fn scheduled(
        kernel: &MainKernel,
        problem: &Problem,
        facts: &Facts,
        division: Division,
    ) -> Result<Schedule> {
        Schedule::new(kernel, problem, facts, division, &RawOptions::default())
    }

    /// Of the time that all slots have, the part that takes keys.
    fn usage(n: u32, blocks: u32, key_blocks: u32, slots: u32) -> f64 {
        let waves = (u64::from(blocks) * u64::from(n)).div_ceil(u64::from(slots));
        let time = waves * u64::from(key_blocks.div_ceil(n));
        f64::from(blocks) * f64::from(key_blocks) / (time as f64 * f64::from(slots))
    }

    fn costs() -> impl Strategy<Value = Costs> {
        prop::sample::select(&[Costs::FEW_ROWS, Costs::MANY_ROWS][..])
    }

    fn divisions() -> impl Strategy<Value = Division> {
        prop_oneof![
            Just(Division::Best),
            (1u32..1000).prop_map(Division::Splits),
            (1u32..100_000).prop_map(Division::Keys),
        ]
    }

    proptest! {
        /// By kernels of many rows; kernels of few rows only if the last wave is nearly full too.
        #[test]
        fn a_full_gpu_is_left_alone(heads in 400usize..3000, seqlen_kv in 1usize..100_000) {
            let of = |name, seqlen_q| {
                let problem = problem([heads, 1, seqlen_q], [1, seqlen_kv], 64);
                scheduled(&kernel(name), &problem, &H200, Division::Best).expect("a grid").splits
            };
            prop_assert_eq!(of("forward_f16_d64", 128), 1);
            let slots = H200.multiprocessors * kernel("decode_f16_d64").resident_blocks(&H200);
            if usage(1, heads as u32, 1, slots) >= NEAR_BEST {
                prop_assert_eq!(of("decode_f16_d64", 1), 1);
            }
        }

        #[test]
        fn splits_are_bounded_and_long_enough(
            mps in 1u32..200, resident in 1u32..5, blocks in 1u32..1000, key_blocks in 1u32..100_000,
            least in 1u32..10, costs in costs(),
        ) {
            let n = splits(costs, blocks, [key_blocks, least], mps * resident);
            prop_assert!((1..=MAX_SPLITS).contains(&n));
            prop_assert!(n == 1 || key_blocks / n >= least);
        }

        /// Where a split is long beside what it costs, hardly another number would use the GPU better.
        #[test]
        fn no_number_uses_the_gpu_much_better(
            mps in 1u32..200, resident in 1u32..5, blocks in 1u32..1000, key_blocks in 1000u32..5000, costs in costs(),
        ) {
            let slots = mps * resident;
            let of = |n| usage(n, blocks, key_blocks, slots);
            let n = splits(costs, blocks, [key_blocks, LEAST_STEPS], slots);
            // With so many, a split costs a tenth of its keys.
            let cheap = (key_blocks / (10 * SPLIT_STEPS)).clamp(1, MAX_SPLITS);
            let best = (1..=cheap).map(of).fold(0.0, f64::max);
            prop_assert!(of(n) >= best / 1.1 * NEAR_BEST * (1.0 - 1e-9), "{} of {best}", of(n));
        }

        /// Every key lies in one split, no split is empty, and the grid has a block for each.
        #[test]
        fn schedules_cover_the_keys(
            kernel in 0..KERNELS.len(), seqlen_kv in 1usize..100_000,
            seqlen_q in 1usize..1000, group in 1usize..9, asked in divisions(),
        ) {
            let kernel = &KERNELS[kernel];
            prop_assume!(kernel.forward().is_some());
            let tile = kernel.forward().expect("it computes attention").tile;
            let problem = problem([3, 2 * group, seqlen_q], [2, seqlen_kv], 32);
            let s = scheduled(&MainKernel::from(kernel), &problem, &H200, asked).expect("a grid");
            let (keys, last) = (s.split_keys as usize, s.splits as usize - 1);
            prop_assert!(last * keys < seqlen_kv && seqlen_kv <= (last + 1) * keys);
            prop_assert_eq!(s.split_keys % tile.keys, 0);
            match asked {
                Division::Best => prop_assert!(s.splits <= MAX_SPLITS),
                Division::Splits(splits) => prop_assert!(s.splits <= splits),
                Division::Keys(keys) => {
                    let step = tile.keys;
                    prop_assert_eq!(s.split_keys, keys.next_multiple_of(step).min((seqlen_kv as u32).next_multiple_of(step)));
                }
            }
            let rows = seqlen_q * s.packed as usize;
            prop_assert_eq!(s.q_tiles as usize, rows.div_ceil(tile.q_rows as usize));
            let heads = 6 * group / s.packed as usize;
            let slices = if kernel.takes_maps() && tile.team == 2 { 2 } else { 1 };
            prop_assert_eq!(s.blocks, (heads as u32) * slices * s.q_tiles * s.splits);
        }
    }

    #[test]
    fn known_shapes() {
        let automatic = |name, q, kv, dim| {
            let schedule = scheduled(&kernel(name), &problem(q, kv, dim), &H200, Division::Best);
            schedule.expect("a grid").splits
        };
        // 512 and 64 blocks for 264 places, two on each multiprocessor.
        assert_eq!(automatic("forward_f16_d64", [1, 8, 8192], [8, 8192], 64), 1);
        assert_eq!(automatic("forward_f16_d64", [1, 1, 8192], [1, 8192], 64), 4);
        // 8 blocks, one for each key/value head, and 512, for 396 places.
        assert_eq!(
            automatic("decode_f16_d128", [1, 32, 1], [8, 131_072], 128),
            49
        );
        assert_eq!(automatic("decode_f16_d128", [64, 32, 1], [8, 4096], 128), 3);
        // 128 rows: 8 blocks for 264 places, and 512.
        let packed = "packed_f16_d128";
        assert_eq!(automatic(packed, [1, 64, 16], [8, 131_072], 128), 33);
        assert_eq!(automatic(packed, [64, 64, 16], [8, 4096], 128), 1);
        // 132 places, and a split of 103 steps.
        let packed = "hopper_packed_f16_d128";
        assert_eq!(automatic(packed, [1, 64, 16], [8, 131_072], 128), 16);
        assert_eq!(automatic(packed, [64, 64, 16], [8, 4096], 128), 1);
        // A split of few rows may have two steps.
        assert_eq!(automatic("decode_f16_d128", [1, 1, 1], [1, 128], 128), 1);
        assert_eq!(automatic("decode_f16_d128", [1, 1, 1], [1, 256], 128), 4);
        assert_eq!(automatic("decode_f16_d128", [1, 1, 1], [1, 512], 128), 8);
        assert_eq!(automatic("decode_f16_d128", [1, 1, 1], [1, 1024], 128), 16);
        // 16 key blocks of many rows take as long as two splits of 8.
        let whole = "forward_f16_d64";
        assert_eq!(automatic(whole, [1, 1, 128], [1, 1024], 64), 1);
    }

    #[test]
    fn splits_asked_for_are_shared_out_evenly() {
        let asked = |n| {
            let problem = problem([1, 1, 1], [1, 310], 128);
            let schedule = scheduled(
                &kernel("decode_f16_d128"),
                &problem,
                &H200,
                Division::Splits(n),
            );
            let schedule = schedule.expect("a grid");
            (schedule.splits, schedule.split_keys)
        };
        // 10 blocks of 32 keys: for 4 splits 3, 3, 3 and 1; for 6 no better than for 5.
        assert_eq!(asked(4), (4, 96));
        assert_eq!(asked(6), (5, 64));
        for n in [10, 11, u32::MAX] {
            assert_eq!(asked(n), (10, 32));
        }
    }

    #[test]
    fn the_grid_has_a_limit() {
        let schedule = |batch, splits| {
            let problem = problem([batch, 1, 1], [1, 64], 8);
            scheduled(&kernel("decode_f16_d128"), &problem, &H200, splits)
        };
        let limit = MAX_BLOCKS as usize;
        let packed = problem([1 << 26, 64, 1], [1, 64], 8);
        let packed = scheduled(&kernel("decode_f16_d128"), &packed, &H200, Division::Best);
        assert_eq!(
            schedule(limit, Division::Best).map(|s| s.blocks),
            Ok(MAX_BLOCKS)
        );
        for refused in [
            schedule(limit + 1, Division::Best),
            schedule(1 << 33, Division::Best),
            // 2^26 tiles, of 2^32 heads.
            packed,
            schedule(limit, Division::Splits(2)),
        ] {
            assert!(matches!(refused, Err(Error::Grid { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_device_without_pools_does_not_split() {
        let facts = Facts {
            has_pools: false,
            ..H200
        };
        let problem = problem([1, 1, 1], [1, 4096], 128);
        let splits = |asked| {
            let schedule = scheduled(&kernel("decode_f16_d128"), &problem, &facts, asked);
            schedule.expect("a grid").splits
        };
        assert_eq!(
            (splits(Division::Best), splits(Division::Splits(4))),
            (1, 4)
        );
    }

    #[test]
    fn small_multiprocessors_hold_fewer_blocks() {
        let [large, medium, small] = [Class::Sm90, Class::Sm80, Class::Sm86].map(Facts::emulated);
        let three = kernel("decode_f16_d128");
        assert_eq!(three.resident_blocks(&large), 3);
        assert_eq!(three.resident_blocks(&medium), 2);
        assert_eq!(three.resident_blocks(&small), 1);
        let two = kernel("decode_f16_d128_64x16x4");
        assert_eq!(two.resident_blocks(&small), 2);
    }

    /// The device decides the tile, and both the splits: 8 blocks for 82 * 2, 108 * 2, 132 * 3
    /// and 148 * 3 places, all but filled.
    #[test]
    fn every_class_has_its_schedule() {
        for (class, name, splits) in [
            (Class::Sm86, "decode_f16_d128_64x16x4", 20),
            (Class::Sm80, "decode_f16_d128", 27),
            (Class::Sm90, "decode_f16_d128", 49),
            (Class::Sm100, "decode_f16_d128", 54),
        ] {
            let facts = Facts::emulated(class);
            assert_eq!(facts.class(), class);
            let problem = problem([1, 32, 1], [8, 131_072], 128);
            let options = RawOptions::default();
            let request = request(Dtype::F16, &problem, &options, &facts);
            let kernel = select(&request).expect("a kernel");
            assert_eq!(kernel.name, name);
            let schedule = scheduled(&MainKernel::from(kernel), &problem, &facts, Division::Best)
                .expect("a grid");
            assert_eq!(schedule.splits, splits, "{name}");
        }
    }
}
