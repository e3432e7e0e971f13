//! A consumer: a warpgroup with one half of O's columns walks over the blocks of keys, of which every other one is its own.

use super::THREADS;
use super::part::Part;
use super::query::{copy_q, load_q};
use super::step::{Consumer, Edge, Ends, EndsBefore, Follows, Leads, Whole};
use crate::abi::ForwardParams;
use crate::attention::Softmax;
use crate::attention::forward::sm90::store::store_rows;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::latent::LatentMemory;
use crate::ptx::{barrier, special};
use crate::tile::wgmma::Product;
use crate::tile::whole::map_rows;
use crate::tile::{Accumulator, Element, Operand};
use core::marker::PhantomData;

/// The barrier of all consumers.
const CONSUMERS: u32 = 11;

/// Computes the columns of a warpgroup of the block's tile.
///
/// # Safety
/// The conditions of [`latent`](super::latent), with initialised barriers, in all threads of both warpgroups.
#[inline(always)]
pub unsafe fn consume<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    const OT: usize,
    const NT: usize,
    const QT: usize,
    const S: u32,
>(
    params: &ForwardParams,
    part: Part<M, H>,
    memory: LatentMemory,
    side: u32,
) where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    let score = C::new(params, part.work.sequence.batch, part.work.heads.first());
    let scale = score.scale();
    // SAFETY: the caller's promise.
    let [pairs, whole] = unsafe { part.pairs() };
    let blocks = 2 * (pairs.end - pairs.start);
    // SAFETY: the launch has this many threads a block.
    let warp = unsafe { special::thread(THREADS) } / 32 % 4;
    let [keys] = map_rows::<_, 1>(|row| {
        let row = part.work.first + 16 * warp + row;
        part.mask.keys(part.work.query(row))
    });
    let mut consumer = Consumer::<E, M, OT, NT, QT, S> {
        memory,
        side,
        first: pairs.start,
        whole,
        keys,
        softmax: Softmax::new(scale),
        q: [Operand::ZERO; QT],
        o: [Accumulator::ZERO; OT],
        s: [Accumulator::ZERO; NT],
        p: [Operand::ZERO; NT],
        kernel: PhantomData,
    };
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on the
    // block and the warpgroup alone.
    unsafe {
        let thread = special::thread(THREADS);
        copy_q(params, &part, memory, thread, scale.negative);
        barrier::some(CONSUMERS, 256);
        consumer.q = load_q(memory, thread);
        if blocks > 0 {
            if side == 0 {
                consumer.step::<Leads>(0);
            } else {
                consumer.step::<Follows>(1);
            }
            let mut next = side + 2;
            while next < blocks {
                if consumer.all_see(next) {
                    consumer.step::<Whole>(next);
                } else {
                    consumer.step::<Edge>(next);
                }
                next += 2;
            }
            if side == 0 {
                consumer.step::<EndsBefore>(next);
            } else {
                consumer.step::<Ends>(next);
            }
        }
        consumer.exchange().add_sums(&mut consumer.softmax);
        let thread = special::thread(THREADS);
        let first = part.work.first + thread / 32 % 4 * 16;
        let columns = 16 * OT as u32 * (thread / 128);
        store_rows::<E, C, H, OT>(
            params,
            &part.work,
            [first as i32, columns as i32],
            thread % 32,
            consumer.o,
            &consumer.softmax,
        );
    }
}
