//! The size of an element: layouts, copies and products count by it.

use super::swizzle::CHUNK_BYTES;

/// Bytes of an element.
pub const BYTES: u32 = 2;

/// Elements of a chunk.
pub const CHUNK: u32 = CHUNK_BYTES / BYTES;

/// The k of an instruction: elements of A and B that it multiplies along the inner dimension, 32 bytes of a row.
pub const K: u32 = 32 / BYTES;

/// Bytes of so many elements.
#[must_use]
#[inline(always)]
pub fn bytes(elements: impl Into<i64>) -> i64 {
    i64::from(BYTES) * elements.into()
}

/// Address of the element that lies `elements` elements after the one at `address`.
#[must_use]
#[inline(always)]
pub fn at(address: u64, elements: impl Into<i64>) -> u64 {
    address.wrapping_add_signed(bytes(elements))
}
