//! Pairs that see each other, where a boolean mask says so: read once for a step's S and dP.

use crate::attention::backward::job::below;
use crate::attention::mask::Interval;
use crate::layout::fragment;
use crate::ptx::special;
use crate::tile::Accumulator;
use crate::tile::registers::opaque;

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
        if queries[0].has_gaps() {
            let (_, first) = fragment::accumulator(special::lane(), 0);
            let [upper, lower] = queries;
            let queries = [
                upper.counted_from(first as i32),
                lower.counted_from(first as i32),
            ];
            for nt in 0..NT {
                for i in 0..8 {
                    let (_, column) = fragment::accumulator(0, i as u32);
                    if queries[i / 2 % 2].contains((16 * nt as u32 + column) as i32) {
                        bits[nt / 4] |= 1 << (8 * (nt % 4) + i);
                    }
                }
            }
            // Opaque: bits, and not a register for each element.
            bits = [opaque(bits[0]), opaque(bits[1])];
        }
        Shown { queries, bits }
    }

    /// Puts 0 into the others of tile `nt`.
    #[inline(always)]
    pub fn zero_hidden(self, tile: &mut Accumulator, nt: usize) {
        if !self.queries[0].has_gaps() {
            return tile.zero_columns(special::lane(), below(self.queries, nt));
        }
        for i in 0..8 {
            if self.bits[nt / 4] >> (8 * (nt % 4) + i) & 1 == 0 {
                tile.0[i] = 0.0;
            }
        }
    }
}
