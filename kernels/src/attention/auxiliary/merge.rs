//! Results of two calls on parts of the keys, merged, and the gradient of that.
//!
//! With `lse = log(exp(lse_1) + exp(lse_2))`, part `i` weighs `w_i = exp(lse_i - lse)`, and `o = w_1 o_1 + w_2 o_2`. A part
//! with `lse_i = -inf` weighs 0, and its o is not read.
//!
//! `o_1 - o` is `w_2 (o_1 - o_2)`, so the gradient needs no merged o: with `dot = <d_o, o_1 - o_2>`,
//! `d_lse_1 = w_1 (d_lse + w_2 dot)` and `d_lse_2 = w_2 (d_lse - w_1 dot)`.
//!
//! Four lanes take a row, 16 bytes each at a time.

use crate::abi::{MergeBackwardParams, MergeParams, MergeParts, PartRef};
use crate::layout::element;
use crate::ptx::{global, math, shuffle, special};
use crate::tile::Element;
use core::f32::consts::{LN_2, LOG2_E};

/// Lanes of a row.
const LANES: u32 = 4;

/// Elements that a lane reads at a time.
const ELEMENTS: u32 = 8;

/// A row of all tensors.
struct Row {
    batch: u32,
    head: u32,
    query: u32,
}

impl Row {
    /// The row of a thread of the block, of `W` warps, if there is one.
    #[inline(always)]
    fn of_thread<const W: u32>(parts: &MergeParts, thread: u32) -> Option<Self> {
        let index = special::block() * (32 / LANES * W) + thread / LANES;
        let (head_index, query) = parts.seqlen.divide(index);
        let (batch, head) = parts.heads.divide(head_index);
        let row = Row { batch, head, query };
        (index < parts.rows).then_some(row)
    }

    /// Address of the row of o.
    #[inline(always)]
    fn o(&self, part: &PartRef) -> u64 {
        let tensor = &part.o;
        let offset = i64::from(self.batch) * tensor.batch_stride
            + i64::from(self.head) * tensor.head_stride
            + i64::from(self.query) * tensor.row_stride;
        element::at(tensor.address, offset)
    }

    /// Address of the row's lse.
    #[inline(always)]
    fn lse(&self, part: &PartRef) -> u64 {
        let offset = i64::from(self.batch) * part.lse_batch
            + i64::from(self.head) * part.lse_head
            + i64::from(self.query);
        part.lse.wrapping_add_signed(4 * offset)
    }
}

/// The parts of a row.
struct Pair {
    /// Addresses of the parts' rows.
    o: [u64; 2],
    /// Whether a part has a lse above -inf.
    counts: [bool; 2],
    weights: [f32; 2],
    lse: f32,
    aligned: u32,
    /// Elements of a row.
    dim: u32,
}

impl Pair {
    /// # Safety
    /// The row exists, and lse of both parts is readable.
    #[inline(always)]
    unsafe fn new(parts: &MergeParts, row: &Row) -> Self {
        // SAFETY: the caller's promise.
        let load = |part: &PartRef| unsafe { global::load_f32(row.lse(part)) };
        let (first, second) = (load(&parts.first), load(&parts.second));
        let gap = first - second;
        let ratio = math::exp2(-gap.abs() * LOG2_E);
        let larger = math::reciprocal(1.0 + ratio);
        let smaller = ratio * larger;
        let counts = [first, second].map(|lse| lse != f32::NEG_INFINITY);
        let weight = |counts, is_larger| match (counts, is_larger) {
            (false, _) => 0.0,
            (true, true) => larger,
            (true, false) => smaller,
        };
        Pair {
            o: [row.o(&parts.first), row.o(&parts.second)],
            counts,
            weights: [weight(counts[0], gap >= 0.0), weight(counts[1], gap < 0.0)],
            // The gap of NaN, and of equal infinities, is NaN; their sum is what they are.
            lse: match gap.is_nan() {
                true => first + second,
                false => first.max(second) + LN_2 * math::log2(1.0 + ratio),
            },
            aligned: parts.aligned,
            dim: parts.dim,
        }
    }

    /// Elements of a part from a column on; zeros of a part that does not count.
    ///
    /// # Safety
    /// The elements are readable if the part counts.
    #[inline(always)]
    unsafe fn load(&self, part: usize, column: u32) -> [u32; 4] {
        if !self.counts[part] {
            return [0; 4];
        }
        // SAFETY: the caller's promise.
        unsafe { load(self.o[part], column, self.aligned, self.dim) }
    }
}

/// Reads eight elements of a row from a column on, at once if rows are aligned; zeros behind the last.
///
/// # Safety
/// The row's `dim` elements are readable, and whole vectors of eight, aligned, if `aligned` is not 0.
#[inline(always)]
unsafe fn load(row: u64, column: u32, aligned: u32, dim: u32) -> [u32; 4] {
    let address = element::at(row, column);
    // SAFETY: the caller's promise.
    unsafe {
        match aligned {
            0 => global::load_first_elements(address, dim - column),
            _ => global::load_u32x4(address),
        }
    }
}

