//! Which batch entry and which head a number in the order of tiles has.
//!
//! Heads follow each other, batch entry after batch entry. Where all entries share a bias, entries alternate instead: tiles of
//! one head are in work at a time, and read its bias once from device memory, not once for each entry.

use crate::abi::{Divisor, ForwardParams};
use crate::attention::options::mask::Mask;
use crate::ptx::switch;

/// Whether entries alternate.
#[inline(always)]
fn alternates<M: Mask>(params: &ForwardParams) -> bool {
    M::HAS_HEADS && switch::bias() != 0 && params.options.entries.value > 1
}

/// The batch entry, and the number in it, of tile head `number` of all entries.
#[inline(always)]
pub fn tile_head<M: Mask>(params: &ForwardParams, number: u32) -> (u32, u32) {
    if alternates::<M>(params) {
        let (head, entry) = params.options.entries.divide(number);
        return (entry, head);
    }
    params.tile_heads.divide(number)
}

/// The batch entry, and the number in it, of query head `number`; an entry has `heads` of them. Tile heads are key/value heads.
#[inline(always)]
pub fn query_head<M: Mask>(params: &ForwardParams, heads: Divisor, number: u32) -> (u32, u32) {
    if alternates::<M>(params) {
        let (tile, in_group) = params.group.divide(number);
        let (entry, head) = tile_head::<M>(params, tile);
        return (entry, head * params.group.value + in_group);
    }
    heads.divide(number)
}

/// The number of a query head of a batch entry: the inverse of [`query_head`].
#[inline(always)]
pub fn query_head_number<M: Mask>(params: &ForwardParams, entry: u32, head: u32) -> u32 {
    if alternates::<M>(params) {
        let (tile, in_group) = params.group.divide(head);
        return (tile * params.options.entries.value + entry) * params.group.value + in_group;
    }
    entry * params.heads + head
}
