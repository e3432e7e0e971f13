//! `[batch, heads, rows, dim]` tensors in borrowed host memory, with unit stride in dim.

use super::Layout;
use kernels::abi::TensorRef;
use std::marker::PhantomData;

/// A tensor in host memory, to read.
#[derive(Debug)]
pub struct Strided<'a, T> {
    /// The memory.
    pub data: &'a [T],
    /// Index of element `[0, 0, 0, 0]`.
    pub offset: usize,
    /// Elements from one batch, head and row to the next; zero and negative ones are fine.
    pub strides: [isize; 3],
}

impl<T> Clone for Strided<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Strided<'_, T> {}

impl<'a, T> Strided<'a, T> {
    /// A row-major tensor of this shape at the start of `data`.
    #[must_use]
    pub fn contiguous(data: &'a [T], [_, heads, rows, dim]: [usize; 4]) -> Self {
        Strided {
            data,
            offset: 0,
            strides: [heads * rows * dim, rows * dim, dim].map(|stride| stride as isize),
        }
    }

    /// The tensor at its host address.
    ///
    /// # Safety
    /// The memory from its first to its last element, which is in the address space, is readable,
    /// and nothing writes it while the tensor lives.
    pub(crate) unsafe fn from_raw(tensor: TensorRef, shape: [usize; 4]) -> Self {
        let (data, offset, len, strides) = span(tensor, shape);
        Strided {
            // SAFETY: the caller vouches for the memory.
            data: unsafe { std::slice::from_raw_parts(data, len) },
            offset,
            strides,
        }
    }

    /// The `dim` elements of one row.
    ///
    /// # Panics
    /// If the row does not lie in `data`.
    #[inline]
    #[must_use]
    pub fn row(&self, batch: usize, head: usize, row: usize, dim: usize) -> &'a [T] {
        let [batch_stride, head_stride, row_stride] = self.strides;
        let start = self.offset as isize
            + batch as isize * batch_stride
            + head as isize * head_stride
            + row as isize * row_stride;
        &self.data[start as usize..start as usize + dim]
    }
}

/// A tensor in host memory, to write. Its rows do not overlap.
#[derive(Debug)]
pub struct StridedMut<'a, T> {
    origin: *mut T,
    layout: Layout<4>,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T> StridedMut<'a, T> {
    /// The `[batch, heads, rows, dim]` tensor whose first element is `data[offset]`.
    ///
    /// # Panics
    /// If the tensor reaches outside `data`, or two of its elements might share one place: in order
    /// of strides, every axis must step over all that the axes before it reach.
    #[must_use]
    pub fn new(data: &'a mut [T], offset: usize, shape: [usize; 4], strides: [isize; 3]) -> Self {
        let [batch, head, row] = strides;
        let layout = Layout {
            shape,
            strides: [batch, head, row, 1],
        };
        assert!(layout.is_injective(), "rows overlap: {layout:?}");
        let inside = layout.span().is_some_and(|(low, high)| {
            offset.checked_add_signed(low).is_some()
                && offset
                    .checked_add_signed(high)
                    .is_some_and(|last| last < data.len())
        });
        assert!(
            inside,
            "{layout:?} at {offset} reaches outside {} elements",
            data.len()
        );
        StridedMut {
            // SAFETY: `offset` is inside `data`, because index 0 lies in the span.
            origin: unsafe { data.as_mut_ptr().add(offset) },
            layout,
            memory: PhantomData,
        }
    }

    /// The tensor at its host address.
    ///
    /// # Safety
    /// The memory from its first to its last element, which is in the address space, is writable,
    /// and nothing else touches it while the tensor lives.
    pub(crate) unsafe fn from_raw(tensor: TensorRef, shape: [usize; 4]) -> Self {
        let (data, offset, len, strides) = span::<T>(tensor, shape);
        // SAFETY: the caller vouches for the memory.
        let data = unsafe { std::slice::from_raw_parts_mut(data.cast_mut(), len) };
        StridedMut::new(data, offset, shape, strides)
    }

    /// Splits the rows of every head into tiles of `rows` rows (the last one of a head may have
    /// fewer), ordered by batch, then head, then row.
    ///
    /// # Panics
    /// If `rows` is 0.
    #[must_use]
    pub fn into_tiles(self, rows: usize) -> Vec<TileMut<'a, T>> {
        let [batches, heads, total, dim] = self.layout.shape;
        let [batch_stride, head_stride, row_stride, _] = self.layout.strides;
        let mut tiles = Vec::with_capacity(batches * heads * total.div_ceil(rows));
        for batch in 0..batches {
            for head in 0..heads {
                for first in (0..total).step_by(rows) {
                    let index = batch as isize * batch_stride
                        + head as isize * head_stride
                        + first as isize * row_stride;
                    tiles.push(TileMut {
                        batch,
                        head,
                        first,
                        rows: rows.min(total - first),
                        dim,
                        // SAFETY: `new` checked that every element of the tensor is in the memory.
                        origin: unsafe { self.origin.offset(index) },
                        row_stride,
                        memory: PhantomData,
                    });
                }
            }
        }
        tiles
    }
}

