//! Masks of scores in f16, two at a time.

use crate::attention::options::mask::Interval;
use crate::layout::fragment;
use crate::ptx::{half, special};
use crate::tile::HalfAccumulator;

/// +inf in both halves of a register.
const INFINITY: u32 = 0x7c00_7c00;

/// Puts -inf in the place of scores that the lane's two rows, which see these keys of the block, do not see. A NaN that is seen becomes +inf.
///
/// Three instructions for two scores: how far the column is inside, in halves of columns; that times infinity; the smaller one of it and the
/// score. Comparisons and selections take six.
#[inline(always)]
pub fn mask<I: Interval, const NT: usize>(s: &mut [HalfAccumulator; NT], keys: [I; 2]) {
    let lane_first = fragment::accumulator(special::lane(), 0).1 as i32;
    let most = 16 * NT as i32 + 1;
    let edge = |key: i32| before(key.max(0).min(most) as u32);
    for r in 0..2 {
        let keys = keys[r].counted_from(lane_first);
        let (start, end) = (edge(keys.start()), edge(keys.end()));
        for nt in 0..NT {
            for side in 0..2 {
                let columns = pair((16 * nt + 8 * side) as u32);
                let mut inside = half::sub(end, columns);
                if I::HAS_START {
                    inside = half::min(inside, half::sub(columns, start));
                }
                let score = &mut s[nt].0[2 * side + r];
                *score = half::min(*score, half::mul(inside, INFINITY));
            }
        }
    }
}

/// 512 in f16, whose unit is 1/2 from there on: columns are counted from it.
const FIRST: u32 = 0x6000;

/// A column and the next one.
#[inline(always)]
const fn pair(column: u32) -> u32 {
    (FIRST + 2 * column) * 0x0001_0001 + 0x0002_0000
}

/// The place before a column, between it and the one before, in both halves.
#[inline(always)]
const fn before(column: u32) -> u32 {
    (FIRST + 2 * column - 1) * 0x0001_0001
}
