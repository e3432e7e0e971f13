//! Flash-decoding's last step: O and lse from the partial results of all splits of the keys.
//!
//! With `m` the largest maximum of all splits, split `s` weighs `w = 2^(m_s - m)`, and
//! `o = sum(w o_s) / sum(w l_s)`: the online softmax over splits instead of blocks. A split in which a row sees
//! no key has `m_s = -inf` and weighs 0.
//!
//! A warp takes 128 columns of a row at a time, and the splits in their order, so that equal inputs give
//! equal bits. Lane `i` computes the weights of splits `i`, `i + 32`, and so on.

use crate::abi::{ForwardParams, UnitsRef};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Sequence;
use crate::attention::{Total, WorkTile};
use crate::layout::element;
use crate::ptx::{barrier, global, math, shuffle, special};
use crate::tile::Element;
use crate::tile::registers::{again, opaque};

/// Columns that a warp combines at a time: four a lane, in 16 bytes.
const COLUMNS: u32 = UnitsRef::COMBINED;

/// Computes o and lse of the block's rows, with `W` warps a block. Each 128 columns of a row have a warp or, in a smaller grid, each row has
/// one.
///
/// # Safety
/// Launched as [`ForwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with
/// writable o and lse. The kernel before it wrote the partial results of all rows and splits.
#[inline(always)]
pub unsafe fn combine<E: Element, const W: usize>(params: &ForwardParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W as u32) };
    let lane = thread % 32;
    let rows = Sequence::partial_rows(params);
    let parts = UnitsRef::parts(params.dim);
    let warps = |blocks: u32| u64::from(blocks) * W as u64;
    // To find a row's weights takes as long as a part of its columns.
    let row_warps = match warps(special::blocks()) < rows * u64::from(parts) {
        true => 1,
        false => parts,
    };
    let place = || {
        let warp = warps(special::block()) + u64::from(thread / 32);
        let part = warp as u32 & (row_warps - 1);
        (warp >> row_warps.trailing_zeros(), part)
    };
    let (row, part) = place();
    if row >= rows {
        return;
    }
    let row = || place().0;
    // SAFETY: the caller's promise; all branches so far depend on the warp, or reach no shuffle.
    unsafe {
        if row_warps < parts {
            combine_row::<E, 4, 2>(params, params.dim, row, 0, lane);
        } else {
            combine_row::<E, 1, 8>(params, params.dim, row, part, lane);
        }
    }
}

/// Combines the splits of a tile of `br` rows, one for each block of a cluster: the warps of all these blocks, `W` each, share its rows.
///
/// # Safety
/// [`Switch::Cluster`](crate::abi::Switch::Cluster) is on. All threads of the block make the same call, after it wrote its partial results.
#[inline(always)]
pub unsafe fn combine_in_cluster<E: Element, H: Heads, C: Score, const W: usize>(
    params: &ForwardParams,
    br: u32,
) {
    // SAFETY: all blocks have the same branches, so all threads of the cluster are here.
    unsafe { barrier::cluster() }
    // Not held over the block's loop.
    let work = again(|| WorkTile::<H>::of_split::<C>(params, br));
    let (dim, packed) = (C::value_dim(params), params.heads / params.tile_heads.value);
    let tile = work.sequence.batch * params.tile_heads.value + work.heads.first() / packed;
    let first = u64::from(tile) * u64::from(packed * params.seqlen_q) + u64::from(work.first);
    let rows = work.row_count::<C>().min(work.first + br) - work.first;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W as u32) };
    let parts = UnitsRef::parts(dim);
    // Where rows are few, each is another block's.
    let mut task = special::block_in_cluster() + thread / 32 * special::blocks_of_cluster();
    while task < rows * parts {
        let row = first + u64::from(task / parts);
        // SAFETY: the caller's promise. What the cluster wrote is visible behind its barrier.
        unsafe { combine_row::<E, 1, 8>(params, dim, || row, task % parts, thread % 32) }
        task += W as u32 * special::blocks_of_cluster();
    }
}

