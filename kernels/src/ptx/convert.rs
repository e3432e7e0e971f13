//! Numbers of 16 bits: `cvt` from two f32, rounded to nearest even, into one register; to f32; constants. And of 8 bits.

use core::arch::asm;

/// Defines functions that round two f32 into one register.
macro_rules! pairs {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(lo: f32, hi: f32) -> u32 {
            let packed: u32;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!($text, out(reg32) packed, in(reg32) hi, in(reg32) lo, options(pure, nomem, nostack));
            }
            packed
        }
    )*};
}

pairs! {
    /// `lo` and `hi` as f16, `lo` in the low half.
    f16x2 = "cvt.rn.f16x2.f32 {}, {}, {};";

    /// `lo` and `hi` as bf16, `lo` in the low half.
    bf16x2 = "cvt.rn.bf16x2.f32 {}, {}, {};";
}

/// Defines modules of a type: its constants and how it widens. `one` and the others name the constants for who
/// replaces them in the PTX.
macro_rules! types {
    ($($(#[$doc:meta])* $name:ident: $exponents:literal, $lsbs:literal, $one:literal, $widen:literal, $of_f16:literal;)*) => {$(
        $(#[$doc])*
        pub mod $name {
            use super::asm;

            types! {
                @ /// Exponent bits, in both halves of a register.
                exponents = "exponents" $exponents;
            }

            types! {
                @ /// Lowest exponent bit, in both halves of a register.
                exponent_lsbs = "exponent_lsbs" $lsbs;
            }

            types! {
                @ /// The bits of 1.
                one = "one" $one;
            }

            arithmetic! {
                /// The two numbers of e4m3 in the low half.
                of_low_e4m3(bytes: u32 in reg32) -> u32 = types!(@ of_e4m3 "low", $of_f16);

                /// The two numbers of e4m3 in the high half.
                of_high_e4m3(bytes: u32 in reg32) -> u32 = types!(@ of_e4m3 "high", $of_f16);

                /// The number that `bits` stand for.
                widen(bits: u16 in reg16) -> f32 = concat!(
                    "{{ .reg .b16 zero, half; .reg .b32 wide; mov.b16 zero, 0; mov.b16 half, {1}; ",
                    $widen, "; mov.b32 {0}, wide; }}"
                );
            }
        }
    )*};
    (@ of_e4m3 $half:literal, $of_f16:literal) => {
        concat!(
            "{{ .reg .b16 low, high; .reg .b32 halves, pair; .reg .f32 lo, hi; mov.b32 {{low, high}}, {1}; ",
            "cvt.rn.f16x2.e4m3x2 halves, ", $half, "; ", $of_f16, "; mov.b32 {0}, pair; }}"
        )
    };
    (@ $(#[$doc:meta])* $function:ident = $name:literal $value:literal;) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $function() -> u32 {
            let value: u32;
            // SAFETY: a constant.
            unsafe {
                asm!(
                    concat!("{{ .reg .b32 ", $name, "; mov.b32 ", $name, ", ", $value, "; mov.b32 {}, ", $name, "; }}"),
                    out(reg32) value, options(pure, nomem, nostack)
                );
            }
            value
        }
    };
}

arithmetic! {
    /// Four f16 as e4m3, rounded to nearest even; numbers beyond 448 become 448.
    e4m3_of_f16(low: u32 in reg32, high: u32 in reg32) -> u32 =
        "{{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f16x2 lo, {1}; cvt.rn.satfinite.e4m3x2.f16x2 hi, {2}; mov.b32 {0}, {{lo, hi}}; }}";

    /// Four f32 as e4m3, rounded to nearest even; numbers beyond 448 become 448.
    e4m3(a: f32 in reg32, b: f32 in reg32, c: f32 in reg32, d: f32 in reg32) -> u32 =
        "{{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, {2}, {1}; cvt.rn.satfinite.e4m3x2.f32 hi, {4}, {3}; mov.b32 {0}, {{lo, hi}}; }}";

    /// Two numbers of e4m3 as f16, exactly; the lower byte's in the low half.
    f16_of_e4m3(pair: u16 in reg16) -> u32 = "cvt.rn.f16x2.e4m3x2 {}, {};";
    /// The bytes 0, 2, 1 and 3.
    even_bytes_first(bytes: u32 in reg32) -> u32 = "prmt.b32 {}, {}, 0, 0x3120;";

    /// The f16 that `bits` stand for, in kernels of any type.
    any_f16(bits: u16 in reg16) -> f32 = "cvt.f32.f16 {}, {};";
}

types! {
    /// IEEE binary16.
    f16: "0x7c007c00", "0x04000400", "0x3c00", "cvt.f32.f16 wide, half", "mov.b32 pair, halves";

    /// bfloat16: an f32 without its low half.
    bf16: "0x7f807f80", "0x00800080", "0x3f80", "mov.b32 wide, {{zero, half}}",
        "mov.b32 {{low, high}}, halves; cvt.f32.f16 lo, low; cvt.f32.f16 hi, high; cvt.rn.bf16x2.f32 pair, hi, lo";
}
