//! Matrix products on the CPU, in `f32`, a task for each tile of C.

use crate::forward::cpu::widen;
use crate::tensor::Element;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, linalg::general_mat_mul, s};
use rayon::prelude::*;

/// Rows of a tile of C.
const BM: usize = 128;
/// Columns of a tile of C.
const BN: usize = 256;
/// Columns of A and B of a step, whose parts in `f32` stay in the cache.
const BK: usize = 512;

/// Computes C on all threads of the current rayon pool.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn gemm<T: Element>(a: ArrayView2<T>, b: ArrayView2<T>, mut c: ArrayViewMut2<T>) {
    let ((n, k), mut c) = (b.dim(), c.rows_mut().into_iter().collect::<Vec<_>>());
    c.par_chunks_mut(BM).enumerate().for_each(|(tile, c)| {
        let rows = tile * BM..tile * BM + c.len();
        let tiles: Vec<(usize, Array2<f32>)> = (0..n)
            .into_par_iter()
            .step_by(BN)
            .map(|column| {
                let columns = column..n.min(column + BN);
                let mut sums = Array2::zeros((rows.len(), columns.len()));
                for k in (0..k).step_by(BK).map(|start| start..k.min(start + BK)) {
                    let a = widen(a.slice(s![rows.clone(), k.clone()]));
                    let b = widen(b.slice(s![columns.clone(), k]));
                    general_mat_mul(1.0, &a, &b.t(), 1.0, &mut sums);
                }
                (column, sums)
            })
            .collect();
        for (column, sums) in tiles {
            for (c, sums) in c.iter_mut().zip(sums.rows()) {
                let c = c.as_slice_mut().expect("unit stride in a row");
                let sums = sums.as_slice().expect("row-major");
                T::from_f32_slice(sums, &mut c[column..column + sums.len()]);
            }
        }
    });
}
