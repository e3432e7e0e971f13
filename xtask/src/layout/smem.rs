//! `cargo xtask layout smem`: the cost of bank conflicts for the kernels' accesses.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use super::ldmatrix::Load;
use emulator::Tally;
use kernels::catalog::HEAD_DIMS;
use kernels::layout::{
    fragment,
    share::Share,
    swizzle::{CHUNK_BYTES, Swizzle},
};

/// Which accesses to draw.
#[derive(clap::Args)]
pub struct Arguments {
    /// 16-bit elements of a row: a multiple of 32 up to 256 [default: every head dim with a tile]
    #[arg(long, value_name = "ELEMENTS", value_parser = super::head_dim)]
    dim: Option<u32>,
    /// Your own access: LANES lanes side by side in a row, the next lanes in the next row, BYTES bytes each. 4x4 is
    /// a fragment, 1x16 an ldmatrix, 8x16 a copy
    #[arg(long, value_name = "LANESxBYTES", value_parser = pattern)]
    access: Option<Pattern>,
}

/// Lanes side by side in a row, and bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pattern {
    lanes: u32,
    bytes: u32,
}

/// A pattern on the command line.
fn pattern(text: &str) -> Result<Pattern, String> {
    let numbers = text.split_once('x');
    let numbers = numbers.map(|(lanes, bytes)| (lanes.parse(), bytes.parse()));
    match numbers {
        Some((Ok(lanes @ (1 | 2 | 4 | 8 | 16 | 32)), Ok(bytes @ (4 | 8 | 16)))) => {
            Ok(Pattern { lanes, bytes })
        }
        _ => Err("take 1, 2, 4, 8, 16 or 32 lanes by 4, 8 or 16 bytes, such as 4x16".to_owned()),
    }
}

/// Rows of the tile. Every kind of access moves the whole tile once. `2 * ROWS` bytes of a column take at least
/// one wavefront of 128 bytes.
const ROWS: u32 = 64;

/// Threads that copy a tile together.
const THREADS: u32 = 128;

/// A way to go through a tile of [`ROWS`] rows.
#[derive(Clone, Copy)]
enum Walk {
    /// Reads of operands.
    Ldmatrix(Load),
    /// Copies by so many threads, each its share.
    Copy(u32),
    /// Writes of O from registers with two elements each, in the places of an A operand.
    Fragments,
    /// Neighbouring lanes take neighbouring pairs of elements.
    AlongRows,
    /// A pattern.
    Given(Pattern),
}

impl Walk {
    /// Bytes of each lane in an instruction of a warp.
    fn bytes(self) -> u32 {
        match self {
            Walk::Ldmatrix(_) | Walk::Copy(_) => CHUNK_BYTES,
            Walk::Fragments | Walk::AlongRows => 4,
            Walk::Given(pattern) => pattern.bytes,
        }
    }

    /// How many instructions move the tile.
    fn instructions(self, dim: u32) -> u32 {
        ROWS * 2 * dim / (32 * self.bytes())
    }

    /// The row, and the byte in the row, from which a lane accesses the tile in an instruction.
    fn place(self, dim: u32, instruction: u32, lane: u32) -> (u32, u32) {
        // Row and byte of the first element of a 16x16 tile.
        let tile = |tile: u32| (tile / (dim / 16) * 16, tile % (dim / 16) * 32);
        match self {
            Walk::Ldmatrix(load) => {
                let (top, left) = tile(instruction);
                let (row, chunk) = load.address(lane);
                (top + row, left + chunk * CHUNK_BYTES)
            }
            Walk::Copy(threads) => {
                let (warps, row_chunks) = (threads / 32, dim * 2 / CHUNK_BYTES);
                let (step, warp) = (instruction / warps, instruction % warps);
                let share = Share::new(32 * warp + lane, threads, row_chunks);
                let steps = row_chunks / share.lanes;
                let row = share.row + step / steps * share.rows_per_step;
                let chunk = share.chunk + step % steps * share.lanes;
                (row, chunk * CHUNK_BYTES)
            }
            Walk::Fragments => {
                let (top, left) = tile(instruction / 4);
                let (row, column) = fragment::operand_a(lane, instruction % 4);
                (top + row, left + 2 * column)
            }
            Walk::AlongRows => {
                let byte = (32 * instruction + lane) * 4;
                (byte / (2 * dim), byte % (2 * dim))
            }
            Walk::Given(Pattern { lanes, bytes }) => {
                let across = 2 * dim / (lanes * bytes);
                let (down, right) = (instruction / across, instruction % across);
                let row = down * (32 / lanes) + lane / lanes;
                (row, (right * lanes + lane % lanes) * bytes)
            }
        }
    }

