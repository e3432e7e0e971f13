//! Statistics of the rows: `lse * log2(e)` and `delta = rowsum(do * o) - d_lse`.
//!
//! Heads are padded to whole query tiles. In padding, in rows of no sequence, and where a row sees no key and has no sink,
//! lse is infinity and delta 0: they have no part in any gradient.
//!
//! Memory in which later kernels count or sum begins as zeros: all blocks write them, which saves a launch that would.

use crate::abi::{FAR_LSE, PrepareParams};
use crate::attention::options::ranges::is_in_sequence;
use crate::attention::workload::sequence::Sequence;
use crate::layout::rows::Rows;
use crate::ptx::{global, math, shuffle, special, vote};
use crate::tile::Element;

/// Lanes of a row.
const LANES: u32 = 4;

/// Elements that a lane reads at a time.
const ELEMENTS: u32 = 8;

/// Bytes of zeros that a thread writes at a time.
const ZEROS: u64 = 16;

/// Writes the statistics of the block's rows, eight a warp, with `W` warps a block; and the block's part of the zeros.
///
/// # Safety
/// Launched as [`PrepareParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable o, do, lse
/// and gradient of lse, and writable statistics and zeros.
#[inline(always)]
pub unsafe fn prepare<E: Element, const W: u32>(params: &PrepareParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    // SAFETY: the zeros are writable, and other threads write other parts.
    unsafe {
        write_zeros(
            params,
            special::block() * 32 * W + thread,
            special::blocks() * 32 * W,
        )
    };
    let params = &params.backward;
    let forward = &params.forward;
    let block_rows = 32 / LANES * W;
    let tiles = params.padded_rows / block_rows;
    let block = special::block();
    let (head_index, tile) = (block / tiles, block % tiles);
    let row = tile * block_rows + thread / LANES;
    let sequence = Sequence::new(forward, head_index / forward.heads);
    let head = head_index % forward.heads;
    let exists = row < sequence.queries;

    let (mut sum, mut largest) = (0.0, 0.0_f32);
    if exists {
        let address = |tensor| sequence.head_rows(tensor, head, forward.dim).at(row);
        let (o, d_o) = (address(&forward.o), address(&params.d_o));
        let mut column = thread % LANES * ELEMENTS;
        while column < forward.dim {
            let offset = u64::from(E::BYTES) * u64::from(column);
            // SAFETY: elements of a row that exists; do is aligned, and so is o where the launch says so.
            let (o, d_o) = unsafe {
                let o = match forward.o_aligned {
                    0 => global::load_elements(o + offset),
                    _ => global::load_u32x4(o + offset),
                };
                (o, global::load_u32x4(d_o + offset))
            };
            for i in 0..4 {
                for half in 0..2 {
                    let widen = |pair: u32| E::widen((pair >> (16 * half)) as u16);
                    sum = math::fma(widen(d_o[i]), widen(o[i]), sum);
                    largest = largest.max(widen(d_o[i]).abs());
                }
            }
            column += LANES * ELEMENTS;
        }
    }
    // SAFETY: every lane reaches this call.
    let mut delta = unsafe { shuffle::reduce::<LANES>(sum, |a, b| a + b) };
    // SAFETY: as above.
    let has_d_o = unsafe { shuffle::reduce::<LANES>(largest, f32::max) } > 0.0;
    let (mut lse, mut is_far) = (f32::INFINITY, false);
    if exists {
        let index = 4 * params.lse_index(u64::from(head_index), row);
        // SAFETY: the row exists; the gradient of lse is there where its address is not 0.
        unsafe {
            let found = global::load_f32(forward.lse + index);
            if params.d_lse != 0 {
                delta -= global::load_f32(params.d_lse + index);
            }
            if found == f32::NEG_INFINITY || !is_in_sequence(forward, sequence, row) {
                delta = 0.0;
            } else {
                lse = found * core::f32::consts::LOG2_E;
                if params.far_count != 0 && found.abs() >= FAR_LSE {
                    lse = f32::INFINITY;
                    // A delta of +0 says that the row has no part.
                    if delta == 0.0 {
                        delta = if has_d_o { -0.0 } else { 0.0 };
                    }
                    is_far = delta.to_bits() != 0;
                }
            }
        }
    }
    // SAFETY: as above. The counter is there if rows may be far.
    unsafe {
        if vote::any(is_far) {
            global::count_once(params.far_count);
        }
    }
    if thread % LANES == 0 {
        let place = params.statistics(u64::from(head_index), row);
        // SAFETY: only this lane stores the statistics of this row.
        unsafe {
            global::store_f32(place, lse);
            global::store_f32(place + 4 * u64::from(params.padded_rows), delta);
        }
    }
}

/// Writes each part of the zeros whose number is `thread` modulo `threads`.
///
/// # Safety
/// The zeros are writable, and nothing else touches this part.
#[inline(always)]
unsafe fn write_zeros(params: &PrepareParams, thread: u32, threads: u32) {
    let mut offset = ZEROS * u64::from(thread);
    while offset < params.zero_bytes {
        // SAFETY: the caller's promise.
        unsafe { global::store_u32x4(params.zeros + offset, [0; 4]) };
        offset += ZEROS * u64::from(threads);
    }
}
