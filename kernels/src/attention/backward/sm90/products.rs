//! The five products of Algorithm 2, by `wgmma`: each is of one of three kinds.
//!
//! | product | kind | operands |
//! |---|---|---|
//! | 1. Sᵀ = K Qᵀ, 2. dPᵀ = V dOᵀ | [`multiply_rows`] | two tiles, along their rows |
//! | 3. dV += Pᵀ dO, 4. dK += dSᵀ Q | [`add_columns`] | registers, and the columns of a tile |
//! | 5. dQ = dS K | [`multiply_columns`] | the rows of a tile, and the columns of another |

use super::guard::Columns;
use crate::layout::descriptor::Panels;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::tile::wgmma::{self, Product};
use crate::tile::{Accumulator, Element, Operand};

/// Issues product 1 or 2: `a bᵀ`, of 64 rows of `a` from row `first` on.
///
/// # Safety
/// All lanes of the warpgroup make the same call, after a [`fence`](wgmma::fence), with both tiles landed.
#[inline(always)]
pub unsafe fn multiply_rows<E: Element, const DT: usize, const NT: usize>(
    (a, first): (Panels, u32),
    b: Panels,
) -> [Accumulator; NT]
where
    [Accumulator; NT]: Product,
{
    let mut product = [Accumulator::ZERO; NT];
    let (left, right) = (a.rows(first), b.rows(0));
    // SAFETY: the caller's promise.
    unsafe {
        for dt in 0..DT as u32 {
            let (left, right) = (left.skip(a.to_columns(dt)), right.skip(b.to_columns(dt)));
            product.rows::<E>(left, right, dt > 0);
        }
        wgmma::commit();
    }
    product
}

/// Issues product 3 or 4: `sum += a b`, with `a` in registers.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with the tile landed.
#[inline(always)]
pub unsafe fn add_columns<E: Element, const DT: usize, const NT: usize>(
    sum: &mut [Accumulator; DT],
    a: &[Operand; NT],
    b: Columns,
) where
    [Accumulator; DT]: Product,
{
    wgmma::pin(sum);
    // SAFETY: the caller's promise.
    unsafe {
        wgmma::fence();
        for nt in 0..NT {
            sum.columns::<E>(a[nt], b.slice(nt as u32));
        }
        wgmma::commit();
    }
}

/// Issues product 5 of a tile of keys: `product = ds k`, or `product += ds k` where `adds`; of 64 rows of dS from row `first` on.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with both tiles landed.
#[inline(always)]
pub unsafe fn multiply_columns<E: Element, const DT: usize>(
    product: &mut [Accumulator; DT],
    (ds, first): (Panels, u32),
    k: Columns,
    adds: bool,
) where
    [Accumulator; DT]: Product,
{
    // SAFETY: the caller's promise.
    unsafe {
        wgmma::fence();
        for i in 0..Sm90BackwardMemory::KEYS / E::K {
            let rows = ds.rows(first).skip(ds.to_columns(i));
            product.rows_columns::<E>(rows, k.slice(i), adds || i > 0);
        }
        wgmma::commit();
    }
}

/// Waits until all but the `PENDING` last products are complete, whose sums `tiles` then has.
///
/// # Safety
/// All lanes of the warp make the same call.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32, const NT: usize>(tiles: &mut [Accumulator; NT]) {
    // SAFETY: the caller's promise.
    unsafe { wgmma::wait::<PENDING>() }
    wgmma::pin(tiles);
}
