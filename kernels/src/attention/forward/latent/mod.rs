//! The main loop for latent attention on Hopper: all heads share one key of 576 elements, whose first 512 are the value. It is
//! read once, and serves both products from the same shared memory.
//!
//! A block has 64 rows: queries of all heads that share the keys. Two warpgroups consume. O of 64 rows by 512 columns would take
//! 256 registers a thread, so each has one half of the columns, and needs the probabilities of all keys. To compute all scores
//! twice would cost more than a half of the time. So keys pass in blocks of 32 that belong to the warpgroups in turns: the owner
//! of a block computes its scores and probabilities, and hands them to the other one.
//!
//! ```text
//! warpgroup 0   PV0  S2   PV1  softmax 2 -> PV2  S4   PV3  softmax 4 ->
//! warpgroup 1   PV0  softmax 1 -> PV1  S3   PV2  softmax 3 -> PV3  S5
//! ```
//!
//! Accumulators of both have the same layout, so thread `t` of a warpgroup hands its probabilities and maxima to thread `t` of
//! the other one, which multiplies them as they are: 40 bytes through shared memory, and a barrier of two warps. An owner takes
//! the maxima of the block before, which it got with the probabilities, as long as they serve. So both always have the same ones,
//! and O is rarely scaled. Each sums the probabilities of its own blocks; the sums are added at the end of the tile.
//!
//! # Budget
//! Of a multiprocessor, for 32 keys and 64 rows:
//!
//! | | clocks |
//! |---|---|
//! | tensor cores: scores 576, `P V` 2 x 256 | 1088 |
//! | shared memory, 128 bytes a clock: Q 448, K 288, V 256, the copy engine 288, probabilities 80 | 1360 |
//! | device memory: 36,864 bytes of 4.2 TB/s, by 132, at 1.7 GHz | 1970 |
//!
//! So the memory bounds up to 64 rows, and shared memory more of them: 690 TFLOP/s at 1.6 GHz at most. Bytes on their way count: a stage is
//! held for about 3500 clocks and takes 1700 to come; 4 stages then move 28 bytes a clock, where the memory delivers 19.
//! While a warpgroup waits for keys it holds one stage, so that three are on their way.
//!
//! Registers of a consumer: O 128, Q 32, S 16, probabilities of both 16. Shared memory: Q 73,728 bytes, four stages 147,456, what the
//! warpgroups tell each other 6,144: [`LatentMemory`].
//!
//! | module | what it holds |
//! |---|---|
//! | `part` | which rows and keys a block has |
//! | `produce` | the producer: loads of keys |
//! | `query` | Q, copied by the consumers |
//! | `consume` | a consumer's loop over blocks of keys |
//! | `step` | its lines of Algorithm 1 |
//! | `exchange` | what two warps of equal rows tell each other |

mod consume;
mod exchange;
mod part;
mod produce;
mod query;
mod step;

use crate::abi::Sm90Params;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::latent::LatentMemory;
use crate::ptx::{barrier, mbarrier, setmaxnreg, shared, shuffle, special};
use crate::tile::wgmma::Product;
use crate::tile::{Accumulator, Element};
use consume::consume;
use part::Part;
use produce::produce;

/// Threads of a block: two warpgroups consume, and one more produces.
const THREADS: u32 = 384;

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// A warpgroup has `16 * OT` of O's columns. `S` stages have `16 * NT` keys each. The last `QT` slices of Q stay in registers.
/// `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// Launched as [`Sm90Params`] and the kernel's row of the [catalog](crate::catalog) say, a block for each tile, with tensors that are
/// readable (q, k) and writable (o, lse) in full; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn latent<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    const OT: usize,
    const NT: usize,
    const QT: usize,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90Params,
    maps: u64,
) where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    const {
        assert!(16 * OT as u32 == LatentMemory::DIM_V / 2 && S == LatentMemory::STAGES);
        assert!(16 * NT as u32 == LatentMemory::KEYS);
    }
    let forward = &params.forward;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(THREADS) };
    // SAFETY: all threads make the call.
    let Some(part) = (unsafe { Part::<M, H>::new::<C>(forward, thread) }) else {
        return;
    };
    let memory = LatentMemory::new(shared::base());
    // SAFETY: all threads of the block reach the barrier; then each warpgroup has its role.
    unsafe {
        if thread == 0 {
            for stage in 0..S {
                mbarrier::init(memory.full(stage), 1);
                // Of each warp that consumes.
                mbarrier::init(memory.full(stage) + 8, 8);
            }
            mbarrier::fence_init();
        }
        barrier::block();
        let warp = shuffle::first(thread / 32);
        if warp >= 8 {
            setmaxnreg::decrease::<GIVEN>();
            if warp == 8 {
                produce::<M, H, C, S>(forward, &part, maps, memory);
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            consume::<E, M, H, C, OT, NT, QT, S>(forward, part, memory, warp / 4);
        }
    }
}
