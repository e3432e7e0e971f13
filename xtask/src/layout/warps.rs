//! `cargo xtask layout warps`: the warp of a block that computes each part of S and O.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use kernels::catalog::class::Class;
use kernels::catalog::{Kind, Loop, MaskKind, Tile};
use ladder::catalog::named;

/// The way that a block's warps share its work.
#[derive(Clone, Copy)]
struct Division {
    tile: Tile,
    dim: u32,
    /// Whether the warps of a team take turns at O's columns, 16 at a time; else a warp's columns are neighbours.
    interleaved: bool,
}

impl Division {
    /// Rows of S and O, and columns of each, in tiles of 16 x 16.
    fn sizes(self) -> (u32, [u32; 2]) {
        (self.tile.q_rows / 16, [self.tile.keys / 16, self.dim / 16])
    }

    /// The warp that computes a tile of S or O.
    fn warp(self, row: u32, column: u32, columns: u32, interleaved: bool) -> u32 {
        let team = self.tile.team;
        let team_rows = self.tile.q_rows / 16 / (self.tile.warps / team);
        let side = if interleaved {
            column % team
        } else {
            column / (columns / team)
        };
        row / team_rows * team + side
    }

    fn panel(self, title: &str, unit: &str, columns: u32, interleaved: bool) -> Panel {
        let tiles = |count: u32| Axis::new((0..count).map(|tile| 16 * tile));
        let (down, across) = (tiles(self.sizes().0), tiles(columns).titled([unit]));
        Panel::new(title, "query", down, across, |row, column| {
            let warp = self.warp(row, column, columns, interleaved);
            Cell::new(format!("w{warp}"), "", Color::hue(warp))
        })
    }
}

/// Two rungs of the ladder, and the kernel for D = 256.
fn divisions() -> [(&'static str, Division); 3] {
    let rung = |kernel| {
        let shape = named(kernel).expect("in the catalog").shape;
        Division {
            tile: shape.tile(),
            dim: 128,
            interleaved: shape.team > 1,
        }
    };
    let kind = Kind::of_head(Loop::Sm80, MaskKind::Full);
    let wide = Division {
        tile: kind.tile(Class::Sm90, 256).expect("a tile"),
        dim: 256,
        interleaved: false,
    };
    [
        ("split-kv", rung("teams_f16_t4_o2")),
        ("split-q", rung("split_q_f16_d128")),
        ("D = 256", wide),
    ]
}

const NOTES: &str = "\
Each cell is a tile of 16 x 16 of S = Q K^T or of O, with the warp that computes it.
split-kv: the warps of a team split the keys of S and the columns of O. No warp has a whole row
of S, so maxima and P go through shared memory.
split-q: a warp has whole rows. Its P is ready in registers where P V wants it.
D = 256, in the kernel that is used: O of two row tiles takes too many registers for one warp, so
two warps share their rows, as in split-kv.
";

/// Each way, S beside O.
pub fn draw() -> Drawing {
    let drawing = Drawing::new("How the warps of a block share S and O", NOTES);
    divisions()
        .into_iter()
        .fold(drawing, |drawing, (name, division)| {
            let [keys, columns] = division.sizes().1;
            let title = format!("{name}: S of a step");
            drawing
                .below(division.panel(&title, "key", keys, false))
                .beside(division.panel("O", "column", columns, division.interleaved))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every warp has as many tiles of S and O as every other.
    #[test]
    fn warps_have_equal_parts() {
        for (name, division) in divisions() {
            let (rows, columns) = division.sizes();
            for (columns, interleaved) in columns.into_iter().zip([false, division.interleaved]) {
                let mut tiles = vec![0; division.tile.warps as usize];
                for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                    let warp = division.warp(row, column, columns, interleaved);
                    tiles[warp as usize] += 1;
                }
                assert!(
                    tiles.iter().all(|&count| count == tiles[0] && count > 0),
                    "{name}: {tiles:?}"
                );
            }
        }
    }

    #[test]
    fn a_row_is_one_warps_only_where_queries_are_split() {
        let owners = |name: &str| {
            let found = divisions().into_iter().find(|division| division.0 == name);
            let division = found.expect("drawn").1;
            let columns = division.sizes().1[0];
            let mut warps: Vec<_> = (0..columns)
                .map(|c| division.warp(0, c, columns, false))
                .collect();
            warps.dedup();
            warps
        };
        assert_eq!(owners("split-kv"), [0, 1, 2, 3]);
        assert_eq!(owners("split-q"), [0]);
        assert_eq!(owners("D = 256"), [0, 1]);
    }
}
