//! `ld.global` and `st.global`.
//!
//! This is assembly because the compiler moves a 16-byte aligned Rust array by two 8-byte accesses, and because
//! addresses of device memory are integers.

use core::arch::asm;

/// Reads 2 bytes.
///
/// # Safety
/// `address` is 2-byte aligned and readable.
#[inline(always)]
pub unsafe fn load_u16(address: u64) -> u16 {
    let value: u16;
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("ld.global.b16 {}, [{}];", out(reg16) value, in(reg64) address, options(nostack));
    }
    value
}

/// Reads 4 bytes.
///
/// # Safety
/// `address` is 4-byte aligned and readable.
#[inline(always)]
pub unsafe fn load_u32(address: u64) -> u32 {
    let value: u32;
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("ld.global.b32 {}, [{}];", out(reg32) value, in(reg64) address, options(nostack));
    }
    value
}

/// Reads an f32.
///
/// # Safety
/// As [`load_u32`].
#[inline(always)]
pub unsafe fn load_f32(address: u64) -> f32 {
    // SAFETY: the caller's promise.
    f32::from_bits(unsafe { load_u32(address) })
}

/// Reads two f32.
///
/// # Safety
/// `address` is 8-byte aligned and readable.
#[inline(always)]
pub unsafe fn load_f32x2(address: u64) -> [f32; 2] {
    let (a, b): (f32, f32);
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("ld.global.v2.b32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b,
            in(reg64) address, options(nostack));
    }
    [a, b]
}

/// Reads four f32.
///
/// # Safety
/// `address` is 16-byte aligned and readable.
#[inline(always)]
pub unsafe fn load_f32x4(address: u64) -> [f32; 4] {
    let (a, b, c, d): (f32, f32, f32, f32);
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
            out(reg32) c, out(reg32) d, in(reg64) address, options(nostack));
    }
    [a, b, c, d]
}

/// Writes 2 bytes.
///
/// # Safety
/// `address` is 2-byte aligned and writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_u16(address: u64, value: u16) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.global.b16 [{}], {};", in(reg64) address, in(reg16) value, options(nostack));
    }
}

/// Writes the first `count` 16-bit elements of `pairs`, one at a time, the lower half of each pair first.
///
/// # Safety
/// `address` is 2-byte aligned, and `count` elements from there on are writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_elements<const N: usize>(address: u64, pairs: [u32; N], count: u32) {
    for i in 0..2 * N as u32 {
        if i < count {
            let element = pairs[i as usize / 2] >> (16 * (i % 2));
            // SAFETY: the addresses are the caller's promise.
            unsafe { store_u16(address + 2 * u64::from(i), element as u16) }
        }
    }
}

/// Writes 4 bytes.
///
/// # Safety
/// `address` is 4-byte aligned and writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_u32(address: u64, value: u32) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.global.b32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// Writes an f32.
///
/// # Safety
/// `address` is 4-byte aligned and writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_f32(address: u64, value: f32) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.global.b32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// Writes two f32.
///
/// # Safety
/// `address` is 8-byte aligned and writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_f32x2(address: u64, [a, b]: [f32; 2]) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.global.v2.b32 [{}], {{{}, {}}};", in(reg64) address, in(reg32) a, in(reg32) b,
            options(nostack));
    }
}

/// Writes 8 bytes.
///
/// # Safety
/// `address` is 8-byte aligned and writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_u32x2(address: u64, [a, b]: [u32; 2]) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.global.v2.b32 [{}], {{{}, {}}};", in(reg64) address, in(reg32) a, in(reg32) b,
            options(nostack));
    }
}

/// Writes 16 bytes.
///
/// # Safety
/// `address` is 16-byte aligned and writable, by this thread alone.
#[inline(always)]
pub unsafe fn store_u32x4(address: u64, value: [u32; 4]) {
    let [a, b, c, d] = value;
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg64) address,
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}
