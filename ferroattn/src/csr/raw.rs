//! Tensors of a call by address.

use crate::error::{Result, expect_at_most};
use crate::options::read_pages;
use crate::tensor::{RawTensor, expect_shape};

/// Tensors by address, for [`csr_pages_raw`](super::csr_pages_raw): all of `i32`, with stride 1 in the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawCsrPages {
    /// Keys of a page, a power of 2.
    pub page: usize,
    /// Where the pages of each entry of the batch begin, and where the last one's end, `[batch + 1]`.
    pub indptr: RawTensor<1>,
    /// Page numbers, `[n]`.
    pub indices: RawTensor<1>,
    /// Keys of each entry's last page, `[batch]`.
    pub last_page: RawTensor<1>,
    /// Where to write the table, `[batch, most]`.
    pub table: RawTensor<2>,
    /// Where to write the lengths, `[batch]`.
    pub lengths: RawTensor<1>,
    /// Whether a GPU [checks](super::CsrPages::check_lengths) the numbers.
    pub check_lengths: bool,
}

impl RawCsrPages {
    /// Pages of so many keys, and the table and lengths to write, without a check.
    pub fn new(
        page: usize,
        [indptr, indices, last_page]: [RawTensor<1>; 3],
        (table, lengths): (RawTensor<2>, RawTensor<1>),
    ) -> Self {
        RawCsrPages {
            page,
            indptr,
            indices,
            last_page,
            table,
            lengths,
            check_lengths: false,
        }
    }

    /// Checks shapes and strides.
    pub(super) fn validate(&self) -> Result<()> {
        let [batch, most] = self.table.shape;
        read_pages(self.page, most)?;
        for (argument, tensor, count) in [
            ("indptr", self.indptr, batch.saturating_add(1)),
            ("indices", self.indices, self.indices.shape[0]),
            ("last_page", self.last_page, batch),
            ("lengths", self.lengths, batch),
        ] {
            expect_shape(argument, &[count], &tensor.shape)?;
            expect_at_most(argument, count, i32::MAX as u32)?;
            tensor.expect_rows(argument, "its axis")?;
        }
        self.table.expect_rows("table", "its last axis")?;
        self.table.layout().expect_injective("table")
    }
}
