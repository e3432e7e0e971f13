//! The kernel that finds, for each tile, the blocks in which a boolean mask shows a pair.

use super::pairs::Pairs;
use crate::abi::{BlockMapParams, BlockMapRef};
use crate::ptx::{barrier, global, shared, special, vote};
use crate::tile::registers::opaque;

/// Queries whose elements a warp asks for at once.
const AT_ONCE: u32 = 8;

/// Writes the map of the block's tile, with `W` warps, each of which looks at every `W`th block. Shared memory holds a word
/// for each warp.
///
/// # Safety
/// Launched as [`BlockMapParams`] and the kernel's row of the [catalog](crate::catalog) say, with a readable mask and a
/// writable map.
#[inline(always)]
pub unsafe fn find_blocks<const W: u32>(params: &BlockMapParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let (warp, lane) = (thread / 32, thread % 32);
    let (head, tile) = (
        special::block() / params.tiles,
        special::block() % params.tiles,
    );
    let (batch, head) = (head / params.heads, head % params.heads);
    let first_row = params.first_row + (tile * params.tile_rows) as i32;
    let tile = [
        first_row.max(0) as u32,
        (first_row + params.tile_rows as i32) as u32,
    ];
    let shows = |block: u32| {
        let block = [block * params.block_rows, (block + 1) * params.block_rows];
        let [queries, keys] = match params.transposed {
            0 => [tile, block],
            _ => [block, tile],
        };
        // A mask that repeats its queries has one.
        let queries = [
            queries[0].min(params.queries - 1),
            queries[1].min(params.queries),
        ];
        let keys = [keys[0], keys[1].min(params.keys)];
        let mut shown = false;
        let mut member = 0;
        while member < params.group && !shown {
            let place = [batch, head * params.group + member];
            let mask = Pairs::new(&params.mask, place, if params.bits != 0 { 4 } else { 1 });
            // SAFETY: the caller's promise; all lanes of the warp have one block.
            shown = unsafe { shows(mask, params.bits != 0, queries, keys, lane) };
            member = opaque(member + 1);
        }
        shown
    };

    let blocks = params.blocks;
    let ranks = params.map + BlockMapRef::tile_bytes(blocks) * u64::from(special::block());
    let numbers = ranks + 4 * (u64::from(blocks) + 1);
    let flags = shared::base();
    let (mut count, mut done) = (0, 0);
    // SAFETY: all threads pass the same barriers, which stand between writes and reads of the flags; branches of a vote
    // depend on the warp alone. Each place of the map is one thread's.
    unsafe {
        while done < blocks {
            let block = done + warp;
            let shown = block < blocks && shows(block);
            if lane == 0 {
                shared::store_u32(flags + 4 * warp, u32::from(shown));
            }
            barrier::block();
            // Thread `i` writes what warp `i` found.
            let (mut before, mut own, mut all) = (0, 0, 0);
            let mut i = 0;
            while i < W {
                let flag = shared::load_u32(flags + 4 * i);
                before += if i < thread { flag } else { 0 };
                own = if i == thread { flag } else { own };
                all += flag;
                i = opaque(i + 1);
            }
            let block = done + thread;
            if thread < W && block < blocks {
                let rank = count + before;
                global::store_u32(ranks + 4 * u64::from(block), rank);
                if own != 0 {
                    global::store_u32(numbers + 4 * u64::from(rank), block);
                }
            }
            count += all;
            done += W;
            barrier::block();
        }
        if thread == 0 {
            global::store_u32(ranks + 4 * u64::from(blocks), count);
        }
        // Who loads ahead may read numbers behind the last one.
        let mut rest = count + thread;
        while rest < blocks {
            global::store_u32(numbers + 4 * u64::from(rest), 0);
            rest += 32 * W;
        }
    }
}

/// Whether the mask shows a pair of the queries and keys, each from the first to the one after the last.
///
/// # Safety
/// Every lane of the warp makes the same call; the pairs have elements.
#[inline(always)]
unsafe fn shows(
    mask: Pairs,
    bits: bool,
    [mut query, end_query]: [u32; 2],
    [first_key, end_key]: [u32; 2],
    lane: u32,
) -> bool {
    let (keys, last) = if bits {
        (32, (end_key - 1) / 32)
    } else {
        (1, end_key - 1)
    };
    let first = first_key / keys;
    // SAFETY: the caller's promise.
    unsafe {
        while query < end_query {
            let mut found = 0;
            let mut element = first + lane;
            while element <= last {
                // Bits of the word that belong to other blocks.
                let low = first_key.saturating_sub(element * keys);
                let high = (end_key - element * keys).min(32);
                let own = (u32::MAX << low) & (u32::MAX >> (32 - high));
                for i in 0..AT_ONCE {
                    let address = mask.at((query + i).min(end_query - 1), element);
                    found |= if bits {
                        global::load_u32(address) & own
                    } else {
                        u32::from(global::load_u8(address))
                    };
                }
                element = opaque(element + 32);
            }
            if vote::any(found != 0) {
                return true;
            }
            query += AT_ONCE;
        }
    }
    false
}
