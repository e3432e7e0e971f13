//! The scores of a [`Custom`] type.

use super::mask::call;
use super::{Custom, Pair};
use crate::abi::ForwardParams;
use crate::attention::SoftmaxScale;
use crate::attention::options::score::{Corner, Optional, Score, place};
use crate::attention::workload::sequence::{Sequence, Split};
use crate::ptx::{math, special};
use crate::tile::Accumulator;
use core::f32::consts::{LN_2, LOG2_E};

/// [`Optional`] scores, changed by a type: in base 2.
#[derive(Clone, Copy)]
pub struct CustomScore<C: Custom> {
    options: Optional,
    custom: C::Head<'static>,
    /// Turns what `options` gives into scores.
    factor: f32,
    /// `keys - queries`.
    offset: i32,
}

impl<C: Custom> Score for CustomScore<C> {
    const SCALED: bool = false;
    type Keys = <Optional as Score>::Keys;

    #[inline(always)]
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        let sequence = Sequence::new(params, batch);
        let options = Optional::new(params, batch, head);
        CustomScore {
            options,
            custom: C::new(&call(params, sequence), head),
            factor: LN_2 * options.scale().signed(),
            offset: sequence.keys as i32 - sequence.queries as i32,
        }
    }

    #[inline(always)]
    fn value_dim(params: &ForwardParams) -> u32 {
        Optional::value_dim(params)
    }

    #[inline(always)]
    fn scale(self) -> SoftmaxScale {
        SoftmaxScale {
            log2: 1.0,
            negative: false,
        }
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
        self.options.apply::<TRANSPOSED, MT, NT>(s, corner);
        for mt in 0..MT {
            for nt in 0..NT {
                let first = self.first::<TRANSPOSED>(corner.skip::<TRANSPOSED>(mt, nt));
                for i in 0..8 {
                    let score = self.factor * s[mt][nt].0[i];
                    let pair = further::<TRANSPOSED>(first, i);
                    s[mt][nt].0[i] = math::mul_rz(C::score(self.custom, score, pair), LOG2_E);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(self, corner: Corner, sizes: [u32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { self.options.prefetch(corner, sizes) }
    }

    #[inline(always)]
    fn adds_underived() -> bool {
        Optional::adds_underived()
    }

    #[inline(always)]
    fn apply_deriving(self, tile: &mut Accumulator, corner: Corner) -> Accumulator {
        let mut derivatives = self.options.apply_deriving(tile, corner);
        let first = self.first::<true>(corner);
        for i in 0..8 {
            let (score, pair) = (self.factor * tile.0[i], further::<true>(first, i));
            let derivative = derivatives.0[i] * C::derivative(self.custom, score, pair);
            // A NaN, which a hidden pair may have, becomes a number, for P is 0.
            derivatives.0[i] = derivative.max(f32::MIN);
            tile.0[i] = math::mul_rz(C::score(self.custom, score, pair), LOG2_E);
        }
        derivatives
    }
}

impl<C: Custom> CustomScore<C> {
    /// The pair of the lane's first element of the tile at a corner.
    #[inline(always)]
    fn first<const TRANSPOSED: bool>(&self, corner: Corner) -> Pair {
        let [query, key] = place::<TRANSPOSED>(special::lane(), 0);
        let query = corner.query + query as i32;
        // Keys of a corner count from its split's first one.
        let key = corner.key + self.offset - corner.diagonal + key as i32;
        Pair {
            query: query as u32,
            key: key as u32,
            distance: (query + self.offset - key) as f32,
        }
    }
}

/// The pair of element `i` of a lane whose first element is of a pair.
#[inline(always)]
fn further<const TRANSPOSED: bool>(first: Pair, i: usize) -> Pair {
    let [query, key] = place::<TRANSPOSED>(0, i as u32);
    Pair {
        query: first.query + query,
        key: first.key + key,
        distance: first.distance + (query as f32 - key as f32),
    }
}
