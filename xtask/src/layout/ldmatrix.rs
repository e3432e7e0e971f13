//! `cargo xtask layout ldmatrix`: which lane gives each address, and which lane receives each element.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use super::mma::{self, Holders};
use clap::ValueEnum;
use kernels::layout::fragment;

/// Which ways of reading to draw.
#[derive(clap::Args)]
pub struct Arguments {
    /// The order of the lanes' addresses: all rows of a chunk first, or both chunks of 8 rows first
    #[arg(long, value_enum)]
    order: Option<Order>,
    /// The transposing variant alone
    #[arg(long)]
    trans: bool,
}

/// The order in which lanes give addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Rows first: Q, and V with --trans
    Rows,
    /// Chunks first: K
    Chunks,
}

/// How a warp reads a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The order of the addresses.
    pub order: Order,
    /// Whether the matrices are transposed.
    pub trans: bool,
}

impl Load {
    /// The way that kernels read Q.
    pub const Q: Self = Self::new(Order::Rows, false);
    /// The way that kernels read K.
    pub const K: Self = Self::new(Order::Chunks, false);
    /// The way that kernels read V.
    pub const V: Self = Self::new(Order::Rows, true);

    const fn new(order: Order, trans: bool) -> Self {
        Load { order, trans }
    }

    /// Row and chunk of a lane's address, in a tile of 16 rows and 2 chunks.
    pub fn address(self, lane: u32) -> (u32, u32) {
        match self.order {
            Order::Rows => fragment::ldmatrix_rows_first(lane),
            Order::Chunks => fragment::ldmatrix_chunks_first(lane),
        }
    }

    /// The lane that receives each element of the stored tile.
    fn holders(self) -> Holders {
        mma::holders(4, |lane, r| {
            let (row, column) = fragment::ldmatrix_element(lane, self.trans);
            let (down, right) = if self.trans { (1, 0) } else { (0, 1) };
            [(row, column), (row + down, column + right)].map(|(row, column)| {
                let (row, chunk) = self.address(8 * r + row);
                (row, 8 * chunk + column)
            })
        })
    }

    /// Adds the addresses, and the lanes that receive them.
    fn draw(self, drawing: Drawing) -> Drawing {
        let order = match self.order {
            Order::Rows => "rows first",
            Order::Chunks => "chunks first",
        };
        let addresses = Panel::new(
            format!("Addresses, {order}"),
            "row \\ column",
            Axis::new(0..16).every(8),
            Axis::new(["0-7", "8-15"]).every(1).titled(CHUNKS),
            |row, chunk| {
                let mut lanes = 0..32;
                let lane = lanes.find(|&lane| self.address(lane) == (row, chunk));
                let lane = lane.expect("every chunk's address is given");
                let matrix = format!("matrix {}", lane / 8);
                Cell::new(format!("lane {lane}"), matrix, Color::lane(lane))
            },
        );
        let purpose = match self {
            Self::Q => "Q, an A operand: row query, column d",
            Self::K => "K, a pair of B: row key (n), column d (k)",
            Self::V => "V, a pair of B: row key (k), column d (n)",
            _ => "unused by the kernels",
        };
        let trans = if self.trans { ".trans" } else { "" };
        let title = format!("ldmatrix.x4{trans}: {purpose}");
        let elements = mma::panel(&title, "row \\ column", CHUNKS, "r", &self.holders());
        drawing.below(addresses).beside(elements)
    }
}

const CHUNKS: [&str; 2] = ["chunk 0", "chunk 1"];

const NOTES: &str = "\
Four 8x8 matrices of 16-bit elements come from shared memory, each into one register of every lane.
Left: lane i gives the address of row i % 8 of matrix i / 8, a chunk of 16 bytes.
Right: the lane that receives each element, above its register. Register r comes from matrix r.
A register takes two neighbours of a row or, with .trans, of a column. The first is its low half.
The order of addresses decides which quarter becomes which register; .trans decides how pairs run.
Together they make every operand of mma without moving an element between lanes.
";

