//! The shared memory of a block whose head dim is above 256.

use super::element::BYTES;

/// Columns of Q and K that pass at a time: a line of 128 bytes, within which chunks are swizzled.
pub const WINDOW: u32 = 128 / BYTES;

/// Shared memory of a block: P, what teams exchange, V if it passes whole, and the ring of buffers. O takes
/// their place at the end. Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideMemory {
    /// Four numbers of every row from each warp of a team.
    pub exchange: u32,
    /// V, if it has a place of its own.
    pub v: u32,
    /// The first buffer of the ring.
    pub ring: u32,
    /// Bytes of a buffer: a window of Q and K, or a slice of V.
    pub buffer: u32,
    /// All of it.
    pub bytes: u32,
}

impl WideMemory {
    /// For `q_rows` rows, `keys` keys a step with `v_keys` in a slice of V, `team` warps and `stages` buffers.
    #[inline(always)]
    pub const fn new(
        q_rows: u32,
        [keys, v_keys]: [u32; 2],
        team: u32,
        stages: u32,
        head_dim: u32,
    ) -> Self {
        let window = BYTES * WINDOW * (q_rows + keys);
        let v_slice = BYTES * head_dim * v_keys;
        let is_whole = v_keys == keys;
        let exchange = BYTES * q_rows * keys;
        let v = exchange + 16 * q_rows * team;
        let ring = if is_whole { v + v_slice } else { v };
        let buffer = if is_whole || window > v_slice {
            window
        } else {
            v_slice
        };
        let tiles = ring + stages * buffer;
        let o = BYTES * q_rows * head_dim;
        WideMemory {
            exchange,
            v,
            ring,
            buffer,
            bytes: if tiles > o { tiles } else { o },
        }
    }
}
