//! Scores: from the products `Q K^T` to the softmax.

use super::pairs::Pairs;
use super::ranges::load_range;
use crate::abi::{BackwardParams, ForwardParams, KeyRange, Switch};
use crate::attention::SoftmaxScale;
use crate::attention::workload::key_rows::{EntryRows, KeyRows, PageRows};
use crate::attention::workload::sequence::{Sequence, Split};
use crate::layout::fragment;
use crate::ptx::{convert, global, math, shuffle, special, switch};
use crate::tile::registers::{fence, opaque, opaque_in};
use crate::tile::{Accumulator, Operand};
use core::f32::consts::LOG2_E;

/// The first query and the first key of a tile; keys count in their split.
#[derive(Clone, Copy)]
pub struct Corner {
    /// The query of the first row or, of transposed tiles, of the first column.
    pub query: i32,
    /// The key of the first column or, of transposed tiles, of the first row.
    pub key: i32,
    /// The last key that query 0 sees under the causal mask.
    pub diagonal: i32,
}

impl Corner {
    /// The corner at a query and a key of a sequence's split.
    #[inline(always)]
    pub fn new(query: i32, key: i32, sequence: Sequence, split: Split) -> Self {
        Corner {
            query,
            key,
            diagonal: sequence.keys as i32 - sequence.queries as i32 - split.first as i32,
        }
    }

    /// The corner of the tile so many 16-row tiles below and 16-column tiles beside.
    #[inline(always)]
    pub fn skip<const TRANSPOSED: bool>(self, mt: usize, nt: usize) -> Self {
        let (queries, keys) = if TRANSPOSED { (nt, mt) } else { (mt, nt) };
        Corner {
            query: self.query + 16 * queries as i32,
            key: self.key + 16 * keys as i32,
            ..self
        }
    }
}

/// Turns products of queries and keys into scores. Tiles have a row for each query or, `TRANSPOSED`, for each key.
pub trait Score: Copy {
    /// Whether scores are no more than products times the scale.
    const SCALED: bool;

    /// Whether blocks may take [units](crate::abi::UnitsRef) of the keys.
    const HAS_UNITS: bool = false;

    /// Where the keys of a kernel with such scores lie.
    type Keys: KeyRows;

    /// The scores of a batch entry's query head.
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self;

    /// Elements of a row of v and o.
    #[inline(always)]
    fn value_dim(params: &ForwardParams) -> u32 {
        params.dim
    }

    /// The scores, which the assembler takes for a result of probabilities: it then computes the scores of a tile after
    /// the scores of another, and has registers for one of them.
    #[inline(always)]
    #[must_use]
    fn after(self, _probabilities: Operand) -> Self {
        self
    }

    /// The factor by which the softmax multiplies scores.
    fn scale(self) -> SoftmaxScale;

    /// The score, in base 2, of the sink that each row's sum takes in; -inf if there is none.
    #[inline(always)]
    fn sink(_params: &ForwardParams, _split: Split, _head: u32) -> f32 {
        f32::NEG_INFINITY
    }

    /// Replaces products by scores.
    fn apply<const TRANSPOSED: bool, const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
    );

    /// Replaces the products of a transposed tile by scores. Returns the derivatives of the scores by the scaled products.
    fn apply_deriving(self, tile: &mut Accumulator, corner: Corner) -> Accumulator;

    /// Whether [`add_gradients`](Self::add_gradients) is called with other numbers than the gradients of the scaled products:
    /// without the [derivatives](Self::apply_deriving).
    #[inline(always)]
    fn adds_underived() -> bool {
        false
    }

    /// Brings what is added to the scores of so many queries and keys from a corner on to the L2 cache, by a warp.
    ///
    /// # Safety
    /// The launch has what the kernel's switches name.
    #[inline(always)]
    unsafe fn prefetch(self, _corner: Corner, _sizes: [u32; 2]) {}

    /// Adds transposed tiles of the scores' gradients to the gradient of what was added to the scores; with `VECTORS`, which take
    /// compute capability 9.0, four keys at a time where the launch allows it.
    ///
    /// # Safety
    /// The launch has what the kernel's switches name. All lanes of the warp make the same call.
    #[inline(always)]
    unsafe fn add_gradients<const MT: usize, const NT: usize, const VECTORS: bool>(
        _params: &BackwardParams,
        _head: [u32; 2],
        _gradients: &[[Accumulator; NT]; MT],
        _corner: Corner,
    ) {
    }
}

