//! Names of options in messages.

/// The name of packed or padded sequences.
pub(super) const LENGTHS: &str = "variable lengths";

/// The name of packed queries on keys in pages.
pub(super) const PACKED_QUERIES: &str = "packed_queries";

/// The name of the entries of a cache.
pub(crate) const CACHE: &str = "cache_entries";

/// The name of the pages of keys and values.
pub(crate) const PAGES: &str = "pages";

/// The name of calls whose results depend on no neighbours.
pub(crate) const INVARIANT: &str = "batch_invariant";

/// The name of keys and values of e4m3.
pub(crate) const E4M3_CACHE: &str = "e4m3_cache";

/// The name of q, k and v of e4m3.
pub(crate) const E4M3: &str = "e4m3";

/// The name of products of e4m3.
pub(crate) const FP8: &str = "fp8";

/// The name of a prefix.
pub(crate) const PREFIX: &str = "prefix";
