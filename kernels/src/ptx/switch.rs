//! Parts of a kernel that the host turns on before the driver compiles it: see [`Switch`](crate::abi::Switch).
//!
//! A switch is a constant of the PTX, so the assembler drops what stands behind one that is off. The compiler does not know
//! it: a read is volatile, else a loop would be copied for both values.

use core::arch::asm;

/// Defines functions that read a switch, by its name.
macro_rules! switches {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $function() -> bool {
            let on: u32;
            // SAFETY: a constant.
            unsafe {
                asm!(
                    concat!(
                        "{{ .reg .b32 switch_", $name, "; mov.b32 switch_", $name, ", 0; ",
                        "mov.b32 {}, switch_", $name, "; }}"
                    ),
                    out(reg32) on, options(nomem, nostack)
                );
            }
            on != 0
        }
    )*};
}

switches! {
    /// Whether [`Switch::Softcap`](crate::abi::Switch::Softcap) is on.
    softcap = "softcap";

    /// Whether [`Switch::Alibi`](crate::abi::Switch::Alibi) is on.
    alibi = "alibi";

    /// Whether [`Switch::Ranges`](crate::abi::Switch::Ranges) is on.
    ranges = "ranges";

    /// Whether [`Switch::BiasF16`](crate::abi::Switch::BiasF16) is on.
    bias_f16 = "bias_f16";

    /// Whether [`Switch::BiasBf16`](crate::abi::Switch::BiasBf16) is on.
    bias_bf16 = "bias_bf16";

    /// Whether [`Switch::BiasF32`](crate::abi::Switch::BiasF32) is on.
    bias_f32 = "bias_f32";

    /// Whether [`Switch::BiasGradient`](crate::abi::Switch::BiasGradient) is on.
    bias_gradient = "bias_gradient";

    /// Whether [`Switch::MaskBytes`](crate::abi::Switch::MaskBytes) is on.
    mask_bytes = "mask_bytes";

    /// Whether [`Switch::MaskBits`](crate::abi::Switch::MaskBits) is on.
    mask_bits = "mask_bits";
}
