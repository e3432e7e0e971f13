//! The argument block of the kernel that makes a table of pages and lengths of rows in the CSR form.

/// Arguments of the kernel, which copies the page numbers of each batch entry to the entry's row of a table, and writes how many
/// keys it has.
///
/// The grid is one-dimensional, with a warp for each piece of [so many](crate::catalog::Auxiliary::CSR_PAGES) numbers of a row of
/// the table, and one for a row that has none.
///
/// Numbers that are not allowed are moved to what is: a kernel reads inside the indices and writes inside the table, whatever the
/// offsets are.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsrParams {
    /// Device address of `i32[batch + 1]`: where the pages of each batch entry begin among the indices, and where the last one's end.
    pub indptr: u64,
    /// Device address of `i32[indices]`: page numbers.
    pub indices: u64,
    /// Device address of `i32[batch]`: keys of the last page of each batch entry.
    pub last_page: u64,
    /// Device address of the table, `i32[batch, most]`, to write.
    pub table: u64,
    /// Numbers from a batch entry's row of the table to the next one's.
    pub table_stride: i64,
    /// Device address of `i32[batch]`, to write: keys of each batch entry.
    pub lengths: u64,
    /// Page numbers that there are; below 2^31.
    pub count: u32,
    /// Batch entries.
    pub batch: u32,
    /// Pages that a row of the table has room for; with all of them, an entry has fewer than 2^31 keys.
    pub most: u32,
    /// Keys of a page.
    pub keys: u32,
    /// Pieces of a row of the table: at least 1.
    pub pieces: u32,
    /// Zero: rounds the size up to a multiple of 8 bytes.
    pub padding: u32,
}
