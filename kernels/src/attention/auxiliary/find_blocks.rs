//! The kernel that finds, for each tile, the blocks in which a boolean mask shows a pair.

use crate::abi::{BlockMapParams, BlockMapRef, Coverage};
use crate::attention::options::pairs::Pairs;
use crate::ptx::{barrier, global, shared, special, vote};
use crate::tile::registers::opaque;

/// Elements that a lane asks for at once, of as many queries.
const AT_ONCE: usize = 4;

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
    // The coverages of the tile's parts in a block: 0 where the mask shows no pair.
    let look = |block: u32| {
        let block = [block * params.block_rows, (block + 1) * params.block_rows];
        let (mut coverages, mut part) = (0, 0);
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
                member += 1;
            }
            coverages |= (Coverage::of(found) as u32) << (2 * part);
            part += 1;
        }
        coverages
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
            let coverages = if block < blocks { look(block) } else { 0 };
            if lane == 0 {
                shared::store_u32(found + 4 * warp, coverages);
            }
            barrier::block();
            // Thread `i` writes what warp `i` found.
            let (mut before, mut own, mut all) = (0, 0, 0);
            let mut i = 0;
            while i < W {
                let coverages = shared::load_u32(found + 4 * i);
                let is_shown = u32::from(coverages != 0);
                before += if i < thread { is_shown } else { 0 };
                own = if i == thread { coverages } else { own };
                all += is_shown;
                // Opaque: a register fewer from sm_90 on.
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

/// Keys of a mask that a lane reads at once, by the logarithm of their number.
#[derive(Clone, Copy)]
enum Element {
    /// A byte: a key.
    Byte = 0,
    /// Bytes of 4 keys, where all rows start at multiples of 4 bytes and have as many.
    Bytes = 2,
    /// Bytes of 16 keys, where all rows start at multiples of 16 bytes and have as many.
    Vector = 4,
    /// Bits of 32 keys.
    Bits = 5,
}

impl Element {
    #[inline(always)]
    fn of(params: &BlockMapParams) -> Self {
        let mask = &params.mask;
        let strides = mask.batch_stride | mask.head_stride | mask.query_stride;
        let bytes = mask.address | strides as u64 | u64::from(params.keys);
        if params.bits != 0 {
            Element::Bits
        } else if bytes.is_multiple_of(16) {
            Element::Vector
        } else if bytes.is_multiple_of(4) {
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
}

/// Words of 32 bits that hold an element.
type Words = [u32; 4];

/// Reads element number `place` of 2^`LOG` keys of a query.
///
/// # Safety
/// The query has the element.
#[inline(always)]
unsafe fn load<const LOG: u32>(mask: Pairs, query: u32, place: u32) -> Words {
    // SAFETY: the caller's promise.
    unsafe {
        match LOG {
            0 => [u32::from(global::load_u8(mask.at(query, place))), 0, 0, 0],
            2 => [global::load_u32(mask.at(query, 4 * place)), 0, 0, 0],
            4 => global::load_u32x4(mask.at(query, 16 * place)),
            _ => [global::load_u32(mask.at(query, place)), 0, 0, 0],
        }
    }
}

/// Bits of keys `low..high` of an element: in the first word where the mask shows a key, in the second where it hides one. Bytes
/// have any bits where they show. All keys of a vector count.
#[inline(always)]
fn found_in<const LOG: u32>(words: Words, [low, high]: [u32; 2]) -> [u32; 2] {
    // The high bits of bytes that are 0, and perhaps of ones above them.
    let zeros = |bytes: u32| bytes.wrapping_sub(0x0101_0101) & !bytes & 0x8080_8080;
    if LOG == Element::Vector as u32 {
        let hidden = words.map(zeros);
        return [words, hidden].map(|[a, b, c, d]| a | b | c | d);
    }
    let bits = if LOG == Element::Bits as u32 { 1 } else { 8 };
    let own = (u32::MAX << (bits * low)) & (u32::MAX >> (32 - bits * high));
    let hidden = match bits {
        1 => !words[0] & own,
        _ => zeros(words[0] | !own),
    };
    [words[0] & own, hidden]
}

/// A lane's findings from a query on, in as many queries as the warp reads at once: bits that show a pair, and bits that
/// hide one. Returns their number, too.
///
/// Lanes share a row as far as it has elements for them, and rows beside.
///
/// # Safety
/// The pairs have elements.
#[inline(always)]
unsafe fn rows<const LOG: u32>(
    mask: Pairs,
    [query, end_query]: [u32; 2],
    [first_key, end_key]: [u32; 2],
    lane: u32,
) -> ([u32; 2], u32) {
    let (first, last) = (first_key >> LOG, (end_key - 1) >> LOG);
    // The logarithm of the lanes of a row.
    let log = (32 - (last - first).leading_zeros()).min(5);
    let lane_rows = 32 >> log;
    let (mut shown, mut hidden) = (0, 0);
    let mut place = first + lane % (1 << log);
    while place <= last {
        // Keys of the element that belong to other blocks.
        let low = first_key.saturating_sub(place << LOG);
        let high = (end_key - (place << LOG)).min(1 << LOG);
        let mut elements = [[0; 4]; AT_ONCE];
        for i in 0..AT_ONCE {
            let row = query + (lane >> log) + i as u32 * lane_rows;
            // SAFETY: the caller's promise.
            elements[i] = unsafe { load::<LOG>(mask, row.min(end_query - 1), place) };
        }
        for i in 0..AT_ONCE {
            let [some, others] = found_in::<LOG>(elements[i], [low, high]);
            shown |= some;
            hidden |= others;
        }
        place += 1 << log;
    }
    ([shown, hidden], AT_ONCE as u32 * lane_rows)
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
    keys: [u32; 2],
    lane: u32,
    mut found: [bool; 2],
) -> [bool; 2] {
    if keys[0] == keys[1] {
        return found;
    }
    // SAFETY: the caller's promise.
    unsafe {
        while query < end_query && !(found[0] && found[1]) {
            let queries = [query, end_query];
            // A branch around all loads, so that they are on their way at a time. Opaque: the compiler would make a table of
            // addresses, which no other kernel has, and take 1 to 7 registers more.
            let is = |kind: Element| opaque(element as u32) == kind as u32;
            let ([shown, hidden], count) = if is(Element::Vector) {
                rows::<4>(mask, queries, keys, lane)
            } else if is(Element::Bits) {
                rows::<5>(mask, queries, keys, lane)
            } else if is(Element::Bytes) {
                rows::<2>(mask, queries, keys, lane)
            } else {
                rows::<0>(mask, queries, keys, lane)
            };
            found[0] |= vote::any(shown != 0);
            found[1] |= vote::any(hidden != 0);
            query += count;
        }
    }
    found
}
