//! `cargo xtask layout descriptor`: what `wgmma` reads from a tile in shared memory, as its matrix descriptor says.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use super::swizzle;
use kernels::layout::descriptor::{Descriptor, Panels};
use kernels::layout::swizzle::CHUNK_BYTES;
use std::collections::HashSet;

/// The tile, and the operand in it.
#[derive(clap::Args)]
pub struct Arguments {
    /// Head dim, the tile's columns: a multiple of 32 up to 256. Panels have 64 columns where they divide it, else 32
    #[arg(long, value_name = "COLUMNS", default_value = "128", value_parser = super::head_dim)]
    dim: u32,
    /// The tile's rows: a multiple of 16 up to 256
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    rows: u32,
    /// Which 16 columns of Q or K, and which 16 rows of V, a product reads; the last ones if there are fewer
    #[arg(long, value_name = "NUMBER", default_value_t = u32::MAX, hide_default_value = true)]
    slice: u32,
}

/// The part of a tile that a product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// All rows of 16 columns: Q or K.
    Rows,
    /// All columns of 16 rows, transposed: V.
    Columns,
}

/// The fields of a descriptor, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    start: u32,
    leading: u32,
    stride: u32,
    /// Bytes of a row under the swizzle.
    swizzle: u32,
}

/// Bits and meaning of each field.
const FIELDS: [(&str, &str); 4] = [
    ("start", "bits 0-13"),
    ("leading offset", "bits 16-29"),
    ("stride offset", "bits 32-45"),
    ("swizzle", "bits 62-63"),
];

impl Fields {
    fn new(Descriptor { low, high }: Descriptor) -> Self {
        let field = |bits: u32| bits % (1 << 14) * 16;
        Fields {
            start: field(low),
            leading: field(low >> 16),
            stride: field(high),
            swizzle: [16, 128, 64, 32][high as usize >> 30],
        }
    }

    /// The address that the tensor cores read (PTX manual, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"): the
    /// chunk of a row at a byte of a panel.
    fn address(self, row: u32, byte: u32, panel: u32) -> u32 {
        let linear = self.start + panel * self.leading + row / 8 * self.stride;
        let linear = linear + row % 8 * self.swizzle + byte;
        linear ^ (linear >> 7 & (self.swizzle / CHUNK_BYTES - 1)) << 4
    }

    fn cell(self, field: u32) -> Cell {
        let bytes = [self.start, self.leading, self.stride, self.swizzle][field as usize];
        let unit = match (field, self.swizzle) {
            (3, 128) => "1".to_owned(),
            (3, _) => "2".to_owned(),
            _ => format!("{} x 16", bytes / 16),
        };
        Cell::new(format!("{bytes} bytes"), unit, Color::pale_hue(field))
    }
}

impl Operand {
    const ALL: [Self; 2] = [Operand::Rows, Operand::Columns];

    fn name(self) -> &'static str {
        match self {
            Operand::Rows => "Q or K",
            Operand::Columns => "V",
        }
    }

    /// The descriptor of a slice of a tile of `dim` columns, and the slice's number.
    fn descriptor(self, tile: Panels, dim: u32, slice: u32) -> (Descriptor, u32) {
        match self {
            Operand::Rows => {
                let slice = slice.min(dim / 16 - 1);
                (tile.rows(0).skip(tile.to_columns(slice)), slice)
            }
            Operand::Columns => {
                let slice = slice.min(tile.rows / 16 - 1);
                (tile.columns().skip(tile.to_rows(slice)), slice)
            }
        }
    }

    /// The addresses of the chunks that a product reads.
    fn reads(self, tile: Panels, dim: u32, fields: Fields) -> HashSet<u32> {
        let (rows, width, panels) = match self {
            Operand::Rows => (tile.rows, 16, 1),
            Operand::Columns => (16, tile.width, dim / tile.width),
        };
        let chunks = (0..panels).flat_map(|panel| {
            let bytes = (0..2 * width).step_by(CHUNK_BYTES as usize);
            bytes.flat_map(move |byte| (0..rows).map(move |row| (row, byte, panel)))
        });
        chunks
            .map(|(row, byte, panel)| fields.address(row, byte, panel))
            .collect()
    }
}

