//! What kernels that round read: elements of 16 bits, or of e4m3 already.

use crate::abi::{QueryRange, TensorRef};
use crate::layout::element::{self, CHUNK};
use crate::ptx::{convert, global, half};
use crate::tile::Element;
use crate::tile::registers::opaque;
use core::hint::cold_path;

/// A type of elements that are rounded, eight neighbours at a time.
pub trait Source {
    /// Whether elements are rounded already: scales keep their digits.
    const IS_E4M3: bool;

    /// Eight elements as they lie in memory.
    type Eight: Copy;

    /// Eight zeros.
    const ZEROS: Self::Eight;

    /// Loads elements of a row: eight, or as many as are `left` of it, and zeros.
    ///
    /// # Safety
    /// The elements are readable.
    unsafe fn load(address: u64, left: u32) -> Self::Eight;

    /// The elements as f32.
    #[inline(always)]
    fn widen(eight: Self::Eight) -> [f32; 8] {
        Self::widen_pairs(Self::pairs(eight))
    }

    /// The elements as pairs of 16 bits, exactly.
    fn pairs(eight: Self::Eight) -> [u32; 4];

    /// The elements of pairs as f32.
    fn widen_pairs(pairs: [u32; 4]) -> [f32; 8];

    /// The smaller elements of two pairs; of a number and a NaN the number.
    fn smaller(a: u32, b: u32) -> u32;

    /// The larger elements of two pairs; of a number and a NaN the number.
    fn larger(a: u32, b: u32) -> u32;

    /// Puts NaN in the place of infinities. Gives the largest magnitude of numbers.
    fn numbers<const N: usize>(eights: &mut [Self::Eight; N]) -> f32;
}

/// Rows of a head from a column on.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Address of the first.
    address: u64,
    /// Bytes from a row to the next one.
    stride: i64,
    /// Elements that a row has from the column on.
    left: u32,
}

impl Rows {
    /// Rows of `dim` elements of a tensor, of which each entry has so many heads; `head` counts over all entries.
    #[inline(always)]
    pub fn new<E: Source>(
        tensor: &TensorRef,
        [heads, head]: [u32; 2],
        [column, dim]: [u32; 2],
    ) -> Self {
        let (batch, head) = (head / heads, head % heads);
        let offset = i64::from(batch) * tensor.batch_stride
            + i64::from(head) * tensor.head_stride
            + i64::from(column);
        let bytes = if E::IS_E4M3 {
            1
        } else {
            i64::from(element::BYTES)
        };
        Rows {
            address: tensor.address.wrapping_add((bytes * offset) as u64),
            stride: bytes * tensor.row_stride,
            left: dim.saturating_sub(column),
        }
    }

    /// These rows from row `first` on, of which every `step`-th one counts.
    #[inline(always)]
    pub fn every(self, first: u32, step: u32) -> Self {
        Rows {
            address: self.at(first),
            stride: self.stride * i64::from(step),
            left: self.left,
        }
    }

    /// Address of a row.
    #[inline(always)]
    fn at(&self, row: u32) -> u64 {
        self.address
            .wrapping_add((i64::from(row) * self.stride) as u64)
    }

    /// Loads the elements of a row.
    ///
    /// # Safety
    /// They are readable.
    #[inline(always)]
    pub unsafe fn load<E: Source>(&self, row: u32) -> E::Eight {
        // SAFETY: the caller's promise.
        unsafe { E::load(self.at(row), self.left) }
    }
}

/// Whether a number is finite.
#[inline(always)]
pub fn is_finite(x: f32) -> bool {
    x.abs() <= f32::MAX
}

/// The largest magnitude of finite numbers.
#[inline(always)]
pub fn largest_of(numbers: [f32; 8]) -> f32 {
    let mut largest = 0.0_f32;
    for i in 0..8 {
        let magnitude = numbers[i].abs();
        largest = largest.max(if is_finite(magnitude) { magnitude } else { 0.0 });
    }
    largest
}

/// Whether a query sees a row of k or v, by the [ranges](crate::abi::RoundRowsParams::ranges) of queries; without them rows count as seen. An
/// entry of the batch has so many heads and rows.
///
/// # Safety
/// There is a range for each row, if there are any.
#[inline(always)]
pub unsafe fn is_seen(ranges: u64, heads: u32, [head, row]: [u32; 2], rows: u32) -> bool {
    if ranges == 0 {
        return true;
    }
    let place = u64::from(head / heads) * u64::from(rows) + u64::from(row);
    // SAFETY: the caller's promise.
    let [start, end] =
        unsafe { global::load_u32x2(ranges + size_of::<QueryRange>() as u64 * place) };
    start < end
}

