//! The argument block of the bulk copy kernel.

/// Arguments of the bulk copy kernel, which copies 16-bit numbers and flips their signs.
///
/// The grid is one-dimensional, of any size; a block takes every `blocks`th piece.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCopyParams {
    /// Device address of the numbers: a multiple of 16.
    pub from: u64,
    /// Device address of the copy: a multiple of 16.
    pub to: u64,
    /// Pieces of [`BULK_BYTES`].
    pub pieces: u32,
    /// Blocks of the grid.
    pub blocks: u32,
}

/// Bytes of a piece.
pub const BULK_BYTES: u32 = 2048;