const NOTES: &str = "\
TMA writes a tile in panels of 64 or 32 columns, whose rows have 128 or 64 bytes.
The swizzle permutes the chunks of 16 bytes in a row: bits of the address from 4 on are XORed with bits
from 7 on, three of them for rows of 128 bytes, two for 64. The pattern repeats every 8 rows.

Full colours: what a product reads, 16 columns of Q or K, or 16 rows of V. A hue is four banks.
Start: the first chunk's address before the swizzle. The row's next chunk is 16 bytes further.
Stride offset: from 8 rows to the next 8 rows.
Leading offset: from a panel to the next one. Q and K do not use it, as 16 columns lie in one panel.
Next slice: one addition to the start, 32 bytes of Q and K, or a panel; 16 rows of V.
";

/// The descriptors, and what each operand reads. Fails if rows do not divide into slices.
pub fn draw(arguments: &Arguments) -> Result<Drawing, String> {
    let &Arguments { dim, rows, slice } = arguments;
    if !rows.is_multiple_of(16) {
        return Err(format!("{rows} rows: take a multiple of 16"));
    }
    let tile = Panels {
        base: 0,
        rows,
        width: Panels::width_for(dim),
    };
    let operands = Operand::ALL.map(|operand| {
        let (descriptor, slice) = operand.descriptor(tile, dim, slice);
        (operand, Fields::new(descriptor), slice)
    });
    let title = format!(
        "wgmma's operands in a tile of {rows} x {dim}: panels of {} columns, {}-byte swizzle",
        tile.width,
        2 * tile.width
    );
    let table = Panel::new(
        "The descriptor's fields: bytes, above the bits' value",
        "field",
        Axis::new(FIELDS.map(|(name, bits)| format!("{name}, {bits}"))),
        Axis::new(operands.map(|(operand, ..)| operand.name())),
        |field, operand| operands[operand as usize].1.cell(field),
    );
    let drawing = Drawing::new(title, NOTES).beside(table);
    Ok(operands
        .into_iter()
        .fold(drawing, |drawing, (operand, fields, slice)| {
            let reads = operand.reads(tile, dim, fields);
            let color = |offset, group| match reads.contains(&offset) {
                true => Color::hue(group),
                false => Color::pale_hue(group),
            };
            let chunks = Axis::new(0..dim / 8).every(tile.width as usize / 8);
            let columns = chunks.titled(["chunks of a panel"]);
            let offset = |row, chunk| tile.chunk(row, 8 * chunk);
            let [mut panel, memory] = swizzle::panels(rows, columns, offset, color);
            let part = match operand {
                Operand::Rows => "columns",
                Operand::Columns => "rows",
            };
            let (first, last) = (16 * slice, 16 * slice + 15);
            panel.title = format!("{}, {part} {first} to {last}: offsets", operand.name());
            match operand {
                Operand::Rows => drawing.below(panel).beside(memory),
                Operand::Columns => drawing.below(panel),
            }
        }))
}

#[cfg(test)]
mod tests {
    use super::super::drawing::four;
    use super::*;
    use kernels::catalog::HEAD_DIMS;

    fn tile(dim: u32, rows: u32) -> Panels {
        Panels {
            base: 0,
            rows,
            width: Panels::width_for(dim),
        }
    }

    /// Tiles and slices of all widths of panels.
    fn cases() -> impl Iterator<Item = (u32, u32, u32)> {
        let sizes = HEAD_DIMS
            .iter()
            .flat_map(|&dim| [16, 48].map(|rows| (dim, rows)));
        sizes.flat_map(|(dim, rows)| (0..dim / 16).map(move |slice| (dim, rows, slice)))
    }

