//! The pages of keys and values that a table names.

/// The pages that hold the keys and values of each batch entry: entries of k and v, with as many keys each, in the order of
/// the keys.
///
/// Numbers of the table that are not allowed are moved to what is: a kernel reads inside the table, k and v whatever it holds.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesRef {
    /// Numbers from a batch entry's first page to the next one's.
    pub batch_stride: i64,
    /// Numbers of a batch entry: at least 1.
    pub count: u32,
    /// Keys of a page, as the exponent of a power of 2.
    pub keys_log2: u32,
    /// Keys of a box of a tensor map, which divide both a page and a step.
    pub box_keys: u32,
    /// Unused.
    pub reserved: u32,
}
