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

stores! {
    u32 in reg32, "# Safety
`address` is a multiple of the value's bytes, inside the block's shared memory; no other thread uses these bytes now.";

    /// Writes 2 bytes.
    store_u16 = "st.shared.b16 [{}], {};" (a: u16 in reg16);

    /// Writes 4 bytes.
    store_u32 = "st.shared.b32 [{}], {};" (a: u32 in reg32);

    /// Writes an f32.
    store_f32 = "st.shared.b32 [{}], {};" (a: f32 in reg32);

    /// Writes 16 bytes.
    store_u32x4 = "st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};" [a b c d: u32 in reg32; 4];
}

loads! {
    u32 in reg32, "# Safety
`address` is a multiple of the value's bytes, inside the block's shared memory; these bytes are written, and no other
thread writes them now.";

    /// Reads 4 bytes.
    load_u32 = "ld.shared.b32 {}, [{}];" (a: u32 in reg32);

    /// Reads 8 bytes.
    load_u32x2 = "ld.shared.v2.b32 {{{}, {}}}, [{}];" [a b: u32 in reg32; 2];

    /// Reads an f32.
    load_f32 = "ld.shared.f32 {}, [{}];" (a: f32 in reg32);

    /// Reads two f32.
    load_f32x2 = "ld.shared.v2.f32 {{{}, {}}}, [{}];" [a b: f32 in reg32; 2];

    /// Reads 16 bytes.
    load_u32x4 = "ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];" [a b c d: u32 in reg32; 4];
}