/// Consecutive rows of one head of a [`StridedMut`], which nothing else can reach.
#[derive(Debug)]
pub struct TileMut<'a, T> {
    /// Batch of the rows.
    pub batch: usize,
    /// Head of the rows.
    pub head: usize,
    /// First row.
    pub first: usize,
    rows: usize,
    dim: usize,
    origin: *mut T,
    row_stride: isize,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: tiles of one tensor share no element (`StridedMut::new` refuses overlapping rows), so a
// tile is as good as the `&mut [T]` of its rows.
unsafe impl<T: Send> Send for TileMut<'_, T> {}

impl<T> TileMut<'_, T> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row `first + index`.
    ///
    /// # Panics
    /// If `index` is not less than [`rows`](Self::rows).
    #[inline]
    pub fn row_mut(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.rows, "row {index} of a tile of {}", self.rows);
        // SAFETY: the row lies in the memory that `StridedMut::new` borrowed and checked, no other
        // tile has it, and `&mut self` keeps this tile from handing it out twice.
        unsafe {
            let row = self.origin.offset(index as isize * self.row_stride);
            std::slice::from_raw_parts_mut(row, self.dim)
        }
    }
}

/// The memory that a tensor's elements span: its start, the position of the first element in it,
/// and its length; and the strides.
fn span<T>(tensor: TensorRef, shape: [usize; 4]) -> (*const T, usize, usize, [isize; 3]) {
    let layout = Layout::of_tensor(tensor, shape);
    let (low, high) = layout.span().expect("the tensor is in the address space");
    let first = std::ptr::with_exposed_provenance::<T>(tensor.address as usize);
    let [batch, head, row, _] = layout.strides;
    (
        first.wrapping_offset(low),
        low.unsigned_abs(),
        high.abs_diff(low) + 1,
        [batch, head, row],
    )
}

#[cfg(test)]
mod tests {
    use super::{Strided, StridedMut};

    #[test]
    fn tiles_write_what_rows_read() {
        // [batch 2, rows 5, heads 3, dim 2] memory, seen as [batch, heads, rows, dim].
        let (shape, strides) = ([2, 3, 5, 2], [30, 2, 6]);
        let mut data = vec![0; 61];
        for mut tile in StridedMut::new(&mut data, 1, shape, strides).into_tiles(2) {
            for i in 0..tile.rows() {
                let name = 100 * tile.batch + 10 * tile.head + tile.first + i;
                tile.row_mut(i).fill(name);
            }
        }
        let view = Strided {
            data: &data,
            offset: 1,
            strides,
        };
        for (b, h, i) in (0..30).map(|n| (n / 15, n / 5 % 3, n % 5)) {
            assert_eq!(view.row(b, h, i, 2), [100 * b + 10 * h + i; 2]);
        }
    }

    #[test]
    #[should_panic(expected = "rows overlap")]
    fn overlapping_rows_are_refused() {
        let _ = StridedMut::new(&mut [0; 16], 0, [1, 2, 2, 4], [0, 4, 2]);
    }

    #[test]
    #[should_panic(expected = "reaches outside 15 elements")]
    fn rows_outside_are_refused() {
        let _ = StridedMut::new(&mut [0; 15], 0, [1, 2, 2, 4], [0, 8, 4]);
    }
}
