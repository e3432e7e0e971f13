//! `cargo xtask layout swizzle`: the place and the banks of each 16-byte chunk of a tile.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel, four};
use super::placement::{Arrangement, cute_of_own};
use super::smem::count;
use emulator::Tally;
use kernels::layout::swizzle::CHUNK_BYTES;
use std::collections::HashMap;

/// The tile to draw.
#[derive(clap::Args)]
pub struct Arguments {
    /// 16-bit elements of a row: a multiple of 32 up to 256
    #[arg(long, value_name = "ELEMENTS", default_value = "64", value_parser = super::head_dim)]
    dim: u32,
    /// Rows of the tile
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    rows: u32,
    /// own: the kernels'; none; pad: a free chunk after each row; or B,M,S: CuTe's Swizzle<B,M,S> on indices of
    /// elements
    #[arg(long, value_name = "NAME", default_value = "own")]
    swizzle: Arrangement,
}

/// Bytes of a line, which goes once through all banks.
const LINE: u32 = 128;

const NOTES: &str = "\
A chunk is 8 elements, 16 bytes: one lane's copy, and one row of a matrix of ldmatrix.
A line of 128 bytes goes once through all 32 banks of 4 bytes. A chunk lies in 4 banks.
Left: the byte offset of each chunk, above its banks. Right: the chunk at each offset.
";

/// The tile, and shared memory beside it. Fails if the swizzle does not suit the tile.
pub fn draw(arguments: &Arguments) -> Result<Drawing, String> {
    let &Arguments { dim, rows, swizzle } = arguments;
    swizzle.check(rows, dim)?;
    let offset = |row, chunk| swizzle.offset(dim, row, chunk);
    let chunks = dim * 2 / CHUNK_BYTES;
    let columns = Axis::new(0..chunks).every(8).titled(["chunk"]);
    let [tile, memory] = panels(rows, columns, offset, |_, group| Color::hue(group));
    let (name, rule) = describe(swizzle, dim);
    let title = format!("{rows} rows of {dim} 16-bit elements in shared memory: {name}");
    let cost = cost(rows, chunks, offset);
    let banks = (0..8).map(|group| (Color::hue(group), four(group)));
    Ok(Drawing::new(title, &format!("{NOTES}{rule}\n{cost}"))
        .legend("banks", banks.collect())
        .below(tile)
        .beside(memory))
}

/// A tile of 16-byte chunks, each at its offset, and the memory that they take. `color` is for an offset and its group of
/// four banks.
pub fn panels(
    rows: u32,
    columns: Axis,
    offset: impl Fn(u32, u32) -> u32,
    color: impl Fn(u32, u32) -> Color,
) -> [Panel; 2] {
    let chunks = columns.labels.len() as u32;
    let tile = Panel::new(
        "The tile: where each chunk lands",
        "row",
        Axis::new(0..rows).every(8),
        columns,
        |row, chunk| {
            let offset = offset(row, chunk);
            let group = offset / CHUNK_BYTES % 8;
            Cell::new(offset, four(group), color(offset, group))
        },
    );
    let all = (0..rows).flat_map(|row| (0..chunks).map(move |chunk| (row, chunk)));
    let landed: HashMap<u32, (u32, u32)> = all
        .map(|(row, chunk)| (offset(row, chunk), (row, chunk)))
        .collect();
    let end = landed.keys().max().map_or(0, |last| last + CHUNK_BYTES);
    let memory = Panel::new(
        "Shared memory: which row and chunk lies there",
        "offset",
        Axis::new((0..end).step_by(LINE as usize)).every(8),
        Axis::new((0..8).map(four)).titled(["banks"]),
        |line, group| {
            let offset = line * LINE + group * CHUNK_BYTES;
            match landed.get(&offset) {
                Some((row, chunk)) => {
                    let chunk = format!("chunk {chunk}");
                    Cell::new(format!("row {row}"), chunk, color(offset, group))
                }
                None => Cell::default(),
            }
        },
    );
    [tile, memory]
}

