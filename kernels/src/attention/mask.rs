//! Which keys a query sees: visible keys are a prefix `0..limit(row)` of the sequence.
//!
//! A mask is a type, so that a kernel without one pays nothing for it. Its trip counts split the
//! key blocks of a query tile into those that every row sees whole, which need no masking, those
//! that some row sees in part, and those that are never loaded.
//!
//! A block that takes a split of the keys treats it as its own sequence: limits count from the
//! split's first key.

use crate::abi::Divisor;
use crate::abi::ForwardParams;

/// Visibility of keys for each query row.
pub trait Mask: Copy {
    /// Whether the limit grows with the row.
    const CAUSAL: bool;

    /// Whether rows are the queries of all heads that share a key/value head.
    const PACKED: bool = false;

    /// The mask of a launch on the split of `keys` keys from key `first` on.
    fn new(p: &ForwardParams, first: u32, keys: u32) -> Self;

    /// Number of keys that `row` sees, at most `keys`; not less than that of `row - 1`.
    fn limit(self, row: i32) -> i32;

    /// Of a block of keys that starts at `first_key`, how many keys `row`, which exists, sees: not
    /// bounded by 0 below nor by the block's length above.
    #[inline(always)]
    fn visible(self, row: i32, first_key: i32) -> i32 {
        self.limit(row) - first_key
    }

    /// Key blocks of `keys` keys that at least one of the rows `first..=last` sees.
    #[inline(always)]
    fn trip_count(self, last: i32, keys: u32) -> u32 {
        (self.limit(last) as u32).div_ceil(keys)
    }

    /// Key blocks, counted from the first, that all rows from `first` on see whole.
    #[inline(always)]
    fn unmasked_trip_count(self, first: i32, keys: u32) -> u32 {
        self.limit(first) as u32 / keys
    }
}

/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    keys: i32,
}

impl Mask for Full {
    const CAUSAL: bool = false;

    #[inline(always)]
    fn new(_p: &ForwardParams, _first: u32, keys: u32) -> Self {
        Full { keys: keys as i32 }
    }

    #[inline(always)]
    fn limit(self, _row: i32) -> i32 {
        self.keys
    }
}

/// Query `i` sees keys up to `i + seqlen_kv - seqlen_q`: the last query sees all (bottom-right).
#[derive(Clone, Copy, Debug)]
pub struct Causal {
    keys: i32,
    offset: i32,
}

impl Mask for Causal {
    const CAUSAL: bool = true;

    #[inline(always)]
    fn new(p: &ForwardParams, first: u32, keys: u32) -> Self {
        Causal {
            keys: keys as i32,
            offset: causal_offset(p) - first as i32,
        }
    }

    #[inline(always)]
    fn limit(self, row: i32) -> i32 {
        // Rows past the last query belong to the ragged end of a tile; `row + offset` stays within
        // i32 because both lengths are at most `MAX_SEQLEN`.
        row.saturating_add(self.offset).clamp(0, self.keys)
    }

    /// Without the bounds of `limit`, which an existing row of the last split never exceeds and in
    /// other splits are ends of blocks: one register serves all rows of a lane.
    #[inline(always)]
    fn visible(self, row: i32, first_key: i32) -> i32 {
        row.wrapping_add(self.offset).wrapping_sub(first_key)
    }
}

/// Full or causal, as the launch says.
#[derive(Clone, Copy, Debug)]
pub struct Either(Causal);

impl Mask for Either {
    const CAUSAL: bool = true;

    #[inline(always)]
    fn new(p: &ForwardParams, first: u32, keys: u32) -> Self {
        let mask = Causal::new(p, first, keys);
        // Without a mask even query 0 sees more keys than there are.
        let offset = match p.causal {
            0 => i32::MAX - first as i32,
            _ => mask.offset,
        };
        Either(Causal { offset, ..mask })
    }

    #[inline(always)]
    fn limit(self, row: i32) -> i32 {
        self.0.limit(row)
    }
}

/// Full or causal, as the launch says, for rows that are `group` heads' first query, then their
/// second, and so on.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    mask: Either,
    group: Divisor,
}

impl Mask for Packed {
    const CAUSAL: bool = true;
    const PACKED: bool = true;

    #[inline(always)]
    fn new(p: &ForwardParams, first: u32, keys: u32) -> Self {
        Packed {
            mask: Either::new(p, first, keys),
            group: p.group,
        }
    }

    #[inline(always)]
    fn limit(self, row: i32) -> i32 {
        self.mask.limit(self.group.divide(row as u32).0 as i32)
    }
}

/// What the causal mask adds to a query to get the number of keys it sees.
#[inline(always)]
fn causal_offset(p: &ForwardParams) -> i32 {
    p.seqlen_kv as i32 - p.seqlen_q as i32 + 1
}
