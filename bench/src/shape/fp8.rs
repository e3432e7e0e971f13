//! What of a call is e4m3.

use clap::ValueEnum;
use ferroattn::{Fp8, RawE4m3};
use serde::{Deserialize, Serialize};

/// Which inputs of a call in FP8 are e4m3, and how they come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Fp8Inputs {
    /// Rounded in the call.
    Rounded,
    /// Rounded in the call, q and k after a rotation.
    Hadamard,
    /// e4m3 before the call.
    E4m3,
}

impl Fp8Inputs {
    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Fp8Inputs::Rounded => "fp8",
            Fp8Inputs::Hadamard => "fp8 hadamard",
            Fp8Inputs::E4m3 => "fp8 e4m3",
        }
    }

    /// How a call rounds.
    pub fn rounding(self) -> Fp8 {
        Fp8::new().hadamard(self == Fp8Inputs::Hadamard)
    }

    /// What multiplies inputs that are e4m3 before the call.
    pub fn planned(self) -> Option<RawE4m3> {
        (self == Fp8Inputs::E4m3).then(RawE4m3::default)
    }
}