/// The ways of reading that kernels use, or the given one.
pub fn draw(arguments: &Arguments) -> Drawing {
    let trans = arguments.trans;
    let loads = match arguments.order {
        Some(order) => vec![Load { order, trans }],
        None if trans => vec![Load::V],
        None => vec![Load::Q, Load::K, Load::V],
    };
    let title = "ldmatrix: which lane gives each address, and which lane receives each element";
    let drawing = Drawing::new(title, NOTES).legend_of_lanes();
    loads
        .into_iter()
        .fold(drawing, |drawing, load| load.draw(drawing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator::{Argument, Memory, Module, Options, launch};

    /// Reads from shared memory, which holds elements 0 to 255 in order, with each lane's address from
    /// `addresses`, and stores each lane's four registers.
    const PTX: &str = "
        .version 7.0
        .target sm_80
        .address_size 64
        .extern .shared .align 128 .b8 tile[];
        .visible .entry load(.param .u64 addresses, .param .u64 results)
        {
            .reg .b32 %r<12>;
            .reg .b64 %rd<6>;
            ld.param.u64 %rd1, [addresses];
            ld.param.u64 %rd2, [results];
            mov.u32 %r1, %tid.x;
            mov.u32 %r2, tile;
            shl.b32 %r3, %r1, 4;
            add.s32 %r3, %r2, %r3;
            mul.wide.u32 %rd3, %r1, 16;
            add.s64 %rd2, %rd2, %rd3;
            ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd2];
            st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
            bar.sync 0;
            mul.wide.u32 %rd4, %r1, 4;
            add.s64 %rd1, %rd1, %rd4;
            ld.global.u32 %r8, [%rd1];
            add.s32 %r8, %r2, %r8;
            INSTRUCTION.b16 {%r4, %r5, %r6, %r7}, [%r8];
            st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};
            ret;
        }";

    /// The numbers of the elements that the emulator's `ldmatrix` puts into each lane's registers.
    fn emulated(load: Load) -> Vec<u16> {
        let instruction = format!(
            "ldmatrix.sync.aligned.m8n8.x4{}.shared",
            if load.trans { ".trans" } else { "" }
        );
        let text = PTX.replace("INSTRUCTION", &instruction);
        let module = Module::parse(&text, "load.ptx").unwrap();
        let memory = Memory::new();
        let (addresses, results) = (memory.allocate(128), memory.allocate(512));
        let address = |lane| {
            let (row, chunk) = load.address(lane);
            32 * row + 16 * chunk
        };
        let bytes: Vec<u8> = (0..32).flat_map(|l| address(l).to_le_bytes()).collect();
        memory.write(addresses, &bytes).unwrap();
        let bytes: Vec<u8> = (0..256).flat_map(u16::to_le_bytes).collect();
        memory.write(results, &bytes).unwrap();
        let arguments = [Argument::U64(addresses), Argument::U64(results)];
        let entry = module.entry("load").unwrap();
        let options = Options::default();
        launch(
            &memory,
            entry,
            [1; 3],
            [32, 1, 1],
            512,
            &arguments,
            &options,
        )
        .unwrap();
        let mut bytes = [0; 512];
        memory.read(results, &mut bytes).unwrap();
        let pairs = bytes.chunks(2);
        pairs
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect()
    }

    #[test]
    fn is_what_the_emulator_does() {
        for load in [Load::Q, Load::K, Load::V, Load::new(Order::Chunks, true)] {
            let holders = load.holders();
            for (place, element) in emulated(load).into_iter().enumerate() {
                let (lane, register) = (place as u32 / 8, place as u32 / 2 % 4);
                let holder = holders[usize::from(element) / 16][usize::from(element) % 16];
                assert_eq!(holder, (lane, register), "{load:?}");
            }
        }
    }

    /// Lane 1 gets elements 2 and 3 of row 0 of the first matrix or, transposed, rows 2 and 3 of column 0. The
    /// second matrix lies below or beside the first: lanes from 8 on give its addresses.
    #[test]
    fn spot_values() {
        let at = |load: Load, row: usize, column: usize| load.holders()[row][column];
        assert_eq!([at(Load::Q, 0, 2), at(Load::Q, 0, 3)], [(1, 0); 2]);
        assert_eq!([at(Load::V, 2, 0), at(Load::V, 3, 0)], [(1, 0); 2]);
        assert_eq!(at(Load::Q, 8, 0), (0, 1));
        assert_eq!(at(Load::Q, 0, 8), (0, 2));
        assert_eq!(at(Load::K, 8, 0), (0, 2));
        assert_eq!(at(Load::K, 0, 8), (0, 1));
    }

    #[test]
    fn draws_what_is_asked_for() {
        let count = |order, trans| draw(&Arguments { order, trans }).rows.len() - 1;
        assert_eq!(count(None, false), 3);
        assert_eq!(count(None, true), 1);
        assert_eq!(count(Some(Order::Chunks), false), 1);
        assert_eq!(count(Some(Order::Chunks), true), 1);
    }
}
