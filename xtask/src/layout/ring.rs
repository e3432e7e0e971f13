//! `cargo xtask layout ring`: the tile in each buffer of a ring over time.

use super::color::Color;
use super::drawing::{Cell, Drawing, Group, Note, Panel, Slot};

/// Drawn blocks of keys. The stream's tiles are K and V of each block, the last block first.
const BLOCKS: u32 = 4;
const TILES: u32 = 2 * BLOCKS;

/// The name of the stream's tile `tile`.
fn name(tile: u32) -> String {
    let matrix = if tile.is_multiple_of(2) { "K" } else { "V" };
    format!("{matrix}{}", BLOCKS - 1 - tile / 2)
}

/// What a buffer is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Loads(u32),
    Used(u32),
}

/// The states of `buffers` buffers at each time between two barriers.
///
/// The kernels' rule: `buffers - 1` tiles load ahead. Then for each tile: wait for its copies; a barrier; start to
/// load into the buffer of the tile before; use the tile. A single buffer cannot load ahead: a second barrier
/// separates loading and use.
fn timeline(buffers: u32) -> Vec<Vec<State>> {
    let ahead = buffers - 1;
    let mut now = vec![State::Free; buffers as usize];
    let mut times = Vec::new();
    let load = |now: &mut [State], tile: u32| {
        if tile < TILES {
            now[(tile % buffers) as usize] = State::Loads(tile);
        }
    };
    (0..ahead).for_each(|tile| load(&mut now, tile));
    for tile in 0..TILES {
        if ahead > 0 || tile > 0 {
            times.push(now.clone());
        }
        // The barrier: all warps are done with the tile before.
        if let Some(before) = tile.checked_sub(1) {
            now[(before % buffers) as usize] = State::Free;
        }
        load(&mut now, tile + ahead);
        if ahead == 0 {
            times.push(now.clone());
        }
        now[(tile % buffers) as usize] = State::Used(tile);
    }
    times.push(now);
    times
}

fn panel(title: &str, buffers: u32) -> Panel {
    let times = timeline(buffers);
    let columns = Group::new("between barriers", 0..times.len());
    Panel::new(
        title,
        "buffer",
        Group::numbers(buffers, buffers),
        vec![columns],
        |buffer, time| match times[time as usize][buffer as usize] {
            State::Free => Cell::unused(),
            State::Loads(tile) => Cell::new(name(tile), "loads", Color::pale_hue(tile / 2)),
            State::Used(tile) => Cell::new(name(tile), "used", Color::hue(tile / 2)),
        },
    )
}

/// Rings of several sizes.
pub fn draw() -> Drawing {
    let notes = [
        "K and V of each block of keys pass through a ring of buffers, the last block first. Each column is",
        "the time between two barriers: one tile is used, the others load or wait. A hue is a block of keys.",
        "At a barrier every warp is done with the tile before, so its buffer may be filled again.",
    ];
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
    let mut rows = vec![vec![Slot::Notes(Note::lines(notes))]];
    rows.extend(rings.map(|(title, buffers)| vec![Slot::Panel(panel(title, buffers))]));
    Drawing {
        title: "The ring of buffers over time".to_owned(),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_loads_before_it_is_used_and_stays_until_then() {
        for buffers in 1..=6 {
            let times = timeline(buffers);
            let when = |state: State| {
                let at = times
                    .iter()
                    .enumerate()
                    .filter(|(_, now)| now.contains(&state));
                at.map(|(time, _)| time).collect::<Vec<_>>()
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
        assert_eq!(timeline(1).len(), 2 * TILES as usize);
        assert_eq!(timeline(2).len(), TILES as usize + 1);
        assert_eq!([name(0), name(1), name(7)], ["K3", "V3", "V0"]);
    }
}
