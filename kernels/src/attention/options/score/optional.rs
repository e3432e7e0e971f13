//! Scores with the options of a call.

use super::added::{BIAS_F32, has_bias, slope_at};
use super::{Corner, Score, gradients};
use crate::abi::{BackwardParams, ForwardParams, KeyRange, Switch};
use crate::attention::SoftmaxScale;
use crate::attention::options::pairs::Pairs;
use crate::attention::workload::key_rows::PageRows;
use crate::attention::workload::sequence::Split;
use crate::ptx::{global, math, switch};
use crate::tile::registers::opaque_in;
use crate::tile::{Accumulator, Operand};
use core::f32::consts::LOG2_E;

/// Scores with the [options](crate::abi::Options) of a call. What is [switched](crate::abi::Switch) off costs nothing.
///
/// With ALiBi or a bias they are in base 2. Else the softmax multiplies by what is left, as it does with [`Scaled`].
///
/// Scores in base 2 are rounded towards 0, so that what is finite stays finite: a bias of the lowest f32, times `log2(e)`, is
/// again the lowest, and hides no key.
#[derive(Clone, Copy)]
pub struct Optional {
    /// Multiplies products, for the exponential that makes `tanh`: `2 log2(e) scale / softcap`.
    factor: f32,
    /// Multiplies `tanh` or, without softcap, products: a score in base 2.
    base2: f32,
    /// ALiBi's slope, in base 2.
    pub(super) slope: f32,
    /// Address of the head's slope, or of those of its queries.
    pub(super) slopes: u64,
    scale: SoftmaxScale,
    pub(super) queries: i32,
    pub(super) keys: i32,
    /// Address of the batch entry's [ranges](crate::abi::Options::key_ranges).
    pub(super) ranges: u64,
    pub(super) bias: Pairs,
}

impl Score for Optional {
    const SCALED: bool = false;
    type Keys = PageRows;

    #[inline(always)]
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        Self::with_scale(params, batch, head, params.scale)
    }

    #[inline(always)]
    fn value_dim(params: &ForwardParams) -> u32 {
        params.options.dim_v
    }

    #[inline(always)]
    fn after(self, probabilities: Operand) -> Self {
        // Their sign is 0. Without it gradients of a softcap spill 160 to 252 bytes more.
        let factor = opaque_in(self.factor.to_bits(), probabilities.0[3]);
        Optional {
            factor: f32::from_bits(factor),
            ..self
        }
    }

    #[inline(always)]
    fn scale(self) -> SoftmaxScale {
        self.scale
    }

    #[inline(always)]
    fn sink(params: &ForwardParams, split: Split, head: u32) -> f32 {
        let options = &params.options;
        // One split has the sink.
        if options.sinks == 0 || !split.is_first {
            return f32::NEG_INFINITY;
        }
        let place = i64::from(head) * options.sinks_head;
        // SAFETY: a launch with sinks has one for each head.
        let sink = unsafe { global::load_f32(options.sinks.wrapping_add_signed(4 * place)) };
        math::mul_rz(LOG2_E, sink)
    }

    #[inline(always)]
    fn apply<const TRANSPOSED: bool, const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
    ) {
        self.cap(s);
        let (alibi, bias) = (switch::alibi(), switch::bias());
        if alibi != 0 || bias != 0 {
            if TRANSPOSED {
                for mt in 0..MT {
                    for nt in 0..NT {
                        let corner = corner.skip::<TRANSPOSED>(mt, nt);
                        self.add_to_transposed(&mut s[mt][nt], corner);
                    }
                }
            } else {
                self.add_to_rows(s, corner, alibi, bias);
            }
        }
        if !TRANSPOSED && bias != 0 && switch::bias_vectors() {
            self.add_vectors(s, corner, bias);
        }
    }

    #[inline(always)]
    fn apply_deriving(self, tile: &mut Accumulator, corner: Corner) -> Accumulator {
        let mut derivatives = Accumulator([1.0; 8]);
        let softcap = switch::softcap();
        if softcap != 0 {
            self.tanh(tile, softcap);
            // Of a hidden pair the score may be NaN: then it is 0, for P is 0.
            derivatives.0 = tile.0.map(|tanh| math::fma(-tanh, tanh, 1.0).max(0.0));
        }
        if switch::alibi() != 0 || has_bias() {
            self.add_to_transposed(tile, corner);
        }
        derivatives
    }

    #[inline(always)]
    fn adds_underived() -> bool {
        switch::bias_gradient() != 0 && switch::softcap() != 0
    }

    #[inline(always)]
    unsafe fn prefetch(self, corner: Corner, sizes: [u32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { self.prefetch_bias(corner, sizes) }
    }

    #[inline(always)]
    unsafe fn add_gradients<const MT: usize, const NT: usize, const VECTORS: bool>(
        params: &BackwardParams,
        head: [u32; 2],
        tiles: &[[Accumulator; NT]; MT],
        corner: Corner,
    ) {
        // SAFETY: the caller's promise.
        unsafe { gradients::add::<MT, NT, VECTORS>(params, head, tiles, corner) }
    }
}

