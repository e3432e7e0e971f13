//! Which chunks of a tile a thread copies.

/// A thread's part of copying rows of 16-byte chunks: its first chunk, and the steps to the others.
///
/// Its chunks are at `row + i * rows_per_step`, `chunk + j * lanes`. The lanes of a row touch
/// whole 32-byte sectors of global memory. A step is a multiple of 8 rows, which keeps the thread's
/// [swizzle](super::swizzle) key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Row of the thread's first chunk.
    pub row: u32,
    /// Column of the thread's first chunk.
    pub chunk: u32,
    /// Threads that share a row, as neighbours.
    pub lanes: u32,
    /// Rows that all threads copy together.
    pub rows_per_step: u32,
}

impl Share {
    /// The share of `thread` among `threads`, a multiple of 32.
    #[inline(always)]
    pub const fn new(thread: u32, threads: u32, row_chunks: u32) -> Self {
        let whole_lines = row_chunks.is_multiple_of(8);
        // Threads for one 128-byte line of a row, if that gives 8 rows; for two lines where one would span more
        // than the 16 rows of the smallest tiles.
        let lanes = if threads > 128 && row_chunks.is_multiple_of(16) {
            16
        } else if whole_lines && threads >= 64 {
            8
        } else {
            4
        };
        let mut row = thread / lanes;
        if whole_lines && lanes == 4 {
            // Shared memory serves 8 threads at a time, here half a line of each of two rows. These halves lie in
            // different banks in rows r and r + 4, but in the same banks in rows r and r + 1.
            row = row / 8 * 8 + row % 2 * 4 + row % 8 / 2;
        }
        Share {
            row,
            chunk: thread % lanes,
            lanes,
            rows_per_step: threads / lanes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Share;
    use crate::catalog::{HEAD_DIMS, WIDE_DIMS};
    use crate::layout::swizzle::{CHUNK_BYTES, Swizzle};
    extern crate std;
    use std::collections::HashSet;
    use std::vec::Vec;

    fn shares(threads: u32, row_chunks: u32) -> Vec<Share> {
        (0..threads)
            .map(|thread| Share::new(thread, threads, row_chunks))
            .collect()
    }

    #[test]
    fn every_chunk_is_one_threads() {
        for (threads, row_chunks) in [32, 128, 256].into_iter().flat_map(|threads| {
            HEAD_DIMS
                .iter()
                .chain(WIDE_DIMS)
                .map(move |dim| (threads, dim / 8))
        }) {
            let mut chunks = HashSet::new();
            for share in shares(threads, row_chunks) {
                assert_eq!(share.rows_per_step % 8, 0);
                assert_eq!(row_chunks % share.lanes, 0);
                for right in (0..row_chunks).step_by(share.lanes as usize) {
                    assert!(chunks.insert((share.row, share.chunk + right)));
                }
            }
            let rows = Share::new(0, threads, row_chunks).rows_per_step;
            assert!(
                chunks
                    .iter()
                    .all(|&(row, chunk)| row < rows && chunk < row_chunks)
            );
            assert_eq!(chunks.len() as u32, rows * row_chunks);
        }
    }

    /// Shared memory serves a 16-byte access 8 threads at a time.
    #[test]
    fn eight_threads_lie_in_distinct_banks() {
        for dim in HEAD_DIMS.iter().chain(WIDE_DIMS) {
            let swizzle = Swizzle::new(dim / 8);
            for threads in [32, 128, 256] {
                for eight in shares(threads, dim / 8).chunks(8) {
                    let groups: HashSet<u32> = eight
                        .iter()
                        .map(|share| swizzle.offset(share.row, share.chunk) / CHUNK_BYTES % 8)
                        .collect();
                    assert_eq!(groups.len(), 8, "dim {dim}, {threads} threads");
                }
            }
        }
    }
}
