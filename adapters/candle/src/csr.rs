//! Pages in the CSR form, as a table of pages and lengths.

use crate::memory::{self, Addresses, Locked, Memory};
use crate::tensors::{NUMBERS, expect_device, expect_dtype, in_rows};
use candle_core::{Device, Error, Result, Tensor};
use ferroattn::{RawCsrPages, csr_pages_raw};

/// Makes a table of pages and lengths of FlashInfer's arrays, by one launch, for all layers of a step: those of
/// [`Attention::pages`](crate::Attention::pages) and [`Attention::padded`](crate::Attention::padded).
///
/// Arrays are of i32 or u32. Entry `b` has pages `indices[indptr[b]..indptr[b + 1]]`, of `page` keys each, a power of 2, and
/// `last_page[b]` keys in its last one, from 1 to `page`. `most` is how many pages an entry may have.
///
/// The table is `[batch, most]` of the indices' type, with any numbers behind an entry's last page. Lengths are `[batch]` of the type of
/// `last_page`. The CPU refuses arrays that are wrong; a GPU, whose memory the host does not see, moves their numbers to the
/// nearest ones that are allowed.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// use candle_core::{Device, Tensor};
/// use ferroattn_candle::csr_pages;
///
/// let device = Device::Cpu;
/// // Pages of 16 keys: entry 0 has 19 keys in pages 7 and 2, entry 1 has 16 in page 5.
/// let [indptr, indices] = [[0_u32, 2, 3], [7, 2, 5]].map(|numbers| Tensor::new(&numbers, &device));
/// let last_page = Tensor::new(&[3_u32, 16], &device)?;
/// let (table, lengths) = csr_pages(&indptr?, &indices?, &last_page, 16, 2)?;
/// assert_eq!(table.to_vec2::<u32>()?[0], [7, 2]);
/// assert_eq!(lengths.to_vec1::<u32>()?, [19, 16]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Says which tensor is wrong, or what the device lacks.
pub fn csr_pages(
    indptr: &Tensor,
    indices: &Tensor,
    last_page: &Tensor,
    page: usize,
    most: usize,
) -> Result<(Tensor, Tensor)> {
    let device = indptr.device();
    let given = [
        ("indptr", indptr),
        ("indices", indices),
        ("last_page", last_page),
    ];
    for (name, tensor) in given {
        expect_device(name, tensor, ("indptr", device))?;
        expect_dtype(name, tensor, NUMBERS)?;
        if tensor.rank() != 1 {
            let dims = tensor.dims();
            candle_core::bail!("{name} has shape {dims:?}; it must have one axis")
        }
    }
    let Some(batch) = indptr.elem_count().checked_sub(1) else {
        candle_core::bail!("indptr is empty; it must be [batch + 1]")
    };
    let arrays = [in_rows(indptr)?, in_rows(indices)?, in_rows(last_page)?];
    match device {
        Device::Cpu => run(&memory::Host, &arrays, page, [batch, most]),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => run(&memory::Cuda::new(device), &arrays, page, [batch, most]),
        device => candle_core::bail!("csr_pages does not run on {:?}", device.location()),
    }
}

fn run<M: Memory>(
    memory: &M,
    arrays: &[Tensor; 3],
    page: usize,
    shape: [usize; 2],
) -> Result<(Tensor, Tensor)> {
    let [_, indices, last_page] = arrays;
    let [batch, most] = shape;
    let Some(count) = batch.checked_mul(most) else {
        candle_core::bail!("a table of {batch} entries has no room for {most} pages each")
    };
    let mut table = memory.alloc(indices.dtype(), count)?;
    let mut lengths = memory.alloc(last_page.dtype(), batch)?;
    let locked = arrays.each_ref().map(Locked::new);
    let (device, mut addresses) = (memory.device()?, Addresses::new(memory));
    let [indptr, indices, last_page] = &locked;
    let inputs = [
        addresses.read(&indptr.placed()?)?,
        addresses.read(&indices.placed()?)?,
        addresses.read(&last_page.placed()?)?,
    ];
    let outputs = (
        addresses.write(&mut table, shape)?,
        addresses.write(&mut lengths, [batch])?,
    );
    let args = RawCsrPages::new(page, inputs, outputs);
    // SAFETY: candle's layouts lie in their storages, which are locked and, on a GPU, freed in the stream's order. Types were
    // compared. The table and the lengths are new, and nobody else has them.
    unsafe { csr_pages_raw(&device, &args, memory.stream()) }.map_err(Error::wrap)?;
    drop(addresses);
    Ok((
        memory::tensor::<M>(table, (batch, most)),
        memory::tensor::<M>(lengths, batch),
    ))
}
