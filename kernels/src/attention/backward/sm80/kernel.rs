//! The types and sizes of a kernel.

use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::tile::Element;
use core::marker::PhantomData;

/// A kernel: its types, and the sizes that are no lengths of arrays.
pub trait Kernel {
    /// Element type of q, k, v and the gradients.
    type Element: Element;
    /// Mask: which keys a query sees.
    type Mask: Mask;
    /// Scores: what products become before the softmax.
    type Score: Score;
    /// Threads of a block.
    const THREADS: u32;
    /// Pairs of warps that share keys, one on each side.
    const PAIRS: u32 = Self::THREADS / 64;
    /// Keys of a block (Bc).
    const BC: u32;
    /// Slices of K and V whose fragments stay in registers.
    const KEPT: usize;
    /// Stages of dS.
    const DS_STAGES: u32;
}

/// The kernel with `W` warps and `16 * KT` keys a block, `QT` kept slices and `DS` stages of dS.
pub struct Instance<E, M, C, const W: usize, const QT: usize, const KT: usize, const DS: u32>(
    PhantomData<(E, M, C)>,
);

impl<E: Element, M: Mask, C: Score, const W: usize, const QT: usize, const KT: usize, const DS: u32>
    Kernel for Instance<E, M, C, W, QT, KT, DS>
{
    type Element = E;
    type Mask = M;
    type Score = C;
    const THREADS: u32 = 32 * W as u32;
    const BC: u32 = 16 * KT as u32;
    const KEPT: usize = QT;
    const DS_STAGES: u32 = DS;
}