/// The first unit of a batch entry, and the one behind its last.
///
/// # Safety
/// A launch has units, and with them offsets: one more than batch entries.
#[inline(always)]
unsafe fn load_offsets(units: UnitsRef, batch: u32) -> [u32; 2] {
    let address = units.offsets + 4 * u64::from(batch);
    // SAFETY: the caller's promise.
    [0, 4].map(|behind| unsafe { global::load_u32(address + behind) })
}

/// Combines the columns of a row of `dim` that begin at part `part`: `P` parts of it, or all, `P` at a time, where they are more than one.
/// `AHEAD` splits are loaded at the same time.
///
/// # Safety
/// The conditions of [`combine`], in all lanes of a warp; no other warp has these parts of the row.
#[inline(always)]
unsafe fn combine_row<E: Element, const P: usize, const AHEAD: usize>(
    params: &ForwardParams,
    dim: u32,
    row: impl Fn() -> u64,
    part: u32,
    lane: u32,
) {
    let packed = || params.heads / params.tile_heads.value;
    let partials = Partials::new(params, dim, row(), packed());
    let mut column = part * COLUMNS + 4 * lane;
    // On their way while the weights are found.
    // SAFETY: the caller's promise: partial results are there.
    let (mut first, max) = unsafe { (partials.load::<P, AHEAD>(0, column), partials.max(lane)) };
    loop {
        // SAFETY: as above.
        let (o, total) = unsafe { partials.add_up(first, column, max, lane) };
        let (factor, lse) = total.finish();

        // Else the row holds registers while partial results are added up: 20 bytes of them spilled.
        let row = again(&row);
        let (sequence, query, head) = Sequence::of_partial_row(params, row, packed());
        let offset = sequence.offset(&params.o)
            + i64::from(head) * params.o.head_stride
            + i64::from(query) * params.o.row_stride;
        for p in 0..P {
            let column = column + COLUMNS * p as u32;
            let address = element::at(params.o.address, offset + i64::from(column));
            let [a, b, c, d] = o[p].map(|o| o * factor);
            let pairs = [E::pack(a, b), E::pack(c, d)];
            // SAFETY: only this lane stores these elements.
            unsafe {
                if column < dim {
                    if params.o_aligned != 0 {
                        global::store_u32x2(address, pairs);
                    } else {
                        global::store_elements(address, pairs, 4);
                    }
                }
            }
        }
        if column == 0 {
            let row = sequence.row_index(params, head, query);
            // SAFETY: one lane of the row's first warp stores the lse.
            unsafe { global::store_f32(params.lse + 4 * row, lse) }
        }
        column += COLUMNS * P as u32;
        if P == 1 || column - 4 * lane >= dim {
            break;
        }
        // SAFETY: as above.
        first = unsafe { partials.load(0, column) };
    }
}

/// The partial results of a row.
struct Partials {
    /// Device addresses of O, and of m and l, of the first split.
    o: u64,
    softmax: u64,
    /// Rows from a split to the next one.
    step: u64,
    /// Splits of the row.
    splits: u32,
    /// Columns of O.
    dim: u32,
}

/// The functions share their conditions: the row's partial results are readable, and those that compute do so in all lanes of the warp.
impl Partials {
    /// Those of a row, of tiles that hold `packed` heads each: in all splits or, if there are [units](UnitsRef), in those of its batch
    /// entry.
    #[inline(always)]
    fn new(params: &ForwardParams, dim: u32, row: u64, packed: u32) -> Self {
        let units = params.options.units;
        let (first, heads, splits) = match units.offsets {
            0 => (row, params.batch_heads, Sequence::split_count(params)),
            _ => {
                let rows = u64::from(params.heads) * u64::from(params.seqlen_q);
                let (batch, in_batch) = (row / rows, (row % rows) as u32);
                let tile_rows = packed * params.seqlen_q;
                let head = in_batch / tile_rows * packed;
                // SAFETY: there are units.
                let [start, end] = unsafe { load_offsets(units, batch as u32) };
                let first = Sequence::unit_index(params, start, head, in_batch % tile_rows);
                (first, params.heads, end - start)
            }
        };
        Partials {
            o: params.partial_o + 4 * first * u64::from(dim),
            softmax: params.partial_softmax + 8 * first,
            step: u64::from(heads) * u64::from(params.seqlen_q),
            splits,
            dim,
        }
    }

