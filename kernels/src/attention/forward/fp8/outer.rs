//! Sums in two levels: O of some blocks of keys is added to outer sums in shared memory.
//!
//! The tensor cores cut sums of e4m3 towards zero: with each 32 keys O loses up to 2^-13 of its size. Values whose mean stays in them add up
//! to an O that grows with the keys, and so does the loss: 7 % at 4096 keys. O of 384 keys loses 0.4 %, however many follow (docs/fp8.md).

use crate::ptx::math::fma;
use crate::ptx::shared;
use crate::tile::Accumulator;
use crate::tile::registers::fence;

/// Keys whose values are summed in registers.
pub const INNER_KEYS: u32 = 384;

/// Bytes from a thread's piece of 16 bytes to its next one: the pieces of a warpgroup lie side by side.
const NEXT: u32 = 16 * 128;

/// Outer sums of a thread's part of O.
pub trait Outer: Copy {
    /// Bytes of shared memory of an element of O; 0 if there is one level.
    const BYTES: u32;

    /// Outer sums of 0, for `tiles` tiles of O, in the thread's pieces of memory from `place` on.
    ///
    /// # Safety
    /// The thread has this memory for itself.
    unsafe fn new(place: u32, tiles: u32) -> Self;

    /// Takes in O, of which little or nothing is left.
    ///
    /// # Safety
    /// No product that changes O is under way.
    unsafe fn take<const OT: usize>(&mut self, o: &mut [Accumulator; OT]);

    /// Multiplies the outer sums of the lane's two rows.
    fn scale(&mut self, factors: [f32; 2]);

    /// Adds the outer sums to tile `dt` of O.
    ///
    /// # Safety
    /// The conditions of [`take`](Self::take).
    unsafe fn add_to(&self, o: &mut Accumulator, dt: usize);
}

/// One level: O stays in registers.
#[derive(Clone, Copy)]
pub struct OneLevel;

impl Outer for OneLevel {
    const BYTES: u32 = 0;

    #[inline(always)]
    unsafe fn new(_: u32, _: u32) -> Self {
        OneLevel
    }

    #[inline(always)]
    unsafe fn take<const OT: usize>(&mut self, _: &mut [Accumulator; OT]) {}

    #[inline(always)]
    fn scale(&mut self, _: [f32; 2]) {}

    #[inline(always)]
    unsafe fn add_to(&self, _: &mut Accumulator, _: usize) {}
}

/// Where the outer sums of a thread lie, and what they are multiplied by.
#[derive(Clone, Copy)]
struct Sums {
    place: u32,
    /// The factors of the lane's two rows, which the sums in memory lack.
    factors: [f32; 2],
}

impl Sums {
    /// # Safety
    /// The thread has the memory for itself.
    #[inline(always)]
    unsafe fn new(place: u32, pieces: u32) -> Self {
        for piece in 0..pieces {
            // SAFETY: the caller's promise.
            unsafe { shared::store_u32x4(place + NEXT * piece, [0; 4]) }
        }
        let factors = [1.0; 2];
        Sums { place, factors }
    }

    #[inline(always)]
    fn scale(&mut self, factors: [f32; 2]) {
        for r in 0..2 {
            self.factors[r] *= factors[r];
        }
    }
}

/// Outer sums in f32.
#[derive(Clone, Copy)]
pub struct Singles(Sums);

impl Singles {
    /// Where half a tile of the thread lies: two columns of two rows.
    #[inline(always)]
    fn place(&self, dt: usize, half: usize) -> u32 {
        self.0.place + NEXT * (2 * dt + half) as u32
    }
}

impl Outer for Singles {
    const BYTES: u32 = 4;

    #[inline(always)]
    unsafe fn new(place: u32, tiles: u32) -> Self {
        // SAFETY: the caller's promise.
        Singles(unsafe { Sums::new(place, 2 * tiles) })
    }

    #[inline(always)]
    unsafe fn take<const OT: usize>(&mut self, o: &mut [Accumulator; OT]) {
        for dt in 0..OT {
            // SAFETY: the memory of the thread.
            unsafe {
                self.add_to(&mut o[dt], dt);
                for half in 0..2 {
                    let mut words = [0; 4];
                    for i in 0..4 {
                        words[i] = o[dt].0[4 * half + i].to_bits();
                    }
                    shared::store_u32x4(self.place(dt, half), words);
                }
            }
            o[dt] = Accumulator::ZERO;
        }
        self.0.factors = [1.0; 2];
    }

    #[inline(always)]
    fn scale(&mut self, factors: [f32; 2]) {
        self.0.scale(factors);
    }

    #[inline(always)]
    unsafe fn add_to(&self, o: &mut Accumulator, dt: usize) {
        for half in 0..2 {
            // SAFETY: the memory of the thread.
            let words = unsafe { shared::load_u32x4(self.place(dt, half)) };
            for i in 0..4 {
                let o = &mut o.0[4 * half + i];
                *o = fma(f32::from_bits(words[i]), self.0.factors[i / 2], *o);
            }
        }
    }
}

/// The upper halves of outer sums, in half the memory. The lower halves stay in O, at most 2^-7 of it.
#[derive(Clone, Copy)]
pub struct UpperHalves(Sums);

impl UpperHalves {
    /// Where a tile of the thread lies.
    #[inline(always)]
    fn place(&self, dt: usize) -> u32 {
        self.0.place + NEXT * dt as u32
    }
}

/// The upper half of a word.
const UPPER: u32 = 0xffff_0000;

impl Outer for UpperHalves {
    const BYTES: u32 = 2;

    #[inline(always)]
    unsafe fn new(place: u32, tiles: u32) -> Self {
        // SAFETY: the caller's promise.
        UpperHalves(unsafe { Sums::new(place, tiles) })
    }

    #[inline(always)]
    unsafe fn take<const OT: usize>(&mut self, o: &mut [Accumulator; OT]) {
        for dt in 0..OT {
            // SAFETY: the memory of the thread. Else the assembler reads all tiles ahead: 20 bytes of spills.
            unsafe {
                fence();
                self.add_to(&mut o[dt], dt);
            }
            let mut words = [0; 4];
            for i in 0..8 {
                let upper = o[dt].0[i].to_bits() & UPPER;
                words[i / 2] |= if i % 2 == 0 { upper >> 16 } else { upper };
                o[dt].0[i] -= f32::from_bits(upper);
            }
            // SAFETY: the memory of the thread.
            unsafe { shared::store_u32x4(self.place(dt), words) }
        }
        self.0.factors = [1.0; 2];
    }

    #[inline(always)]
    fn scale(&mut self, factors: [f32; 2]) {
        self.0.scale(factors);
    }

    #[inline(always)]
    unsafe fn add_to(&self, o: &mut Accumulator, dt: usize) {
        // SAFETY: the memory of the thread.
        let words = unsafe { shared::load_u32x4(self.place(dt)) };
        for i in 0..8 {
            let upper = match i % 2 {
                0 => words[i / 2] << 16,
                _ => words[i / 2] & UPPER,
            };
            o.0[i] = fma(f32::from_bits(upper), self.0.factors[i / 2 % 2], o.0[i]);
        }
    }
}
