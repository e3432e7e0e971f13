//! `ld.global` and `st.global`.
//!
//! This is assembly because the compiler moves a 16-byte aligned Rust array by two 8-byte accesses, and because
//! addresses of device memory are integers.

use core::arch::asm;

loads! {
    u64 in reg64, "# Safety
`address` is a multiple of the value's bytes, which are readable.";

    /// Reads a byte.
    load_u8 = "ld.global.u8 {}, [{}];" (a: u16 in reg16);

    /// Reads 2 bytes.
    load_u16 = "ld.global.b16 {}, [{}];" (a: u16 in reg16);

    /// Reads 4 bytes.
    load_u32 = "ld.global.b32 {}, [{}];" (a: u32 in reg32);

    /// Reads 8 bytes.
    load_u32x2 = "ld.global.v2.b32 {{{}, {}}}, [{}];" [a b: u32 in reg32; 2];

    /// Reads 16 bytes.
    load_u32x4 = "ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];" [a b c d: u32 in reg32; 4];

    /// Reads two f32.
    load_f32x2 = "ld.global.v2.b32 {{{}, {}}}, [{}];" [a b: f32 in reg32; 2];

    /// Reads four f32.
    load_f32x4 = "ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];" [a b c d: f32 in reg32; 4];
}

/// Reads an f32.
///
/// # Safety
/// The conditions of [`load_u32`].
#[inline(always)]
pub unsafe fn load_f32(address: u64) -> f32 {
    // SAFETY: the caller's promise.
    f32::from_bits(unsafe { load_u32(address) })
}

/// Reads two numbers of a type that is data: 1 is f16, 2 bf16, 3 f32. Without branches: the assembler, which knows the type, keeps
/// one load of each.
///
/// # Safety
/// The addresses are multiples of the type's bytes, which are readable.
#[inline(always)]
pub unsafe fn load_numbers(a: u64, b: u64, number: u32) -> [f32; 2] {
    let (x, y): (f32, f32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{ .reg .pred p, h; .reg .b16 zero, a, b; mov.b16 zero, 0; setp.eq.u32 p, {4}, 3; setp.eq.u32 h, {4}, 1;",
            "@p ld.global.b32 {0}, [{2}]; @p ld.global.b32 {1}, [{3}];",
            "@!p ld.global.b16 a, [{2}]; @!p ld.global.b16 b, [{3}];",
            "@!p mov.b32 {0}, {{zero, a}}; @!p mov.b32 {1}, {{zero, b}};",
            "@h cvt.f32.f16 {0}, a; @h cvt.f32.f16 {1}, b; }}",
            out(reg32) x, out(reg32) y, in(reg64) a, in(reg64) b, in(reg32) number,
            options(nostack)
        );
    }
    [x, y]
}

/// Reads eight 16-bit elements, one at a time: as [`load_u32x4`], from any element on.
///
/// # Safety
/// `address` is 2-byte aligned, and 8 elements from there on are readable.
#[inline(always)]
pub unsafe fn load_elements(address: u64) -> [u32; 4] {
    // SAFETY: the caller's promise.
    unsafe { load_first_elements(address, 8) }
}

/// Reads up to eight 16-bit elements, one at a time, with zeros behind the first `count`.
///
/// # Safety
/// `address` is 2-byte aligned, and `count` elements from there on, or 8 if there are more, are readable.
#[inline(always)]
pub unsafe fn load_first_elements(address: u64, count: u32) -> [u32; 4] {
    let mut pairs = [0; 4];
    for i in 0..8 {
        if (i as u32) < count {
            // SAFETY: the caller's promise.
            let element = unsafe { load_u16(address + 2 * i as u64) };
            pairs[i / 2] |= u32::from(element) << (16 * (i % 2));
        }
    }
    pairs
}

