//! Scores: from the products `Q K^T` to the softmax.
//!
//! | module | what it holds |
//! |---|---|
//! | `optional` | scores with options, and the softcap |
//! | `added` | what is added to scores: ALiBi's distances and a bias |
//! | `gradients` | the gradient of a bias |

mod added;
mod gradients;
mod optional;

pub(super) use self::added::{ALIBI_ROWS, slope_at};
pub use self::optional::{LEAST_SOFTCAP, MOST_SOFTCAP, Optional};
use crate::abi::{BackwardParams, ForwardParams};
use crate::attention::SoftmaxScale;
use crate::attention::workload::key_rows::{EntryRows, KeyRows};
use crate::attention::workload::sequence::{Sequence, Split};
use crate::layout::fragment;
use crate::ptx::switch;
use crate::tile::{Accumulator, Operand};

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
/// The query and the key, in its 16x16 tile, of element `i` of a lane.
#[inline(always)]
pub fn place<const TRANSPOSED: bool>(lane: u32, i: u32) -> [u32; 2] {
    let (row, column) = fragment::accumulator(lane, i);
    match TRANSPOSED {
        true => [column, row],
        false => [row, column],
    }
}

/// Whether maxima follow every block, in a kernel with such scores.
#[inline(always)]
pub fn is_exact<C: Score>() -> bool {
    !C::SCALED && switch::exact()
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
