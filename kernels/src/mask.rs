//! Which keys a query sees: visible keys are a prefix `0..limit(row)` of the sequence.
//!
//! A mask is a type, so that a kernel without one pays nothing for it. Its trip counts split the
//! key blocks of a query tile into those that every row sees whole, which need no masking, those
//! that some row sees in part, and those that are never loaded.

/// Visibility of keys for each query row.
pub trait Mask: Copy {
    /// Whether the limit grows with the row.
    const CAUSAL: bool;

    /// The mask of a problem of this size.
    fn new(seqlen_q: u32, seqlen_kv: u32) -> Self;

    /// Number of keys that `row` sees, at most `seqlen_kv`; not less than that of `row - 1`.
    fn limit(self, row: i32) -> i32;

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
    seqlen_kv: i32,
}

impl Mask for Full {
    const CAUSAL: bool = false;

    #[inline(always)]
    fn new(_seqlen_q: u32, seqlen_kv: u32) -> Self {
        Full {
            seqlen_kv: seqlen_kv as i32,
        }
    }

    #[inline(always)]
    fn limit(self, _row: i32) -> i32 {
        self.seqlen_kv
    }
}

/// Query `i` sees keys up to `i + seqlen_kv - seqlen_q`: the last query sees all (bottom-right).
#[derive(Clone, Copy, Debug)]
pub struct Causal {
    seqlen_kv: i32,
    offset: i32,
}

impl Mask for Causal {
    const CAUSAL: bool = true;

    #[inline(always)]
    fn new(seqlen_q: u32, seqlen_kv: u32) -> Self {
        let seqlen_kv = seqlen_kv as i32;
        Causal {
            seqlen_kv,
            offset: seqlen_kv - seqlen_q as i32 + 1,
        }
    }

    #[inline(always)]
    fn limit(self, row: i32) -> i32 {
        // Rows past the last query belong to the ragged end of a tile; `row + offset` stays within
        // i32 because both lengths are at most `MAX_SEQLEN`.
        row.saturating_add(self.offset).clamp(0, self.seqlen_kv)
    }
}
