//! `cargo xtask layout smem`: the cost of bank conflicts for the kernels' accesses.

use super::color::Color;
use super::drawing::{Cell, Drawing, Group, Note, Panel, Slot};
use super::ldmatrix::Load;
use emulator::Tally;
use kernels::catalog::HEAD_DIMS;
use kernels::layout::{
    fragment,
    share::Share,
    swizzle::{CHUNK_BYTES, Swizzle},
};
use std::fmt;
use std::str::FromStr;

/// Which accesses to draw.
#[derive(clap::Args)]
pub struct Arguments {
    /// 16-bit elements of a row: a multiple of 32 up to 256 [default: every head dim with a tile]
    #[arg(long, value_name = "ELEMENTS", value_parser = super::head_dim)]
    dim: Option<u32>,
    /// Your own access: LANES lanes side by side in a row, the next lanes in the next row, BYTES bytes each. 4x4 is
    /// a fragment, 1x16 an ldmatrix, 8x16 a copy
    #[arg(long, value_name = "LANESxBYTES")]
    access: Option<Pattern>,
}

/// Lanes side by side in a row, and bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pattern {
    lanes: u32,
    bytes: u32,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Pattern { lanes, bytes } = self;
        write!(f, "{lanes} x {bytes}")
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('x');
        let numbers =
            numbers.and_then(|(lanes, bytes)| Some((lanes.parse().ok()?, bytes.parse().ok()?)));
        match numbers {
            Some((lanes @ (1 | 2 | 4 | 8 | 16 | 32), bytes @ (4 | 8 | 16))) => {
                Ok(Pattern { lanes, bytes })
            }
            _ => {
                Err("take 1, 2, 4, 8, 16 or 32 lanes by 4, 8 or 16 bytes, such as 4x16".to_owned())
            }
        }
    }
}

impl Pattern {
    /// Whether rows of `dim` elements divide into such groups of lanes.
    fn divides(self, dim: u32) -> bool {
        (2 * dim).is_multiple_of(self.lanes * self.bytes)
    }

    fn accesses(self, dim: u32, placed: Swizzle) -> Vec<Access> {
        let Pattern { lanes, bytes } = self;
        let firsts = (0..ROWS).step_by(32 / lanes as usize);
        let firsts = firsts.flat_map(|row| {
            let columns = (0..2 * dim).step_by((lanes * bytes) as usize);
            columns.map(move |column| (row, column))
        });
        let access = |(row, column)| {
            Access::new(bytes, move |lane| {
                let column = column + lane % lanes * bytes;
                placed.offset(row + lane / lanes, column / CHUNK_BYTES) + column % CHUNK_BYTES
            })
        };
        firsts.map(access).collect()
    }
}

/// Rows of the tile. Every kind of access moves the whole tile once. `2 * ROWS` bytes of a column take at least
/// one wavefront of 128 bytes.
const ROWS: u32 = 64;

/// Threads that copy a tile together.
const THREADS: u32 = 128;

/// One instruction of a warp.
pub struct Access {
    /// Bytes of each lane.
    bytes: u32,
    active: u32,
    addresses: [u64; 32],
}

impl Access {
    /// The access of the first `lanes` lanes, at byte offset `address(lane)`.
    pub fn of_lanes(bytes: u32, lanes: u32, address: impl Fn(u32) -> u32) -> Self {
        let active = u32::MAX >> (32 - lanes);
        Access {
            bytes,
            active,
            addresses: std::array::from_fn(|lane| match lane as u32 {
                lane if lane < lanes => u64::from(address(lane)),
                _ => 0,
            }),
        }
    }

    /// The access of all lanes.
    fn new(bytes: u32, address: impl Fn(u32) -> u32) -> Self {
        Self::of_lanes(bytes, 32, address)
    }
}

/// The cost of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wavefronts {
    /// With bank conflicts.
    pub taken: u64,
    /// Without bank conflicts.
    pub minimum: u64,
}

impl Wavefronts {
    /// The emulator's count.
    pub fn of(accesses: impl IntoIterator<Item = Access>) -> Self {
        let mut tally = Tally::default();
        for access in accesses {
            tally.count_shared(access.active, &access.addresses, access.bytes);
        }
        Wavefronts {
            taken: tally.wavefronts,
            minimum: tally.ideal_wavefronts,
        }
    }

    /// Shows `8x` above the number.
    fn cell(self) -> Cell {
        let ways = self.taken as f64 / self.minimum as f64;
        let ways = format!("{ways:.1}");
        let ways = ways.strip_suffix(".0").unwrap_or(&ways);
        let color = Color::conflict(self.taken, self.minimum);
        Cell::new(format!("{ways}\u{d7}"), self.taken, color)
    }
}

/// A way to go through a tile of [`ROWS`] rows.
#[derive(Clone, Copy)]
enum Walk {
    /// Reads of operands.
    Ldmatrix(Load),
    /// Copies by so many threads.
    Copy(u32),
    /// Writes of O from registers.
    Fragments,
    /// Neighbouring lanes take neighbouring pairs of elements.
    AlongRows,
    /// A pattern.
    Given(Pattern),
}

