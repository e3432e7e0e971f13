//! `shfl.sync` and `redux.sync`: the lanes of a warp exchange values.

use core::arch::asm;

instructions! {
    /// The value of lane `lane ^ MASK`.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    xor<MASK>(value: f32 in reg32) -> other: f32 = "shfl.sync.bfly.b32 {}, {}, {}, 0x1f, 0xffffffff;";

    /// The value of lane `lane`, 0 to 31.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    of_lane(value: f32 in reg32, lane: u32 in reg32) -> other: f32 =
        "shfl.sync.idx.b32 {}, {}, {}, 0x1f, 0xffffffff;";

    /// The bitwise OR of all lanes' values (`redux.sync`).
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    or(value: u32 in reg32) -> all: u32 = "redux.sync.or.b32 {}, {}, 0xffffffff;";

    /// The sum of all lanes' numbers (`redux.sync`).
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    add(number: u32 in reg32) -> sum: u32 = "redux.sync.add.u32 {}, {}, 0xffffffff;";
}

/// The sum of the numbers of the lanes up to this one, `lane`.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn add_up_to(number: u32, lane: u32) -> u32 {
    let mut sum = number;
    let mut distance = 1;
    while distance < 32 {
        // SAFETY: the caller's promise.
        let before = unsafe { number_of_lane(sum, lane.wrapping_sub(distance) % 32) };
        if lane >= distance {
            sum += before;
        }
        distance *= 2;
    }
    sum
}

/// The first lane's number. The assembler sees that it is the same in all lanes.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn first(number: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { number_of_lane(number, 0) }
}

/// The number of lane `lane`, 0 to 31.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn number_of_lane(number: u32, lane: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { of_lane(f32::from_bits(number), lane) }.to_bits()
}

/// Combines the values of all `LANES` neighbours of this lane: 4, or 32.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn reduce<const LANES: u32>(value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: convergence is the caller's promise.
    unsafe {
        let value = combine(value, xor::<1>(value));
        let value = combine(value, xor::<2>(value));
        if LANES == 4 {
            return value;
        }
        let value = combine(value, xor::<4>(value));
        let value = combine(value, xor::<8>(value));
        combine(value, xor::<16>(value))
    }
}

/// Transposes the 4x4 matrix of four lanes whose numbers differ in two bits, of value `NEAR` and twice as much: the lane with
/// number `i` in these bits gets value `[i]` of each of the four. First blocks of 2x2 change places, then the numbers in them.
///
/// # Safety
/// Every lane of the warp must reach the same call. `FAR` is `2 * NEAR`.
#[inline(always)]
pub unsafe fn transpose<const NEAR: u32, const FAR: u32>(v: [u32; 4], lane: u32) -> [u32; 4] {
    const { assert!(FAR == 2 * NEAR) }
    // SAFETY: convergence is the caller's promise.
    let exchange = |keep: u32, give: u32, swap: bool, other: fn(f32) -> f32| {
        let (keep, give) = if swap { (give, keep) } else { (keep, give) };
        let got = other(f32::from_bits(give)).to_bits();
        if swap { (got, keep) } else { (keep, got) }
    };
    let far = |x: f32| unsafe { xor::<FAR>(x) };
    let near = |x: f32| unsafe { xor::<NEAR>(x) };
    let (down, odd) = (lane & FAR != 0, lane & NEAR != 0);
    let (a, c) = exchange(v[0], v[2], down, far);
    let (b, d) = exchange(v[1], v[3], down, far);
    let (a, b) = exchange(a, b, odd, near);
    let (c, d) = exchange(c, d, odd, near);
    [a, b, c, d]
}
