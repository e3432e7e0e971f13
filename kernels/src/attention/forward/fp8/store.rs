//! After the loop over blocks of keys: a warp stores O and lse of its rows.

use super::outer::Outer;
use super::spoil::spoil;
use super::step::Rows;
use crate::abi::Fp8Params;
use crate::attention::forward::sm90::job::{Job, Part};
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::store::{Tiles, store_whole_rows};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::{self, SoftmaxScale, Total};
use crate::layout::fp8::Fp8Memory;
use crate::layout::rows::Rows as _;
use crate::ptx::{barrier, global, math, shared, shuffle, special, switch, vote};
use crate::tile::registers::{again, fence, opaque};
use crate::tile::{Accumulator, HalfAccumulator};
use core::hint::cold_path;

/// Lines 12 to 15 for the warp's 16 rows. V has its scale and its mean again, and sums take in the sink. Rows that see a value which is not
/// finite have NaN.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8); every lane of the warp makes the same call, after its last product, with the columns landed.
#[inline(always)]
pub unsafe fn store<K: Kernel, U: Outer<OT>, const OT: usize, const NT: usize, const PT: usize>(
    launch: &Fp8Params,
    memory: Fp8Memory,
    job: Job,
    rows: Rows<U, OT, NT, PT>,
) {
    let Rows {
        o, outer, softmax, ..
    } = rows;
    let params = &launch.forward;
    // Held over the loop, it spills 16 to 112 bytes.
    let part = again(|| Part::<K>::new(params, job, K::tile_row()));
    let lane = special::lane();
    // SAFETY: the caller's promise.
    unsafe {
        let totals = softmax
            .sum
            .map(|sum| shuffle::reduce::<4>(sum, |a, b| a + b));
        let mut sums = attention::Softmax::<1>::new(SoftmaxScale::new(params.scale));
        let split = part.work.keys(params);
        let sink = K::Score::sink(params, split, part.work.heads.first());
        let mut changes = [1.0; 2];
        for r in 0..2 {
            let total = Total {
                max: softmax.reference[r],
                sum: softmax.sum[r],
            };
            let (total, change) = with_sink(total, sink);
            changes[r] = change;
            sums.resume(0, r, total);
        }
        let results = Results {
            o: &o,
            outer: &outer,
            columns: memory.columns() + 8 * 2 * (lane % 4),
            totals: [totals[0] * changes[0], totals[1] * changes[1]],
            changes,
        };
        let [totals] = sums.totals();
        if switch::f32_output() {
            store_f32_rows::<K, OT>(launch, &part, opaque(lane), &results, totals);
        } else {
            let place = [part.first, 0];
            let work = &part.work;
            store_whole_rows::<K::Element, K::Score, _, _, OT>(
                params, work, place, lane, &results, totals,
            );
        }
        if vote::any(shared::load_u32(memory.wrong()) != 0) {
            cold_path();
            barrier::warp();
            spoil(launch, &part);
        }
    }
}

/// O with the scales and means of V.
struct Results<'a, U, const OT: usize> {
    o: &'a [HalfAccumulator; OT],
    outer: &'a U,
    /// Shared address of scale and mean of the lane's first column: they lie like V's.
    columns: u32,
    /// Sums of the lane's two rows.
    totals: [f32; 2],
    /// What multiplies these rows.
    changes: [f32; 2],
}

