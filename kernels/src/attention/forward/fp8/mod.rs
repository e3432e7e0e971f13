//! The main loop for FP8 on Hopper: it multiplies numbers of e4m3. Kernels of their own
//! [rounded](crate::attention::auxiliary::round_rows) K and V.
//!
//! A producer warp loads by TMA, `W` warpgroups multiply 64 rows each by `wgmma`. They [round](query) a Q of 16 bits themselves, for its rows are
//! read once: a launch that rounds them would move twice as many bytes. A step of a warpgroup is:
//!
//! ```text
//! S = Q K^T     in f16, half the registers; no sum passes 32768
//! P = 2^(c S - m + 3)    in pairs of f16, relative to the maximum so far; at most 448 fits e4m3
//! O += P V      in f16, too; V is transposed, its keys in the order of P's registers
//! ```
//!
//! Where O leaves room, `P V` of a block and `Q K^T` of the next one are issued together: a warpgroup waits once for both, and the others
//! fill the tensor cores during its softmax. At D = 256 there are two warpgroups, and `P V` of a whole block runs during the softmax of the
//! next one.
//!
//! # Scales
//! A row of q has a scale, a block of 128 keys has one, and so has a column of v. All are powers of two: an f16 factor of S then has
//! the same digits for every block of keys, and rows stay comparable. S stays in registers, so that a maximum that
//! rose is taken from the same scores, in f32.
//!
//! The tensor cores cut the sums of e4m3 towards zero (DeepSeek-V3's report, arXiv 2412.19437): O would shrink where V has one sign. So the
//! mean of each column is taken out of V before it is rounded, and added to O. Values that are e4m3 before the call keep it: there O is summed in
//! two [levels](outer). Sums in f16 are cut alike, and then rounded: f32 keeps no more of them, and takes twice the registers and their ports.
//! Probabilities of long rows become [smaller](softmax::Softmax::rise), so that no sum passes 65504.
//!
//! Rounded values have 0 in the place of an infinity or a NaN, so that rows which do not see such a key are right. At the end a row has
//! NaN in the columns where it sees one: a block of 128 keys has a bit for each value, if some are not finite.
//!
//! # Options
//! A window, sequences of other lengths, a bound of scores and sinks are a [mask](crate::attention::options::ranges::Spans) and a `softcap`
//! of kernels of their own. A sink has no value, whose mean would be added: a row's sum takes it in at the end.
//!
//! # Budget
//! Of a multiprocessor, for a step of 256 rows and 128 keys at D = 128:
//!
//! | | clocks |
//! |---|---|
//! | tensor cores: 2 x 256 x 128 x 128 products, 4096 a clock | 2048 |
//! | exponentials: 256 x 128, 16 a clock | 2048 |
//! | shared memory: K, V and Q for each warpgroup, 128 bytes a clock | 1280 |
//!
//! The register file is the next bound: sums of the tensor cores go through it. The softmax of two warpgroups takes 1149 clocks alone, 1241 beside
//! products with sums in f16, and 1603 beside those in f32 (docs/diary.md, "what bounds FP8").
//!
//! Registers of a consumer at D = 128: O 32, S 32, P 16, of 112, for four warpgroups. At D = 64 O takes 16, and Q has 8. There exponentials take
//! twice as long as products, and three in eight are polynomials. At D = 256 O takes 64, two P 32, and Q 32, of 240. Outer sums take as many as O:
//! with them there are three warpgroups at 128.
//!
//! What belongs to a tile is loaded, too: scales of rows come with Q; scales and means of columns, and whether values are not finite, behind its last
//! keys. So the epilogue waits for no load, and Q of the next tile comes meanwhile, also at D = 256, where a warpgroup has
//! one slot. V's columns [lie](crate::layout::fp8::transposed_column) so that a lane has eight neighbours of a row of O, which it stores with no shuffle.
//!
//! | module | what it holds |
//! |---|---|
//! | `produce` | the producer: loads of Q, K and V |
//! | `query` | Q of 16 bits, rounded |
//! | `consume` | a consumer's loop over tiles and blocks of keys: Algorithm 1 |
//! | `step` | its lines for one block of keys |
//! | `mask` | scores that rows do not see |
//! | `softmax` | scores become probabilities |
//! | `softcap` | scores of f16 within bounds |
//! | `outer` | sums in two levels, where V keeps its mean |
//! | `polynomial` | a part of the exponentials, without the unit for them |
//! | `store` | O, scaled and with the mean of V, and lse |
//! | `spoil` | NaN, where rows see values that are not finite |

