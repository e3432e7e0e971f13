//! The forward kernel for Hopper: a producer warp loads by TMA, warpgroups of consumers multiply by `wgmma`.
//!
//! Blocks are persistent: each takes tiles until none is left. A tile has Br = 64 W query rows, 64 for each of `W`
//! warpgroups. The producer walks over the keys of the tile in blocks of Bc, from the last visible one to the first,
//! through `S` stages. Each warpgroup walks behind it, at its own pace. `NQ` slots hold Q of a warpgroup each: with more than
//! `W`, Q of the next tile is there when a warpgroup is done.
//!
//! While the tensor cores add `P V` of a block to O, and before that compute the scores of the next one, a warpgroup turns
//! these scores into probabilities. With a single stage K and V of a block pass in chunks ([`Sm90Memory`]): each loads again
//! as soon as its products are done.
//!
//! Where so few rows see so many keys that device memory is to be the limit, two warpgroups do not keep up with it at
//! D = 64. So `G` = 2 sides of a block have the same rows, each with stages, barriers and a producer's warp of its own, and
//! every other block of keys. At the end of a tile the second side hands O, m and l over, and the first one adds and stores.
//!
//! O leaves from registers, or at D = 128 by the copy engine, through the tile's slot of Q, while the next tile begins.
//!
//! The first blocks, at the edge of the mask, take exact maxima. The others try the maxima of the blocks before: see
//! [`Softmax`](crate::attention::Softmax).
//!
//! | module | what it holds |
//! |---|---|
//! | `kernel` | a kernel's types and sizes, by name |
//! | `job` | which tile a block computes, and what its rows see |
//! | `produce` | the producer: loads of Q, K and V |
//! | `consume` | the consumers' loop over tiles and blocks of keys: Algorithm 1 |
//! | `step` | its lines for one block of keys |
//! | `tile` | a warpgroup's rows of a tile, and what they see of a block |
//! | `maxima` | exact and lazy maxima |
//! | `consumer` | products, issued and waited for |
//! | `query` | Q, negated or copied by the consumers |
//! | `alone` | what a warp computes by itself, by `mma.sync`, where values are rare |
//! | `exchange` | what two sides tell each other |
//! | `store` | O and lse, or partial results, stored |
//! | `watch` | what may watch the roles |

mod alone;
mod consume;
mod consumer;
mod exchange;
pub(super) mod job;
pub(super) mod kernel;
mod maxima;
pub(super) mod produce;
mod query;
mod step;
pub mod store;
pub(super) mod tile;
mod watch;

use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::sm90::Sm90Memory;
use crate::ptx::{barrier, bulk, mbarrier, setmaxnreg, shared, shuffle};
use crate::tile::wgmma::Product;
use crate::tile::{Accumulator, Element};
use consume::consume;
use kernel::{Instance, Kernel};
use produce::produce;
pub use watch::{Unwatched, Watch};

/// Rows of a warpgroup.
const ROWS: u32 = 64;

/// Computes tiles of O and lse, each on its split of the keys.
///
/// `W` warpgroups consume, on each of `G` sides, and one more produces. The head dim is at most `16 * DT`, of which a block computes
/// `16 * OT` of O's columns, the slice that `H` names. A step takes `16 * NT` keys.
/// `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// Launched as [`Sm90Params`](crate::abi::Sm90Params) and the kernel's row of the [catalog](crate::catalog) say, with tensors that are
/// readable (q, k, v) and writable (o, lse) in full; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn sm90<
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
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &T::Params,
    maps: u64,
) where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    // SAFETY: the caller's promise.
    unsafe {
        run::<Instance<E, M, H, C, T, G, W, DT, OT, NT, NQ, S>, OT, NT, NQ, S, GIVEN, TAKEN>(
            params, maps,
        )
    }
}

/// Gives each warpgroup of the block its role.
///
/// # Safety
/// The conditions of [`sm90`].
#[inline(always)]
unsafe fn run<
    K: Kernel,
    const OT: usize,
    const NT: usize,
    const NQ: u32,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &<K::Watch as Watch>::Params,
    maps: u64,
) where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    let (params, notes) = (K::Watch::work(params), K::Watch::notes(params));
    let first = K::memory(shared::base());
    let memory_of = |side: u32| K::memory(first.base() + side * first.side_bytes());
    // SAFETY: all threads of the block reach the barrier; then each warpgroup has its role.
    unsafe {
        let thread = K::thread();
        if thread == 0 {
            for side in 0..K::SIDES {
                init_barriers::<K>(memory_of(side));
            }
            mbarrier::fence_init();
        }
        if thread < Sm90Memory::ZERO_BYTES / 16 {
            for side in 0..K::SIDES {
                shared::store_u32x4(memory_of(side).zeros() + 16 * thread, [0; 4]);
            }
            bulk::fence();
        }
        barrier::block();
        let warpgroup = shuffle::first(thread / 128);
        let consumers = K::SIDES * K::WARPGROUPS;
        if warpgroup == consumers {
            setmaxnreg::decrease::<GIVEN>();
            // A warp for each side.
            let side = shuffle::first(thread / 32) - 4 * consumers;
            if side < K::SIDES {
                produce::<K, NQ, S>(params, maps, memory_of(side), notes, side);
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            let (side, warpgroup) = match K::SIDES {
                1 => (0, warpgroup),
                _ => (warpgroup / K::WARPGROUPS, warpgroup % K::WARPGROUPS),
            };
            consume::<K, OT, NT, NQ, S>(params, maps, memory_of, side, warpgroup, notes);
        }
    }
}

/// Initialises the barriers of a side.
///
/// # Safety
/// One thread of the block makes the call, before any thread uses them.
#[inline(always)]
unsafe fn init_barriers<K: Kernel>(memory: Sm90Memory) {
    // SAFETY: the caller's promise.
    unsafe {
        for slot in 0..K::SLOTS {
            mbarrier::init(memory.q_full(slot), 1);
            // Every lane releases Q, which all of them read in part.
            mbarrier::init(memory.q_full(slot) + 8, 128);
        }
        for chunk in 0..memory.chunks() {
            mbarrier::init(memory.k_full(chunk), 1);
            mbarrier::init(memory.k_full(chunk) + 8, 4 * K::WARPGROUPS);
        }
    }
}
