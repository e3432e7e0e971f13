//! What of a call chooses its kernel.

use super::Problem;
use crate::device::Facts;
use crate::options::{self, RawOptions};
use kernels::catalog::select::Request;
use kernels::catalog::{Dtype, Levels, MaskKind};

/// The request that chooses a kernel, for [valid](Problem::validate) problems.
pub fn request(dtype: Dtype, problem: &Problem, options: &RawOptions, facts: &Facts) -> Request {
    let option = match options.fp8 {
        None => options::first_beside_cache(problem, options),
        Some(_) => options::first_beside_fp8(problem, options),
    };
    let levels = match options.e4m3 {
        Some(_) => Levels::Two,
        None => Levels::One,
    };
    Request {
        dtype,
        dim: problem.dim as u32,
        dim_v: problem.dim_v as u32,
        mask: match option {
            Some(_) => MaskKind::Options,
            None => MaskKind::of(problem.causal),
        },
        has_pairs: options::first_of_pairs(problem, options).is_some(),
        cached: options.cache_entries.is_some(),
        values_in_keys: options.values_in_keys
            && options::first_of_scores(problem, options).is_none(),
        fp8: options.fp8.is_some().then_some(levels),
        e4m3_cache: options.e4m3_cache.is_some(),
        invariant: options.batch_invariant,
        seqlen_q: mean_queries(problem, options) as u32,
        longest_q: longest_queries(problem, options) as u32,
        group: u32::try_from(problem.group()).unwrap_or(u32::MAX),
        compute_capability: facts.compute_capability,
        class: facts.class().into(),
    }
}

/// Queries of an entry of keys, in the mean: of packed queries those of a sequence.
fn mean_queries(problem: &Problem, options: &RawOptions) -> usize {
    problem.seqlen_q.div_ceil(options.key_entries().max(1))
}

/// Queries of an entry of keys, at most: of packed queries, if every sequence has one, and heads may share tiles.
fn longest_queries(problem: &Problem, options: &RawOptions) -> usize {
    let others = options.key_entries().max(1) - 1;
    match options.alibi {
        None if options.has_packed_queries() => problem.seqlen_q.saturating_sub(others).max(1),
        _ => mean_queries(problem, options),
    }
}