/// Rows are whole vectors of eight elements.
impl<E: Element> Source for E {
    const IS_E4M3: bool = false;

    type Eight = [u32; 4];

    const ZEROS: [u32; 4] = [0; 4];

    #[inline(always)]
    unsafe fn load(address: u64, _: u32) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { global::load_u32x4(address) }
    }

    #[inline(always)]
    fn pairs(pairs: [u32; 4]) -> [u32; 4] {
        pairs
    }

    #[inline(always)]
    fn smaller(a: u32, b: u32) -> u32 {
        <E as Element>::smaller(a, b)
    }

    #[inline(always)]
    fn larger(a: u32, b: u32) -> u32 {
        <E as Element>::larger(a, b)
    }

    #[inline(always)]
    fn widen_pairs(pairs: [u32; 4]) -> [f32; 8] {
        let mut numbers = [0.0; 8];
        for i in 0..8 {
            numbers[i] = <E as Element>::widen((pairs[i / 2] >> (16 * (i % 2))) as u16);
        }
        numbers
    }

    /// Magnitudes of pairs: a third of the instructions that numbers take.
    #[inline(always)]
    fn numbers<const N: usize>(eights: &mut [[u32; 4]; N]) -> f32 {
        let mut largest = largest_of_pairs::<E, N>(eights);
        if largest == f32::INFINITY {
            cold_path();
            let infinity = E::exponents() & 0xffff;
            let of_half = |half: u32| u32::from(half & 0x7fff == infinity);
            for i in 0..N {
                eights[i] =
                    eights[i].map(|pair| pair | of_half(pair & 0xffff) | of_half(pair >> 16) << 16);
            }
            largest = largest_of_pairs::<E, N>(eights);
        }
        largest
    }
}

/// The largest magnitude of elements, without NaN.
#[inline(always)]
fn largest_of_pairs<E: Element, const N: usize>(pairs: &[[u32; 4]; N]) -> f32 {
    let mut largest = 0;
    for i in 0..N {
        let [a, b, c, d] = pairs[i].map(|pair| pair & 0x7fff_7fff);
        let of_eight = E::larger(E::larger(a, b), E::larger(c, d));
        largest = if i == 0 {
            of_eight
        } else {
            E::larger(largest, of_eight)
        };
    }
    let [low, high] = [largest as u16, (largest >> 16) as u16].map(E::widen);
    // 0 if all are NaN.
    0.0_f32.max(low).max(high)
}

/// Numbers of e4m3, in rows of any length, anywhere.
pub struct E4m3;

impl Source for E4m3 {
    const IS_E4M3: bool = true;

    type Eight = [u32; 2];

    const ZEROS: [u32; 2] = [0; 2];

    #[inline(always)]
    unsafe fn load(address: u64, left: u32) -> [u32; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            if address.is_multiple_of(8) && left >= CHUNK {
                return global::load_u32x2(address);
            }
            cold_path();
            let (mut eight, mut i) = (0, 0);
            while i < left.min(CHUNK) {
                let byte = u64::from(global::load_u8(address + u64::from(i)));
                eight |= byte << (8 * i);
                // Opaque: unrolled, a thread's rows spill.
                i = opaque(i + 1);
            }
            [eight as u32, (eight >> 32) as u32]
        }
    }

    #[inline(always)]
    fn pairs(words: [u32; 2]) -> [u32; 4] {
        let mut pairs = [0; 4];
        for i in 0..4 {
            pairs[i] = convert::f16_of_e4m3((words[i / 2] >> (16 * (i % 2))) as u16);
        }
        pairs
    }

    #[inline(always)]
    fn widen_pairs(pairs: [u32; 4]) -> [f32; 8] {
        let mut numbers = [0.0; 8];
        for i in 0..4 {
            [numbers[2 * i], numbers[2 * i + 1]] = half::widen(pairs[i]);
        }
        numbers
    }

    #[inline(always)]
    fn smaller(a: u32, b: u32) -> u32 {
        half::min(a, b)
    }

    #[inline(always)]
    fn larger(a: u32, b: u32) -> u32 {
        half::max(a, b)
    }

    /// There is no infinity.
    #[inline(always)]
    fn numbers<const N: usize>(eights: &mut [[u32; 2]; N]) -> f32 {
        let mut largest = 0.0_f32;
        for i in 0..N {
            largest = largest.max(largest_of(Self::widen(eights[i])));
        }
        largest
    }
}
