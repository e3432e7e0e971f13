//! The element types of q, k, v and o, and of matrices.

use super::Dtype;
use super::sealed::Sealed;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A floating-point type of tensors: [`f16`](struct@f16) and [`bf16`] everywhere, [`f32`] on the CPU, and as the type of o of
/// [inputs that are e4m3](crate::Attention::forward_e4m3).
///
/// The CPU computes in `f32`, whatever the type. Sealed: kernels exist for these types alone.
pub trait Element:
    Sealed + bytemuck::Pod + Into<f32> + PartialEq + std::fmt::Debug + Send + Sync
{
    /// The type's name.
    const DTYPE: Dtype;

    /// The value in `f32`.
    fn to_f32(self) -> f32 {
        self.into()
    }

    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;

    /// [`to_f32`](Element::to_f32) of a slice, by vector instructions where there are some.
    ///
    /// # Panics
    /// If the lengths differ.
    fn to_f32_slice(source: &[Self], target: &mut [f32]);

    /// [`from_f32`](Element::from_f32) of a slice, by vector instructions where there are some.
    ///
    /// # Panics
    /// If the lengths differ.
    fn from_f32_slice(source: &[f32], target: &mut [Self]);
}

macro_rules! half_element {
    ($type:ident, $dtype:expr) => {
        impl Sealed for $type {}

        impl Element for $type {
            const DTYPE: Dtype = $dtype;

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

half_element!(f16, Dtype::F16);
half_element!(bf16, Dtype::Bf16);

impl Sealed for f32 {}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;

    fn from_f32(value: f32) -> Self {
        value
    }

    fn to_f32_slice(source: &[Self], target: &mut [f32]) {
        target.copy_from_slice(source);
    }

    fn from_f32_slice(source: &[f32], target: &mut [Self]) {
        target.copy_from_slice(source);
    }
}