/// Writes eight elements of a row from a column on, at once if rows are aligned; none behind the last.
///
/// # Safety
/// The elements are writable by this lane alone; the row is as for [`load`].
#[inline(always)]
unsafe fn store(row: u64, column: u32, pairs: [u32; 4], aligned: u32, dim: u32) {
    let address = element::at(row, column);
    // SAFETY: the caller's promise.
    unsafe {
        match aligned {
            0 => global::store_elements(address, pairs, dim - column),
            _ => global::store_u32x4(address, pairs),
        }
    }
}

/// The two numbers of a register.
#[inline(always)]
fn widen<E: Element>(pair: u32) -> [f32; 2] {
    [E::widen(pair as u16), E::widen((pair >> 16) as u16)]
}

/// Merges the block's rows, eight a warp, with `W` warps a block.
///
/// # Safety
/// Launched as [`MergeParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable parts, and writable o and
/// lse that overlap nothing.
#[inline(always)]
pub unsafe fn merge<E: Element, const W: u32>(params: &MergeParams) {
    let parts = &params.parts;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let Some(row) = Row::of_thread::<W>(parts, thread) else {
        return;
    };
    // SAFETY: the row exists.
    let pair = unsafe { Pair::new(parts, &row) };
    let o = row.o(&params.merged);
    let mut column = thread % LANES * ELEMENTS;
    while column < parts.dim {
        // SAFETY: columns of a row that exists, aligned where the launch says so; of o this lane alone stores them.
        unsafe {
            let (first, second) = (pair.load(0, column), pair.load(1, column));
            let mut merged = [0; 4];
            for i in 0..4 {
                let (a, b) = (widen::<E>(first[i]), widen::<E>(second[i]));
                let sum =
                    |half: usize| math::fma(pair.weights[0], a[half], pair.weights[1] * b[half]);
                merged[i] = E::pack(sum(0), sum(1));
            }
            store(o, column, merged, parts.aligned, parts.dim);
        }
        column += LANES * ELEMENTS;
    }
    if thread % LANES == 0 {
        // SAFETY: only this lane stores the row's lse.
        unsafe { global::store_f32(row.lse(&params.merged), pair.lse) };
    }
}

/// Computes the gradients of the block's rows, eight a warp, with `W` warps a block.
///
/// # Safety
/// Launched as [`MergeBackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable parts and
/// gradients of what was merged, and writable gradients of the parts that overlap nothing.
#[inline(always)]
pub unsafe fn merge_backward<E: Element, const W: u32>(params: &MergeBackwardParams) {
    let parts = &params.parts;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let row = Row::of_thread::<W>(parts, thread);
    // SAFETY: the row exists.
    let found = row.map(|row| unsafe { (Pair::new(parts, &row), row) });
    let mut dot = 0.0;
    if let Some((pair, row)) = &found {
        let d_o = row.o(&params.d_merged);
        let to = [row.o(&params.d_first), row.o(&params.d_second)];
        let mut column = thread % LANES * ELEMENTS;
        while column < parts.dim {
            // SAFETY: columns of a row that exists, aligned where the launch says so; of the gradients this lane alone stores
            // them.
            unsafe {
                let (first, second) = (pair.load(0, column), pair.load(1, column));
                let gradients = load(d_o, column, parts.aligned, parts.dim);
                for i in 0..4 {
                    let (a, b, d) = (
                        widen::<E>(first[i]),
                        widen::<E>(second[i]),
                        widen::<E>(gradients[i]),
                    );
                    dot = math::fma(d[0], a[0] - b[0], dot);
                    dot = math::fma(d[1], a[1] - b[1], dot);
                }
                for part in 0..2 {
                    let mut weighted = [0; 4];
                    let (counts, weight) = (pair.counts[part], pair.weights[part]);
                    for i in 0..4 {
                        // A product would keep a NaN in the gradient of a part that does not count.
                        let [lo, hi] = widen::<E>(if counts { gradients[i] } else { 0 });
                        weighted[i] = E::pack(weight * lo, weight * hi);
                    }
                    store(to[part], column, weighted, parts.aligned, parts.dim);
                }
            }
            column += LANES * ELEMENTS;
        }
    }
    // SAFETY: every lane reaches this call.
    let dot = unsafe { shuffle::reduce::<LANES>(dot, |a, b| a + b) };
    if let Some((pair, row)) = &found
        && thread % LANES == 0
    {
        // SAFETY: the gradient of lse is there where its address is not 0; only this lane stores the row's gradients.
        unsafe {
            let d_lse = match params.d_merged.lse {
                0 => 0.0,
                _ => global::load_f32(row.lse(&params.d_merged)),
            };
            let [first, second] = pair.weights;
            let gradients = [
                first * math::fma(second, dot, d_lse),
                second * math::fma(-first, dot, d_lse),
            ];
            let to = [row.lse(&params.d_first), row.lse(&params.d_second)];
            for part in 0..2 {
                let counts = pair.counts[part];
                global::store_f32(to[part], if counts { gradients[part] } else { 0.0 });
            }
        }
    }
}
