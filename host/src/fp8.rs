//! Options of FP8: what is e4m3 before the call, and what the call rounds.

use crate::args::Args;
use crate::element_type::ElementType;
use anyhow::{Result, ensure};
use ferroattn::{Dtype, Fp8, RawE4m3, RawOptions};

impl Args {
    /// Whether q, k and v are e4m3 before the call.
    pub fn is_e4m3(&self) -> bool {
        self.dtype == Some(ElementType::Fp8)
    }

    /// The type of o; `default` where the command line names none.
    pub fn type_of_o(&self, default: Dtype) -> Dtype {
        match self.dtype {
            None => default,
            Some(ElementType::Float(dtype)) => dtype,
            Some(ElementType::Fp8) => self.o_dtype.unwrap_or(Dtype::F16),
        }
    }

    /// The type of q, k and v, where that of o is this.
    pub fn type_of_inputs(&self, o: Dtype) -> ElementType {
        match self.is_e4m3() {
            true => ElementType::Fp8,
            false => ElementType::Float(o),
        }
    }

    /// How q, k and v become what is multiplied, if that is e4m3.
    pub fn rounding(&self) -> Option<Fp8> {
        let is_on = self.modifiers.fp8 || self.is_e4m3();
        is_on.then(|| Fp8::new().hadamard(self.modifiers.hadamard))
    }

    /// Sets what a call in FP8 has in the options that it is planned with.
    pub fn plan_fp8(&self, options: &mut RawOptions) {
        options.fp8 = self.rounding();
        options.e4m3 = self.is_e4m3().then(RawE4m3::default);
    }

    /// Checks that the options of FP8 go together.
    ///
    /// # Errors
    /// Says which do not.
    pub fn expect_fp8(&self) -> Result<()> {
        let (modifiers, is_e4m3) = (&self.modifiers, self.is_e4m3());
        for (option, is_on) in [
            ("--fp8-scales", modifiers.fp8_scales.is_some()),
            ("--o-dtype", self.o_dtype.is_some()),
        ] {
            ensure!(is_e4m3 || !is_on, "{option} needs --dtype fp8");
        }
        ensure!(
            modifiers.fp8 || is_e4m3 || !modifiers.hadamard,
            "--hadamard needs --fp8 or --dtype fp8"
        );
        for (option, is_on) in [
            ("--fp8, which rounds inputs of 16 bits", modifiers.fp8),
            ("--append", modifiers.append.is_some()),
        ] {
            ensure!(!(is_e4m3 && is_on), "--dtype fp8 takes no {option}");
        }
        Ok(())
    }
}

/// Takes a number for each of q, k and v.
pub fn scales(given: &str) -> Result<[f32; 3], String> {
    let numbers = given.split(',').map(|number| number.parse().ok());
    let finite = numbers.map(|number| number.filter(|scale: &f32| scale.is_finite()));
    let scales: Option<Vec<f32>> = finite.collect();
    let scales = scales.and_then(|scales| scales.try_into().ok());
    scales.ok_or_else(|| "it must be Q,K,V: three finite numbers".to_owned())
}

#[cfg(test)]
mod tests {
    use super::scales;

    #[test]
    fn scales_are_three_finite_numbers() {
        assert_eq!(scales("0.5,-1,2e3"), Ok([0.5, -1.0, 2e3]));
        for wrong in ["", "1", "1,2", "1,2,3,4", "1,,3", "1,2,", "1,2,x"] {
            assert!(scales(wrong).is_err(), "{wrong}");
        }
        for wrong in ["NaN,1,1", "1,inf,1", "1,1,1e39"] {
            assert!(scales(wrong).is_err(), "{wrong}");
        }
    }
}
