//! Flash-decoding's last step: O and lse from the partial results of all splits of the keys.
//!
//! With `m` the largest maximum of all splits, split `s` weighs `w = 2^(m_s - m)`, and
//! `o = sum(w o_s) / sum(w l_s)`: the online softmax over splits instead of blocks. A split in which a row sees
//! no key has `m_s = -inf` and weighs 0.
//!
//! A warp takes up to 128 columns of a row, and the splits in their order, so that equal inputs give
//! equal bits. Lane `i` computes the weights of splits `i`, `i + 32`, and so on.

use crate::abi::{ForwardParams, UnitsRef};
use crate::attention::Total;
use crate::attention::workload::sequence::Sequence;
use crate::layout::element;
use crate::ptx::{global, math, shuffle, special};
use crate::tile::Element;
use crate::tile::registers::again;

/// Columns of a warp: four a lane, in 16 bytes.
const COLUMNS: u32 = 128;

/// Splits that a lane loads at the same time.
const AHEAD: usize = 8;

/// Computes o and lse of the block's rows, with `W` warps a block.
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
    // The row of the warp, and the part of its columns.
    let place = || {
        // Warps of a row: a power of two.
        let row_warps = params.dim.div_ceil(COLUMNS).next_power_of_two();
        let warp = u64::from(special::block()) * W as u64 + u64::from(thread / 32);
        let part = warp as u32 & (row_warps - 1);
        (warp >> row_warps.trailing_zeros(), part)
    };
    let (row, part) = place();
    if row >= rows {
        return;
    }
    let column = part * COLUMNS + 4 * lane;
    let exists = column < params.dim;
    let packed = || params.heads / params.tile_heads.value;
    let parts = Parts::new(params, row, packed());
    let splits = parts.splits;
    let index = |split: u32| {
        let heads = u64::from(split) * u64::from(parts.heads);
        parts.first + heads * u64::from(params.seqlen_q)
    };
    // SAFETY: called with splits that exist.
    let total = |split: u32| unsafe {
        let [max, sum] = global::load_f32x2(params.partial_softmax + 8 * index(split));
        Total { max, sum }
    };
    // Partial results of splits from this one on; zeros behind the last.
    let load_o = |first: u32| {
        let mut parts = [[0.0; 4]; AHEAD];
        for ahead in 0..AHEAD {
            let split = first + ahead as u32;
            if split < splits && exists {
                let element = index(split) * u64::from(params.dim) + u64::from(column);
                // SAFETY: the split and the lane's columns exist.
                parts[ahead] = unsafe { global::load_f32x4(params.partial_o + 4 * element) };
            }
        }
        parts
    };
    // On their way while the weights are found.
    let mut parts_of_o = load_o(0);

    let mut max = f32::NEG_INFINITY;
    let mut first = 0;
    while first < splits {
        if first + lane < splits {
            max = max.max(total(first + lane).max);
        }
        first += 32;
    }
    // SAFETY: all branches so far depend on the warp, or reach no shuffle.
    let max = unsafe { shuffle::reduce::<32>(max, f32::max) };
    // A row that saw no key must not subtract -inf from -inf, here or in the online softmax.
    let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };

    let (mut o, mut sum) = ([0.0; 4], 0.0);
    let mut first = 0;
    while first < splits {
        let mut weight = 0.0;
        if first + lane < splits {
            let total = total(first + lane);
            weight = math::exp2(total.max - reference);
            sum += weight * total.sum;
        }
        let count = (splits - first).min(32);
        let mut i = 0;
        while i < count {
            for ahead in 0..AHEAD {
                // SAFETY: as above. Splits past the last weigh 0.
                let weight = unsafe { shuffle::of_lane(weight, i + ahead as u32) };
                for c in 0..4 {
                    o[c] = math::fma(weight, parts_of_o[ahead][c], o[c]);
                }
            }
            i += AHEAD as u32;
            if first + i < splits {
                parts_of_o = load_o(first + i);
            }
        }
        first += 32;
    }
    // SAFETY: as above.
    let sum = unsafe { shuffle::reduce::<32>(sum, |a, b| a + b) };
    let (factor, lse) = Total { max, sum }.finish();

    // Else the row holds registers while partial results are added up: 20 bytes of them spilled.
    let (row, _) = again(place);
    let (sequence, query, head) = Sequence::of_partial_row(params, row, packed());
    let offset = sequence.offset(&params.o)
        + i64::from(head) * params.o.head_stride
        + i64::from(query) * params.o.row_stride
        + i64::from(column);
    let address = element::at(params.o.address, offset);
    let [a, b, c, d] = o.map(|o| o * factor);
    let pairs = [E::pack(a, b), E::pack(c, d)];
    // SAFETY: only this lane stores these elements; one lane of the row's first warp stores the lse.
    unsafe {
        if exists {
            if params.o_aligned != 0 {
                global::store_u32x2(address, pairs);
            } else {
                global::store_elements(address, pairs, 4);
            }
        }
        if column == 0 {
            let row = sequence.row_index(params, head, query);
            global::store_f32(params.lse + 4 * row, lse);
        }
    }
}

/// Where the partial results of a row lie.
struct Parts {
    /// Index of the first.
    first: u64,
    /// Heads from one to the next.
    heads: u32,
    /// How many.
    splits: u32,
}

impl Parts {
    /// The partial results of a row, of tiles that hold `packed` heads each: in all splits or, if there are [units](UnitsRef), in those of its batch
    /// entry.
    #[inline(always)]
    fn new(params: &ForwardParams, row: u64, packed: u32) -> Self {
        let UnitsRef { table, offsets } = params.options.units;
        if table == 0 {
            return Parts {
                first: row,
                heads: params.batch_heads,
                splits: Sequence::split_count(params),
            };
        }
        let rows = u64::from(params.heads) * u64::from(params.seqlen_q);
        let (batch, in_batch) = (row / rows, (row % rows) as u32);
        let tile_rows = packed * params.seqlen_q;
        let head = in_batch / tile_rows * packed;
        // SAFETY: a launch with units has offsets, one more than batch entries.
        let [start, end] =
            [0, 4].map(|behind| unsafe { global::load_u32(offsets + 4 * batch + behind) });
        Parts {
            first: Sequence::unit_index(params, start, head, in_batch % tile_rows),
            heads: params.heads,
            splits: end - start,
        }
    }
}
