//! Copies of tensors whose rows are no whole pieces of 16 bytes at multiples of 16 bytes.
//!
//! The other kernels only move rows in such pieces. An input that does not allow it is packed first:
//! row-major, with zeros behind rows that are no multiple of 8 elements, and no other gaps. An output whose rows are no
//! multiple of 8 elements is unpacked last.

use crate::abi::PackParams;
use crate::layout::element::{self, BYTES};
use crate::ptx::{barrier, global, shared, special};

/// Chunks that a warp reads at a time, an element a lane.
const CHUNKS: u32 = 32 / element::CHUNK;

/// Rows of a head, in the tensor and in the copy.
struct Rows {
    /// Address of the first row.
    tensor: u64,
    /// Elements from a row to the next one.
    stride: i64,
    /// Address of the first row of the copy.
    copy: u64,
    /// How many rows.
    count: u32,
    /// Chunks of a row of the copy: at least 1.
    chunks: u32,
}

impl Rows {
    /// The block's rows, `br` of a head.
    #[inline(always)]
    fn of_block(params: &PackParams, br: u32) -> Self {
        let block = special::block();
        let (head, first) = (block / params.tiles, block % params.tiles * br);
        let offset = i64::from(head / params.heads) * params.tensor.batch_stride
            + i64::from(head % params.heads) * params.tensor.head_stride
            + i64::from(first) * params.tensor.row_stride;
        let row = u64::from(head) * u64::from(params.rows) + u64::from(first);
        let chunks = params.dim.div_ceil(element::CHUNK);
        // SAFETY: a row has at least one element.
        unsafe { core::hint::assert_unchecked(chunks > 0) };
        Rows {
            tensor: element::at(params.tensor.address, offset),
            stride: params.tensor.row_stride,
            copy: params.copy + 16 * row * u64::from(chunks),
            count: (params.rows - first).min(br),
            chunks,
        }
    }

    /// Address of an element of the tensor.
    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> u64 {
        let offset = i64::from(row) * self.stride + i64::from(column);
        element::at(self.tensor, offset)
    }
}

/// Copies the block's rows, `BR` of a head, with `W` warps a block.
///
/// A warp copies 32 chunks of 16 bytes at a time. It reads them one element a lane, neighbours side by
/// side, passes them through shared memory, and writes them one chunk a lane.
///
/// # Safety
/// Launched as [`PackParams`] and the kernel's row of the [catalog](crate::catalog) say, with a readable
/// tensor and a writable copy that do not overlap.
#[inline(always)]
pub unsafe fn pack<const W: usize, const BR: u32>(params: &PackParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W as u32) };
    let (lane, warp) = (thread % 32, thread / 32);
    let rows = Rows::of_block(params, BR);
    let chunks = rows.count * rows.chunks;
    // In the warp's 512 bytes, the addresses of the lane's first element and of its chunk.
    let staged = shared::base() + 512 * warp;
    let (element_place, chunk_place) = (staged + BYTES * lane, staged + 16 * lane);
    let mut step = 32 * warp;
    while step < chunks {
        let mut elements = [0; element::CHUNK as usize];
        for i in 0..element::CHUNK {
            // Lanes beyond the last chunk load it again, so that no lane branches.
            let chunk = (step + i * CHUNKS + lane / element::CHUNK).min(chunks - 1);
            let (row, right) = (chunk / rows.chunks, chunk % rows.chunks);
            let column = right * element::CHUNK + lane % element::CHUNK;
            // Behind the row's last element, that element again; it becomes a zero.
            let address = rows.at(row, column.min(params.dim - 1));
            // SAFETY: an element of a row that exists.
            let element = unsafe { global::load_u16(address) };
            elements[i as usize] = if column < params.dim { element } else { 0 };
        }
        // SAFETY: only whole warps leave the loop, and no other warp uses these 512 bytes. Each lane writes its
        // own chunk of the copy.
        unsafe {
            for i in 0..element::CHUNK {
                shared::store_u16(element_place + 32 * BYTES * i, elements[i as usize]);
            }
            barrier::warp();
            let chunk = step + lane;
            if chunk < chunks {
                let to = rows.copy + 16 * u64::from(chunk);
                global::store_u32x4(to, shared::load_u32x4(chunk_place));
            }
            barrier::warp();
        }
        step += 32 * W as u32;
    }
}

/// Writes the block's rows, `BR` of a head, from their copy, with `W` warps a block: an element a lane, neighbours side by side.
///
/// # Safety
/// Launched as [`PackParams`] and the kernel's row of the [catalog](crate::catalog) say, with a writable
/// tensor and a readable copy that do not overlap.
#[inline(always)]
pub unsafe fn unpack<const W: usize, const BR: u32>(params: &PackParams) {
    let rows = Rows::of_block(params, BR);
    let elements = rows.count * params.dim;
    // SAFETY: the launch has this many threads a block.
    let mut element = unsafe { special::thread(32 * W as u32) };
    while element < elements {
        let (row, column) = (element / params.dim, element % params.dim);
        let from = element::at(rows.copy + 16 * u64::from(row * rows.chunks), column);
        // SAFETY: an element of a row that exists, which this thread alone writes.
        unsafe { global::store_u16(rows.at(row, column), global::load_u16(from)) };
        element += 32 * W as u32;
    }
}
