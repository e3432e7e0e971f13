//! Scores of rows that are queries of several heads, with keys of e4m3.

use super::group_score::GroupScore;
use super::score::{Corner, Score};
use crate::abi::ForwardParams;
use crate::attention::SoftmaxScale;
use crate::attention::workload::descales::Descales;
use crate::attention::workload::sequence::Split;
use crate::tile::Accumulator;

/// [`GroupScore`] of keys that are multiplied by descales. That of a head is a factor of the scale.
#[derive(Clone, Copy)]
pub struct CacheScore {
    score: GroupScore,
    /// None if all are 1.
    descales: Option<Descales>,
}

impl CacheScore {
    /// The scores of a batch entry's heads from `head` on.
    #[inline(always)]
    pub fn with(params: &ForwardParams, batch: u32, head: u32, descales: Descales) -> Self {
        // Finite: times 0 it is 0.
        let scale = params.scale * descales.of_head();
        let scale = scale.max(f32::MIN).min(f32::MAX);
        CacheScore {
            score: GroupScore::with_scale(params, batch, head, scale),
            descales: Some(descales),
        }
    }
}

impl Score for CacheScore {
    const SCALED: bool = false;
    const HAS_UNITS: bool = true;
    type Keys = <GroupScore as Score>::Keys;

    /// The scores of keys that are what their numbers say.
    #[inline(always)]
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        CacheScore {
            score: GroupScore::new(params, batch, head),
            descales: None,
        }
    }

    #[inline(always)]
    fn value_dim(params: &ForwardParams) -> u32 {
        GroupScore::value_dim(params)
    }

    #[inline(always)]
    fn scale(self) -> SoftmaxScale {
        self.score.scale()
    }

    #[inline(always)]
    fn sink(params: &ForwardParams, split: Split, head: u32) -> f32 {
        GroupScore::sink(params, split, head)
    }

    #[inline(always)]
    fn apply<const TRANSPOSED: bool, const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
    ) {
        let of_pages = self.descales.filter(|descales| descales.of_pages());
        if let Some(descales) = of_pages {
            let descales = descales.of_slices::<NT>(corner.key as u32);
            for nt in 0..NT {
                for mt in 0..MT {
                    s[mt][nt].scale_rows([descales[nt]; 2]);
                }
            }
        }
        self.score.apply::<TRANSPOSED, MT, NT>(s, corner);
    }

    #[inline(always)]
    fn apply_deriving(self, tile: &mut Accumulator, corner: Corner) -> Accumulator {
        self.score.apply_deriving(tile, corner)
    }
}
