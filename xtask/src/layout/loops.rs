//! `cargo xtask layout loops`: the order in which `fa1` and `split-q` go through the tiles of a head.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use kernels::catalog::Tile;
use ladder::catalog::named;

/// Head dim of the drawn head, and its queries and keys.
const DIM: u32 = 128;
const SEQLEN: u32 = 512;

/// Bytes of an element of Q, K, V and O, and of a partial O, m or l.
const HALF: u32 = 2;
const SINGLE: u32 = 4;

/// Two loops around the products.
#[derive(Clone, Copy)]
struct Loops {
    tile: Tile,
    /// Whether the outer loop is over keys.
    keys_outside: bool,
}

impl Loops {
    fn new(kernel: &str, keys_outside: bool) -> Self {
        let tile = named(kernel).expect("in the catalog").shape.tile();
        Loops { tile, keys_outside }
    }

    fn fa1() -> Self {
        Self::new("fa1_f16_d128", true)
    }

    fn split_q() -> Self {
        Self::new("split_q_f16_d128", false)
    }

    /// Query tiles, and blocks of keys.
    fn counts(self) -> (u32, u32) {
        (SEQLEN / self.tile.q_rows, SEQLEN / self.tile.keys)
    }

    /// When a query tile meets a block of keys, from 1 on. `fa1` has one thread block for the head. `split-q` has one
    /// for each query tile, all at the same time, and takes the last keys first.
    fn step(self, tile: u32, block: u32) -> u32 {
        let (tiles, blocks) = self.counts();
        match self.keys_outside {
            true => block * tiles + tile + 1,
            false => blocks - block,
        }
    }

    /// Bytes from and to global memory of Q; K and V; O, m and l. What the outer loop is over is loaded once, the
    /// rest in each of its steps. An O that must leave before its last keys leaves as f32, beside m and l, and
    /// comes back.
    fn traffic(self) -> [u32; 3] {
        let (tiles, blocks) = self.counts();
        let matrix = SEQLEN * DIM * HALF;
        if self.keys_outside {
            let partial = SEQLEN * (DIM + 2) * SINGLE;
            [blocks * matrix, 2 * matrix, (2 * blocks - 1) * partial]
        } else {
            [matrix, tiles * 2 * matrix, matrix]
        }
    }

    /// The steps, in the colours of what stays on chip.
    fn panel(self, title: &str) -> Panel {
        let (tiles, blocks) = self.counts();
        let range = |i: u32, size: u32| format!("{}-{}", i * size, (i + 1) * size - 1);
        let rows = Axis::new((0..tiles).map(|tile| range(tile, self.tile.q_rows)));
        let unit = format!("blocks of {} keys", self.tile.keys);
        let columns = Axis::new(0..blocks).titled([&unit]);
        Panel::new(title, "queries", rows, columns, |tile, block| {
            let stays = if self.keys_outside { block } else { tile };
            Cell::new(self.step(tile, block), "", Color::hue(stays))
        })
    }
}

const NOTES: &str = "\
A number says when a query tile meets a block of keys. What stays on chip keeps its colour.
Left, the outer loop is over keys: K and V stay, queries pass. When a tile comes back, its O,
m and l come back from global memory, too. One thread block has the head to itself.
Right, the outer loop is over queries: Q, O, m and l stay, keys pass, the last first. Each row
is a thread block of its own, so all rows run at the same time.
";

/// Both orders, and what each moves.
pub fn draw() -> Drawing {
    let (fa1, split_q) = (Loops::fa1(), Loops::split_q());
    let traffic = [fa1, split_q].map(Loops::traffic);
    let table = Panel::new(
        "Global memory, read and written, in KB",
        "",
        Axis::new(["Q", "K and V", "O, m and l"]),
        Axis::new(["fa1", "split-q"]),
        |part, column| {
            let bytes = traffic.map(|traffic| traffic[part as usize]);
            let (bytes, least) = (bytes[column as usize], bytes[0].min(bytes[1]));
            let color = Color::conflict(bytes.into(), least.into());
            Cell::new(bytes / 1024, "", color)
        },
    );
    let title = format!("Two loop orders: one head, {SEQLEN} queries and keys, head dim {DIM}");
    Drawing::new(title, NOTES)
        .beside(table)
        .below(fa1.panel("fa1: keys outside, queries inside"))
        .beside(split_q.panel("split-q: queries outside, keys inside"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_fa1_is_alone() {
        let (tiles, blocks) = Loops::fa1().counts();
        let pairs = (0..blocks).flat_map(|block| (0..tiles).map(move |tile| (tile, block)));
        let steps: Vec<_> = pairs
            .map(|(tile, block)| Loops::fa1().step(tile, block))
            .collect();
        assert_eq!(steps, (1..=8 * 16).collect::<Vec<_>>());
        let split_q = Loops::split_q();
        let firsts = [0, 1, 2, 3].map(|tile| split_q.step(tile, 15));
        assert_eq!((split_q.counts(), firsts), ((4, 16), [1; 4]));
    }

    /// Computed by hand. `fa1`: 16 blocks of keys meet 512 queries of 256 bytes, with O, m and l in f32; the first
    /// block loads no O. `split-q`: four query tiles meet all keys.
    #[test]
    fn traffic_is_counted() {
        let (q, kv, o) = (16 * 512 * 256, 2 * 512 * 256, 31 * 512 * (512 + 8));
        assert_eq!(Loops::fa1().traffic(), [q, kv, o]);
        let (q, kv, o) = (512 * 256, 4 * 2 * 512 * 256, 512 * 256);
        assert_eq!(Loops::split_q().traffic(), [q, kv, o]);
    }
}