/// `scale * (q . k)`. The products stay as they are: the softmax multiplies and subtracts the maximum in one
/// fused multiply-add.
#[derive(Clone, Copy)]
pub struct Scaled(pub SoftmaxScale);

impl Score for Scaled {
    const SCALED: bool = true;
    type Keys = EntryRows<false>;

    #[inline(always)]
    fn new(params: &ForwardParams, _batch: u32, _head: u32) -> Self {
        Scaled(SoftmaxScale::new(params.scale))
    }

    #[inline(always)]
    fn scale(self) -> SoftmaxScale {
        self.0
    }

    #[inline(always)]
    fn apply<const TRANSPOSED: bool, const MT: usize, const NT: usize>(
        self,
        _s: &mut [[Accumulator; NT]; MT],
        _corner: Corner,
    ) {
    }

    #[inline(always)]
    fn apply_deriving(self, _tile: &mut Accumulator, _corner: Corner) -> Accumulator {
        Accumulator([1.0; 8])
    }
}

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
    slope: f32,
    /// Address of the head's slope, or of those of its queries.
    slopes: u64,
    scale: SoftmaxScale,
    queries: i32,
    keys: i32,
    /// Address of the batch entry's [ranges](crate::abi::Options::key_ranges).
    ranges: u64,
    bias: Pairs,
}

impl Score for Optional {
    const SCALED: bool = false;
    type Keys = PageRows;

