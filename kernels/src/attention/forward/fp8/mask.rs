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
pub fn mask<const NT: usize>(s: &mut [HalfAccumulator; NT], keys: [impl Interval; 2]) {
    let lane_first = fragment::accumulator(special::lane(), 0).1 as i32;
    let most = 16 * NT as i32 + 1;
    let edge = |key: i32| between(key.max(0).min(most) as u32);
    for r in 0..2 {
        let keys = keys[r].counted_from(lane_first);
        let (start, end) = (edge(keys.start()), edge(keys.end()));
        for nt in 0..NT {
            for side in 0..2 {
                let i = 2 * side + r;
                let column = (16 * nt + 8 * side) as u32;
                let columns = between(column) + 0x0001_0001 + 0x0002_0000;
                let mut inside = half::sub(end, columns);
                if has_start(&keys) {
                    inside = half::min(inside, half::sub(columns, start));
                }
                let score = &mut s[nt].0[i];
                *score = half::min(*score, half::mul(inside, INFINITY));
            }
        }
    }
}

#[inline(always)]
fn has_start<I: Interval>(_: &I) -> bool {
    I::HAS_START
}

/// `512 + column - 1/2` in both halves, in f16: its unit is 1/2 there.
#[inline(always)]
const fn between(column: u32) -> u32 {
    (0x6000 + 2 * column - 1) * 0x0001_0001
}