    /// A descriptor reads the slice's chunks and no others.
    #[test]
    fn descriptors_read_their_slice() {
        for (dim, rows, slice) in cases() {
            let tile = tile(dim, rows);
            for operand in Operand::ALL {
                let (descriptor, slice) = operand.descriptor(tile, dim, slice);
                let part = 16 * slice..16 * (slice + 1);
                let (rows, columns) = match operand {
                    Operand::Rows => (0..rows, part),
                    Operand::Columns => (part, 0..dim),
                };
                let chunks = rows.flat_map(|row| {
                    let columns = columns.clone().step_by(8);
                    columns.map(move |column| tile.chunk(row, column))
                });
                let reads = operand.reads(tile, dim, Fields::new(descriptor));
                assert_eq!(reads, chunks.collect(), "{dim}, {operand:?}, {slice}");
            }
        }
    }

    /// Every chunk is drawn once, at its address, and in full colour if it is read.
    #[test]
    fn chunks_are_drawn_where_they_lie() {
        for (dim, rows, slice) in cases().filter(|case| case.2 % 3 == 1) {
            let drawing = draw(&Arguments { dim, rows, slice }).unwrap();
            let tile = tile(dim, rows);
            for (drawn, operand) in drawing.rows[1..].iter().zip(Operand::ALL) {
                let (chunks, memory) = (&drawn[0], drawn.get(1));
                let slice = match operand {
                    Operand::Rows => slice,
                    Operand::Columns => slice.min(rows / 16 - 1),
                };
                let mut places = HashSet::new();
                for (row, chunk) in (0..rows).flat_map(|r| (0..dim / 8).map(move |c| (r, c))) {
                    let offset = tile.chunk(row, 8 * chunk);
                    let group = offset / 16 % 8;
                    let part = match operand {
                        Operand::Rows => chunk / 2,
                        Operand::Columns => row / 16,
                    };
                    let color = match part == slice {
                        true => Color::hue(group),
                        false => Color::pale_hue(group),
                    };
                    let cell = Cell::new(offset, four(group), color);
                    assert_eq!(chunks.cells[row as usize][chunk as usize], cell);
                    if let Some(memory) = memory {
                        let line = &memory.cells[offset as usize / 128];
                        let cell = Cell::new(format!("row {row}"), format!("chunk {chunk}"), color);
                        assert_eq!(line[group as usize], cell);
                    }
                    places.insert(offset);
                }
                assert_eq!(places.len() as u32, rows * dim / 8);
                let drawn = memory.map_or(places.len(), |memory| memory.cells.len() * 8);
                assert_eq!(drawn, places.len(), "no chunk is free");
            }
        }
    }

    /// Two panels of 16 rows of 128 bytes: the last slice of columns starts in the second panel.
    #[test]
    fn fields_of_a_small_tile() {
        let fields = |operand: Operand, dim| {
            let (descriptor, _) = operand.descriptor(tile(dim, 16), dim, u32::MAX);
            let fields = Fields::new(descriptor);
            [fields.start, fields.leading, fields.stride, fields.swizzle]
        };
        assert_eq!(fields(Operand::Rows, 128), [2048 + 96, 16, 1024, 128]);
        assert_eq!(fields(Operand::Columns, 128), [0, 2048, 1024, 128]);
        assert_eq!(fields(Operand::Rows, 96), [2 * 1024 + 32, 16, 512, 64]);
        assert_eq!(fields(Operand::Columns, 96), [0, 1024, 512, 64]);
    }

    #[test]
    fn rows_divide_into_slices() {
        let (dim, slice) = (64, 0);
        for rows in [8, 17, 40] {
            let refused = draw(&Arguments { dim, rows, slice });
            assert!(refused.err().expect("refused").contains("multiple of 16"));
        }
    }
}
