//! The argument block of a launch.

use kernels::abi::ForwardParams;

/// Arguments of a kernel of the ladder, passed by value.
///
/// A naive kernel has the scores, `f32[batch, heads, seqlen_q, seqlen_kv]`, at `forward.partial_o`; `fa1` has O
/// so far there. Its grid has one block for each head.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LadderParams {
    /// The attention call.
    pub forward: ForwardParams,
    /// How to compute it.
    pub options: Options,
}

/// The choices of a launch.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Buffers of the ring that tiles pass through: at least 1.
    pub buffers: u32,
    /// Which tiles are swizzled: bit 0 Q, bit 1 K, bit 2 V.
    pub swizzled: u32,
    /// 16-byte chunks left free after each row of a tile.
    pub padding: u32,
    /// How O is stored: an [`OStore`](crate::OStore).
    pub o_store: u32,
    /// Teams: windows of 64 columns of K that pass at a time.
    pub windows: u32,
    /// Teams: keys of V that pass at a time, a multiple of 32.
    pub v_keys: u32,
    /// Teams: which tiles have a place beside the ring. Bit 0: Q, for good; bit 2: V, for a block of keys.
    pub apart: u32,
    /// Which launch of a naive kernel: a [`NaivePass`](crate::options::NaivePass).
    pub pass: u32,
}

impl Options {
    /// The options that need the least shared memory.
    pub const LEAST: Self = Options {
        buffers: 1,
        swizzled: 0,
        padding: 0,
        o_store: 0,
        windows: 1,
        v_keys: 32,
        apart: 0,
        pass: 0,
    };
}