    /// The emulator's count for a tile.
    fn cost(self, dim: u32, placed: Placed) -> Tally {
        let placed = placed(dim * 2 / CHUNK_BYTES);
        let mut tally = Tally::default();
        for instruction in 0..self.instructions(dim) {
            count(&mut tally, self.bytes(), 32, |lane| {
                let (row, byte) = self.place(dim, instruction, lane);
                placed.offset(row, byte / CHUNK_BYTES) + byte % CHUNK_BYTES
            });
        }
        tally
    }
}

/// Counts an access of the first `lanes` lanes, each of `bytes` bytes at `address(lane)`.
pub fn count(tally: &mut Tally, bytes: u32, lanes: u32, address: impl Fn(u32) -> u32) {
    let addresses = std::array::from_fn(|lane| address(lane as u32).into());
    tally.count_shared(u32::MAX >> (32 - lanes), &addresses, bytes);
}

/// Reads of operands; copies and stores; the two plain ways.
const WALKS: [(&str, Walk); 8] = [
    ("read Q: ldmatrix", Walk::Ldmatrix(Load::Q)),
    ("read K: ldmatrix", Walk::Ldmatrix(Load::K)),
    ("read V: ldmatrix.trans", Walk::Ldmatrix(Load::V)),
    ("fill all: cp.async, 16 B", Walk::Copy(THREADS)),
    ("write O: fragments, 4 B", Walk::Fragments),
    ("read O: one warp, 16 B", Walk::Copy(32)),
    ("along rows, 4 B", Walk::AlongRows),
    ("down columns, 4 B", Walk::Given(DOWN)),
];

/// Each lane in another row.
const DOWN: Pattern = Pattern { lanes: 1, bytes: 4 };

/// The placement of rows by their number of chunks.
type Placed = fn(u32) -> Swizzle;

/// Placements by name.
const PLACEMENTS: [(&str, Placed); 3] = [
    ("none", Swizzle::none),
    ("padding", Swizzle::padded),
    ("swizzle", Swizzle::new),
];

/// Shows the wavefronts over the minimum, above their number.
fn cell(cost: &Tally) -> Cell {
    let (taken, minimum) = (cost.wavefronts, cost.ideal_wavefronts);
    let ways = format!("{:.1}", taken as f64 / minimum as f64);
    let ways = ways.strip_suffix(".0").unwrap_or(&ways);
    let color = Color::conflict(taken, minimum);
    Cell::new(format!("{ways}\u{d7}"), taken, color)
}

