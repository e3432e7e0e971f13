//! The argument block of the kernel that finds what queries and keys see.

/// Arguments of the kernel that finds which keys each query sees, and which queries see each key, where the batch consists
/// of sequences. A window counts in each sequence, from its last query and key on.
///
/// Offsets and lengths that are not allowed are moved to what is: no range leaves the rows.
///
/// The grid is one-dimensional, with a thread for each query and each key of all batch entries.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangesParams {
    /// Device address of the queries' offsets, `i32[sequences + 1]`, the same for all batch entries; or of lengths of sequences
    /// that are [a step apart](Self::queries), 0 if they fill it.
    pub q: u64,
    /// Device address of the keys' offsets or lengths, in the form of [`q`](Self::q).
    pub kv: u64,
    /// Device address of a [`KeyRange`](super::KeyRange) for each query, `[batch, seqlen_q]`.
    pub key_ranges: u64,
    /// Device address of a [`QueryRange`](super::QueryRange) for each key, `[batch, seqlen_kv]`; 0 if they are not wanted.
    pub query_ranges: u64,
    /// Device address of the first key of each batch entry, `i32[batch]`, whose only sequence begins there; 0 where all begin with
    /// key 0. Only of sequences that are [a step apart](Self::queries).
    pub first_keys: u64,
    /// Device address of slopes of sequences, `f32[sequences, heads]`; 0 if there are none. Only of offsets.
    pub slopes: u64,
    /// Elements from a sequence's slopes to the next ones.
    pub slopes_sequence: i64,
    /// Elements from a head's slope to the next one.
    pub slopes_head: i64,
    /// Device address of the slope of each query, `f32[heads, seqlen_q]`, where there are slopes.
    pub query_slopes: u64,
    /// Device address of a [`QueryTile`](super::QueryTile) for each of [`tile_count`](Self::tile_count), to write, where offsets bound
    /// queries and lengths keys; 0 if they are not wanted. One more block then divides the queries.
    pub tiles: u64,
    /// How many query tiles of a head, or of a [group](Self::group), there may be.
    pub tile_count: u32,
    /// Rows of a query tile.
    pub tile_rows: u32,
    /// Rows of a query: the heads that share a tile.
    pub group: u32,
    /// Sequences that each batch entry consists of, one after another.
    pub sequences: u32,
    /// Batch entries.
    pub batch: u32,
    /// Queries of a batch entry.
    pub seqlen_q: u32,
    /// Keys of a batch entry.
    pub seqlen_kv: u32,
    /// The window's [left bound](super::Options::left), in the sequence.
    pub left: i32,
    /// The window's [right bound](super::Options::right), in the sequence.
    pub right: i32,
    /// Queries from the begin of a sequence to the next one's, where all are alike; 0 where offsets say where they begin.
    pub queries: u32,
    /// Keys from the begin of a sequence to the next one's, or 0, like [`queries`](Self::queries). Where offsets bound queries alone,
    /// the keys of a sequence are those of an entry of its own, as many as its length says.
    pub keys: u32,
    /// Sequences, one after another through all entries, that share a length.
    pub sharing: u32,
    /// Query heads.
    pub heads: u32,
    /// The step at whose multiples queries of sequences [begin](super::SpreadParams), 0 where they follow one another. Only of
    /// offsets.
    pub spread_q: u32,
    /// The step of keys, like [`spread_q`](Self::spread_q).
    pub spread_kv: u32,
    /// Queries where they are spread: ranges are of these.
    pub rows_q: u32,
    /// Keys where they are spread, like [`rows_q`](Self::rows_q).
    pub rows_kv: u32,
    /// 0.
    pub padding: u32,
}
