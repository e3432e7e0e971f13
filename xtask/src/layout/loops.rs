//! `cargo xtask layout loops`: the order in which `fa1` and `split-q` go through the tiles of a head.

use super::color::Color;
use super::drawing::{Cell, Drawing, Group, Note, Panel, Slot};
use kernels::catalog::Tile;
use ladder::catalog::named;

/// Head dim of the drawn head, and its queries and keys.
const DIM: u32 = 128;
const SEQLEN: u32 = 512;

/// Bytes of an element of Q, K, V and O, and of a partial O, m or l.
const HALF: u32 = 2;
const SINGLE: u32 = 4;

/// A query tile that meets a block of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meeting {
    tile: u32,
    keys: u32,
    /// Meetings of one step happen at the same time, in different thread blocks.
    step: u32,
}

/// The parts of the traffic from and to global memory.
const PARTS: [&str; 3] = ["Q", "K and V", "O, m and l"];

/// Two loops around the products.
#[derive(Clone, Copy)]
struct Loops {
    tile: Tile,
    /// Whether the outer loop is over keys.
    keys_outside: bool,
}

/// The tile of a kernel of the ladder.
fn tile_of(kernel: &str) -> Tile {
    named(kernel).expect("in the catalog").shape.tile()
}

impl Loops {
    fn fa1() -> Self {
        Loops {
            tile: tile_of("fa1_f16_d128"),
            keys_outside: true,
        }
    }

    fn split_q() -> Self {
        Loops {
            tile: tile_of("split_q_f16_d128"),
            keys_outside: false,
        }
    }

    /// Query tiles, and blocks of keys.
    fn counts(self) -> (u32, u32) {
        (SEQLEN / self.tile.q_rows, SEQLEN / self.tile.keys)
    }

    /// Every meeting, in the order of each thread block. `fa1` has one thread block for the head. `split-q` has one
    /// for each query tile, and takes the last keys first.
    fn meetings(self) -> Vec<Meeting> {
        let (tiles, blocks) = self.counts();
        if self.keys_outside {
            let pairs = (0..blocks).flat_map(|keys| (0..tiles).map(move |tile| (tile, keys)));
            let meetings = pairs.zip(1..);
            meetings
                .map(|((tile, keys), step)| Meeting { tile, keys, step })
                .collect()
        } else {
            let pairs = (0..tiles).flat_map(|tile| (0..blocks).map(move |keys| (tile, keys)));
            pairs
                .map(|(tile, keys)| Meeting {
                    tile,
                    keys,
                    step: blocks - keys,
                })
                .collect()
        }
    }

    /// Bytes of each of the [`PARTS`]. What stays on chip from one meeting to the next is not loaded again. An O
    /// that must leave before its last keys leaves as f32, beside m and l, and comes back.
    fn traffic(self) -> [u32; 3] {
        let (_, blocks) = self.counts();
        let Tile { q_rows, keys, .. } = self.tile;
        let [mut q, mut kv, mut o] = [0; 3];
        let mut last: Option<Meeting> = None;
        for meeting in self.meetings() {
            if last.is_none_or(|last| last.tile != meeting.tile) {
                q += q_rows * DIM * HALF;
            }
            if last.is_none_or(|last| last.keys != meeting.keys) {
                kv += 2 * keys * DIM * HALF;
            }
            if self.keys_outside {
                let times = if meeting.keys == 0 { 1 } else { 2 };
                o += times * q_rows * (DIM + 2) * SINGLE;
            } else if meeting.step == blocks {
                o += q_rows * DIM * HALF;
            }
            last = Some(meeting);
        }
        [q, kv, o]
    }

    /// The meetings, in the colours of what stays on chip.
    fn panel(self, title: &str) -> Panel {
        let (tiles, blocks) = self.counts();
        let meetings = self.meetings();
        let range = |i: u32, size: u32| format!("{}-{}", i * size, (i + 1) * size - 1);
        let rows = Group::new("", (0..tiles).map(|tile| range(tile, self.tile.q_rows)));
        let columns = Group::new(&format!("blocks of {} keys", self.tile.keys), 0..blocks);
        Panel::new(title, "queries", vec![rows], vec![columns], |tile, keys| {
            let met = meetings.iter().find(|m| (m.tile, m.keys) == (tile, keys));
            let step = met.expect("every tile meets every block of keys").step;
            let stays = if self.keys_outside { keys } else { tile };
            Cell::new(step, "", Color::hue(stays))
        })
    }
}

/// Both orders, and what each moves.
pub fn draw() -> Drawing {
    let loops = [("fa1", Loops::fa1()), ("split-q", Loops::split_q())];
    let traffic = loops.map(|(_, loops)| loops.traffic());
    let table = Panel::new(
        "Global memory, read and written, in KB",
        "",
        vec![Group::new("", PARTS)],
        vec![Group::new("", loops.map(|(name, _)| name))],
        |part, column| {
            let of = |traffic: &[u32; 3]| traffic[part as usize];
            let least = traffic.iter().map(of).min().expect("two of them");
            let bytes = of(&traffic[column as usize]);
            Cell::new(
                bytes / 1024,
                "",
                Color::conflict(bytes.into(), least.into()),
            )
        },
    );
    let notes = [
        "A number says when a query tile meets a block of keys. What stays on chip keeps its colour.",
        "Left, the outer loop is over keys: K and V stay, queries pass. When a tile comes back, its O,",
        "m and l come back from global memory, too. One thread block has the head to itself.",
        "Right, the outer loop is over queries: Q, O, m and l stay, keys pass, the last first. Each row",
        "is a thread block of its own, so all rows run at the same time.",
    ];
    Drawing {
        title: format!("Two loop orders: one head, {SEQLEN} queries and keys, head dim {DIM}"),
        rows: vec![
            vec![Slot::Notes(Note::lines(notes)), Slot::Panel(table)],
            vec![
                Slot::Panel(loops[0].1.panel("fa1: keys outside, queries inside")),
                Slot::Panel(loops[1].1.panel("split-q: queries outside, keys inside")),
            ],
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_fa1_is_alone() {
        let steps: Vec<_> = Loops::fa1().meetings().iter().map(|m| m.step).collect();
        assert_eq!(steps, (1..=8 * 16).collect::<Vec<_>>());
        let split_q = Loops::split_q().meetings();
        let first: Vec<_> = split_q.iter().filter(|m| m.step == 1).collect();
        assert!(
            first.len() == 4 && first.iter().all(|m| m.keys == 15),
            "{first:?}"
        );
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
