//! The call that makes a table of pages and lengths.

use super::plan::csr_pages_raw;
use super::raw::RawCsrPages;
use crate::device::Stream;
use crate::error::Result;
use crate::options::Borrowed;
use crate::tensor::{Storage, StorageMut, TensorBase, expect_device};
use std::ptr::null_mut;

/// Pages in the CSR form, which FlashInfer's callers have: the page numbers of all entries of a batch one after another, and where
/// those of each entry begin. [`run`](Self::run) makes of them the table and the lengths that
/// [`Attention::pages`](crate::Attention::pages) and [`Attention::padded`](crate::Attention::padded) take.
///
/// - `indptr` is `[batch + 1]` and never falls: entry `b` has pages `indices[indptr[b]..indptr[b + 1]]`, in the order of its keys.
/// - `indices` is `[n]`, and has page numbers, which the call that reads the pages checks.
/// - `last_page` is `[batch]`: the keys of each entry's last page, from 1 to `page`; of an entry without pages it may be any.
///
/// All have stride 1. Entry `b` has `(indptr[b + 1] - indptr[b] - 1) * page + last_page[b]` keys, none without pages.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, CsrPages, Device, Tensor};
///
/// let device = Device::cpu();
/// // Three pages of two keys; entry 0 has three keys in pages 2 and 0, entry 1 one key in page 1.
/// let values = [[1.0_f32; 8], [9.0; 8], [5.0; 8], [9.0; 8], [3.0; 8], [2.0; 8]].concat();
/// let cache = Tensor::new(&device, [3, 1, 2, 8], &values)?;
/// let indptr = Tensor::new(&device, [3], &[0, 2, 3])?;
/// let indices = Tensor::new(&device, [3], &[2, 0, 1])?;
/// let last_page = Tensor::new(&device, [2], &[1, 1])?;
///
/// // Once for a step, whatever the number of layers.
/// let (mut table, mut lengths) = (Tensor::zeros(&device, [2, 4])?, Tensor::zeros(&device, [2])?);
/// CsrPages::new(2, &indptr, &indices, &last_page).run(&mut table, &mut lengths)?;
/// assert_eq!(lengths.to_vec()?, [3, 1]);
///
/// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
/// let queries = Tensor::new(&device, [2], &[1, 1])?;
/// let attention = Attention::new().pages(&table).padded(&queries, &lengths);
/// let (o, _) = attention.forward(&q, &cache, &cache)?;
/// assert_eq!(o.to_vec()?, [[2.0; 8], [5.0; 8]].concat());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CsrPages<'a> {
    page: usize,
    indptr: Borrowed<'a, 1>,
    indices: Borrowed<'a, 1>,
    last_page: Borrowed<'a, 1>,
    check: bool,
    stream: Option<&'a Stream>,
}

impl<'a> CsrPages<'a> {
    /// Pages of `page` keys each, a power of 2.
    pub fn new(
        page: usize,
        indptr: &'a TensorBase<impl Storage<Item = i32>, 1>,
        indices: &'a TensorBase<impl Storage<Item = i32>, 1>,
        last_page: &'a TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Self {
        CsrPages {
            page,
            indptr: indptr.into(),
            indices: indices.into(),
            last_page: last_page.into(),
            check: false,
            stream: None,
        }
    }

    /// Whether a GPU, whose memory the host cannot see, checks `indptr` and `last_page` before it writes, and the call waits for that.
    /// Default: false; numbers that are not allowed are then moved to the nearest ones that are, and pages that the table has no
    /// room for are left out. The CPU always checks.
    pub fn check_lengths(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// The stream on which the call is queued. Default: the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Writes the table, `[batch, most]` with stride 1 in the last axis, and the lengths, `[batch]` with stride 1, in one launch. Numbers
    /// of the table behind an entry's last page stay as they are.
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks.
    pub fn run(
        &self,
        table: &mut TensorBase<impl StorageMut<Item = i32>, 2>,
        lengths: &mut TensorBase<impl StorageMut<Item = i32>, 1>,
    ) -> Result<()> {
        let device = table.device();
        let given = [
            ("indptr", &self.indptr),
            ("indices", &self.indices),
            ("last_page", &self.last_page),
        ];
        let given = given.map(|(name, tensor)| (name, tensor.device().clone()));
        expect_device(
            &device,
            given.into_iter().chain([("lengths", lengths.device())]),
        )?;
        let stream = match self.stream {
            Some(stream) => {
                expect_device(&device, [("stream", stream.device().clone())])?;
                stream.raw()
            }
            None => null_mut(),
        };
        let args = RawCsrPages {
            check_lengths: self.check,
            ..RawCsrPages::new(
                self.page,
                [self.indptr.raw(), self.indices.raw(), self.last_page.raw()],
                (table.as_raw_mut(), lengths.as_raw_mut()),
            )
        };
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes are compared. No other argument borrows the
        // buffers of table and lengths, so they overlap nothing. A buffer that is dropped early is freed by the driver after
        // the work. The stream is borrowed.
        unsafe { csr_pages_raw(&device, &args, stream) }
    }
}
