//! What of a call is e4m3.

use clap::ValueEnum;
use ferroattn::{Fp8, RawE4m3, RawE4m3Cache, RawOptions};
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
    /// e4m3 before the call, but for q: a cache.
    Cache,
}

impl Fp8Inputs {
    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Fp8Inputs::Rounded => "fp8",
            Fp8Inputs::Hadamard => "fp8 hadamard",
            Fp8Inputs::E4m3 => "fp8 e4m3",
            Fp8Inputs::Cache => "cache of e4m3",
        }
    }

    /// How a call rounds; none to a cache, whose numbers have more bits when they are multiplied.
    pub fn rounding(self) -> Option<Fp8> {
        let rounding = Fp8::new().hadamard(self == Fp8Inputs::Hadamard);
        (self != Fp8Inputs::Cache).then_some(rounding)
    }

    /// Whether inputs are e4m3 before the call.
    pub fn are_e4m3(self) -> bool {
        matches!(self, Fp8Inputs::E4m3 | Fp8Inputs::Cache)
    }

    /// Sets what a call of e4m3 has for it in the options.
    pub fn plan(self, options: &mut RawOptions) {
        match self {
            Fp8Inputs::E4m3 => options.e4m3 = Some(RawE4m3::default()),
            Fp8Inputs::Cache => options.e4m3_cache = Some(RawE4m3Cache::default()),
            Fp8Inputs::Rounded | Fp8Inputs::Hadamard => {}
        }
    }
}
