//! Parts of a kernel that the host turns on before the driver compiles it: see [`Switch`](crate::abi::Switch).
//!
//! A switch is a register that a kernel sets once, as it begins: the builder writes that. So the assembler drops what stands
//! behind one that is off. The compiler does not know it: a read is volatile, else a loop would be copied for each value.

use core::arch::asm;

/// Defines functions that read a switch, by its name in the PTX, as a type.
macro_rules! switches {
    ($($(#[$doc:meta])* $function:ident = $name:literal as $type:ty, $of:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $function() -> $type {
            let value: u32;
            // SAFETY: a register that has a constant.
            unsafe {
                asm!(
                    concat!("mov.b32 {}, switch_", $name, ";"),
                    out(reg32) value, options(nomem, nostack)
                );
            }
            $of(value)
        }
    )*};
}

switches! {
    /// The kind of softcap: the [value](crate::abi::Switch::constant) of its switch, or 0 if there is none.
    softcap = "softcap" as u32, core::convert::identity;

    /// The kind of ALiBi: the [value](crate::abi::Switch::constant) of its switch, or 0 if there is none.
    alibi = "alibi" as u32, core::convert::identity;

    /// Whether [`Switch::Ranges`](crate::abi::Switch::Ranges) is on.
    ranges = "ranges" as bool, is_on;

    /// Whether [`Switch::Lengths`](crate::abi::Switch::Lengths) is on.
    lengths = "lengths" as bool, is_on;

    /// The type of the bias: the [value](crate::abi::Switch::constant) of its switch, or 0 if there is no bias.
    bias = "bias" as u32, core::convert::identity;

    /// Whether [`Switch::BiasVectors`](crate::abi::Switch::BiasVectors) is on.
    bias_vectors = "bias_vectors" as bool, is_on;

    /// How the gradient of the bias is added: the [value](crate::abi::Switch::constant) of its switch, or 0 if it is not wanted.
    bias_gradient = "bias_gradient" as u32, core::convert::identity;

    /// The type of the boolean mask: the [value](crate::abi::Switch::constant) of its switch, or 0 if there is no mask.
    mask = "mask" as u32, core::convert::identity;

    /// Whether [`Switch::Pages`](crate::abi::Switch::Pages) is on.
    pages = "pages" as bool, is_on;

    /// Whether [`Switch::Tiles`](crate::abi::Switch::Tiles) is on.
    tiles = "tiles" as bool, is_on;

    /// Whether [`Switch::Exact`](crate::abi::Switch::Exact) is on.
    exact = "exact" as bool, is_on;

    /// Whether [`Switch::Group`](crate::abi::Switch::Group) is on.
    group = "group" as bool, is_on;

    /// Whether [`Switch::F32Output`](crate::abi::Switch::F32Output) is on.
    f32_output = "f32_output" as bool, is_on;

    /// Whether [`Switch::Cluster`](crate::abi::Switch::Cluster) is on.
    cluster = "cluster" as bool, is_on;
}

#[inline(always)]
fn is_on(value: u32) -> bool {
    value != 0
}
