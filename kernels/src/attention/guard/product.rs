//! The two products of a guarded one.

use crate::attention::options::mask::Interval;
use crate::attention::options::score::Score;
use crate::attention::steps::warp::Warp;
use crate::ptx::{special, vote};
use crate::tile::registers::{fence, opaque};
use crate::tile::{Accumulator, Arrangement, Element, Numbers, Operand, SharedTile};

/// `sum += a(kt) b(kt, nt)` of `KT` slices, with 0 for the elements of `b` that are not finite. Then the sum becomes NaN where a
/// row of `a`, which sees `seen` of the rows of `b`, sees such an element.
///
/// A loop that the compiler does not unroll: what is rare takes little code. What a row sees of a slice, which may take loads, is
/// found once for all columns of `b`. `a` is called with 0, 1, ... in turn.
///
/// # Safety
/// Every lane of the warp makes the same call, which is sound for `a` and `b`.
#[inline(always)]
pub unsafe fn multiply_guarded<E: Element, const MT: usize, const KT: usize, const NT: usize>(
    sum: &mut [[Accumulator; NT]; MT],
    mut a: impl FnMut(u32) -> [Operand; MT],
    b: impl Fn(u32, usize) -> Operand,
    seen: [[impl Interval; 2]; MT],
) {
    // Opaque: unrolled, it takes 1,100 to 4,850 instructions more, and spills 144 bytes in gradients at D = 128.
    let end = opaque(KT as u32);
    let mut kt = 0;
    while kt < end {
        let lane = special::lane();
        let seen = seen.map(|rows| rows.map(|seen| seen.counted_from(16 * kt as i32)));
        let seen = seen.map(|seen| Operand::ones::<E>(lane, seen));
        let left = a(kt);
        for nt in 0..NT {
            let (finite, non_finite) = b(kt, nt).split_non_finite::<E>();
            for mt in 0..MT {
                let mut count = Accumulator::ZERO;
                // SAFETY: the caller's promise.
                unsafe {
                    count.mma::<E>(seen[mt], non_finite);
                    sum[mt][nt].mma::<E>(left[mt], finite);
                }
                sum[mt][nt].spoil(count);
            }
        }
        kt += 1;
    }
}

/// The product of [`multiply_guarded`] of P in shared memory, from slice `first` on, and a tile of V: `column(ot)` is the slice
/// of V's columns that slice `ot` of O has. Called with closures, `multiply_guarded` spills in kernels of the ladder.
///
/// # Safety
/// Every lane of the warp makes the same call, and the tiles are written and visible.
#[inline(always)]
pub unsafe fn multiply_guarded_tile<
    E: Element,
    A: Arrangement,
    const MT: usize,
    const KT: usize,
    const PT: usize,
    const OT: usize,
    const VT: usize,
>(
    o: &mut [[Accumulator; OT]; MT],
    (p_tile, first): (SharedTile<PT>, usize),
    v_tile: SharedTile<VT, A>,
    keys: [[impl Interval; 2]; MT],
    column: impl Fn(usize) -> usize,
) {
    // Opaque: unrolled, it takes 6 registers and 470 instructions more at D = 384.
    let end = opaque(KT as u32);
    let mut kt = 0;
    while kt < end {
        let lane = special::lane();
        let keys = keys.map(|rows| rows.map(|keys| keys.counted_from(16 * kt as i32)));
        let seen = keys.map(|keys| Operand::ones::<E>(lane, keys));
        // SAFETY: the caller's promise.
        unsafe {
            let p: [[Operand; 1]; MT] = p_tile.operands(first + kt as usize);
            for ot in 0..OT {
                let v = v_tile.skip(16 * kt).b_trans(lane, 0, column(ot));
                let (finite, non_finite) = v.split_non_finite::<E>();
                for mt in 0..MT {
                    let mut count = Accumulator::ZERO;
                    count.mma::<E>(seen[mt], non_finite);
                    o[mt][ot].mma::<E>(p[mt][0], finite);
                    o[mt][ot].spoil(count);
                }
            }
        }
        kt += 1;
    }
}

