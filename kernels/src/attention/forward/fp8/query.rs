//! A warpgroup's rows of Q, as products read them: rounded before, or [wide](crate::layout::fp8::Fp8Memory) ones, which it rounds itself.

use super::outer::Outer;
use super::step::Consumer;
use crate::abi::Fp8Params;
use crate::attention::auxiliary::source;
use crate::attention::forward::sm90::kernel::Kernel;
use crate::layout::fp8::{PAIR, inverse_of, scale_of};
use crate::layout::{element, fragment};
use crate::ptx::{barrier, bulk, convert, ldmatrix, shared, shuffle, special};
use crate::tile::{Element, Operand};

/// Whether q of a launch is wide.
#[inline(always)]
pub fn is_wide<U: Outer<OT>, const OT: usize>(launch: &Fp8Params) -> bool {
    U::ROUNDS_Q && launch.q_scales == 0
}

/// Stages that a tile's Q passes through.
#[inline(always)]
pub fn stages_of_q<K: Kernel>(is_wide: bool) -> u32 {
    if is_wide { K::WARPGROUPS / 2 } else { 0 }
}

/// The functions share their conditions: all lanes of the warpgroup make the same calls, with the job landed; the barriers are initialised.
impl<K: Kernel, const QT: usize, const QR: u32, const S: u32> Consumer<K, QT, QR, S> {
    /// Takes the warp's rows of Q to registers, if they stay there. Gives the scales of the lane's two rows, which came with them.
    ///
    /// # Safety
    /// The conditions of all functions here, with Q landed.
    #[inline(always)]
    pub unsafe fn load_q(&mut self) -> [f32; 2] {
        let (q, lane) = (self.memory.q(self.slot), special::lane());
        let (row, chunk) = fragment::ldmatrix_rows_first(lane);
        let scales = self.memory.row_scales(self.slot) + 4 * (K::warp_row() + lane / 4);
        // SAFETY: the caller's promise; the addresses lie in the tile.
        unsafe {
            if QR > 0 {
                for qt in 0..QT {
                    let column = element::K * qt as u32 + element::CHUNK * chunk;
                    self.q[qt] = Operand(ldmatrix::x4(q.chunk(K::warp_row() + row, column)));
                }
            }
            [0, 8].map(|row| shared::load_f32(scales + 4 * row))
        }
    }

    /// Rounds the warp's rows of wide Q as [`round_rows`](crate::attention::auxiliary::round_rows) does, to registers or to the slot. Gives the
    /// scales of the lane's two rows.
    ///
    /// # Safety
    /// The conditions of all functions here.
    #[inline(always)]
    pub unsafe fn round_q(&mut self, launch: &Fp8Params, warpgroup: u32) -> [f32; 2] {
        let own = warpgroup / 2;
        // SAFETY: the caller's promise.
        unsafe {
            for stage in 0..stages_of_q::<K>(true) {
                if stage < own {
                    self.pass();
                }
            }
            let mut rows = self.take_wide_q(warpgroup % 2);
            for stage in 0..stages_of_q::<K>(true) {
                if stage > own {
                    self.pass();
                }
            }
            let mut scales = [0.0; 2];
            for r in 0..2 {
                let largest = <K::Element as source::Source>::numbers(&mut rows[r]);
                let largest = shuffle::reduce::<4>(largest, f32::max);
                scales[r] = scale_of(largest, launch.q_most_log2);
                let inverse = match launch.negates_q != 0 {
                    true => -inverse_of(scales[r]),
                    false => inverse_of(scales[r]),
                };
                self.round_row(r, &rows[r], inverse);
            }
            if QR == 0 {
                self.store_q();
            }
            scales
        }
    }

    /// The lane's two rows of wide Q: four neighbours of each 16 columns, in pairs. In odd rows the slices of 32 columns come in the order 1, 0, 3, 2: so
    /// the words of a warp lie in banks of their own.
    #[inline(always)]
    unsafe fn take_wide_q(&mut self, half: u32) -> [[[u32; 4]; QT]; 2] {
        let (stage, lane) = (self.block.stage(), special::lane());
        let q = self.memory.wide_q(stage, half);
        let mut rows = [[[0; 4]; QT]; 2];
        // SAFETY: the caller's promise; the addresses lie in the tile.
        unsafe {
            self.block.wait(self.memory.full(stage));
            for r in 0..2 {
                let row = K::warp_row() + lane / 4 + 8 * r as u32;
                for qt in 0..QT {
                    for half in 0..2 {
                        let column = 32 * (qt as u32 ^ is_odd(lane)) + 16 * half as u32;
                        let four = q.chunk(row, column + 4 * (lane % 4)) + 8 * (lane % 2);
                        let four = shared::load_u32x2(four);
                        (rows[r][qt][2 * half], rows[r][qt][2 * half + 1]) = (four[0], four[1]);
                    }
                }
            }
            barrier::warp();
            self.block.release(self.memory.full(stage));
        }
        self.block = self.block.next();
        rows
    }

    /// Rounds one of the lane's rows, times `inverse`.
    #[inline(always)]
    fn round_row(&mut self, r: usize, row: &[[u32; 4]; QT], inverse: f32) {
        let mut rounded = [[0; 2]; QT];
        for qt in 0..QT {
            for half in 0..2 {
                let [low, high] = [0, 1].map(|i| row[qt][2 * half + i]);
                let [a, b, c, d] = [low, low >> 16, high, high >> 16]
                    .map(|bits| inverse * K::Element::widen(bits as u16));
                rounded[qt][half] = convert::e4m3(a, b, c, d);
            }
        }
        // Bits, not a choice: of that the compiler makes an index.
        let odd = 0_u32.wrapping_sub(is_odd(special::lane()));
        for qt in 0..QT {
            for half in 0..2 {
                let [own, other] = [rounded[qt][half], rounded[qt ^ 1][half]];
                self.q[qt].0[r + 2 * half] = own ^ (own ^ other) & odd;
            }
        }
    }

    /// Writes Q to its slot, for the warpgroup's products.
    #[inline(always)]
    unsafe fn store_q(&self) {
        let (lane, q) = (special::lane(), self.memory.q(self.slot));
        // SAFETY: the caller's promise: a warpgroup has a slot of its own, and a barrier. Products that read the slot before are done.
        unsafe {
            for qt in 0..QT {
                for i in 0..4 {
                    let row = K::warp_row() + lane / 4 + 8 * (i as u32 % 2);
                    let column = 32 * qt as u32 + 16 * (i as u32 / 2);
                    let four = q.chunk(row, column / PAIR) + 4 * (lane % 4);
                    shared::store_u32(four, self.q[qt].0[i]);
                }
            }
            bulk::fence();
            barrier::some(1 + K::consumer(), 128);
        }
    }
}

/// 1 in odd rows.
#[inline(always)]
fn is_odd(lane: u32) -> u32 {
    lane / 4 % 2
}
