//! Which lane and register of a warp hold which element of an `mma.m16n8k16` operand.
//!
//! From the PTX manual, "Matrix Fragments for mma.m16n8k16 with floating point type". With
//! `g = lane / 4` and `t = lane % 4`:
//!
//! ```text
//! A (16x16, 16 bit)          B (16x8, 16 bit)        C, D (16x8, f32)
//!        k 2t,2t+1  2t+8,+9         n = g                   n 2t,  2t+1
//! row g      a0       a2     k 2t,2t+1   b0          row g     c0   c1
//! row g+8    a1       a3     k 2t+8,+9   b1          row g+8   c2   c3
//! ```
//!
//! The kernels count in 16x16 tiles: an accumulator is two `C` side by side (`c0..c3` of columns
//! 0..8, then of columns 8..16), an operand is one `A`, or two `B` side by side. An accumulator
//! rounded to 16 bits in pairs is then an `A` operand with no data moved between lanes: this is
//! what lets S become P in registers.

/// Row and column, in its 16x16 tile, of accumulator element `i` (0..8) of a lane.
#[inline(always)]
pub const fn accumulator(lane: u32, i: u32) -> (u32, u32) {
    let (g, t) = (lane / 4, lane % 4);
    let (half, row8, odd) = (i / 4, i / 2 % 2, i % 2);
    (g + 8 * row8, 8 * half + 2 * t + odd)
}

/// Row and column, in its 16x16 tile, of the two elements of register `r` (0..4) of an A operand:
/// the given column and the next.
#[inline(always)]
pub const fn operand_a(lane: u32, r: u32) -> (u32, u32) {
    let (g, t) = (lane / 4, lane % 4);
    (g + 8 * (r % 2), 2 * t + 8 * (r / 2))
}

/// Row (k) and column (n), in its 16x16 tile, of the two elements of register `r` (0..4) of a pair
/// of B operands: the given row and the next.
#[inline(always)]
pub const fn operand_b(lane: u32, r: u32) -> (u32, u32) {
    let (g, t) = (lane / 4, lane % 4);
    (2 * t + 8 * (r % 2), g + 8 * (r / 2))
}

/// Row and chunk, in a tile of 16 rows and 2 chunks, whose address a lane gives to `ldmatrix.x4`. The registers
/// become an [`operand_a`] (plain: Q) or an [`operand_b`] (`.trans`: V, stored `[k][n]`).
#[inline(always)]
pub const fn ldmatrix_rows_first(lane: u32) -> (u32, u32) {
    (lane % 16, lane / 16)
}

/// Row and chunk whose address a lane gives to `ldmatrix.x4`. The registers become an [`operand_b`], for a
/// tile stored `[n][k]` (plain: K).
#[inline(always)]
pub const fn ldmatrix_chunks_first(lane: u32) -> (u32, u32) {
    (lane % 8 + lane / 16 * 8, lane / 8 % 2)
}

/// Row and column, in its 8x8 matrix, of the first element in a lane's register of an `ldmatrix`. The second
/// element is the next of the row or, with `.trans`, of the column. Register `r` belongs to the matrix whose row
/// addresses lanes `8 r..8 r + 8` gave.
#[inline(always)]
pub const fn ldmatrix_element(lane: u32, trans: bool) -> (u32, u32) {
    let (g, t) = (lane / 4, lane % 4);
    if trans { (2 * t, g) } else { (g, 2 * t) }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::collections::HashSet;

    /// (row, column) in the stored tile of the first element that register `r` of a lane gets.
    fn ldmatrix(address: fn(u32) -> (u32, u32), trans: bool, lane: u32, r: u32) -> (u32, u32) {
        let (row, column) = ldmatrix_element(lane, trans);
        let (tile_row, chunk) = address(8 * r + row);
        (tile_row, chunk * 8 + column)
    }

    fn lanes_and_registers() -> impl Iterator<Item = (u32, u32)> {
        (0..32).flat_map(|lane| (0..4).map(move |r| (lane, r)))
    }

    #[test]
    fn every_element_has_one_place() {
        let accumulator: HashSet<_> = (0..32)
            .flat_map(|l| (0..8).map(move |i| accumulator(l, i)))
            .collect();
        assert_eq!(accumulator.len(), 256);
        let a: HashSet<_> = lanes_and_registers()
            .map(|(l, r)| operand_a(l, r))
            .collect();
        let b: HashSet<_> = lanes_and_registers()
            .map(|(l, r)| operand_b(l, r))
            .collect();
        assert_eq!((a.len(), b.len()), (128, 128));
    }

    #[test]
    fn accumulator_pairs_are_an_a_operand() {
        for (lane, r) in lanes_and_registers() {
            let (row, column) = operand_a(lane, r);
            assert_eq!(accumulator(lane, 2 * r), (row, column));
            assert_eq!(accumulator(lane, 2 * r + 1), (row, column + 1));
        }
    }

    #[test]
    fn ldmatrix_gives_the_operands() {
        for (lane, r) in lanes_and_registers() {
            let q = ldmatrix(ldmatrix_rows_first, false, lane, r);
            assert_eq!(q, operand_a(lane, r));
            let v = ldmatrix(ldmatrix_rows_first, true, lane, r);
            assert_eq!(v, operand_b(lane, r));
            let (key, d) = ldmatrix(ldmatrix_chunks_first, false, lane, r);
            assert_eq!((d, key), operand_b(lane, r));
            let (key, query) = ldmatrix(ldmatrix_chunks_first, true, lane, r);
            assert_eq!((query, key), operand_a(lane, r));
        }
    }
}