    #[inline(always)]
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        let options = &params.options;
        let (alibi, softcap) = (switch::alibi() != 0, switch::softcap() != 0);
        let cap = options.softcap.max(LEAST_SOFTCAP).min(MOST_SOFTCAP);
        let base2 = math::mul_rz(LOG2_E, if softcap { cap } else { params.scale });
        let scale = match (alibi || has_bias(), softcap) {
            (true, _) => SoftmaxScale {
                log2: 1.0,
                negative: false,
            },
            (false, true) => SoftmaxScale {
                log2: base2,
                negative: false,
            },
            (false, false) => SoftmaxScale::new(params.scale),
        };
        let mut score = Optional {
            // Finite: times 0 it is 0.
            factor: (2.0 * LOG2_E * params.scale * math::reciprocal(cap))
                .max(f32::MIN)
                .min(f32::MAX),
            base2,
            slope: 0.0,
            slopes: options.alibi,
            scale,
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

    #[inline(always)]
    fn value_dim(params: &ForwardParams) -> u32 {
        params.options.dim_v
    }

    #[inline(always)]
    fn after(self, probabilities: Operand) -> Self {
        // Their sign is 0.
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
            derivatives.0 = tile.0.map(|tanh| math::fma(-tanh, tanh, 1.0));
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
    unsafe fn prefetch(self, corner: Corner, [queries, keys]: [u32; 2]) {
        if !has_bias() {
            return;
        }
        // Keys of a line of the cache.
        let line = 128 / if switch::bias() == BIAS_F32 { 4 } else { 2 };
        let before = self.keys - self.queries - corner.diagonal;
        let mut row = special::lane();
        while row < queries {
            let mut column = 0;
            while column < keys {
                let key = corner.key + before + column as i32;
                // SAFETY: the caller's promise, for the nearest pair that exists.
                unsafe { global::prefetch(self.nearest(corner.query + row as i32, key)) }
                // Opaque: the loops stay loops.
                column = opaque(column + line);
            }
            row = opaque(row + 32);
        }
    }

    #[inline(always)]
    unsafe fn add_gradients<const MT: usize, const NT: usize, const VECTORS: bool>(
        params: &BackwardParams,
        head: [u32; 2],
        gradients: &[[Accumulator; NT]; MT],
        corner: Corner,
    ) {
        if switch::bias_gradient() == 0 {
            return;
        }
        let d_bias = Pairs::new(&params.d_bias, head, 4);
        let ends = [params.forward.seqlen_q, params.forward.seqlen_kv];
        for mt in 0..MT {
            for nt in 0..NT {
                let corner = corner.skip::<true>(mt, nt);
                // SAFETY: the caller's promise.
                unsafe {
                    if VECTORS && switch::bias_gradient() == GRADIENT_VECTORS {
                        add_gradient_vectors(d_bias, ends, gradients[mt][nt], corner);
                    } else {
                        add_gradient(d_bias, ends, gradients[mt][nt], corner);
                    }
                }
            }
        }
    }
}

/// Adds a transposed tile to the gradient of a bias, of so many queries and keys, element by element.
///
/// # Safety
/// It has an element for each pair, which only such calls write.
#[inline(always)]
unsafe fn add_gradient(
    d_bias: Pairs,
    [queries, keys]: [u32; 2],
    gradients: Accumulator,
    corner: Corner,
) {
    let lane = special::lane();
    for i in 0..8 {
        let [query, key] = place::<true>(lane, i as u32);
        let (query, key) = (corner.query as u32 + query, corner.key as u32 + key);
        let gradient = gradients.0[i];
        if gradient != 0.0 && query < queries && key < keys {
            // SAFETY: the caller's promise, for a pair that exists.
            unsafe { global::add_f32(d_bias.at_by_stride(query, key), gradient) }
        }
    }
}

/// [`add_gradient`], four keys at a time: the four lanes that have neighbouring keys of four queries exchange them. A tile takes two
/// additions in the place of eight.
///
/// # Safety
/// The conditions of [`add_gradient`], and rows are whole vectors of four elements. All lanes of the warp make the same call.
#[inline(always)]
unsafe fn add_gradient_vectors(
    d_bias: Pairs,
    [queries, keys]: [u32; 2],
    gradients: Accumulator,
    corner: Corner,
) {
    let lane = special::lane();
    for half in 0..2 {
        // Both columns of each half of the tile, in one half of its rows.
        let elements = [0, 1, 4, 5].map(|i| gradients.0[2 * half + i].to_bits());
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe { shuffle::transpose::<4, 8>(elements, lane) };
        let number = lane / 4 % 4;
        let query = corner.query as u32 + 2 * (lane % 4) + number % 2 + 8 * (number / 2);
        let key = corner.key as u32 + 4 * (lane / 16) + 8 * half as u32;
        // Sign bits aside, all are 0 where the mask hides them.
        if (a | b | c | d) << 1 != 0 && query < queries && key < keys {
            let [a, b, c, d] = [a, b, c, d].map(f32::from_bits);
            // SAFETY: the caller's promise, for pairs that exist.
            unsafe { global::add_f32x4(d_bias.at_by_stride(query, key), a, b, c, d) }
        }
    }
}

/// Bounds of scores outside of these are as these: scores are as good as 0 below, and as good as unbounded above. Their products
/// with factors are finite, and their reciprocals no subnormal numbers.
const LEAST_SOFTCAP: f32 = 1e-20;
const MOST_SOFTCAP: f32 = 5e37;

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
const BIAS_F16: u32 = Switch::BiasF16.constant().1;
const BIAS_F32: u32 = Switch::BiasF32.constant().1;
pub(super) const ALIBI_ROWS: u32 = Switch::AlibiRows.constant().1;
const GRADIENT_VECTORS: u32 = Switch::BiasGradientVectors.constant().1;

/// A slope, in base 2.
///
/// # Safety
/// The address is readable.
#[inline(always)]
pub(super) unsafe fn slope_at(address: u64) -> f32 {
    // SAFETY: the caller's promise.
    math::mul_rz(LOG2_E, unsafe { global::load_f32(address) })
}

/// Whether there is a bias.
#[inline(always)]
fn has_bias() -> bool {
    switch::bias() != 0
}

/// A bias of 16 bits.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    match switch::bias() {
        BIAS_F16 => convert::any_f16(bits),
        _ => f32::from_bits(u32::from(bits) << 16),
    }
}

