//! `cargo xtask layout ring`: the tile in each buffer of a ring over time.

use super::color::Color;
use super::drawing::{Axis, Cell, Drawing, Panel};

/// Drawn blocks of keys. The stream's tiles are K and V of each block, the last block first.
const BLOCKS: u32 = 4;
const TILES: u32 = 2 * BLOCKS;

/// The name of the stream's tile `tile`.
fn name(tile: u32) -> String {
    let matrix = if tile.is_multiple_of(2) { "K" } else { "V" };
    format!("{matrix}{}", BLOCKS - 1 - tile / 2)
}

/// The state of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Loads(u32),
    Used(u32),
}

/// The number of times between two barriers.
fn times(buffers: u32) -> u32 {
    if buffers == 1 { 2 * TILES } else { TILES + 1 }
}

/// The state of one of `buffers` buffers at a time between two barriers.
///
/// The kernels' rule: `buffers - 1` tiles load ahead. Then for each tile: wait for its copies; a barrier; start to
/// load into the buffer of the tile before; use the tile. A single buffer cannot load ahead: a second barrier
/// separates loading and use.
fn state(buffers: u32, buffer: u32, time: u32) -> State {
    if buffers == 1 {
        let state = if time.is_multiple_of(2) {
            State::Loads
        } else {
            State::Used
        };
        return state(time / 2);
    }
    // The tile before `time` is used, and the `buffers - 1` tiles from `time` on load.
    let loading = (time..time + buffers - 1).find(|tile| tile % buffers == buffer);
    match (loading, time) {
        (Some(tile), _) if tile < TILES => State::Loads(tile),
        (Some(_), _) | (None, 0) => State::Free,
        (None, _) => State::Used(time - 1),
    }
}

fn panel(title: &str, buffers: u32) -> Panel {
    let rows = Axis::new(0..buffers);
    let columns = Axis::new(0..times(buffers)).titled(["between barriers"]);
    Panel::new(title, "buffer", rows, columns, |buffer, time| {
        match state(buffers, buffer, time) {
            State::Free => Cell::default(),
            State::Loads(tile) => Cell::new(name(tile), "loads", Color::pale_hue(tile / 2)),
            State::Used(tile) => Cell::new(name(tile), "used", Color::hue(tile / 2)),
        }
    })
}

const NOTES: &str = "\
K and V of each block of keys pass through a ring of buffers, the last block first. Each column is
the time between two barriers: one tile is used, the others load or wait. A hue is a block of keys.
At a barrier every warp is done with the tile before, so its buffer may be filled again.
";

/// Rings of several sizes.
pub fn draw() -> Drawing {
    let rings = [
        ("split-q, two stages: K and V have two buffers each", 4),
        (
            "split-q, one stage: one of K's and V's buffers loads while the other is used",
            2,
        ),
        ("shared-kv, three stages: a buffer is now K's, now V's", 3),
        (
            "shared-kv, one stage: nothing loads ahead, and every tile takes two barriers",
            1,
        ),
    ];
    let drawing = Drawing::new("The ring of buffers over time", NOTES);
    rings
        .into_iter()
        .fold(drawing, |drawing, (title, buffers)| {
            drawing.below(panel(title, buffers))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_loads_before_it_is_used_and_stays_until_then() {
        for buffers in 1..=6 {
            let when = |wanted: State| {
                let at = |time| (0..buffers).any(|buffer| state(buffers, buffer, time) == wanted);
                (0..times(buffers))
                    .filter(|time| at(*time))
                    .collect::<Vec<_>>()
            };
            let mut before = None;
            for tile in 0..TILES {
                let (loads, used) = (when(State::Loads(tile)), when(State::Used(tile)));
                assert_eq!(used.len(), 1, "{buffers} buffers, tile {tile}");
                assert!(!loads.is_empty() && loads.iter().is_sorted(), "{tile}");
                assert_eq!(loads.last().map(|time| time + 1), Some(used[0]), "{tile}");
                assert!(before < Some(used[0]), "tiles are used in their order");
                before = Some(used[0]);
            }
        }
    }

    #[test]
    fn one_buffer_takes_twice_the_time() {
        assert_eq!([times(1), times(2)], [2 * TILES, TILES + 1]);
        assert_eq!([name(0), name(1), name(7)], ["K3", "V3", "V0"]);
    }
}