mod consume;
mod mask;
pub mod outer;
mod polynomial;
mod produce;
mod query;
mod softcap;
mod softmax;
mod spoil;
mod step;
mod store;

use super::sm90::Unwatched;
use super::sm90::kernel::{Instance, Kernel};
use crate::abi::Fp8Params;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::fp8::{Fp8Memory, transposed_rows};
use crate::ptx::{barrier, mbarrier, setmaxnreg, shared, shuffle};
use crate::tile::fp8::Products;
use crate::tile::{Element, HalfAccumulator};
use consume::consume;
use outer::Outer;
use produce::produce;
use query::is_wide;

/// Rows of a warpgroup.
const ROWS: u32 = 64;

/// Computes tiles of O and lse.
///
/// `W` warpgroups consume, and one more produces. The head dim is at most `16 * DT`, `OT` is `DT`. A step takes `16 * NT` keys, `PT` is
/// half of `NT`, and `QT` of `DT`. Q stays in registers if `QR` is 1, and in shared memory if it is 0. `NQ` slots hold Q of a warpgroup each,
/// `S` stages K and V. `U` says how O is summed. `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// Launched as [`Fp8Params`] and the kernel's row of the [catalog](crate::catalog) say, with tensors that are readable (q, rounded k and
/// v, their scales) and writable (o, lse) in full; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn fp8<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    U: Outer<OT>,
    const W: u32,
    const DT: usize,
    const OT: usize,
    const NT: usize,
    const PT: usize,
    const QT: usize,
    const QR: u32,
    const NQ: u32,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Fp8Params,
    maps: u64,
) where
    [HalfAccumulator; NT]: Products,
    [HalfAccumulator; OT]: Products,
{
    const { assert!(OT == DT && 2 * PT == NT && 2 * QT == DT) }
    const { assert!(!U::ROUNDS_Q || W.is_multiple_of(2)) }
    // SAFETY: the caller's promise.
    unsafe {
        run::<
            Instance<E, M, H, C, Unwatched, 1, W, DT, OT, NT, NQ, S>,
            U,
            OT,
            NT,
            PT,
            QT,
            QR,
            NQ,
            S,
            GIVEN,
            TAKEN,
        >(params, maps)
    }
}

/// Gives each warpgroup of the block its role.
///
/// # Safety
/// The conditions of [`fp8`].
#[inline(always)]
unsafe fn run<
    K: Kernel,
    U: Outer<OT>,
    const OT: usize,
    const NT: usize,
    const PT: usize,
    const QT: usize,
    const QR: u32,
    const NQ: u32,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Fp8Params,
    maps: u64,
) where
    [HalfAccumulator; NT]: Products,
    [HalfAccumulator; OT]: Products,
{
    let memory = Fp8Memory::new(shared::base(), [NQ, K::BC, K::D, S]);
    // SAFETY: all threads of the block reach the barrier; then each warpgroup has its role.
    unsafe {
        let thread = K::thread();
        if thread == 0 {
            for slot in 0..NQ {
                mbarrier::init(memory.q_full(slot), 1);
                // Every lane releases Q, which all of them read in part.
                mbarrier::init(memory.q_full(slot) + 8, 128);
            }
            for stage in 0..S {
                mbarrier::init(memory.full(stage), 1);
                mbarrier::init(memory.full(stage) + 8, 4 * K::WARPGROUPS);
            }
            mbarrier::init(memory.columns_full(), 1);
            mbarrier::init(memory.columns_full() + 8, 128 * K::WARPGROUPS);
            mbarrier::fence_init();
        }
        // No load writes those behind the head dim, which no lane stores.
        let mut row = transposed_rows(params.forward.dim) + thread;
        while row < K::D {
            let place = memory.columns() + 8 * row;
            shared::store_u32(place, 0);
            shared::store_u32(place + 4, 0);
            row += 128 * (K::WARPGROUPS + 1);
        }
        barrier::block();
        let warpgroup = shuffle::first(thread / 128);
        if warpgroup == K::WARPGROUPS {
            setmaxnreg::decrease::<GIVEN>();
            if shuffle::first(thread / 32) == 4 * K::WARPGROUPS {
                produce::<K, NQ, S>(params, maps, memory, is_wide::<U, OT>(params));
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            consume::<K, U, OT, NT, PT, QT, QR, NQ, S>(params, memory, warpgroup);
        }
    }
}
