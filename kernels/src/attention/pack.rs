//! Copies of tensors whose rows do not start at multiples of 16 bytes.
//!
//! The other kernels only move rows in 16-byte pieces. This kernel first copies a tensor that does not allow it:
//! row-major, with zeros behind rows that are no multiple of 8 elements, and no other gaps.
//!
//! A warp copies 32 chunks of 16 bytes at a time. It reads them one element a lane, neighbours side by
//! side, passes them through shared memory, and writes them one chunk a lane.

use crate::abi::PackParams;
use crate::ptx::{barrier, global, shared, special};

/// Elements of a chunk.
const ELEMENTS: u32 = 8;

/// Chunks that a warp reads at a time, an element a lane.
const CHUNKS: u32 = 32 / ELEMENTS;

/// Copies the block's rows, `BR` of a head, with `W` warps a block.
///
/// # Safety
/// Launched as [`PackParams`] and the kernel's row of the [catalog](crate::catalog) say, with a readable
/// tensor and a writable copy that do not overlap.
#[inline(always)]
pub unsafe fn pack<const W: usize, const BR: u32>(params: &PackParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W as u32) };
    let (lane, warp) = (thread % 32, thread / 32);
    let block = special::block();
    let (head, first) = (block / params.tiles, block % params.tiles * BR);
    let offset = i64::from(head / params.heads) * params.from.batch_stride
        + i64::from(head % params.heads) * params.from.head_stride
        + i64::from(first) * params.from.row_stride;
    let from = params.from.address.wrapping_add_signed(2 * offset);
    let row = u64::from(head) * u64::from(params.rows) + u64::from(first);
    let row_chunks = params.dim.div_ceil(ELEMENTS);
    let to = params.to + 16 * row * u64::from(row_chunks);
    // SAFETY: a row has at least one element.
    unsafe { core::hint::assert_unchecked(row_chunks > 0) };
    let chunks = (params.rows - first).min(BR) * row_chunks;
    // In the warp's 512 bytes, the addresses of the lane's first element and of its chunk.
    let staged = shared::base() + 512 * warp;
    let (element_place, chunk_place) = (staged + 2 * lane, staged + 16 * lane);
    let mut step = 32 * warp;
    while step < chunks {
        let mut elements = [0; ELEMENTS as usize];
        for i in 0..ELEMENTS {
            // Lanes beyond the last chunk load it again, so that no lane branches.
            let chunk = (step + i * CHUNKS + lane / ELEMENTS).min(chunks - 1);
            let (row, right) = (chunk / row_chunks, chunk % row_chunks);
            let column = right * ELEMENTS + lane % ELEMENTS;
            // Behind the row's last element, that element again; it becomes a zero.
            let offset =
                i64::from(row) * params.from.row_stride + i64::from(column.min(params.dim - 1));
            // SAFETY: an element of a row that exists.
            let element = unsafe { global::load_u16(from.wrapping_add_signed(2 * offset)) };
            elements[i as usize] = if column < params.dim { element } else { 0 };
        }
        // SAFETY: only whole warps leave the loop, and no other warp uses these 512 bytes. Each lane writes its
        // own chunk of the copy.
        unsafe {
            for i in 0..ELEMENTS {
                shared::store_u16(element_place + 64 * i, elements[i as usize]);
            }
            barrier::warp();
            let chunk = step + lane;
            if chunk < chunks {
                global::store_u32x4(to + 16 * u64::from(chunk), shared::load_u32x4(chunk_place));
            }
            barrier::warp();
        }
        step += 32 * W as u32;
    }
}
