//! Keys and values before those of each entry of the batch, which all entries share, by address.

use crate::tensor::{Dtype, RawTensor};

/// The name of a prefix in pages.
pub(super) const PREFIX_PAGES: &str = "prefix_pages";

/// A shared [prefix](crate::Attention::prefix) by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RawPrefix {
    /// Tensors of their own.
    Keys {
        /// Type of the elements: that of q, k and v.
        dtype: Dtype,
        /// Keys, `[1, kv_heads, keys, dim]`, with stride 1 in dim.
        k: RawTensor,
        /// Values, `[1, kv_heads, keys, dim_v]`, with stride 1 in dim.
        v: RawTensor,
    },
    /// [Pages](crate::Attention::prefix_pages) of k and v.
    Pages {
        /// Their numbers, `i32[n]`, with stride 1.
        table: RawTensor<1>,
        /// Keys of all of them, of which the last page has 1 or more.
        keys: usize,
    },
}
