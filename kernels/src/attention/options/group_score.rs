//! Scores of rows that are queries of several heads.

use super::ranges::load_range;
use super::score::{ALIBI_ROWS, Corner, Optional, Score, slope_at};
use crate::abi::{Divisor, ForwardParams};
use crate::attention::SoftmaxScale;
use crate::attention::workload::lengths;
use crate::attention::workload::sequence::Split;
use crate::layout::fragment;
use crate::ptx::{math, special, switch};
use crate::tile::Accumulator;

/// [`Optional`] scores without a bias, of a tile whose row `r` is query `r / group` of the group's head `r % group`: each row has the
/// slope of its head.
#[derive(Clone, Copy)]
pub struct GroupScore {
    options: Optional,
    group: Divisor,
    /// Address of the first head's slope, or of those of its queries; 0 without slopes.
    slopes: u64,
    /// Bytes to the next head's.
    head_bytes: i64,
    queries: i32,
    /// Keys of a batch entry less its queries.
    offset: i32,
    /// Keys of the entry's sequence less its queries, where slopes and lengths ask for it.
    own_offset: i32,
    ranges: u64,
}

impl Score for GroupScore {
    const SCALED: bool = false;
    const HAS_UNITS: bool = true;
    type Keys = <Optional as Score>::Keys;

    /// The scores of the heads from `head` on.
    #[inline(always)]
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        Self::with_scale(params, batch, head, params.scale)
    }

    #[inline(always)]
    fn value_dim(params: &ForwardParams) -> u32 {
        Optional::value_dim(params)
    }

    #[inline(always)]
    fn scale(self) -> SoftmaxScale {
        self.options.scale()
    }

    #[inline(always)]
    fn sink(params: &ForwardParams, split: Split, head: u32) -> f32 {
        Optional::sink(params, split, head)
    }

    #[inline(always)]
    fn apply<const TRANSPOSED: bool, const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
    ) {
        self.options.cap(s);
        if switch::alibi() == 0 {
            return;
        }
        let (row, column) = fragment::accumulator(special::lane(), 0);
        for mt in 0..MT {
            let row = corner.query + 16 * mt as i32 + row as i32;
            let rows = [row, row + 8].map(|row| self.slope_and_place(row, corner.diagonal));
            for nt in 0..NT {
                let tile = &mut s[mt][nt];
                self.options.scale_to_base2(tile);
                let key = corner.key + 16 * nt as i32 + column as i32;
                for i in 0..8 {
                    let (half, of_tile) = fragment::accumulator(0, i as u32);
                    let (slope, place) = rows[half as usize / 8];
                    let distance = ((place - key) as f32 - of_tile as f32).abs();
                    tile.0[i] = math::fma_rz(-slope, distance, tile.0[i]);
                }
            }
        }
    }

    /// Gradients have kernels for rows of one head.
    #[inline(always)]
    fn apply_deriving(self, tile: &mut Accumulator, corner: Corner) -> Accumulator {
        self.options.apply_deriving(tile, corner)
    }
}

impl GroupScore {
    /// The scores of the heads from `head` on, with another scale.
    #[inline(always)]
    pub fn with_scale(params: &ForwardParams, batch: u32, head: u32, scale: f32) -> Self {
        let options = Optional::with_scale(params, batch, head, scale);
        let mut own_offset = 0;
        if switch::lengths() && switch::alibi() != 0 {
            // SAFETY: the switch is on.
            let [queries, keys] = unsafe { lengths::of_options(params, batch) };
            own_offset = keys[1] - queries[1];
        }
        GroupScore {
            own_offset,
            group: params.group,
            slopes: options.slopes(),
            head_bytes: 4 * params.options.alibi_head,
            queries: params.seqlen_q as i32,
            offset: params.seqlen_kv as i32 - params.seqlen_q as i32,
            ranges: options.ranges(),
            options,
        }
    }

    /// The slope of a row, and the key of the split that its query is aligned with.
    #[inline(always)]
    fn slope_and_place(self, row: i32, diagonal: i32) -> (f32, i32) {
        let (query, head) = self.group.divide(row as u32);
        let query = query as i32;
        let mut place = query + diagonal;
        if switch::ranges() {
            // SAFETY: a launch with ranges has one for each query.
            let [.., offset, _] = unsafe { load_range(self.ranges, self.queries, query) };
            place += offset as i32 - self.offset;
        }
        if switch::lengths() {
            place += self.own_offset - self.offset;
        }
        // The switch is on for a far scale alone.
        if self.slopes == 0 {
            return (0.0, place);
        }
        let mut slope = self
            .slopes
            .wrapping_add_signed(i64::from(head as i32) * self.head_bytes);
        if switch::alibi() == ALIBI_ROWS {
            slope += 4 * query.max(0).min(self.queries - 1) as u64;
        }
        // SAFETY: a launch with slopes has one for each head, or for each query of each head.
        (unsafe { slope_at(slope) }, place)
    }
}
