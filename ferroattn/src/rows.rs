//! Rows of arrays of f64, of which references are made.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, CowArray, Ix2, s};

/// The rows of ascending numbers of a row-major tensor: a part of it, or a copy if it has gaps.
pub(crate) fn rows_of<'a>(
    tensor: ArrayView2<'a, f64>,
    numbers: &[usize],
) -> CowArray<'a, f64, Ix2> {
    match *numbers {
        [] => tensor.slice_move(s![..0, ..]).into(),
        [first, .., last] if last - first + 1 > numbers.len() => {
            let mut rows = Vec::with_capacity(numbers.len() * tensor.ncols());
            for number in numbers {
                rows.extend_from_slice(elements(&tensor.row(*number)));
            }
            let shape = (numbers.len(), tensor.ncols());
            let rows = Array2::from_shape_vec(shape, rows);
            rows.expect("as many elements").into()
        }
        [first, ..] => tensor
            .slice_move(s![first..first + numbers.len(), ..])
            .into(),
    }
}

/// Adds `factor` times a row to a sum: plain slices, which the compiler makes vectors of.
pub(crate) fn add_scaled(sum: &mut [f64], factor: f64, row: &[f64]) {
    sum.iter_mut()
        .zip(row)
        .for_each(|(sum, x)| *sum += factor * x);
}

/// The elements of a row-major tensor's row.
pub(crate) fn elements<'a>(row: &ArrayView1<'a, f64>) -> &'a [f64] {
    row.to_slice().expect("row-major")
}

/// The elements of an array.
pub(crate) fn slice_of(array: &mut Array1<f64>) -> &mut [f64] {
    array.as_slice_mut().expect("contiguous")
}