stores! {
    u64 in reg64, "# Safety
`address` is a multiple of the value's bytes, which are writable by this thread alone.";

    /// Writes the low byte.
    store_u8 = "st.global.u8 [{}], {};" (a: u16 in reg16);

    /// Writes 2 bytes.
    store_u16 = "st.global.b16 [{}], {};" (a: u16 in reg16);

    /// Writes 4 bytes.
    store_u32 = "st.global.b32 [{}], {};" (a: u32 in reg32);

    /// Writes an f32.
    store_f32 = "st.global.b32 [{}], {};" (a: f32 in reg32);

    /// Writes two f32.
    store_f32x2 = "st.global.v2.b32 [{}], {{{}, {}}};" [a b: f32 in reg32; 2];

    /// Writes 8 bytes.
    store_u32x2 = "st.global.v2.b32 [{}], {{{}, {}}};" [a b: u32 in reg32; 2];

    /// Writes 16 bytes.
    store_u32x4 = "st.global.v4.b32 [{}], {{{}, {}, {}, {}}};" [a b c d: u32 in reg32; 4];
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

instructions! {
    /// Waits until a counter is at least `least`: writes before each [`count_once`] that led there are visible to all lanes.
    ///
    /// # Safety
    /// `address` is 4-byte aligned and readable. All lanes make the same call, and blocks that run lead there.
    wait_for_count(address: u64 in reg64, least: u32 in reg32) =
        "{{ .reg .pred early; .reg .b32 count;"
        "again: ld.acquire.gpu.global.b32 count, [{}]; setp.lt.u32 early, count, {};"
        "vote.sync.any.pred early, early, 0xffffffff;"
        "@early nanosleep.u32 20; @early bra again; }}";

    /// Adds 1 to a counter after earlier writes of the warp's first lane, once for the warp.
    ///
    /// # Safety
    /// `address` is 4-byte aligned and writable, by such calls alone. All lanes make the same call.
    count_once(address: u64 in reg64) =
        "{{ .reg .pred first; .reg .b32 lane, old; mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0;"
        "@first atom.release.gpu.global.add.u32 old, [{}], 1; }}";

    /// Adds an f32.
    ///
    /// # Safety
    /// `address` is 4-byte aligned and writable, by such calls alone.
    add_f32(address: u64 in reg64, value: f32 in reg32) = "red.global.add.f32 [{}], {};";

    /// Adds four f32, each at once, to neighbours: from compute capability 9.0 on.
    ///
    /// # Safety
    /// `address` is 16-byte aligned, and 16 bytes from there on are writable, by such calls alone.
    add_f32x4(address: u64 in reg64, a: f32 in reg32, b: f32 in reg32, c: f32 in reg32, d: f32 in reg32) =
        "red.global.add.v4.f32 [{}], {{{}, {}, {}, {}}};";

    /// Brings the line of an address to the L2 cache.
    ///
    /// # Safety
    /// `address` is readable.
    prefetch(address: u64 in reg64) = "prefetch.global.L2 [{}];";

    /// Reads a bit of a word if `is_bit` is not 0; else a byte. One load of each: the assembler, which knows what is read, keeps one.
    ///
    /// # Safety
    /// The word or the byte is readable.
    load_bit_or_u8(address: u64 in reg64, bit: u32 in reg32, is_bit: u32 in reg32) -> found: u32 =
        "{{ .reg .pred is; setp.ne.u32 is, {3}, 0; @is ld.global.b32 {0}, [{1}]; @is bfe.u32 {0}, {0}, {2}, 1; @!is ld.global.u8 {0}, [{1}]; }}";

    /// Reads a byte if `is_read` is not 0; else it is 0.
    ///
    /// # Safety
    /// The byte is readable if it is read.
    load_u8_if(address: u64 in reg64, is_read: u32 in reg32) -> byte: u32 =
        "{{ .reg .pred is; setp.ne.u32 is, {2}, 0; mov.b32 {0}, 0; @is ld.global.u8 {0}, [{1}]; }}";

    /// Reads a counter and adds 1; from `last` on it goes back to 0.
    ///
    /// # Safety
    /// `address` is 4-byte aligned and writable, by such calls alone.
    count(address: u64 in reg64, last: u32 in reg32) -> old: u32 =
        "atom.global.inc.u32 {}, [{}], {};";
}
