//! `cargo xtask layout causal`: the tiles that the causal mask leaves, and the order of the blocks.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};
use kernels::abi::{ForwardParams, Order};
use kernels::attention::options::mask::{Causal, Mask, seen_blocks, whole_blocks};
use kernels::attention::workload::sequence::Sequence;
use kernels::catalog::class::Class;
use kernels::catalog::{Kind, Loop, MaskKind, Tile};

/// Lengths of the drawn head.
#[derive(clap::Args)]
pub struct Arguments {
    /// Queries of a head
    #[arg(long, value_name = "N", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2048))]
    seqlen: u32,
    /// Keys of a head [default: seqlen]
    #[arg(long, value_name = "M")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2048))]
    seqlen_kv: Option<u32>,
}

const DIM: u32 = 64;

/// Heads of the drawn grid, and heads of a wave.
const HEADS: u32 = 8;
const WAVE: u32 = 4;

/// The colours of blocks that a query tile sees whole, and in part.
fn colors() -> [Color; 2] {
    [1, 2].map(|ways| Color::conflict(ways, 1))
}

/// The main kernel's work on one head.
struct Head {
    tile: Tile,
    params: ForwardParams,
}

impl Head {
    fn new(arguments: &Arguments) -> Self {
        let kind = Kind::of_head(Loop::Sm80, MaskKind::Causal);
        Head {
            tile: kind.tile(Class::Sm90, DIM).expect("a tile"),
            params: ForwardParams {
                seqlen_q: arguments.seqlen,
                seqlen_kv: arguments.seqlen_kv.unwrap_or(arguments.seqlen),
                ..ForwardParams::default()
            },
        }
    }

    fn tiles(&self) -> u32 {
        self.params.seqlen_q.div_ceil(self.tile.q_rows)
    }

    fn blocks(&self) -> u32 {
        self.params.seqlen_kv.div_ceil(self.tile.keys)
    }

    /// How many blocks of keys some query of a tile sees, and how many every query sees whole.
    fn seen(&self, tile: u32) -> (u32, u32) {
        let sequence = Sequence::new(&self.params, 0);
        let mask = Causal::new(&self.params, sequence, sequence.whole());
        let first = tile * self.tile.q_rows;
        let last = (first + self.tile.q_rows).min(self.params.seqlen_q) - 1;
        let ends = [first, last].map(|query| mask.keys(query as i32));
        let keys = self.tile.keys;
        (seen_blocks(ends, keys).end, whole_blocks(ends, keys).end)
    }

    fn rows(&self) -> Axis {
        Axis::new((0..self.tiles()).map(|tile| tile * self.tile.q_rows))
    }

    /// The blocks of keys in the order in which each query tile takes them.
    fn steps(&self) -> Panel {
        let keys = self.tile.keys;
        let firsts = (0..self.blocks()).map(|block| block * keys);
        let columns = Axis::new(firsts).titled([&*format!("first key of each {keys}")]);
        let title = "One head: steps of each query tile";
        Panel::new(title, "query", self.rows(), columns, |tile, block| {
            let [whole, part] = colors();
            match self.seen(tile) {
                (seen, _) if block >= seen => Cell::default(),
                (seen, end) => Cell::new(seen - block, "", if block < end { whole } else { part }),
            }
        })
    }

    /// The block that takes each query tile of each head.
    fn order(&self) -> Panel {
        let order = Order::new(HEADS, self.tiles(), [WAVE, 1]);
        let places = (0..order.blocks()).map(|block| order.place(block));
        let columns = Axis::new(0..HEADS).every(WAVE as usize);
        let columns = columns.titled(["first wave", "second wave"]);
        let title = "All heads: block, and its steps";
        Panel::new(
            title,
            "query \\ head",
            self.rows(),
            columns,
            |tile, head| {
                let block = places.clone().position(|place| place == (0, tile, head));
                let block = block.expect("every tile has a block") as u32;
                let steps = format!("{} steps", self.seen(tile).0);
                Cell::new(block, steps, Color::hue(block * 8 / order.blocks()))
            },
        )
    }
}

/// One head's steps beside the grid.
pub fn draw(arguments: &Arguments) -> Drawing {
    let head = Head::new(arguments);
    let Tile { q_rows, keys, .. } = head.tile;
    let notes = format!(
        "\
Tiles of {q_rows} queries and {keys} keys. Of N queries and M keys, query i sees keys up to i + M - N.
Left: the step at which a query tile takes each block of keys, the last seen first.
Blocks that no query of the tile sees are not loaded. Partly seen ones come first, with the mask;
the loop over the others knows no mask.
Right: blocks start in the order of their numbers. The tiles with the most steps come first, so that
the last to start are short. A colour is an eighth of the blocks, in this order. Heads come in waves
whose K and V fit the L2 cache."
    );
    let title = format!(
        "Causal mask: {} queries, {} keys, head dim {DIM}",
        head.params.seqlen_q, head.params.seqlen_kv
    );
    let names = ["whole", "in part"].map(str::to_owned);
    let legend = colors().into_iter().zip(names).collect();
    Drawing::new(title, &notes)
        .legend("what a query tile sees of a block of keys", legend)
        .below(head.steps())
        .beside(head.order())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seqlen: u32, seqlen_kv: u32) -> Head {
        let seqlen_kv = Some(seqlen_kv);
        Head::new(&Arguments { seqlen, seqlen_kv })
    }

    /// Compares with the mask's definition, pair by pair.
    #[test]
    fn tiles_see_what_the_mask_says() {
        for (seqlen, seqlen_kv) in [(300, 300), (200, 500), (500, 200)] {
            let head = head(seqlen, seqlen_kv);
            let Tile { q_rows, keys, .. } = head.tile;
            for tile in 0..head.tiles() {
                for block in 0..head.blocks() {
                    let queries = tile * q_rows..((tile + 1) * q_rows).min(seqlen);
                    let seen = queries.flat_map(|i| {
                        // A last block that ends beyond the last key needs masking.
                        let visible = move |j: &u32| j + seqlen <= i + seqlen_kv && *j < seqlen_kv;
                        (block * keys..(block + 1) * keys).map(move |j| visible(&j))
                    });
                    let seen: Vec<_> = seen.collect();
                    let expected = (seen.contains(&true), !seen.contains(&false));
                    let (some, whole) = head.seen(tile);
                    let found = (block < some, block < whole);
                    assert_eq!(found, expected, "{tile}, {block}");
                }
            }
        }
    }

    #[test]
    fn long_tiles_start_first() {
        let panel = head(1024, 1024).order();
        let [first, last] = [&panel.cells[7][..4], &panel.cells[0][4..]];
        let line = |cells: &[Cell], at: usize| -> Vec<_> {
            cells.iter().map(|cell| cell.lines[at].clone()).collect()
        };
        assert_eq!(line(first, 0), ["0", "1", "2", "3"]);
        assert_eq!(line(last, 0), ["60", "61", "62", "63"]);
        assert_eq!(line(first, 1), ["16 steps"; 4]);
        assert_eq!(line(last, 1), ["2 steps"; 4]);
    }
}
