//! The kernel that finds, for each tile, the blocks in which a boolean mask shows a pair.

use super::pairs::Pairs;
use crate::abi::{BlockMapParams, BlockMapRef, Share};
use crate::ptx::{barrier, global, shared, special, vote};
use crate::tile::registers::opaque;

/// Queries whose elements a warp asks for at once.
const AT_ONCE: u32 = 4;

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
    let element = Element::of(params);
    // The shares of the tile's parts in a block: 0 where the mask shows no pair.
    let look = |block: u32| {
        let block = [block * params.block_rows, (block + 1) * params.block_rows];
        let (mut shares, mut part) = (0, 0);
        while part < params.tile_rows / params.part_rows {
            let rows = [0, 1].map(|end| first_row + ((part + end) * params.part_rows) as i32);
            let rows = rows.map(|row| row.max(0) as u32);
            let [queries, keys] = match params.transposed {
                0 => [rows, block],
                _ => [block, rows],
            };
            // A mask that repeats its queries has one.
            let queries = match params.queries {
                1 => [0, 1],
                count => queries.map(|query| query.min(count)),
            };
            let keys = keys.map(|key| key.min(params.keys));
            let mut found = [false; 2];
            let mut member = 0;
            while member < params.group {
                let place = [batch, head * params.group + member];
                let mask = Pairs::new(&params.mask, place, element.bytes());
                // SAFETY: the caller's promise; all lanes of the warp have one block.
                found = unsafe { look(mask, element, queries, keys, lane, found) };
                member = opaque(member + 1);
            }
            shares |= (Share::of(found) as u32) << (2 * part);
            part = opaque(part + 1);
        }
        shares
    };

    let blocks = params.blocks;
    let ranks = params.map + BlockMapRef::tile_bytes(blocks) * u64::from(special::block());
    let places = ranks + BlockMapRef::rank_bytes(blocks);
    let found = shared::base();
    let (mut count, mut done) = (0, 0);
    // SAFETY: all threads pass the same barriers, which stand between writes and reads of what warps found; branches of a vote
    // depend on the warp alone. Each place of the map is one thread's.
    unsafe {
        while done < blocks {
            let block = done + warp;
            let shares = if block < blocks { look(block) } else { 0 };
            if lane == 0 {
                shared::store_u32(found + 4 * warp, shares);
            }
            barrier::block();
            // Thread `i` writes what warp `i` found.
            let (mut before, mut own, mut all) = (0, 0, 0);
            let mut i = 0;
            while i < W {
                let shares = shared::load_u32(found + 4 * i);
                let is_shown = u32::from(shares != 0);
                before += if i < thread { is_shown } else { 0 };
                own = if i == thread { shares } else { own };
                all += is_shown;
                i = opaque(i + 1);
            }
            let block = done + thread;
            if thread < W && block < blocks {
                let rank = count + before;
                global::store_u32(ranks + 4 * u64::from(block), rank);
                if own != 0 {
                    global::store_u32x2(places + 8 * u64::from(rank), [block, own]);
                }
            }
            count += all;
            done += W;
            barrier::block();
        }
        if thread == 0 {
            global::store_u32(ranks + 4 * u64::from(blocks), count);
        }
        // Who loads ahead may read places behind the last one.
        let mut rest = count + thread;
        while rest < blocks {
            global::store_u32x2(places + 8 * u64::from(rest), [0; 2]);
            rest += 32 * W;
        }
    }
}

/// Elements of a mask that are read at once, by the logarithm of the number of keys.
#[derive(Clone, Copy)]
enum Element {
    /// A byte: a key.
    Byte = 0,
    /// Bytes of 4 keys, where all rows start at multiples of 4 bytes and have as many.
    Bytes = 2,
    /// Bits of 32 keys.
    Bits = 5,
}

impl Element {
    #[inline(always)]
    fn of(params: &BlockMapParams) -> Self {
        let mask = &params.mask;
        let strides = mask.batch_stride | mask.head_stride | mask.query_stride;
        if params.bits != 0 {
            Element::Bits
        } else if (mask.address | strides as u64 | u64::from(params.keys)).is_multiple_of(4) {
            Element::Bytes
        } else {
            Element::Byte
        }
    }

    /// Bytes by which a mask's strides count.
    #[inline(always)]
    fn bytes(self) -> u32 {
        match self {
            Element::Bits => 4,
            _ => 1,
        }
    }

    /// # Safety
    /// The query has the element.
    #[inline(always)]
    unsafe fn load(self, mask: Pairs, query: u32, element: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Element::Byte => u32::from(global::load_u8(mask.at(query, element))),
                Element::Bytes => global::load_u32(mask.at(query, 4 * element)),
                Element::Bits => global::load_u32(mask.at(query, element)),
            }
        }
    }

    /// Bits of an element of which `low..high` keys count: those of keys that the mask shows, and of keys that it hides. Bytes
    /// have any bits where they show.
    #[inline(always)]
    fn found(self, element: u32, [low, high]: [u32; 2]) -> [u32; 2] {
        let bits = match self {
            Element::Bits => 1,
            _ => 8,
        };
        let own = (u32::MAX << (bits * low)) & (u32::MAX >> (32 - bits * high));
        let hidden = match self {
            Element::Bits => !element & own,
            _ => {
                // The high bits of bytes that are 0, and perhaps of ones above them.
                let bytes = element | !own;
                bytes.wrapping_sub(0x0101_0101) & !bytes & 0x8080_8080
            }
        };
        [element & own, hidden]
    }
}

/// Whether the mask shows a pair of the queries and keys, each from the first to the one after the last, and whether it hides
/// one; what was found before included.
///
/// # Safety
/// Every lane of the warp makes the same call; the pairs have elements.
#[inline(always)]
unsafe fn look(
    mask: Pairs,
    element: Element,
    [mut query, end_query]: [u32; 2],
    [first_key, end_key]: [u32; 2],
    lane: u32,
    mut found: [bool; 2],
) -> [bool; 2] {
    if first_key == end_key {
        return found;
    }
    let log = element as u32;
    let (first, last) = (first_key >> log, (end_key - 1) >> log);
    // SAFETY: the caller's promise.
    unsafe {
        while query < end_query && !(found[0] && found[1]) {
            let (mut shown, mut hidden) = (0, 0);
            let mut place = first + lane;
            while place <= last {
                // Keys of the element that belong to other blocks.
                let low = first_key.saturating_sub(place << log);
                let high = (end_key - (place << log)).min(1 << log);
                for i in 0..AT_ONCE {
                    let loaded = element.load(mask, (query + i).min(end_query - 1), place);
                    let [some, others] = element.found(loaded, [low, high]);
                    shown |= some;
                    hidden |= others;
                }
                place = opaque(place + 32);
            }
            found[0] |= vote::any(shown != 0);
            found[1] |= vote::any(hidden != 0);
            query += AT_ONCE;
        }
    }
    found
}
