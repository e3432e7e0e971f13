//! The pass of a call, and its element type.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The pass that a call computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// o and lse of q, k and v
    #[default]
    Forward,
    /// dq, dk and dv of a gradient of o
    Backward,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        })
    }
}

impl Pass {
    /// Whether it is the forward pass, which files need not name.
    pub fn is_forward(&self) -> bool {
        *self == Pass::Forward
    }
}

/// An element type by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE binary16
    F16,
    /// bfloat16
    Bf16,
}

impl From<Dtype> for kernels::catalog::Dtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

impl From<Dtype> for ferroattn::Dtype {
    fn from(dtype: Dtype) -> Self {
        kernels::catalog::Dtype::from(dtype).into()
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(ferroattn::Dtype::from(*self).name())
    }
}
