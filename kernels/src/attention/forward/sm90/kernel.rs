//! A kernel's types and sizes, by name.

use super::ROWS;
use super::watch::Watch;
use crate::abi::Sm90Params;
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::sm90::Sm90Memory;
use crate::ptx::special;
use crate::tile::Element;
use core::marker::PhantomData;

/// What a kernel is made of. Lengths of arrays are generics beside it: `OT = DV / 16` tiles of O, `NT = BC / 16` tiles of S.
pub trait Kernel {
    /// The element type of q, k, v and o.
    type Element: Element;
    /// Which keys a query sees.
    type Mask: Mask;
    /// Which queries of which heads the rows of a tile are.
    type Heads: Heads;
    /// What happens to products of q and k before the softmax.
    type Score: Score;
    /// What watches the roles.
    type Watch: Watch;

    /// Sides of a block, which have the same rows, and every other block of keys.
    const SIDES: u32;
    /// Warpgroups that consume on each side.
    const WARPGROUPS: u32;
    /// The largest head dim.
    const D: u32;
    /// Columns of V and O that a block computes.
    const DV: u32;
    /// Keys of a step (Bc).
    const BC: u32;
    /// Slots for the rows of Q of a warpgroup.
    const SLOTS: u32;
    /// Stages of K and V.
    const STAGES: u32;

    /// Query rows of a tile (Br).
    const BR: u32 = ROWS * Self::WARPGROUPS;
    /// Threads of a block: one more warpgroup produces.
    const THREADS: u32 = 128 * (Self::SIDES * Self::WARPGROUPS + 1);
    /// Whether O is stored by its map. Then a tile's slot of Q is given back during the next tile, once its O has left.
    ///
    /// A constant, so that other kernels have no trace of it: a branch that the compiler removes later costs some a spill.
    const O_BY_MAP: bool = Self::Heads::STRIDED && Sm90Params::stores_by_map(Self::D);
    /// Whether K and V pass in chunks, through a single stage.
    const CHUNKS: bool = Self::STAGES == 1;
    /// Chunks of K of a stage.
    const K_CHUNKS: u32 = Sm90Memory::k_chunks_of(Self::STAGES, Self::D);
    /// Chunks of V of a stage.
    const V_CHUNKS: u32 = Sm90Memory::v_chunks_of(Self::STAGES);

    /// The memory of a side that begins at shared address `base`.
    #[inline(always)]
    fn memory(base: u32) -> Sm90Memory {
        let sizes = [Self::SLOTS * ROWS, Self::BC, Self::D, Self::DV];
        Sm90Memory::new(base, sizes, Self::STAGES)
    }

    /// The number of the thread.
    #[inline(always)]
    fn thread() -> u32 {
        // SAFETY: the launch has this many threads a block.
        unsafe { special::thread(Self::THREADS) }
    }

    /// The number of the warpgroup among all that consume, read where it is used: held, it spills at D = 128.
    #[inline(always)]
    fn consumer() -> u32 {
        Self::thread() / 128
    }

    /// The number of the warp's first row in the tile.
    #[inline(always)]
    fn tile_row() -> u32 {
        let row = Self::thread() / 32 * 16;
        match Self::SIDES {
            1 => row,
            _ => row % Self::BR,
        }
    }

    /// The number of the warp's first row among its warpgroup's.
    #[inline(always)]
    fn warp_row() -> u32 {
        Self::thread() / 32 % 4 * 16
    }
}

/// Whether a boolean mask may hide keys between others.
#[inline(always)]
pub fn may_have_gaps<K: Kernel>() -> bool {
    Keys::<K>::may_have_gaps()
}

/// The keys of a query.
pub type Keys<K> = <<K as Kernel>::Mask as Mask>::Keys;

/// The kernel of these types and sizes: `G` sides of `W` warpgroups, `NQ` slots and `S` stages, a head dim of `E::K * DT`,
/// of which a block computes `16 * OT` columns of O, and steps of `16 * NT` keys.
pub struct Instance<
    E,
    M,
    H,
    C,
    T,
    const G: u32,
    const W: u32,
    const DT: usize,
    const OT: usize,
    const NT: usize,
    const NQ: u32,
    const S: u32,
>(PhantomData<(E, M, H, C, T)>);

impl<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    T: Watch,
    const G: u32,
    const W: u32,
    const DT: usize,
    const OT: usize,
    const NT: usize,
    const NQ: u32,
    const S: u32,
> Kernel for Instance<E, M, H, C, T, G, W, DT, OT, NT, NQ, S>
{
    type Element = E;
    type Mask = M;
    type Heads = H;
    type Score = C;
    type Watch = T;
    const SIDES: u32 = G;
    const WARPGROUPS: u32 = W;
    const D: u32 = E::K * DT as u32;
    const DV: u32 = 16 * OT as u32;
    const BC: u32 = 16 * NT as u32;
    const SLOTS: u32 = NQ;
    const STAGES: u32 = S;
}
