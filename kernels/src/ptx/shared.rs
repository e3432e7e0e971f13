//! The block's dynamic shared memory, `ld.shared` and `st.shared`.

use core::arch::asm;

/// Shared address of the block's dynamic shared memory, a multiple of 1024.
#[inline(always)]
pub fn base() -> u32 {
    let address: u32;
    // SAFETY: reads a constant.
    unsafe { asm!("mov.u32 {}, smem;", out(reg32) address, options(nomem, nostack)) }
    address
}

/// Writes 2 bytes.
///
/// # Safety
/// `address` is 2-byte aligned and inside the block's shared memory; no other thread uses these bytes now.
#[inline(always)]
pub unsafe fn store_u16(address: u32, value: u16) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.shared.b16 [{}], {};", in(reg32) address, in(reg16) value, options(nostack));
    }
}

/// Writes 4 bytes.
///
/// # Safety
/// `address` is 4-byte aligned and inside the block's shared memory; no other thread uses these bytes now.
#[inline(always)]
pub unsafe fn store_u32(address: u32, value: u32) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.shared.b32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
    }
}

/// Writes 16 bytes.
///
/// # Safety
/// `address` is 16-byte aligned and inside the block's shared memory; no other thread uses the bytes.
#[inline(always)]
pub unsafe fn store_u32x4(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg32) address, in(reg32) a, in(reg32) b,
            in(reg32) c, in(reg32) d, options(nostack));
    }
}

/// Reads an f32.
///
/// # Safety
/// `address` is 4-byte aligned and inside the block's shared memory; the bytes are written, and no other thread
/// writes them now.
#[inline(always)]
pub unsafe fn load_f32(address: u32) -> f32 {
    let value: f32;
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("ld.shared.f32 {}, [{}];", out(reg32) value, in(reg32) address, options(nostack));
    }
    value
}

/// Reads 16 bytes.
///
/// # Safety
/// `address` is 16-byte aligned and inside the block's shared memory; the bytes are written, and no other thread
/// writes them now.
#[inline(always)]
pub unsafe fn load_u32x4(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the address is the caller's promise.
    unsafe {
        asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
            out(reg32) c, out(reg32) d, in(reg32) address, options(nostack));
    }
    [a, b, c, d]
}