/// Adds a lane's pairs of keys of a bias of 16 bits to tiles `2 * pair` and `2 * pair + 1`, in one `half` of their rows.
#[inline(always)]
fn add_words<const NT: usize>(
    tiles: &mut [Accumulator; NT],
    words: [u32; 4],
    pair: usize,
    half: usize,
    bias: u32,
) {
    for i in 0..4 {
        let (nt, column) = (2 * pair + i / 2, 4 * (i % 2) + 2 * half);
        if nt < NT {
            let halves = [words[i] as u16, (words[i] >> 16) as u16];
            for j in 0..2 {
                // Both, so that the choice is no branch.
                let f16 = convert::any_f16(halves[j]);
                let bf16 = f32::from_bits(u32::from(halves[j]) << 16);
                let bias = if bias == BIAS_F16 { f16 } else { bf16 };
                let score = &mut tiles[nt].0[column + j];
                *score = math::fma_rz(bias, LOG2_E, *score);
            }
        }
    }
}

/// The query and the key, in its 16x16 tile, of element `i` of a lane.
#[inline(always)]
pub fn place<const TRANSPOSED: bool>(lane: u32, i: u32) -> [u32; 2] {
    let (row, column) = fragment::accumulator(lane, i);
    match TRANSPOSED {
        true => [column, row],
        false => [row, column],
    }
}

impl Optional {
    /// Address of the head's slope, or of those of its queries.
    #[inline(always)]
    pub(super) fn slopes(self) -> u64 {
        self.slopes
    }

    /// Address of the batch entry's [ranges](crate::abi::Options::key_ranges).
    #[inline(always)]
    pub(super) fn ranges(self) -> u64 {
        self.ranges
    }

    /// Bounds scores, where there is a softcap.
    #[inline(always)]
    pub(super) fn cap<const MT: usize, const NT: usize>(self, s: &mut [[Accumulator; NT]; MT]) {
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
    pub(super) fn scale_to_base2(self, tile: &mut Accumulator) {
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

    /// Address of the bias of a pair, or of the nearest one that exists.
    #[inline(always)]
    fn nearest(self, query: i32, key: i32) -> u64 {
        let query = query.max(0).min(self.queries - 1);
        self.bias
            .at(query as u32, key.max(0).min(self.keys - 1) as u32)
    }

    /// Turns the scores of a transposed tile into base 2, and adds what depends on the pair: ALiBi's distance and the bias.
    ///
    /// Switches and the lane are read for each element, not held: gradients have no registers left.
    #[inline(always)]
    fn add_to_transposed(self, tile: &mut Accumulator, corner: Corner) {
        self.scale_to_base2(tile);
        if switch::alibi() != 0 {
            let has_slopes = || switch::alibi() == ALIBI_ROWS;
            self.subtract_distances::<true>(
                tile,
                corner,
                special::lane(),
                switch::ranges,
                has_slopes,
            );
        }
        if has_bias() {
            for i in 0..8 {
                let address = self.bias_at::<true>(corner, special::lane(), i);
                // SAFETY: a launch with a bias has one for each pair.
                let bias = unsafe {
                    match switch::bias() {
                        BIAS_F32 => global::load_f32(address),
                        _ => widen(global::load_u16(address)),
                    }
                };
                tile.0[i] = math::fma_rz(bias, LOG2_E, tile.0[i]);
            }
        }
    }

    /// Turns scores into base 2, and adds what depends on the pair: ALiBi's distance, and the bias if no vectors have it.
    ///
    /// Fences keep the assembler from mixing tiles, whose distances and loads take more registers than there are.
    #[inline(always)]
    fn add_to_rows<const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
        alibi: u32,
        bias: u32,
    ) {
        let lane = special::lane();
        let (has_ranges, has_slopes) = (switch::ranges(), alibi == ALIBI_ROWS);
        for mt in 0..MT {
            for nt in 0..NT {
                let (tile, corner) = (&mut s[mt][nt], corner.skip::<false>(mt, nt));
                self.scale_to_base2(tile);
                if alibi != 0 {
                    // SAFETY: all lanes of the warp add to their scores together.
                    unsafe { fence() }
                    let (ranges, slopes) = (|| has_ranges, || has_slopes);
                    self.subtract_distances::<false>(tile, corner, lane, ranges, slopes);
                }
            }
        }
        if bias != 0 && !switch::bias_vectors() {
            for mt in 0..MT {
                for nt in 0..NT {
                    // SAFETY: as above.
                    unsafe { fence() }
                    let corner = corner.skip::<false>(mt, nt);
                    self.add_bias(&mut s[mt][nt], corner, lane, bias);
                }
            }
        }
    }

    /// Adds the bias, two elements at a time, without a branch.
    #[inline(always)]
    fn add_bias(self, tile: &mut Accumulator, corner: Corner, lane: u32, bias: u32) {
        for pair in 0..4 {
            let places = [2 * pair, 2 * pair + 1];
            let [a, b] = places.map(|i| self.bias_at::<false>(corner, lane, i));
            // SAFETY: a launch with a bias has one for each pair.
            let numbers = unsafe { global::load_numbers(a, b, bias) };
            for j in 0..2 {
                let score = &mut tile.0[places[j]];
                *score = math::fma_rz(numbers[j], LOG2_E, *score);
            }
        }
    }

    /// The address of the bias of element `i` of a tile's lane.
    #[inline(always)]
    fn bias_at<const TRANSPOSED: bool>(self, corner: Corner, lane: u32, i: usize) -> u64 {
        let [query, key] = place::<TRANSPOSED>(lane, i as u32);
        let before = self.keys - self.queries - corner.diagonal;
        self.nearest(
            corner.query + query as i32,
            corner.key + before + key as i32,
        )
    }

    /// Adds the bias, of 16 bits: the four lanes of a row load 32 neighbouring keys, 8 each, and exchange them.
    ///
    /// A load of one element for each lane takes as long, since the lines of 8 rows pass the cache one by one: with these a
    /// step of 128 keys takes 64 loads for each row's 128.
    #[inline(always)]
    fn add_vectors<const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
        bias: u32,
    ) {
        let lane = special::lane();
        let before = self.keys - self.queries - corner.diagonal;
        let first_key = corner.key + before + 8 * (lane % 4) as i32;
        for mt in 0..MT {
            for half in 0..2 {
                let row = corner.query + (16 * mt + 8 * half) as i32 + (lane / 4) as i32;
                let row = row.max(0).min(self.queries - 1) as u32;
                for pair in 0..NT.div_ceil(2) {
                    // Vectors behind the last key are not used.
                    let key = (first_key + 32 * pair as i32).min(self.keys - 8) as u32;
                    // SAFETY: a launch with vectors has whole ones for each query; all lanes are here.
                    let words = unsafe {
                        let words = global::load_u32x4(self.bias.at(row, key));
                        shuffle::transpose::<1, 2>(words, lane)
                    };
                    add_words(&mut s[mt], words, pair, half, bias);
                }
            }
        }
    }

