//! `cargo xtask layout mma`: the lane and register that hold each element of A, B and C.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use kernels::layout::fragment;

/// The lane and register that hold each element of a 16x16 tile, by row and column.
pub type Holders = [[(u32, u32); 16]; 16];

/// The inverse of `elements(lane, register)`, the elements by row and column that a register holds.
///
/// # Panics
/// If an element has no holder or two holders.
pub fn holders<const N: usize>(
    registers: u32,
    elements: impl Fn(u32, u32) -> [(u32, u32); N],
) -> Holders {
    let mut holders = [[None; 16]; 16];
    for lane in 0..32 {
        for register in 0..registers {
            for (row, column) in elements(lane, register) {
                let place = &mut holders[row as usize][column as usize];
                let before = place.replace((lane, register));
                assert_eq!(before, None, "row {row}, column {column}: two holders");
            }
        }
    }
    holders.map(|row| row.map(|holder| holder.expect("every element has a holder")))
}

/// Holders of an A operand: row m, column k.
pub fn a() -> Holders {
    holders(4, |lane, r| {
        let (m, k) = fragment::operand_a(lane, r);
        [(m, k), (m, k + 1)]
    })
}

/// Holders of a pair of B operands: row k, column n.
fn b() -> Holders {
    holders(4, |lane, r| {
        let (k, n) = fragment::operand_b(lane, r);
        [(k, n), (k + 1, n)]
    })
}

/// Holders of a pair of accumulators: row m, column n.
pub fn c() -> Holders {
    holders(8, |lane, i| [fragment::accumulator(lane, i)])
}

/// A 16x16 tile in its 8x8 quarters: each cell has the lane above the register's name.
pub fn panel(
    title: &str,
    corner: &str,
    titles: [&str; 2],
    prefix: &str,
    holders: &Holders,
) -> Panel {
    let rows = Axis::new(0..16).every(8);
    let columns = Axis::new(0..16).every(8).titled(titles);
    Panel::new(title, corner, rows, columns, |row, column| {
        let (lane, register) = holders[row as usize][column as usize];
        Cell::new(lane, format!("{prefix}{register}"), Color::lane(lane))
    })
}

const NOTES: &str = "\
C += A B. The 32 lanes of a warp multiply together: each
holds a part of each matrix in its registers.

Each cell shows the lane and, below it, the lane's register.
With g = lane / 4, the four lanes of one g (a hue, paler from
lane to lane) hold rows g and g + 8 of A and C, and columns g
and g + 8 of B.
A row of C lies in four neighbouring lanes: softmax finds its
maximum and sum with two exchanges.

A register of A or B holds two 16-bit elements, neighbours
along k, the first in its low half; one of C holds an f32.

The instruction has 8 columns n. Two instructions with the same
A make a tile of 16: b0 b1 and c0 to c3 belong to the first,
b2 b3 and c4 to c7 to the second.

C and A lie in the same lanes: c0 c1 where a0 has its two
halves, c2 c3 where a1 has its halves, and so on. Rounded in
pairs, the scores of Q and K are the A operand of P V.

";

/// The three tiles in their places of a product: B above C, A to the left of C.
pub fn draw() -> Drawing {
    let title = "mma.sync.m16n8k16: the lane and register that hold each element";
    let (k, n) = (
        ["k 0-7", "k 8-15"],
        ["first mma: n 0-7", "second mma: n 8-15"],
    );
    Drawing::new(title, NOTES)
        .legend_of_lanes()
        .beside(panel("B, 16-bit: row k, column n", "k \\ n", n, "b", &b()))
        .below(panel("A, 16-bit: row m, column k", "m \\ k", k, "a", &a()))
        .beside(panel(
            "C and D, f32: row m, column n",
            "m \\ n",
            n,
            "c",
            &c(),
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(holders: &Holders, (row, column): (usize, usize)) -> (u32, u32) {
        holders[row][column]
    }

    /// The PTX manual, "Matrix Fragments for mma.m16n8k16 with floating point type", numbers elements: `ai`, for
    /// `i` in 0..8, is at row `g` if `0 <= i < 2` or `4 <= i < 6`, else at row `g + 8`. Its column is `2t + (i & 1)`
    /// if `i < 4`, else `2t + (i & 1) + 8`.
    #[test]
    fn a_is_the_manuals() {
        let drawn = a();
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for i in 0..8 {
                let row = if i < 2 || (4..6).contains(&i) {
                    g
                } else {
                    g + 8
                };
                let column = 2 * t + (i & 1) + if i < 4 { 0 } else { 8 };
                let holder = at(&drawn, (row as usize, column as usize));
                assert_eq!(holder, (lane, i / 2), "element a{i}");
            }
        }
    }

    /// `bi`, for `i` in 0..4, is at row `2t + (i & 1)` if `i < 2`, else at row `2t + (i & 1) + 8`, and column `g`. A
    /// second B has the columns from 8 on.
    #[test]
    fn b_is_the_manuals() {
        let drawn = b();
        for (lane, pair) in (0..32).flat_map(|lane| [(lane, 0), (lane, 1)]) {
            for i in 0..4 {
                let row = 2 * (lane % 4) + (i & 1) + if i < 2 { 0 } else { 8 };
                let column = lane / 4 + 8 * pair;
                let holder = at(&drawn, (row as usize, column as usize));
                assert_eq!(holder, (lane, 2 * pair + i / 2), "element b{i}");
            }
        }
    }

    /// `ci`, for `i` in 0..4, is at row `g` if `i < 2`, else at row `g + 8`, and column `2t + (i & 1)`.
    #[test]
    fn c_is_the_manuals() {
        let drawn = c();
        for (lane, pair) in (0..32).flat_map(|lane| [(lane, 0), (lane, 1)]) {
            for i in 0..4 {
                let row = lane / 4 + if i < 2 { 0 } else { 8 };
                let column = 2 * (lane % 4) + (i & 1) + 8 * pair;
                let holder = at(&drawn, (row as usize, column as usize));
                assert_eq!(holder, (lane, 4 * pair + i), "element c{i}");
            }
        }
    }

    /// Read off the manual's figures.
    #[test]
    fn spot_values() {
        assert_eq!(at(&a(), (0, 0)), (0, 0));
        assert_eq!(at(&a(), (8, 1)), (0, 1));
        assert_eq!(at(&a(), (1, 9)), (4, 2));
        assert_eq!(at(&a(), (15, 15)), (31, 3));
        assert_eq!(at(&b(), (7, 0)), (3, 0));
        assert_eq!(at(&b(), (15, 7)), (31, 1));
        assert_eq!(at(&c(), (7, 7)), (31, 1));
        assert_eq!(at(&c(), (8, 0)), (0, 2));
    }

    #[test]
    fn cells_show_lane_and_register() {
        let a = &draw().rows[1][0];
        assert_eq!(a.cells[9][3], Cell::new(5, "a1", Color::lane(5)));
    }
}