impl Walk {
    fn accesses(self, dim: u32, placed: Swizzle) -> Vec<Access> {
        match self {
            Walk::Ldmatrix(load) => ldmatrix(load, dim, placed),
            Walk::Copy(threads) => chunks(threads, dim, placed),
            Walk::Fragments => fragments(dim, placed),
            Walk::AlongRows => along_rows(dim, placed),
            Walk::Given(pattern) => pattern.accesses(dim, placed),
        }
    }
}

const WALKS: [(&str, Walk); 8] = [
    ("read Q: ldmatrix", Walk::Ldmatrix(Load::Q)),
    ("read K: ldmatrix", Walk::Ldmatrix(Load::K)),
    ("read V: ldmatrix.trans", Walk::Ldmatrix(Load::V)),
    ("fill all: cp.async, 16 B", Walk::Copy(THREADS)),
    ("write O: fragments, 4 B", Walk::Fragments),
    ("read O: one warp, 16 B", Walk::Copy(32)),
    ("along rows, 4 B", Walk::AlongRows),
    (
        "down columns, 4 B",
        Walk::Given(Pattern { lanes: 1, bytes: 4 }),
    ),
];

/// All 16x16 tiles, by their row and column.
fn tiles(dim: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..ROWS / 16).flat_map(move |row16| (0..dim / 16).map(move |d16| (row16, d16)))
}

/// Reads of operands.
fn ldmatrix(load: Load, dim: u32, placed: Swizzle) -> Vec<Access> {
    let read = |(row16, d16)| {
        Access::new(16, move |lane| {
            let (row, chunk) = load.address(lane);
            placed.offset(16 * row16 + row, 2 * d16 + chunk)
        })
    };
    tiles(dim).map(read).collect()
}

/// Copies of tiles: each of `threads` threads takes its share.
fn chunks(threads: u32, dim: u32, placed: Swizzle) -> Vec<Access> {
    let row_chunks = dim * 2 / CHUNK_BYTES;
    let Share {
        lanes,
        rows_per_step,
        ..
    } = Share::new(0, threads, row_chunks);
    let mut accesses = Vec::new();
    for down in (0..ROWS).step_by(rows_per_step as usize) {
        for right in (0..row_chunks).step_by(lanes as usize) {
            accesses.extend((0..threads / 32).map(|warp| {
                Access::new(16, |lane| {
                    let share = Share::new(32 * warp + lane, threads, row_chunks);
                    placed.offset(share.row + down, share.chunk + right)
                })
            }));
        }
    }
    accesses
}

/// Writes of O: registers with two elements each, in the places of an A operand.
fn fragments(dim: u32, placed: Swizzle) -> Vec<Access> {
    let registers = tiles(dim).flat_map(|tile| (0..4).map(move |r| (tile, r)));
    let write = |((row16, d16), r)| {
        Access::new(4, move |lane| {
            let (row, column) = fragment::operand_a(lane, r);
            placed.offset(16 * row16 + row, 2 * d16 + column / 8) + column % 8 * 2
        })
    };
    registers.map(write).collect()
}

/// Neighbouring lanes take neighbouring pairs of elements.
fn along_rows(dim: u32, placed: Swizzle) -> Vec<Access> {
    let row_pairs = dim / 2;
    let firsts = (0..ROWS * row_pairs).step_by(32);
    let read = |first| {
        Access::new(4, move |lane| {
            let (row, pair) = ((first + lane) / row_pairs, (first + lane) % row_pairs);
            placed.offset(row, pair / 4) + pair % 4 * 4
        })
    };
    firsts.map(read).collect()
}

/// The placement of rows by their number of chunks.
type Placed = fn(u32) -> Swizzle;

/// Placements by name.
const PLACEMENTS: [(&str, Placed); 3] = [
    ("none", Swizzle::none),
    ("padding", Swizzle::padded),
    ("swizzle", Swizzle::new),
];

/// The cost of a walk in a placement.
fn cost(walk: Walk, dim: u32, placed: Placed) -> Wavefronts {
    Wavefronts::of(walk.accesses(dim, placed(dim * 2 / CHUNK_BYTES)))
}

