//! The XOR swizzle of a shared-memory tile.
//!
//! A tile is rows of 16-byte chunks. Shared memory has 32 banks of 4 bytes, so a 128-byte line
//! holds 8 chunks, and `ldmatrix` reads the same chunk of 8 consecutive rows in one go: unswizzled,
//! with a row of 128 bytes, all 8 lie in the same 4 banks. XOR-ing the chunk index with the row
//! index spreads them over all banks, with no padding and the same cost for rows and columns.
//!
//! Rows of a multiple of 8 chunks XOR the low 3 bits with `row & 7`. Rows of 4 or 12 chunks put
//! two consecutive rows in one line (12 = 8 + 4 shifts odd rows by half a line), so there 2 bits
//! suffice: `(row >> 1) & 3`.
//!
//! To compare with: rows one after the other ([`Swizzle::none`]), and rows with a free chunk after each
//! ([`Swizzle::padded`]).

/// Bytes of a chunk: what one `cp.async` moves and one `ldmatrix` row holds.
pub const CHUNK_BYTES: u32 = 16;

/// Where the chunks of a tile lie: rows a pitch apart, and in each the chunks permuted by an XOR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swizzle {
    /// Chunks from a row to the next.
    row_chunks: u32,
    mask: u32,
    shift: u32,
}

impl Swizzle {
    /// The swizzle for rows of `row_chunks` chunks.
    ///
    /// # Panics
    /// If `row_chunks` is not a positive multiple of 4.
    #[inline(always)]
    pub const fn new(row_chunks: u32) -> Self {
        assert!(row_chunks > 0 && row_chunks.is_multiple_of(4));
        let (mask, shift) = if row_chunks.is_multiple_of(8) {
            (7, 0)
        } else {
            (3, 1)
        };
        Swizzle {
            row_chunks,
            mask,
            shift,
        }
    }

    /// No swizzle: chunks in their order, `row_chunks` of them a row.
    #[inline(always)]
    pub const fn none(row_chunks: u32) -> Self {
        Swizzle {
            row_chunks,
            mask: 0,
            shift: 0,
        }
    }

    /// Bytes from a row to the next.
    #[inline(always)]
    pub const fn pitch(self) -> u32 {
        self.row_chunks * CHUNK_BYTES
    }

    /// No swizzle, with a free chunk after each row: rows an odd number of chunks apart start in distinct groups of
    /// banks, 8 rows in 8 groups.
    #[inline(always)]
    pub const fn padded(row_chunks: u32) -> Self {
        Self::none(row_chunks + 1)
    }

    /// Byte offset of a chunk in its tile.
    ///
    /// ```
    /// # use kernels::layout::swizzle::Swizzle;
    /// let d64 = Swizzle::new(8);
    /// assert_eq!(d64.offset(0, 3), 3 * 16);
    /// assert_eq!(d64.offset(5, 3), 5 * 128 + (3 ^ 5) * 16);
    /// ```
    #[inline(always)]
    pub const fn offset(self, row: u32, chunk: u32) -> u32 {
        let key = (row >> self.shift) & self.mask;
        row * self.pitch() + (chunk ^ key) * CHUNK_BYTES
    }

    /// `offset(row + down, chunk + right)` from the address of `offset(row, chunk)` in a tile that
    /// starts at a multiple of 128.
    ///
    /// `down` is a multiple of 8, so that the row's key stays. `right` is a multiple of a power of two above
    /// `chunk`, so that their sum is their XOR. Then the swizzled bits change by an XOR with a constant, and
    /// all other bits by the addition of a constant.
    #[inline(always)]
    pub const fn step(self, address: u32, down: u32, right: u32) -> u32 {
        let swizzled = right & self.mask;
        (address ^ (swizzled * CHUNK_BYTES))
            + (down * self.row_chunks + (right - swizzled)) * CHUNK_BYTES
    }

    /// `offset(row + down, chunk + right)`, under the conditions of [`step`](Self::step), at any base: what depends
    /// on the lane stays in two registers. A step is an XOR and an addition, even if only the launch knows
    /// the swizzle.
    #[inline(always)]
    pub const fn stepped(self, row: u32, chunk: u32, down: u32, right: u32) -> u32 {
        let key = (row >> self.shift) & self.mask;
        let (lane_row, lane_chunk) = (row * self.pitch(), (chunk ^ key) * CHUNK_BYTES);
        // Only the lower bits of `right` meet bits of the lane's chunk; the others are an offset.
        let (lower, upper) = (right & 7, right & !7);
        lane_row + down * self.pitch() + (lane_chunk ^ (lower * CHUNK_BYTES)) + upper * CHUNK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;

    /// Chunks per row of every head dim's tile.
    fn row_chunks() -> impl Strategy<Value = u32> {
        prop::sample::select(crate::catalog::HEAD_DIMS).prop_map(|dim| dim / 8)
    }

    const KINDS: [fn(u32) -> Swizzle; 3] = [Swizzle::new, Swizzle::none, Swizzle::padded];

    /// Which of the 8 groups of 4 banks a chunk lies in.
    fn bank_group(offset: u32) -> u32 {
        offset / CHUNK_BYTES % 8
    }

    proptest! {
        #[test]
        fn every_chunk_has_its_place(chunks in row_chunks(), rows in 1u32..130, kind in 0usize..3) {
            let s = KINDS[kind](chunks);
            let offsets: HashSet<u32> = (0..rows)
                .flat_map(|r| (0..chunks).map(move |c| s.offset(r, c)))
                .collect();
            prop_assert_eq!(offsets.len() as u32, rows * chunks);
            prop_assert!(offsets.iter().all(|o| o % CHUNK_BYTES == 0 && *o < rows * s.row_chunks * CHUNK_BYTES));
        }

        /// A column of 8 rows is what one phase of `ldmatrix` reads, with or without `.trans`.
        #[test]
        fn eight_rows_of_a_chunk_lie_in_distinct_banks(
            chunks in row_chunks(), row8 in 0u32..16, chunk in 0u32..32, padded: bool,
        ) {
            let s = if padded { Swizzle::padded(chunks) } else { Swizzle::new(chunks) };
            let groups: HashSet<u32> = (row8 * 8..row8 * 8 + 8)
                .map(|r| bank_group(s.offset(r, chunk % chunks)))
                .collect();
            prop_assert_eq!(groups.len(), 8);
        }

        #[test]
        fn step_is_offset_of_the_sum(
            chunks in row_chunks(), row in 0u32..64, width in 0u32..3, chunk in 0u32..8,
            down in 0u32..16, right in 0u32..32, base in 0u32..64, kind in 0usize..3,
        ) {
            let s = KINDS[kind](chunks);
            let width = (2 << width).min(chunks);
            let (chunk, down, right) = (chunk % width, down * 8, right % chunks / width * width);
            prop_assume!(chunk + right < chunks);
            let base = base * 128;
            prop_assert_eq!(
                s.step(base + s.offset(row, chunk), down, right),
                base + s.offset(row + down, chunk + right)
            );
            for s in [s, Swizzle::none(chunks), Swizzle::none(chunks + 1)] {
                prop_assert_eq!(s.stepped(row, chunk, down, right), s.offset(row + down, chunk + right));
            }
        }
    }
}
