//! The element types of q, k, v and o.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kernels::catalog::Dtype;

/// A 16-bit floating-point type that attention is computed on: [`f16`](struct@f16) or [`bf16`].
///
/// Sealed: the kernels exist for these types only.
pub trait Element:
    sealed::Sealed + bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync
{
    /// The type as the kernel table names it.
    const DTYPE: Dtype;

    /// The same value in `f32`.
    fn to_f32(self) -> f32;

    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;

    /// [`to_f32`](Element::to_f32) of a whole slice, by vector instructions where there are some.
    ///
    /// # Panics
    /// If the lengths differ.
    fn to_f32_slice(source: &[Self], target: &mut [f32]);

    /// [`from_f32`](Element::from_f32) of a whole slice, by vector instructions where there are
    /// some.
    ///
    /// # Panics
    /// If the lengths differ.
    fn from_f32_slice(source: &[f32], target: &mut [Self]);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($type:ident, $dtype:expr) => {
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DTYPE: Dtype = $dtype;

            fn to_f32(self) -> f32 {
                self.to_f32()
            }

            fn from_f32(value: f32) -> Self {
                $type::from_f32(value)
            }

            fn to_f32_slice(source: &[Self], target: &mut [f32]) {
                source.convert_to_f32_slice(target);
            }

            fn from_f32_slice(source: &[f32], target: &mut [Self]) {
                target.convert_from_f32_slice(source);
            }
        }
    };
}

element!(f16, Dtype::F16);
element!(bf16, Dtype::Bf16);
