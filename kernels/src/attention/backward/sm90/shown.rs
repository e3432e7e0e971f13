//! Pairs that see each other, where a boolean mask says so: read once for a step's S and dP.

use crate::attention::backward::job::below;
use crate::attention::options::mask::Interval;
use crate::layout::fragment;
use crate::ptx::special;
use crate::tile::Accumulator;

/// Which elements of a step's tiles have a pair that sees each other.
#[derive(Clone, Copy, Default)]
pub struct Shown<I> {
    /// The queries of the step that see the lane's two keys.
    queries: [I; 2],
    /// A bit for each element of the lane, where queries may be missing between.
    bits: [u32; 2],
}

impl<I: Interval> Shown<I> {
    /// The elements of a lane, whose two keys are seen by `queries` of the step.
    #[inline(always)]
    pub fn new<const NT: usize>(queries: [I; 2]) -> Self {
        let mut bits = [0; 2];
        if I::may_have_gaps() {
            let (upper, lower) = (
                of_key::<I, NT, 0>(queries[0]),
                of_key::<I, NT, 1>(queries[1]),
            );
            bits = [upper[0] | lower[0], upper[1] | lower[1]];
        }
        Shown { queries, bits }
    }

    /// Puts 0 into the others of tile `nt`.
    #[inline(always)]
    pub fn zero_hidden(self, tile: &mut Accumulator, nt: usize) {
        if !I::may_have_gaps() {
            return tile.zero_columns(special::lane(), below(self.queries, nt));
        }
        for i in 0..8 {
            if self.bits[nt / 4] >> (8 * (nt % 4) + i) & 1 == 0 {
                tile.0[i] = 0.0;
            }
        }
    }
}

/// The bits of one of a lane's two keys, which `queries` of the step see.
#[inline(always)]
fn of_key<I: Interval, const NT: usize, const KEY: usize>(queries: I) -> [u32; 2] {
    let mut bits = [0; 2];
    // A key that does not exist has nothing to load.
    if queries.start() < queries.end() {
        let (_, first) = fragment::accumulator(special::lane(), 0);
        let queries = queries.counted_from(first as i32);
        for nt in 0..NT {
            for half in 0..2 {
                for column in 0..2 {
                    let number = 16 * nt + 8 * half + column;
                    if queries.contains_by_load(number as i32) {
                        bits[nt / 4] |= 1 << (8 * (nt % 4) + 4 * half + 2 * KEY + column);
                    }
                }
            }
        }
    }
    bits
}