impl Optional {
    /// The scores of a batch entry's query head, with another scale.
    #[inline(always)]
    pub(in crate::attention::options) fn with_scale(
        params: &ForwardParams,
        batch: u32,
        head: u32,
        scale: f32,
    ) -> Self {
        let options = &params.options;
        let (alibi, softcap) = (switch::alibi() != 0, switch::softcap() != 0);
        let cap = options.softcap.max(LEAST_SOFTCAP).min(MOST_SOFTCAP);
        let base2 = math::mul_rz(LOG2_E, if softcap { cap } else { scale });
        let of_softmax = match (alibi || has_bias(), softcap) {
            (true, _) => SoftmaxScale {
                log2: 1.0,
                negative: false,
            },
            (false, true) => SoftmaxScale {
                log2: base2,
                negative: false,
            },
            (false, false) => SoftmaxScale::new(scale),
        };
        let mut score = Optional {
            // Finite: times 0 it is 0.
            factor: (2.0 * LOG2_E * scale * math::reciprocal(cap))
                .max(f32::MIN)
                .min(f32::MAX),
            base2,
            slope: 0.0,
            slopes: options.alibi,
            scale: of_softmax,
            queries: params.seqlen_q as i32,
            keys: params.seqlen_kv as i32,
            ranges: options.key_ranges
                + size_of::<KeyRange>() as u64 * u64::from(batch) * u64::from(params.seqlen_q),
            bias: Pairs::new(
                &options.bias,
                [batch, head],
                if switch::bias() == BIAS_F32 { 4 } else { 2 },
            ),
        };
        // Without slopes the switch is on for a far scale alone.
        if alibi && options.alibi != 0 {
            let (batch, head) = (i64::from(batch), i64::from(head));
            let place = batch * options.alibi_batch + head * options.alibi_head;
            score.slopes = options.alibi.wrapping_add_signed(4 * place);
            // SAFETY: a launch has a slope for each head.
            score.slope = unsafe { slope_at(score.slopes) };
        }
        score
    }

    /// Address of the head's slope, or of those of its queries.
    #[inline(always)]
    pub(in crate::attention::options) fn slopes(self) -> u64 {
        self.slopes
    }

    /// Address of the batch entry's [ranges](crate::abi::Options::key_ranges).
    #[inline(always)]
    pub(in crate::attention::options) fn ranges(self) -> u64 {
        self.ranges
    }

    /// Bounds scores, where there is a softcap.
    #[inline(always)]
    pub(in crate::attention::options) fn cap<const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
    ) {
        let softcap = switch::softcap();
        if softcap != 0 {
            for mt in 0..MT {
                for nt in 0..NT {
                    self.tanh(&mut s[mt][nt], softcap);
                }
            }
        }
    }

    /// Turns what [`cap`](Self::cap) leaves into scores in base 2.
    #[inline(always)]
    pub(in crate::attention::options) fn scale_to_base2(self, tile: &mut Accumulator) {
        tile.0 = tile.0.map(|score| math::mul_rz(score, self.base2));
    }

    /// Replaces products by `tanh(product * scale / softcap) = 1 - 2 / (e^2x + 1)`: to 2^-22, where the instruction `tanh.approx`
    /// has 2^-11. A far softcap wants small results to 2^-18 of their own size: there they come from a polynomial.
    #[inline(always)]
    fn tanh(self, tile: &mut Accumulator, softcap: u32) {
        let powers = tile.0.map(|product| product * self.factor);
        tile.0 = powers.map(|power| {
            let sum = math::exp2(power) + 1.0;
            math::fma(-2.0, math::reciprocal(sum), 1.0)
        });
        if softcap == SOFTCAP_FAR {
            for i in 0..8 {
                let square = powers[i] * powers[i];
                let small = powers[i] * small_tanh(square);
                // Both, so that the choice is no branch.
                tile.0[i] = if square < SMALL_SQUARE {
                    small
                } else {
                    tile.0[i]
                };
            }
        }
    }
}

/// Bounds of scores outside of these are as these: scores are as good as 0 below, and as good as unbounded above. Their products
/// with factors are finite, and their reciprocals no subnormal numbers.
pub const LEAST_SOFTCAP: f32 = 1e-20;
pub const MOST_SOFTCAP: f32 = 5e37;

/// The square of the power `2 log2(e) x` below which [`small_tanh`] serves: `|x| < 1/8`.
const SMALL_SQUARE: f32 = 0.130;

/// `tanh(x) / z` of a power `z = 2 log2(e) x`, by its square: `x - x^3 / 3 + 2 x^5 / 15`, to 2^-22 of its size.
#[inline(always)]
fn small_tanh(square: f32) -> f32 {
    const X: f32 = 0.5 / LOG2_E;
    let two = math::fma(square, 2.0 / 15.0 * X * X * X * X * X, -X * X * X / 3.0);
    math::fma(square, two, X)
}

const SOFTCAP_FAR: u32 = Switch::SoftcapFar.constant().1;
