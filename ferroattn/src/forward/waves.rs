//! In which order heads take turns, so that those that run together share the L2 cache.

use super::Problem;
use super::main_kernel::MainKernel;
use crate::device::Facts;
use crate::options::{RawOptions, Sequences};

/// In which waves heads take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waves {
    /// A head at a time: its tiles weigh the same.
    Heads,
    /// Waves of one size: tiles differ in work.
    Even,
    /// Small waves, and a larger one at the end, for a kernel that reads
    /// [such orders](kernels::abi::Order::place_in_uneven).
    Uneven,
}

impl Waves {
    /// The waves of a call of a kernel that has these.
    pub(super) fn of_call(self, problem: &Problem, options: &RawOptions) -> Self {
        let is_packed = matches!(options.sequences, Some(Sequences::Packed { .. }));
        match problem.window.left.is_some() || is_packed {
            // All tiles weigh about the same, and neighbours share keys.
            true => Waves::Heads,
            false => self,
        }
    }
}

/// How many heads take turns, in a wave and at least in the last one. Without a mask all tiles weigh the same, and a head at a
/// time keeps its keys and values closest.
pub(super) fn waves(kernel: &MainKernel, problem: &Problem, facts: &Facts) -> [u32; 2] {
    // Heads that share tiles count once.
    let packed = kernel.packed(problem);
    let heads = problem.batch * problem.heads / packed;
    let of_keys = problem.group() / packed;
    let kv_bytes = 2 * size_of::<u16>() * problem.seqlen_kv * problem.dim;
    let fitting = |bytes: usize| (bytes / kv_bytes).max(1).saturating_mul(of_keys);
    let l2_bytes = facts.l2_bytes as usize;
    // The rest is for q, o and what comes next; kernels that compute slices of O read slower: `docs/tuning.md`.
    let share = l2_bytes / 3 * if kernel.slices == 1 { 2 } else { 6 };
    let waves = match kernel.waves {
        Waves::Heads => [1, 1],
        // Waves of as many heads as share the L2 cache with their keys and values.
        Waves::Even => [heads.div_ceil(heads.div_ceil(fitting(share))), 1],
        // Smaller ones, so that tiles that read new keys run beside others. The last has half as many heads as
        // multiprocessors, if they share the cache: its light tiles fill the time until the last block is done.
        Waves::Uneven => {
            let wave = fitting(l2_bytes / 6);
            let half = facts.multiprocessors as usize / 2;
            [wave, fitting(share).min(half.max(wave))]
        }
    };
    // Slices of a head read the same keys.
    waves.map(|wave| wave.min(heads) as u32 * kernel.slices)
}

#[cfg(test)]
mod tests {
    use super::waves;
    use crate::device::Facts;
    use crate::forward::Problem;
    use crate::forward::schedule::tests::{H200, kernel};

    #[test]
    fn heads_take_turns_where_their_keys_share_the_cache() {
        let waves = |name: &str, heads, seqlen_kv, l2_bytes| {
            let q = [2, heads, 1000, 64];
            let kv = [2, 4, seqlen_kv, 64];
            let problem = Problem::new(q, kv, kv, true, None).expect("a valid problem");
            waves(&kernel(name), &problem, &Facts { l2_bytes, ..H200 })
        };
        let causal = "forward_f16_d64_causal";
        let cache = 30 << 20;
        assert_eq!(waves("forward_f16_d64", 4, 4096, cache), [1, 1]);
        assert_eq!(waves(causal, 4, 4096, cache), [8, 1]);
        // A head and its group, though its keys and values alone fill the cache.
        assert_eq!(waves(causal, 12, 1 << 20, cache), [3, 1]);
        // 20 of these fit; 32 make two waves of one size.
        assert_eq!(waves(causal, 16, 16384, cache), [16, 1]);
        // Two thirds of 48 MB are the 4 MB of each of 8 heads; of a little less, two waves.
        assert_eq!(waves(causal, 4, 16384, 48 << 20), [8, 1]);
        assert_eq!(waves(causal, 4, 16384, (48 << 20) - 3), [4, 1]);
        // A device that tells no size.
        assert_eq!(waves(causal, 16, 16384, 0), [4, 1]);
        let hopper = "hopper_f16_d64_causal";
        // A sixth of the cache has room for 5; two thirds have for all 8.
        assert_eq!(waves(hopper, 4, 4096, cache), [5, 8]);
        assert_eq!(waves(hopper, 12, 1 << 20, cache), [3, 3]);
        assert_eq!(waves(hopper, 16, 16384, cache), [4, 20]);
        assert_eq!(waves(hopper, 16, 16384, 0), [4, 4]);
    }

    #[test]
    fn the_last_wave_has_half_as_many_heads_as_multiprocessors() {
        let shape = [32, 16, 512, 256];
        let problem = Problem::new(shape, shape, shape, true, None).expect("a valid problem");
        let waves = |facts| waves(&kernel("hopper_f16_d256_causal"), &problem, &facts);
        assert_eq!(waves(H200), [20, 66]);
        // Few large ones have no smaller last wave than the others.
        let multiprocessors = 10;
        assert_eq!(
            waves(Facts {
                multiprocessors,
                ..H200
            }),
            [20, 20]
        );
    }
}
