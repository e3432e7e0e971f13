//! Element types that `--dtype` names.

use ferroattn::Dtype;

/// Element type of q, k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// That of o, too.
    Float(Dtype),
    /// e4m3, with an o of more bits.
    Fp8,
}

impl ElementType {
    /// Every type.
    pub const ALL: [ElementType; 4] = [
        ElementType::Float(Dtype::F16),
        ElementType::Float(Dtype::Bf16),
        ElementType::Float(Dtype::F32),
        ElementType::Fp8,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ElementType::Float(dtype) => dtype.name(),
            ElementType::Fp8 => "fp8",
        }
    }
}