/// The slices of operands in registers, which have no index: the first, then moved behind the others.
#[inline(always)]
pub fn in_turn<const MT: usize, const NT: usize>(
    mut slices: [[Operand; NT]; MT],
) -> impl FnMut(u32) -> [Operand; MT] {
    move |_| {
        let mut first = [Operand::ZERO; MT];
        for mt in 0..MT {
            first[mt] = Operand::take_turn(&mut slices[mt]);
        }
        first
    }
}

/// The product of [`multiply_guarded`], for kernels without options, which have registers for two slices of `a`.
/// The two products come one after the other, and the second in a loop: few registers hold fragments.
///
/// # Safety
/// The conditions of [`multiply_guarded`].
#[inline(always)]
pub unsafe fn multiply_seen<E: Element, const MT: usize, const KT: usize, const NT: usize>(
    sum: &mut [[Accumulator; NT]; MT],
    a: impl Fn(usize, usize) -> Operand,
    b: impl Fn(u32, usize) -> Operand,
    seen: [[impl Interval; 2]; MT],
) {
    for kt in 0..KT {
        // SAFETY: the caller's promise.
        unsafe {
            let mut left = [Operand::ZERO; MT];
            for mt in 0..MT {
                left[mt] = a(mt, kt);
            }
            for nt in 0..NT {
                // Else the assembler reads `b` far ahead: up to 490 instructions more at D = 128.
                fence();
                let (finite, _) = b(kt as u32, nt).split_non_finite::<E>();
                for mt in 0..MT {
                    sum[mt][nt].mma::<E>(left[mt], finite);
                }
            }
        }
    }
    for nt in 0..NT {
        let mut count = [Accumulator::ZERO; MT];
        // Opaque: unrolled, it spills 250 to 700 bytes.
        let end = opaque(KT as u32);
        let mut kt = 0;
        while kt < end {
            let lane = special::lane();
            // SAFETY: the caller's promise.
            unsafe {
                let (_, non_finite) = b(kt, nt).split_non_finite::<E>();
                for mt in 0..MT {
                    let seen = seen[mt].map(|rows| rows.counted_from(16 * kt as i32));
                    count[mt].mma::<E>(Operand::ones::<E>(lane, seen), non_finite);
                }
            }
            kt += 1;
        }
        // A branch, so that the counts are not held to spoil all sums at the end.
        let mut spoils = false;
        for mt in 0..MT {
            spoils |= count[mt].0.iter().any(|&count| count != 0.0);
        }
        // SAFETY: the caller's promise.
        if unsafe { vote::any(spoils) } {
            for mt in 0..MT {
                sum[mt][nt].spoil(count[mt]);
            }
        }
    }
}

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize, A: Arrangement, C: Score>
    Warp<MT, DT, OT, QT, A, C>
{
    /// `O += P V` with 0 for the elements of V that are not finite. Then O becomes NaN where a row sees such an
    /// element: where the product of two matrices of 0 and 1, "sees" and "is not finite", is not 0.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate_guarded<B: Numbers, const NT: usize, const VT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<VT, A>,
        keys: [[impl Interval; 2]; MT],
    ) {
        let lane = special::lane();
        for dt in 0..OT {
            for mt in 0..MT {
                let mut count = Accumulator::ZERO;
                // SAFETY: the caller's promise. Without the fence the assembler reads V far ahead, and spills
                // registers in the whole kernel: 64 bytes at D = 64. Decoding takes 10 more.
                unsafe { fence() }
                for nt in 0..NT {
                    let keys = keys[mt].map(|keys| keys.counted_from(16 * nt as i32));
                    let seen = Operand::ones::<B::Values>(lane, keys);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let v = B::values(v_tile, lane, nt, dt / B::SLICES)[dt % B::SLICES];
                        let (finite, non_finite) = v.split_non_finite::<B::Values>();
                        self.o[mt][dt].mma::<B::Values>(p[mt][nt], finite);
                        count.mma::<B::Values>(seen, non_finite);
                    }
                }
                self.o[mt][dt].spoil(count);
            }
        }
    }
}
