//! How a call's rows and keys are divided among blocks: into tiles, splits, clusters or units.

use super::main_kernel::MainKernel;
use super::schedule::{Division, Schedule};
use super::shared_tiles::shared;
use super::{Problem, RawForward};
use crate::device::Facts;
use crate::error::{Result, expect_at_most};
use crate::options::{QueryTiles, Tables};
use kernels::abi::MAX_SEQLEN;

/// Divides rows and keys: the kernel, whose heads may share tiles, its schedule, and the tables of tiles and units. The keys of `divided` have
/// their places.
///
/// # Errors
/// If there are too many blocks for a launch, or rows or sequences for the tables.
pub(super) fn divide(
    kernel: MainKernel,
    [problem, divided]: [&Problem; 2],
    args: &RawForward,
    facts: &Facts,
    division: Division,
) -> Result<(MainKernel, Schedule, Tables)> {
    expect_at_most(
        "the number of packed sequences",
        args.options.key_entries(),
        MAX_SEQLEN - 2,
    )?;
    let schedule = Schedule::new(&kernel, divided, facts, division, &args.options)?;
    let shared = shared(&kernel, &schedule, (divided, args), facts, division)?;
    let (kernel, schedule) = shared.unwrap_or((kernel, schedule));
    if args.options.has_packed_queries() {
        let rows = problem.seqlen_q.saturating_mul(schedule.packed as usize);
        expect_at_most("the number of rows of packed queries", rows, MAX_SEQLEN)?;
        let tiles = QueryTiles {
            count: schedule.q_tiles,
            rows: kernel.q_rows,
            group: schedule.packed,
        };
        let tables = Tables {
            tiles: Some(tiles),
            ..Tables::default()
        };
        let schedule = schedule.in_clusters(&kernel, divided, facts, division, false);
        return Ok((kernel, schedule, tables));
    }
    let by_lengths = kernel.takes_units && args.options.has_lengths();
    let may_divide = by_lengths && division == Division::Best && facts.has_pools;
    let units = may_divide
        .then(|| schedule.units(&kernel, problem, facts))
        .flatten();
    let clusters = schedule.in_clusters(&kernel, divided, facts, division, units.is_some());
    let units = units.filter(|_| clusters.cluster == 1);
    let schedule = match units {
        Some(units) => schedule.of_units(&kernel, problem, units)?,
        None => clusters,
    };
    let tables = Tables {
        units,
        by_lengths,
        ..Tables::default()
    };
    Ok((kernel, schedule, tables))
}
