//! What a cache keeps of rows that are appended.

use super::append::Row;
use crate::layout::element::{self, BYTES, CHUNK};
use crate::ptx::{convert, global, special};
use crate::tile::Element;
use core::marker::PhantomData;

/// What a cache holds of rows of `E`.
pub trait Kept<E: Element>: Copy {
    /// Address of the place of a row.
    fn place(self, row: &Row, place: [u32; 2]) -> u64;

    /// Stores two numbers at two columns of a row.
    ///
    /// # Safety
    /// Both places are writable by this thread alone.
    unsafe fn store(self, to: u64, columns: [u32; 2], numbers: [f32; 2]);

    /// Copies the elements of a row from the first of two columns to the other one, by the lanes of a warp.
    ///
    /// # Safety
    /// The elements are readable, and their places writable by this warp alone.
    unsafe fn copy_elements(self, from: u64, to: u64, columns: [u32; 2]);

    /// Copies a row, likewise.
    ///
    /// # Safety
    /// The conditions of [`copy_elements`](Self::copy_elements).
    unsafe fn copy(self, row: &Row, place: [u32; 2]);
}

/// Elements as they are.
#[derive(Clone, Copy)]
pub struct Same;

impl<E: Element> Kept<E> for Same {
    #[inline(always)]
    fn place(self, row: &Row, place: [u32; 2]) -> u64 {
        row.to(place)
    }

    #[inline(always)]
    unsafe fn store(self, to: u64, columns: [u32; 2], [x, y]: [f32; 2]) {
        let pair = E::pack(x, y);
        // SAFETY: the caller's promise.
        unsafe {
            global::store_u16(element::at(to, columns[0]), pair as u16);
            global::store_u16(element::at(to, columns[1]), (pair >> 16) as u16);
        }
    }

    #[inline(always)]
    unsafe fn copy_elements(self, from: u64, to: u64, [first, end]: [u32; 2]) {
        let mut column = first + special::lane();
        while column < end {
            // SAFETY: the caller's promise.
            unsafe {
                global::store_u16(
                    element::at(to, column),
                    global::load_u16(element::at(from, column)),
                )
            };
            column += 32;
        }
    }

    #[inline(always)]
    unsafe fn copy(self, row: &Row, place: [u32; 2]) {
        let (from, to, dim) = (row.from(), row.to(place), row.rows.dim);
        // SAFETY: the caller's promise.
        unsafe {
            if row.rows.aligned == 0 {
                Kept::<E>::copy_elements(self, from, to, [0, dim]);
                return;
            }
            let mut column = CHUNK * special::lane();
            while column < dim {
                let chunk = u64::from(BYTES * column);
                global::store_u32x4(to + chunk, global::load_u32x4(from + chunk));
                column += 32 * CHUNK;
            }
        }
    }
}

/// Numbers of e4m3 that elements are the descale's multiples of.
#[derive(Clone, Copy)]
pub struct Rounded<E> {
    /// 1 divided by the descale.
    factor: f32,
    element: PhantomData<E>,
}

impl<E> Rounded<E> {
    /// Multiples of a descale.
    #[inline(always)]
    pub fn new(descale: f32) -> Self {
        Rounded {
            factor: 1.0 / descale,
            element: PhantomData,
        }
    }
}

impl<E: Element + Copy> Kept<E> for Rounded<E> {
    #[inline(always)]
    fn place(self, row: &Row, place: [u32; 2]) -> u64 {
        row.to_bytes(place)
    }

    #[inline(always)]
    unsafe fn store(self, to: u64, columns: [u32; 2], [x, y]: [f32; 2]) {
        let bytes = convert::e4m3(x * self.factor, y * self.factor, 0.0, 0.0);
        // SAFETY: the caller's promise.
        unsafe {
            global::store_u8(to + u64::from(columns[0]), bytes as u16);
            global::store_u8(to + u64::from(columns[1]), (bytes >> 8) as u16);
        }
    }

    #[inline(always)]
    unsafe fn copy_elements(self, from: u64, to: u64, [first, end]: [u32; 2]) {
        let mut column = first + special::lane();
        while column < end {
            // SAFETY: the caller's promise; the element is stored twice, in one place.
            unsafe {
                let number = E::widen(global::load_u16(element::at(from, column)));
                self.store(to, [column; 2], [number; 2]);
            }
            column += 32;
        }
    }

    #[inline(always)]
    unsafe fn copy(self, row: &Row, place: [u32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_elements(row.from(), row.to_bytes(place), [0, row.rows.dim]) }
    }
}