impl<U: Outer<OT>, const OT: usize> Tiles for Results<'_, U, OT> {
    /// By the [order](crate::layout::fp8::transposed_column) of V's columns.
    const ARE_CHUNKS: bool = true;

    #[inline(always)]
    fn tile(&self, dt: usize, inverses: [f32; 2]) -> Accumulator {
        // SAFETY: every lane of the warp stores. Else the assembler computes all tiles ahead.
        unsafe { fence() }
        let mut tile = self.outer.with(self.o[dt], dt);
        let of_o = [0, 1].map(|r| self.changes[r] * inverses[r]);
        let of_mean = [0, 1].map(|r| self.totals[r] * inverses[r]);
        for half in 0..2 {
            let row = (16 * dt + 8 * half) as u32;
            // SAFETY: the columns landed, and those behind the head dim are 0.
            let two = unsafe { shared::load_u32x4(self.columns + 8 * row) };
            for i in 0..4 {
                let [scale, mean] = [two[2 * (i % 2)], two[2 * (i % 2) + 1]].map(f32::from_bits);
                let o = &mut tile.0[4 * half + i];
                *o = math::fma(*o * of_o[i / 2], scale, of_mean[i / 2] * mean);
            }
        }
        tile
    }
}

/// Stores O in f32 and lse: a lane writes four columns of a row at once.
///
/// # Safety
/// The conditions of [`store`].
#[inline(always)]
unsafe fn store_f32_rows<K: Kernel, const OT: usize>(
    launch: &Fp8Params,
    part: &Part<K>,
    lane: u32,
    o: &impl Tiles,
    totals: [Total; 2],
) {
    let (params, work) = (&launch.forward, &part.work);
    let rows = part.rows();
    let to = work.q_rows(&params.o);
    let columns = opaque(launch.o_columns);
    let finished = totals.map(Total::finish);
    let inverses = finished.map(|(inverse, _)| inverse);
    let places = [0, 1].map(|r| {
        let row = part.first + (lane / 4 + 8 * r) as i32;
        let exists = row >= rows.start && row < rows.end;
        let columns = if exists { columns } else { 0 };
        (row as u32, to.at(row as u32), columns)
    });
    // SAFETY: the caller's promise. Only this warp stores these rows; no branch on a row holds an instruction of a
    // warp.
    unsafe {
        let aligned = opaque(params.o_aligned) != 0;
        for i in 0..OT {
            let tile = o.tile(i, inverses).0;
            let column = (i / 2 * 32 + i % 2 * 4) as u32 + 8 * (lane % 4);
            for r in 0..2 {
                let (_, address, columns) = places[r];
                let four = [0, 1, 4, 5].map(|i| tile[i + 2 * r]);
                store_four(address, column, four, columns, aligned);
            }
        }
        for r in 0..2 {
            let (row, _, columns) = places[r];
            if columns > 0 && lane % 4 == 0 {
                global::store_f32(work.lse(params, row), finished[r].1);
            }
        }
    }
}

/// Stores what exists of four columns of a row: all at once, or none, where fours are aligned.
///
/// # Safety
/// The row is memory of `columns` f32, which is writable.
#[inline(always)]
unsafe fn store_four(row: u64, column: u32, four: [f32; 4], columns: u32, aligned: bool) {
    let address = row + 4 * u64::from(column);
    // SAFETY: the caller's promise.
    unsafe {
        if aligned {
            if column < columns {
                global::store_u32x4(address, four.map(f32::to_bits));
            }
            return;
        }
        for i in 0..4 {
            if column + (i as u32) < columns {
                global::store_f32(address + 4 * i as u64, four[i]);
            }
        }
    }
}

/// The lane's part of a row's sum with a sink, and the factor of the row of O. No branch: the assembler takes it for one of lanes.
#[inline(always)]
fn with_sink(total: Total, sink: f32) -> (Total, f32) {
    let is_larger = total.max < sink;
    let max = if is_larger { sink } else { total.max };
    let power = |score: f32| {
        let power = math::exp2(score - max);
        // Equal infinities have no difference.
        if score == max { 1.0 } else { power }
    };
    let (change, of_sink) = (power(total.max), power(sink));
    let counts = special::lane().is_multiple_of(4) & (sink != f32::NEG_INFINITY);
    let of_lane = if counts { of_sink } else { 0.0 };
    let sum = math::fma(total.sum, change, of_lane);
    (Total { max, sum }, change)
}
