//! Matrix products on the CPU, in `f32`, a task for each tile of C.

use super::RawGemm;
use crate::error::Result;
use crate::forward::cpu::widen;
use crate::tensor::{Dtype, Element};
use half::{bf16, f16};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, linalg::general_mat_mul, s};
use rayon::prelude::*;

/// Rows of a tile of C.
const BM: usize = 128;
/// Columns of a tile of C.
const BN: usize = 256;
/// Columns of A and B of a step, whose parts in `f32` stay in the cache.
const BK: usize = 512;

/// Computes C of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`Gemm::forward_raw`](crate::Gemm::forward_raw) on the CPU.
pub unsafe fn gemm_raw(dtype: Dtype, args: &RawGemm) -> Result<()> {
    let compute = match dtype {
        Dtype::F16 => gemm_of::<f16>,
        Dtype::Bf16 => gemm_of::<bf16>,
        Dtype::F32 => gemm_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { compute(args) };
    Ok(())
}

/// # Safety
/// The conditions of [`gemm_raw`], with `T` the element type.
unsafe fn gemm_of<T: Element>(args: &RawGemm) {
    // SAFETY: the caller vouches for the memory, and that nothing writes the inputs.
    let [a, b] = [args.a, args.b].map(|input| unsafe { input.view::<T, _>() });
    // SAFETY: the caller vouches for the memory, and that nothing else touches it. The call found a place for
    // every element.
    gemm(a, b, unsafe { args.c.view_mut() });
}

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
