//! Where the rows of k and v of a batch entry lie.

use super::sequence::Sequence;
use crate::abi::{ForwardParams, TensorRef};
use crate::layout::rows::{Rows, Strided};
use crate::ptx::global;

/// The rows of k and v that a batch entry reads: of its own entry of the tensors, or of another one.
///
/// Nothing else knows. Copies by threads ask for the [rows](Self::rows) of a head, copies by tensor maps for the
/// [place](Self::place_in_map) of a box.
pub trait KeyRows: Copy {
    /// The rows of a head.
    type Rows: Rows;

    /// The rows of a batch entry.
    fn new(params: &ForwardParams, sequence: Sequence) -> Self;

    /// The rows of a head of k or v from key `first` on, with `elements` elements each.
    fn rows(self, tensor: &TensorRef, head: u32, first: u32, elements: u32) -> Self::Rows;

    /// The row and the entry of a tensor map where key `first` lies, and the keys of a box behind it.
    fn place_in_map(self, first: u32) -> [u32; 2];
}

/// Rows a stride apart, in one entry of the tensors: the batch entry's own or, where `CACHED`, the one that the
/// [cache](crate::abi::Options::cache) names, if there is a cache.
#[derive(Clone, Copy)]
pub struct EntryRows<const CACHED: bool> {
    /// The sequence, with the entry in place of its number.
    sequence: Sequence,
}

impl<const CACHED: bool> KeyRows for EntryRows<CACHED> {
    type Rows = Strided;

    #[inline(always)]
    fn new(params: &ForwardParams, mut sequence: Sequence) -> Self {
        if CACHED {
            sequence.batch = cache_entry(params, sequence.batch);
        }
        EntryRows { sequence }
    }

    #[inline(always)]
    fn rows(self, tensor: &TensorRef, head: u32, first: u32, elements: u32) -> Strided {
        self.sequence.head_rows(tensor, head, elements).skip(first)
    }

    #[inline(always)]
    fn place_in_map(self, first: u32) -> [u32; 2] {
        [first, self.sequence.batch]
    }
}

/// The entry of k and v that serves a batch entry.
#[inline(always)]
fn cache_entry(params: &ForwardParams, batch: u32) -> u32 {
    let options = &params.options;
    if options.cache == 0 {
        return batch;
    }
    let address = options.cache + 4 * u64::from(batch);
    // SAFETY: a launch with a cache has a number for each batch entry.
    let entry = unsafe { global::load_u32(address) } as i32;
    entry.max(0).min(options.cache_entries as i32 - 1) as u32
}
