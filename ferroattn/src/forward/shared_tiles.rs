//! Calls of kernels with rows of one head whose heads share tiles, by [`Switch::Group`]: a tile reads the keys once for all heads of a
//! group. Batch invariant calls have no other kernel for few queries; packed queries have some sequences of few, and some of many.
//!
//! In a batch invariant call a row has the same bits either way: maxima follow its own scores, and the kernel adds the same keys in the
//! same order. So the choice may depend on the batch.

use super::main_kernel::MainKernel;
use super::schedule::{Division, Schedule};
use super::{Problem, RawForward};
use crate::device::Facts;
use crate::error::Result;
use crate::options::{self, WARPGROUP_ROWS};
use kernels::abi::{MAX_SEQLEN, Switch};

/// The kernel and its schedule where heads share tiles, if they can, and that costs no time: where blocks do not fill the device, it
/// may take longer to compute a tile of many rows than tiles of few beside each other.
pub(super) fn shared(
    kernel: &MainKernel,
    schedule: &Schedule,
    (problem, args): (&Problem, &RawForward),
    facts: &Facts,
    division: Division,
) -> Result<Option<(MainKernel, Schedule)>> {
    if !may_share(kernel, problem, args) {
        return Ok(None);
    }
    let mut shared = MainKernel {
        is_grouped: true,
        ..*kernel
    };
    shared.entry.switches = kernel.entry.switches.with(Switch::Group, true);
    let of_groups = Schedule::new(&shared, problem, facts, division, &args.options)?;
    let time = |schedule| time(kernel, schedule, problem, facts);
    let is_faster = args.options.has_packed_queries() || time(&of_groups) <= time(schedule);
    Ok(is_faster.then_some((shared, of_groups)))
}

/// Whether heads can share tiles, of which each alone would leave half empty; of packed queries sequences may have any number.
fn may_share(kernel: &MainKernel, problem: &Problem, args: &RawForward) -> bool {
    let group = problem.group();
    let of_one_dim = Problem {
        dim_v: problem.dim,
        ..*problem
    };
    let options = &args.options;
    let has_pairs = options::first_of_pairs(&of_one_dim, options).is_some();
    // Kernels that load by maps would copy rows of q as long as those of o.
    let has_one_length = kernel.map_dim.is_none() || problem.dim == problem.dim_v;
    let is_served = kernel.may_group && options.alibi.is_none() && !has_pairs && has_one_length;
    let is_short = problem.seqlen_q <= kernel.q_rows as usize / 2;
    let fits = problem.seqlen_q as u128 * group as u128 <= u128::from(MAX_SEQLEN);
    let is_wanted = options.batch_invariant && is_short || options.has_packed_queries();
    is_wanted && is_served && group > 1 && fits
}

/// The time that products take: of the parts of tiles that have rows, or of the fullest tile where blocks do not fill the device.
fn time(kernel: &MainKernel, schedule: &Schedule, problem: &Problem, facts: &Facts) -> u64 {
    /// Rows of a warp of the kernels without tensor maps.
    const WARP_ROWS: u32 = 16;
    let part = match kernel.map_dim {
        Some(_) => WARPGROUP_ROWS,
        None => WARP_ROWS,
    };
    let parts = |rows: u64| rows.div_ceil(part.into());
    let rows = problem.seqlen_q as u64 * u64::from(schedule.packed);
    let slots = u64::from(facts.multiprocessors * kernel.resident_blocks(facts));
    let of_all = u64::from(schedule.blocks / schedule.q_tiles) * parts(rows);
    of_all.max(slots * parts(rows.min(kernel.q_rows.into())))
}

#[cfg(test)]
mod tests {
    use crate::attention::Attention;
    use crate::device::{Class, Facts};
    use crate::forward::{Problem, RawForward};
    use crate::options::Sequences;
    use crate::tensor::{Dtype, RawTensor};
    use kernels::abi::Switch;

    /// A call of `[batch, heads, seqlen_q]` on 4096 keys of 8 heads.
    fn call([batch, heads, seqlen_q]: [usize; 3], [dim, dim_v]: [usize; 2]) -> RawForward {
        let q = [batch, heads, seqlen_q, dim];
        let [k, v] = [dim, dim_v].map(|dim| [batch, 8, 4096, dim]);
        RawForward::row_major(&Problem::new(q, k, v, true, None).expect("valid"))
    }