/// The table of all accesses, or of the given one. Fails if rows of the head dim do not divide into such accesses.
pub fn draw(arguments: &Arguments) -> Result<Drawing, String> {
    let mut dims = arguments.dim.map_or(HEAD_DIMS.to_vec(), |dim| vec![dim]);
    let mut title = "Bank conflicts of the kernels' accesses to shared memory".to_owned();
    let mut walks = WALKS.to_vec();
    if let Some(pattern @ Pattern { lanes, bytes }) = arguments.access {
        dims.retain(|dim| (2 * dim).is_multiple_of(lanes * bytes));
        if dims.is_empty() {
            return Err(format!(
                "rows do not divide into {lanes} x {bytes} bytes; take fewer lanes"
            ));
        }
        title = format!("Bank conflicts of an access by {lanes} x {bytes} bytes, row by row");
        walks = vec![("the given access", Walk::Given(pattern))];
    }
    let table = Panel::new(
        "Wavefronts, and the factor over the minimum",
        "access \\ head dim",
        Axis::new(walks.iter().map(|(name, _)| name)).every(3),
        Axis::new(PLACEMENTS.iter().flat_map(|_| &dims))
            .every(dims.len())
            .titled(PLACEMENTS.map(|(name, _)| name)),
        |walk, column| {
            let ((_, walk), column) = (walks[walk as usize], column as usize);
            let (_, placed) = PLACEMENTS[column / dims.len()];
            cell(&walk.cost(dims[column % dims.len()], placed))
        },
    );
    let notes = format!(
        "\
Each access moves a tile of {ROWS} rows once. Shared memory moves 128 bytes in a wavefront,
so it takes at least as many wavefronts as the head dim. Each cell: the factor, above the count.
Lanes with different words of one bank take turns, a wavefront each.
{THREADS} threads fill a tile. Padding is 8 elements a row; the swizzle is the kernels' own."
    );
    let ways = [1, 2, 4, 8].map(|ways| (Color::conflict(ways, 1), format!("{ways}\u{d7}")));
    Ok(Drawing::new(title, &notes)
        .legend("and more: wavefronts over the minimum", ways.into())
        .below(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wavefronts over the minimum for the walk whose name starts so: none, padding, swizzle.
    fn ways(name: &str, dim: u32) -> [f64; 3] {
        let mut walks = WALKS.into_iter();
        let walk = walks.find(|walk| walk.0.starts_with(name)).unwrap();
        factors(walk.1, dim)
    }

    /// Wavefronts over the minimum: none, padding, swizzle.
    fn factors(walk: Walk, dim: u32) -> [f64; 3] {
        PLACEMENTS.map(|(_, placed)| {
            let cost = walk.cost(dim, placed);
            cost.wavefronts as f64 / cost.ideal_wavefronts as f64
        })
    }

    /// Walks, each with each head dim.
    fn walks(walks: &[(&'static str, Walk)]) -> Vec<(&'static str, Walk, u32)> {
        let dims = |(name, walk)| HEAD_DIMS.iter().map(move |dim| (name, walk, *dim));
        walks.iter().copied().flat_map(dims).collect()
    }

    #[test]
    fn every_walk_moves_the_tile_once() {
        for (name, walk, dim) in walks(&WALKS) {
            for (_, placed) in PLACEMENTS {
                let cost = walk.cost(dim, placed);
                assert_eq!(cost.ideal_wavefronts, u64::from(dim), "{name}");
            }
            // No byte twice, and none past the tile.
            let mut bytes = vec![0; (2 * ROWS * dim) as usize];
            for instruction in 0..walk.instructions(dim) {
                for (row, byte) in (0..32).map(|lane| walk.place(dim, instruction, lane)) {
                    let first = row * 2 * dim + byte;
                    for byte in &mut bytes[first as usize..][..walk.bytes() as usize] {
                        *byte += 1;
                    }
                }
            }
            assert!(bytes.iter().all(|times| *times == 1), "{name}");
        }
    }

    #[test]
    fn the_kernels_swizzle_has_no_conflict() {
        for (name, walk, dim) in walks(&WALKS[..6]) {
            let cost = walk.cost(dim, Swizzle::new);
            assert_eq!(cost.bank_conflicts(), 0, "{name}, head dim {dim}");
        }
    }

    /// Rows of whole lines all start in bank 0; rows of half a line, or of one and a half, start in two banks.
    #[test]
    fn without_a_swizzle_rows_collide() {
        for name in ["read Q", "read K", "read V", "write O"] {
            for (dim, expected) in [(64, 8.0), (128, 8.0), (256, 8.0), (32, 4.0), (96, 4.0)] {
                assert_eq!(ways(name, dim)[0], expected, "{name}, {dim}");
            }
        }
        assert_eq!(ways("down", 64), [32.0, 4.0, 4.0]);
        assert_eq!(ways("along", 64), [1.0; 3]);
    }

    /// A given access costs as much as the kernels' access with the same rows and bytes.
    #[test]
    fn a_given_access_costs_what_it_does() {
        let given = |text: &str, dim| factors(Walk::Given(pattern(text).unwrap()), dim);
        for &dim in HEAD_DIMS {
            assert_eq!(given("4x4", dim), ways("write O", dim), "{dim}");
            assert_eq!(given("1x16", dim), ways("read Q", dim), "{dim}");
        }
        assert_eq!(given("32x4", 64), [1.0; 3]);
        assert_eq!(given("1x4", 64), [32.0, 4.0, 4.0]);
        for text in ["3x4", "4x2", "64x4", "4", "x", "4x4x4", "0x4", "-4x4"] {
            let error = pattern(text).unwrap_err();
            assert!(error.contains("such as 4x16"), "{text}");
        }
        let drawn = |dim, access: &str| {
            let access = Some(pattern(access).unwrap());
            draw(&Arguments { dim, access })
        };
        // 192 bytes are not a multiple of 128.
        assert!(drawn(Some(96), "32x4").is_err());
        assert!(drawn(None, "32x4").is_ok());
    }

    #[test]
    fn padding_serves_operands_as_well() {
        for (name, dim) in [
            ("read Q", 64),
            ("read V", 128),
            ("write O", 256),
            ("read K", 96),
        ] {
            assert_eq!(ways(name, dim)[1], 1.0, "{name}, {dim}");
        }
    }

    #[test]
    fn cells_show_ways_and_wavefronts() {
        let shown = |wavefronts| {
            cell(&Tally {
                wavefronts,
                ideal_wavefronts: 64,
                ..Tally::default()
            })
        };
        assert_eq!(shown(64).lines, ["1\u{d7}", "64"]);
        assert_eq!(shown(96).lines, ["1.5\u{d7}", "96"]);
        assert_eq!(shown(512).lines, ["8\u{d7}", "512"]);
        assert_ne!(shown(64).color, shown(96).color);
    }
}