/// The table of all accesses, or of the given one.
///
/// # Errors
/// If rows of the head dim do not divide into such accesses.
pub fn draw(arguments: &Arguments) -> Result<Drawing, String> {
    let mut dims = arguments.dim.map_or(HEAD_DIMS.to_vec(), |dim| vec![dim]);
    // Reads of operands; copies and stores; the two plain ways.
    let mut walks = [&WALKS[..3], &WALKS[3..6], &WALKS[6..]]
        .map(<[_]>::to_vec)
        .to_vec();
    if let Some(pattern) = arguments.access {
        dims.retain(|&dim| pattern.divides(dim));
        if dims.is_empty() {
            return Err(format!(
                "rows do not divide into {pattern} bytes; take fewer lanes"
            ));
        }
        walks = vec![vec![("the given access", Walk::Given(pattern))]];
    }
    let columns: Vec<_> = PLACEMENTS
        .iter()
        .flat_map(|(_, placed)| dims.iter().map(move |dim| (*placed, *dim)))
        .collect();
    let group = |(title, _): &(&str, _)| Group::new(title, &dims);
    let names = walks
        .iter()
        .map(|walks| Group::new("", walks.iter().map(|walk| walk.0)));
    let table = Panel::new(
        "Wavefronts, and the factor over the minimum",
        "access \\ head dim",
        names.collect(),
        PLACEMENTS.iter().map(group).collect(),
        |walk, column| {
            let (placed, dim) = columns[column as usize];
            cost(walks.concat()[walk as usize].1, dim, placed).cell()
        },
    );
    let ways = [1, 2, 4, 8].map(|ways| (Color::conflict(ways, 1), format!("{ways}\u{d7}")));
    let notes = vec![
        Note::text(format!(
            "Each access moves a tile of {ROWS} rows once. Shared memory moves 128 bytes in a wavefront,"
        )),
        Note::text(
            "so it takes at least as many wavefronts as the head dim. Each cell: the factor, above the count.",
        ),
        Note::text("Lanes with different words of one bank take turns, a wavefront each."),
        Note::text(format!(
            "{THREADS} threads fill a tile. Padding is 8 elements a row; the swizzle is the kernels' own."
        )),
        Note {
            swatches: ways.into(),
            text: "and more: wavefronts over the minimum".to_owned(),
        },
    ];
    let title = match arguments.access {
        None => "Bank conflicts of the kernels' accesses to shared memory".to_owned(),
        Some(pattern) => format!("Bank conflicts of an access by {pattern} bytes, row by row"),
    };
    Ok(Drawing {
        title,
        rows: vec![vec![Slot::Notes(notes)], vec![Slot::Panel(table)]],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wavefronts over the minimum for the walk whose name starts so: none, padding, swizzle.
    fn ways(name: &str, dim: u32) -> [f64; 3] {
        let mut walks = WALKS.iter();
        let walk = walks.find(|walk| walk.0.starts_with(name)).unwrap();
        PLACEMENTS.map(|(_, placed)| {
            let cost = cost(walk.1, dim, placed);
            cost.taken as f64 / cost.minimum as f64
        })
    }

    #[test]
    fn every_walk_moves_the_tile_once() {
        for (walk, &dim) in WALKS
            .iter()
            .flat_map(|w| HEAD_DIMS.iter().map(move |d| (w, d)))
        {
            for (_, placed) in PLACEMENTS {
                let cost = cost(walk.1, dim, placed);
                assert_eq!(cost.minimum, u64::from(dim), "{}", walk.0);
            }
            // No byte twice, and none past the tile.
            let placed = Swizzle::new(dim * 2 / CHUNK_BYTES);
            let mut bytes = vec![0; (2 * ROWS * dim) as usize];
            for access in walk.1.accesses(dim, placed) {
                for address in access.addresses {
                    for byte in &mut bytes[address as usize..][..access.bytes as usize] {
                        *byte += 1;
                    }
                }
            }
            assert!(bytes.iter().all(|times| *times == 1), "{}", walk.0);
        }
    }

    #[test]
    fn the_kernels_swizzle_has_no_conflict() {
        for (walk, &dim) in WALKS[..6]
            .iter()
            .flat_map(|w| HEAD_DIMS.iter().map(move |d| (w, d)))
        {
            let cost = cost(walk.1, dim, Swizzle::new);
            assert_eq!(cost.taken, cost.minimum, "{}, head dim {dim}", walk.0);
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
        let given = |text: &str, dim| {
            let pattern = Walk::Given(text.parse().unwrap());
            PLACEMENTS.map(|(_, placed)| {
                let cost = cost(pattern, dim, placed);
                cost.taken as f64 / cost.minimum as f64
            })
        };
        for &dim in HEAD_DIMS {
            assert_eq!(given("4x4", dim), ways("write O", dim), "{dim}");
            assert_eq!(given("1x16", dim), ways("read Q", dim), "{dim}");
        }
        assert_eq!(given("32x4", 64), [1.0; 3]);
        assert_eq!(given("1x4", 64), [32.0, 4.0, 4.0]);
        for text in ["3x4", "4x2", "64x4", "4", "x", "4x4x4", "0x4", "-4x4"] {
            let error = text.parse::<Pattern>().unwrap_err();
            assert!(error.contains("such as 4x16"), "{text}");
        }
        let drawn = |dim, access: &str| {
            let access = Some(access.parse().unwrap());
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
        let wavefronts = |taken| Wavefronts { taken, minimum: 64 };
        let shown = |taken| {
            let cell = wavefronts(taken).cell();
            (cell.text, cell.detail)
        };
        assert_eq!(shown(64), ("1\u{d7}".to_owned(), "64".to_owned()));
        assert_eq!(shown(96), ("1.5\u{d7}".to_owned(), "96".to_owned()));
        assert_eq!(shown(512), ("8\u{d7}".to_owned(), "512".to_owned()));
        assert_ne!(wavefronts(64).cell().color, wavefronts(96).cell().color);
    }
}
