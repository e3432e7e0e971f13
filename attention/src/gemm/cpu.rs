//! Matrix products on the CPU, in `f32`, a task for each tile of C.

use super::GemmProblem;
use crate::tensor::{Element, Strided, StridedMut};
use ndarray::{Array2, linalg::general_mat_mul};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a tile of C.
const BM: usize = 128;
/// Columns of a tile of C.
const BN: usize = 256;
/// Columns of A and B of a step, whose parts in `f32` stay in the cache.
const BK: usize = 512;

/// Computes C on all threads of the current rayon pool. The matrices are `[1, 1, rows, columns]`
/// tensors, with rows and columns in C.
pub fn gemm<T: Element>(p: &GemmProblem, a: Strided<T>, b: Strided<T>, c: StridedMut<T>) {
    c.into_tiles(BM).into_par_iter().for_each(|mut rows| {
        let first = rows.first..rows.first + rows.rows();
        let tiles: Vec<(usize, Array2<f32>)> = (0..p.n)
            .into_par_iter()
            .step_by(BN)
            .map(|column| {
                let columns = column..p.n.min(column + BN);
                let mut sums = Array2::zeros((first.len(), columns.len()));
                for k in (0..p.k).step_by(BK) {
                    let k = k..p.k.min(k + BK);
                    let a = load(a, first.clone(), k.clone());
                    let b = load(b, columns.clone(), k);
                    general_mat_mul(1.0, &a, &b.t(), 1.0, &mut sums);
                }
                (column, sums)
            })
            .collect();
        for (column, sums) in tiles {
            for (i, sums) in sums.rows().into_iter().enumerate() {
                let sums = sums.as_slice().expect("row-major");
                let row = &mut rows.row_mut(i)[column..column + sums.len()];
                T::from_f32_slice(sums, row);
            }
        }
    });
}

/// Some columns of some rows in `f32`.
fn load<T: Element>(matrix: Strided<T>, rows: Range<usize>, k: Range<usize>) -> Array2<f32> {
    let mut tile = Array2::zeros((rows.len(), k.len()));
    for (i, mut row) in rows.zip(tile.rows_mut()) {
        let source = &matrix.row(0, 0, i, k.end)[k.start..];
        T::to_f32_slice(source, row.as_slice_mut().expect("row-major"));
    }
    tile
}
