//! `cargo xtask layout wgmma`: the warp, lane and register that hold each element of a warpgroup's accumulators, and of A
//! in registers.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use super::mma;

/// Warps of a warpgroup.
const WARPS: u32 = 4;

/// Rows of a warp, and drawn columns.
const TILE: u32 = 16;

const NOTES: &str = "\
D += A B by a warpgroup: four warps, 128 lanes. D has 64 rows, A is 64 x 16, B is 16 x N, with N up to 256.
B lies in shared memory. A does too, or in registers. D always lies in registers.

Warp w holds rows 16 w to 16 w + 15, as in mma. A cell has two neighbours of a row: above, the lane that holds them;
below, the two registers with their f32 of D, then the one register with their 16 bits of A.
Here are 16 columns. The next 16 have the same lanes and the next 8 registers: 64 columns take 32 registers of a lane.

As with mma, the lane that holds scores S in D holds the same elements of P in A. So P V reads P from registers.
";

/// The lane, the number of the first of two registers of D, and of the register of A, that hold columns `2 pair` and
/// `2 pair + 1` of a row of a warp.
fn place(row: u32, pair: u32) -> (u32, u32, u32) {
    let (row, column) = (row as usize, 2 * pair as usize);
    let (c, a) = (mma::c(), mma::a());
    let ((lane, first), second) = (c[row][column], c[row][column + 1]);
    assert_eq!(second, (lane, first + 1), "registers of D are neighbours");
    let (holder, register) = a[row][column];
    assert_eq!(holder, lane, "A and D have the same lanes");
    (lane, first, register)
}

/// A panel for each warp.
pub fn draw() -> Drawing {
    let panel = |warp| {
        let first = TILE * warp;
        let pairs = (0..TILE / 2).map(|pair| format!("{}, {}", 2 * pair, 2 * pair + 1));
        Panel::new(
            format!("Warp {warp}: rows {first} to {}", first + TILE - 1),
            "row \\ column",
            Axis::new(first..first + TILE).every(8),
            Axis::new(pairs).every(4),
            |row, pair| {
                let (lane, d, a) = place(row, pair);
                let registers = format!("d{d} d{}, a{a}", d + 1);
                Cell::new(format!("lane {lane}"), registers, Color::lane(lane))
            },
        )
    };
    let title = "wgmma.m64nNk16: the warp, lane and register that hold each element of D, and of A";
    let drawing = Drawing::new(title, NOTES).legend_of_lanes();
    (0..WARPS).step_by(2).fold(drawing, |drawing, warp| {
        drawing.below(panel(warp)).beside(panel(warp + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The cell of an element of D.
    fn cell(drawing: &Drawing, row: u32, column: u32) -> &Cell {
        let warp = (row / TILE) as usize;
        let panel = &drawing.rows[1 + warp / 2][warp % 2];
        &panel.cells[(row % TILE) as usize][column as usize / 2]
    }

    /// The PTX manual, "Register Fragments" of `wgmma`: `d[i]` of a lane is at row `16 (warp % 4) + lane / 4`, 8 rows
    /// further if `i % 4` is 2 or 3, and column `8 (i / 4) + 2 (lane % 4) + i % 2`. A is as of `mma.m16n8k16`.
    #[test]
    fn elements_are_where_the_manual_has_them() {
        let drawing = draw();
        for (warp, lane) in (0..WARPS).flat_map(|warp| (0..32).map(move |lane| (warp, lane))) {
            for i in 0..8 {
                let row = 16 * warp + lane / 4 + if i % 4 < 2 { 0 } else { 8 };
                let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
                let a = i % 4 / 2 + 2 * (i / 4);
                let (even, odd) = (i / 2 * 2, i / 2 * 2 + 1);
                assert_eq!(
                    *cell(&drawing, row, column),
                    Cell::new(
                        format!("lane {lane}"),
                        format!("d{even} d{odd}, a{a}"),
                        Color::lane(lane)
                    )
                );
            }
        }
    }

    #[test]
    fn every_element_is_drawn_once() {
        let drawing = draw();
        let panels = drawing.rows[1..].iter().flatten();
        let rows: Vec<_> = panels.clone().flat_map(|p| p.rows.labels.clone()).collect();
        assert!(rows.into_iter().eq((0..64).map(|row| row.to_string())));
        for panel in panels {
            assert_eq!(panel.columns.labels.join(", ").split(", ").count(), 16);
            let cells = panel.cells.iter().flatten();
            let places: HashSet<_> = cells.map(|cell| &cell.lines).collect();
            assert_eq!(places.len(), 32 * 4, "four pairs of registers of each lane");
        }
    }
}