/// An arrangement's name, and what it does.
fn describe(swizzle: Arrangement, dim: u32) -> (String, String) {
    match swizzle {
        Arrangement::None => ("no swizzle".into(), "Rows lie one after the other.".into()),
        Arrangement::Pad => (
            "padded rows".into(),
            "After each row a chunk is free.".into(),
        ),
        Arrangement::Own => {
            let rule = match dim % 64 {
                0 => "The low 3 bits of the chunk are XORed with the low 3 bits of the row",
                _ => "The low 2 bits of the chunk are XORed with bits 1 and 2 of the row",
            };
            let known = cute_of_own(dim).map_or_else(
                || ". CuTe has no name for this: rows are no power of two.".into(),
                |cute| format!(": CuTe's {cute} on indices of elements."),
            );
            ("the kernels' swizzle".into(), format!("{rule}{known}"))
        }
        Arrangement::Cute(cute) => (
            format!("CuTe's {cute}"),
            format!(
                "{cute} XORs B bits of an element's index, from bit M + S on, into the bits from M on."
            ),
        ),
    }
}

/// The cost of a matrix of `ldmatrix`.
fn cost(rows: u32, chunks: u32, offset: impl Fn(u32, u32) -> u32) -> String {
    let columns = (0..rows).step_by(8);
    let columns = columns.flat_map(|row| (0..chunks).map(move |chunk| (row, chunk)));
    let worst = columns.map(|(row, chunk)| {
        let mut tally = Tally::default();
        let lanes = (rows - row).min(8);
        count(&mut tally, 16, lanes, |lane| offset(row + lane, chunk));
        tally.wavefronts
    });
    match worst.max().unwrap_or(0) {
        1 => "Down a column of 8 rows all colours differ: ldmatrix reads 8 rows at once.".into(),
        ways => format!(
            "Down a column of 8 rows colours repeat: ldmatrix takes up to {ways} wavefronts for 8 rows \
             instead of 1."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(swizzle: &str, dim: u32) -> Drawing {
        draw(&Arguments {
            dim,
            rows: 16,
            swizzle: swizzle.parse().unwrap(),
        })
        .unwrap()
    }

    fn drawn_panels(drawing: &Drawing) -> [&Panel; 2] {
        let [tile, memory] = &drawing.rows[1][..] else {
            panic!("two panels");
        };
        [tile, memory]
    }

    fn cost(drawing: &Drawing) -> &str {
        &drawing.notes[4].text
    }

    #[test]
    fn chunks_are_drawn_where_they_land() {
        let drawing = drawn("own", 64);
        let [tile, memory] = drawn_panels(&drawing);
        // Chunk 3 of row 5: 3 ^ 5 = 6.
        let offset = 5 * 128 + 6 * 16;
        let cell = Cell::new(offset, "24-27", Color::hue(6));
        assert_eq!(tile.cells[5][3], cell);
        let cell = Cell::new("row 5", "chunk 3", Color::hue(6));
        assert_eq!(memory.cells[5][6], cell);
    }

    #[test]
    fn padding_leaves_chunks_free() {
        let drawing = drawn("pad", 64);
        let [_, memory] = drawn_panels(&drawing);
        assert_eq!(memory.cells[1][0], Cell::default());
        assert_eq!(memory.cells[1][1].lines[0], "row 1");
        let unused = memory.cells.iter().flatten().filter(|c| c.color.is_none());
        // 15 chunks after rows, and the rest of the last line.
        assert_eq!(unused.count(), memory.cells.len() * 8 - 16 * 8);
    }

    #[test]
    fn conflicts_are_told() {
        for dim in kernels::catalog::HEAD_DIMS {
            assert!(cost(&drawn("own", *dim)).contains("at once"), "{dim}");
            assert!(cost(&drawn("pad", *dim)).contains("at once"), "{dim}");
        }
        assert!(cost(&drawn("none", 64)).contains("up to 8 "));
        assert!(cost(&drawn("none", 32)).contains("up to 4 "));
        assert!(cost(&drawn("3,3,3", 64)).contains("at once"));
        // A well-known mistake: one line's swizzle on rows of two lines.
        assert!(cost(&drawn("3,3,3", 128)).contains("up to 2 "));
    }
}
