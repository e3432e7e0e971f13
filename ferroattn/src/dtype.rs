//! Names of the element types.

use kernels::catalog;

/// Element type of q, k, v and o, or of matrices.
///
/// The feature `serde` reads and writes it as `"F16"`, `"Bf16"` or `"F32"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Dtype {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32, on the CPU alone; but o in [FP8](crate::Attention::forward_e4m3) is f32 on a GPU, too.
    F32,
}

impl Dtype {
    /// Every type.
    pub const ALL: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

    /// The name on the command line and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => catalog::Dtype::F16.name(),
            Dtype::Bf16 => catalog::Dtype::Bf16.name(),
            Dtype::F32 => "f32",
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }
}

#[doc(hidden)]
impl From<catalog::Dtype> for Dtype {
    fn from(dtype: catalog::Dtype) -> Self {
        match dtype {
            catalog::Dtype::F16 => Dtype::F16,
            catalog::Dtype::Bf16 => Dtype::Bf16,
        }
    }
}