    /// m and l of a split.
    #[inline(always)]
    unsafe fn total(&self, split: u32) -> Total {
        // SAFETY: the caller's promise.
        let [max, sum] =
            unsafe { global::load_f32x2(self.softmax + 8 * u64::from(split) * self.step) };
        Total { max, sum }
    }

    /// Four columns of each of `P` parts of O, of splits from `first` on; zeros behind the last split and column.
    #[inline(always)]
    unsafe fn load<const P: usize, const AHEAD: usize>(
        &self,
        first: u32,
        column: u32,
    ) -> [[[f32; 4]; P]; AHEAD] {
        let mut parts = [[[0.0; 4]; P]; AHEAD];
        let split_bytes = 4 * self.step * u64::from(self.dim);
        let mut address = self.o + u64::from(first) * split_bytes + 4 * u64::from(column);
        for ahead in 0..AHEAD {
            for p in 0..P {
                let skipped = COLUMNS * p as u32;
                if first + (ahead as u32) < self.splits && column + skipped < self.dim {
                    // SAFETY: the caller's promise: the split and the lane's columns exist.
                    parts[ahead][p] =
                        unsafe { global::load_f32x4(address + 4 * u64::from(skipped)) };
                }
            }
            address += split_bytes;
        }
        parts
    }

    /// The largest maximum.
    #[inline(always)]
    unsafe fn max(&self, lane: u32) -> f32 {
        let mut max = f32::NEG_INFINITY;
        let mut split = lane;
        while split < self.splits {
            // SAFETY: the caller's promise.
            max = max.max(unsafe { self.total(split).max });
            // Opaque: the loop stays one.
            split = opaque(split + 32);
        }
        // SAFETY: the caller's promise.
        unsafe { shuffle::reduce::<32>(max, f32::max) }
    }

    /// The weighted sums of columns of O, relative to `max`, and of l. Of the columns the first splits are `parts`.
    #[inline(always)]
    unsafe fn add_up<const P: usize, const AHEAD: usize>(
        &self,
        mut parts: [[[f32; 4]; P]; AHEAD],
        column: u32,
        max: f32,
        lane: u32,
    ) -> ([[f32; 4]; P], Total) {
        // A row that saw no key must not subtract -inf from -inf, here or in the online softmax.
        let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let (mut o, mut sum) = ([[0.0; 4]; P], 0.0);
        let mut first = 0;
        while first < self.splits {
            let mut weight = 0.0;
            if first + lane < self.splits {
                // SAFETY: the caller's promise.
                let total = unsafe { self.total(first + lane) };
                weight = math::exp2(total.max - reference);
                sum += weight * total.sum;
            }
            let count = (self.splits - first).min(32);
            let mut i = 0;
            while i < count {
                for ahead in 0..AHEAD {
                    // SAFETY: the caller's promise. Splits past the last weigh 0.
                    let weight = unsafe { shuffle::of_lane(weight, i + ahead as u32) };
                    for p in 0..P {
                        for c in 0..4 {
                            o[p][c] = math::fma(weight, parts[ahead][p][c], o[p][c]);
                        }
                    }
                }
                i += AHEAD as u32;
                if first + i < self.splits {
                    // SAFETY: the caller's promise.
                    parts = unsafe { self.load(first + i, column) };
                }
            }
            first += 32;
        }
        // SAFETY: the caller's promise.
        let sum = unsafe { shuffle::reduce::<32>(sum, |a, b| a + b) };
        (o, Total { max, sum })
    }
}