    /// The kernel of a causal call on an H100, whether heads share its tiles by the switch, and its blocks.
    fn planned(attention: &Attention, args: &RawForward) -> (&'static str, bool, u32) {
        let attention = attention.clone().causal(true);
        let plan = attention.plan(Some(&Facts::emulated(Class::Sm90)), Dtype::Bf16, args);
        let plan = plan.expect("a plan");
        let mut steps = plan.steps.iter();
        let main = steps.find(|step| step.entry.name == plan.kernel);
        let main = main.expect("attention");
        let shares = main.entry.switches.has(Switch::Group);
        (plan.kernel, shares, main.blocks)
    }

    /// Whether heads share tiles in a batch invariant call with a window, and the blocks of attention.
    fn shared(attention: &Attention, args: &RawForward) -> (bool, u32) {
        let attention = attention.clone().batch_invariant(true);
        let attention = attention.window(Some(4000), None);
        let (_, shares, blocks) = planned(&attention, args);
        (shares, blocks)
    }

    /// A call of so many sequences of packed queries, 32 heads on 8, on 4096 keys in pages of 16 each.
    fn packed_queries(sequences: usize, queries: usize) -> RawForward {
        let mut args = call([1, 32, queries], [128; 2]);
        for cache in [&mut args.k, &mut args.v] {
            *cache = RawTensor::row_major([256 * sequences, 8, 16, 128]);
        }
        args.options.pages = Some(RawTensor::row_major([sequences, 256]));
        args.options.sequences = Some(Sequences::PackedQueries {
            q: RawTensor::row_major([sequences + 1]),
            kv: RawTensor::row_major([sequences]),
        });
        args
    }

    #[test]
    fn packed_queries_share_tiles_unless_all_sequences_have_few() {
        let of = |sequences, queries| {
            let (kernel, shares, _) =
                planned(&Attention::new(), &packed_queries(sequences, queries));
            (kernel, shares)
        };
        let (decode, hopper) = ("decode_optional_bf16_d128", "hopper_optional_bf16_d128");
        // A tile of the decode kernel has 64 rows, of 16 queries.
        assert_eq!(of(64, 64), (decode, false));
        assert_eq!(of(64, 79), (decode, false));
        for (sequences, queries) in [(64, 80), (64, 2110), (2, 4096), (1, 4096)] {
            assert_eq!(of(sequences, queries), (hopper, true));
        }
        // Slopes differ in a tile, so the mean decides.
        let with_slopes = |queries| {
            let mut args = packed_queries(64, queries);
            args.options.alibi = Some(RawTensor::row_major([1, 32]));
            let (kernel, shares, _) = planned(&Attention::new(), &args);
            (kernel, shares)
        };
        assert_eq!(with_slopes(64 * 16), (decode, false));
        assert_eq!(with_slopes(64 * 17), (hopper, false));
    }

    #[test]
    fn heads_share_tiles_where_that_costs_no_time() {
        let of = |shape| shared(&Attention::new(), &call(shape, [128; 2]));
        // 64 sequences fill the device, one does not: the rows of a group are those of a warpgroup.
        assert_eq!(of([64, 32, 1]), (true, 132));
        assert_eq!(of([1, 32, 1]), (true, 8));
        assert_eq!(of([1, 32, 16]), (true, 8));
        // Three warpgroups would take longer than one in a block of each head, unless blocks are many.
        assert_eq!(of([1, 32, 64]), (false, 32));
        assert_eq!(of([64, 32, 64]), (true, 132));
        // Tiles that a head fills by half, and heads that share no keys.
        assert_eq!(of([64, 32, 97]), (false, 132));
        assert_eq!(of([64, 8, 1]), (false, 132));
    }

    #[test]
    fn what_a_head_has_of_its_own_is_not_shared() {
        let shape = [64, 32, 1];
        let mut args = call(shape, [128; 2]);
        for attention in [
            Attention::new().softcap(30.0),
            Attention::new().split_keys(1024),
        ] {
            assert!(shared(&attention, &args).0);
        }
        args.options.alibi = Some(RawTensor::row_major([64, 32]));
        assert!(!shared(&Attention::new(), &args).0);
        for dims in [[128, 64], [384, 384]] {
            assert!(!shared(&Attention::new(), &call(shape, dims)).0);
        }
    }
}