    /// Subtracts the slope times the distance of query and key, aligned bottom-right, from scores in base 2.
    #[inline(always)]
    fn subtract_distances<const TRANSPOSED: bool>(
        self,
        tile: &mut Accumulator,
        corner: Corner,
        lane: u32,
        has_ranges: impl Fn() -> bool,
        has_slopes: impl Fn() -> bool,
    ) {
        let [query, key] = place::<TRANSPOSED>(lane, 0).map(|place| place as i32);
        let first = corner.query + corner.diagonal - corner.key + query - key;
        // Elements of one query share its place.
        let queries: &[u32] = if TRANSPOSED { &[0, 1, 8, 9] } else { &[0, 8] };
        for &of_tile in queries {
            let (mut first, mut slope) = (first, self.slope);
            if has_ranges() {
                let query = corner.query + query + of_tile as i32;
                // SAFETY: a launch with ranges has one for each query.
                let [.., offset, _] = unsafe { load_range(self.ranges, self.queries, query) };
                first += offset as i32 - (self.keys - self.queries);
                if has_slopes() {
                    let query = query.max(0).min(self.queries - 1) as u64;
                    // SAFETY: a launch with slopes of sequences has one for each query.
                    slope = unsafe { slope_at(self.slopes + 4 * query) };
                }
            }
            for i in 0..8 {
                let [query, key] = place::<TRANSPOSED>(0, i as u32);
                if query == of_tile {
                    let distance = (first as f32 + (query as f32 - key as f32)).abs();
                    tile.0[i] = math::fma_rz(-slope, distance, tile.0[i]);
                }
            }
        }
    }
}
