//! Pages in the CSR form, as a table of pages and lengths.

use super::failure::Failure;
use super::options::{count, row};
use super::shim::StableValue;
use super::tensor::{Tensor, Type};
use super::value::{Arguments, results};
use ferroattn::{RawCsrPages, csr_pages_raw};

/// The operator's name, arguments and results.
pub const SIGNATURE: &str = "csr_pages(Tensor indptr, Tensor indices, Tensor last_page_len, int page_size, int max_pages) \
    -> (Tensor block_table, Tensor seqlens)";

/// Makes the table and the lengths.
fn run(
    [indptr, indices, last]: [Tensor; 3],
    [page, most]: [i64; 2],
) -> Result<[Tensor; 2], Failure> {
    let place = indptr.place();
    let inputs = [
        row("indptr", &indptr, place)?,
        row("indices", &indices, place)?,
        row("last_page_len", &last, place)?,
    ];
    let page = count("page_size", page)?;
    count::<usize>("max_pages", most)?;
    let Some(batch) = inputs[0].shape[0].checked_sub(1) else {
        return Err(Failure::value("indptr is empty; it must be [batch + 1]"));
    };
    let table = Tensor::ordered([batch as i64, most], [0, 1], Type::Int32, place)?;
    let lengths = Tensor::ordered([batch as i64], [0], Type::Int32, place)?;
    let outputs = (table.raw([Some(0), Some(1)]), lengths.raw([Some(0)]));
    let args = RawCsrPages::new(page, inputs, outputs);
    let (device, stream) = place.device()?;
    // SAFETY: tensors are PyTorch's, live in the order of its current stream; the table and the lengths are new.
    unsafe { csr_pages_raw(&device, &args, stream)? };
    Ok([table, lengths])
}

/// The operator `ferroattn::csr_pages`.
pub fn operator(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let tensors = [(); 3].map(|()| arguments.tensor());
    let numbers = [(); 2].map(|()| arguments.int());
    let [indptr, indices, last] = tensors.map(Tensor::in_rows);
    let outputs = run([indptr?, indices?, last?], numbers)?;
    results(stack, outputs);
    Ok(())
}
