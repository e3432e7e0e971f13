//! Attention in FP8.

use crate::error::Result;
use crate::forward::Problem;
use crate::tensor::{RawTensor, expect_shape};

/// How q, k and v are rounded to e4m3, for [`Attention::fp8`](crate::Attention::fp8).
///
/// e4m3 has three bits behind the point, and numbers up to 448. Each row of q is scaled, and each block of 128 keys. The values lose the
/// mean of each column, which the output gets back, and each column is scaled. All scales are powers of two. Probabilities are
/// rounded to e4m3, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fp8 {
    /// Whether q and k are [rotated](method@Self::hadamard).
    pub hadamard: bool,
}

impl Fp8 {
    /// The rounding of a call whose inputs have more bits.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Fp8, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 2, 1], vec![0.0_f32; 2])?;
    /// let v = Tensor::from_vec([1, 1, 2, 1], vec![1.0_f32, 2.0])?;
    /// let (o, _) = Attention::new().fp8(Fp8::new()).forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [1.5; 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Rotates rows of q and k before they are rounded, by a Hadamard matrix whose columns have random signs. Scores stay; an outlier
    /// spreads over its row, so that it costs the other elements fewer digits. Default: off.
    ///
    /// Source: FlashAttention-3 (Shah et al. 2024), section 3.3.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Fp8, Tensor};
    ///
    /// // Products of 0 and 2, so weights of 1 and 3.
    /// let q = Tensor::from_vec([1, 1, 1, 2], vec![1.0_f32, 1.0])?;
    /// let k = Tensor::from_vec([1, 1, 2, 2], vec![0.0_f32, 0.0, 1.0, 1.0])?;
    /// let v = Tensor::from_vec([1, 1, 2, 1], vec![0.0_f32, 4.0])?;
    /// let rotated = Attention::new().scale(3_f32.ln() / 2.0).fp8(Fp8::new().hadamard(true));
    /// let (o, _) = rotated.forward(&q, &k, &v)?;
    /// assert!((o.to_vec()?[0] - 3.0).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hadamard(mut self, hadamard: bool) -> Self {
        self.hadamard = hadamard;
        self
    }
}

/// What multiplies q, k and v of e4m3, by address: `f32[batch, kv_heads]` of any strides, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawE4m3 {
    /// Of the queries; query heads of a group share a number.
    pub q: Option<RawTensor<2>>,
    /// Of the keys.
    pub k: Option<RawTensor<2>>,
    /// Of the values.
    pub v: Option<RawTensor<2>>,
}

impl RawE4m3 {
    /// The numbers of q, k and v, in this order.
    pub(crate) fn descales(&self) -> [Option<RawTensor<2>>; 3] {
        [self.q, self.k, self.v]
    }

    pub(super) fn validate(&self, p: &Problem) -> Result<()> {
        let names = ["q_descale", "k_descale", "v_descale"];
        for (name, descale) in names.into_iter().zip(self.descales()) {
            if let Some(descale) = descale {
                expect_shape(name, &[p.batch, p.kv_heads], &descale.shape)?;
                descale.expect_span(name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::Attention;
    use crate::device::{Class, Device, Facts};
    use crate::error::{Error, Result};
    use crate::forward::{Problem, RawForward};
    use crate::plan::{CPU, Plan};
    use crate::tensor::{Dtype, RawTensor, Tensor};

    fn plan(attention: Attention, args: &RawForward, class: Option<Class>) -> Result<Plan> {
        let facts = class.map(Facts::emulated);
        let attention = attention.fp8(Fp8::new());
        attention.plan(facts.as_ref(), Dtype::Bf16, args)
    }

    /// An option that kernels lack, or splits, would be ignored: each is an error that names it, on the CPU, too.
    #[test]
    fn few_options_go_with_fp8() {
        let shape = [2, 4, 300, 64];
        let problem = Problem::new(shape, shape, shape, true, None).expect("valid");
        let plain = RawForward::row_major(&problem);
        let mut of_tensors = [plain; 3];
        of_tensors[0].options.sinks = Some(RawTensor::row_major([4]));
        of_tensors[1].options.first_keys = Some(RawTensor::row_major([2]));
        of_tensors[2].options.alibi = Some(RawTensor::row_major([2, 4]));
        let [sinks, first_keys, alibi] = of_tensors;
        let new = || Attention::new().causal(true);
        for (attention, args) in [
            (new().window(100, 0), plain),
            (new().softcap(30.0), plain),
            (new(), sinks),
            (new(), first_keys),
        ] {
            let name = |class| {
                plan(attention.clone(), &args, class)
                    .expect("served")
                    .kernel
            };
            assert_eq!(name(Some(Class::Sm90)), "fp8_optional_bf16_d64");
            assert_eq!(name(None), CPU);
        }
        for class in [Some(Class::Sm90), Some(Class::Sm80), None] {
            for (attention, args, other) in [
                (new().splits(2), plain, "splits"),
                (new().split_keys(128), plain, "split_keys"),
                (new().batch_invariant(true), plain, "batch_invariant"),
                (new().scale(1e5), plain, "scale of 65536 or more"),
                (new(), alibi, "alibi"),
            ] {
                match plan(attention, &args, class) {
                    Err(Error::Excluded("fp8", one) | Error::Excluded(one, "fp8")) => {
                        assert_eq!(one, other);
                    }
                    Err(error) => panic!("{other}: {error}"),
                    Ok(plan) => panic!("{other}: {}", plan.kernel),
                }
            }
            let served = plan(new().splits(1), &plain, class);
            assert_eq!(served.is_ok(), class != Some(Class::Sm80));
        }
    }

    /// o in f32 comes from the kernels of f16, or where the call rounds its inputs from those of their type.
    #[test]
    fn kernels_of_o_in_f32() {
        let shape = [2, 4, 300, 64];
        let problem = Problem::new(shape, shape, shape, true, None).expect("valid");
        let rounded = RawForward::row_major(&problem);
        let [mut e4m3, mut wide] = [rounded; 2];
        e4m3.options.e4m3 = Some(RawE4m3::default());
        wide.options.f32_o = true;
        let kernel = |attention: Attention, dtype, args: &RawForward| {
            let plan = attention.plan(Some(&Facts::emulated(Class::Sm90)), dtype, args);
            plan.map(|plan| plan.kernel)
                .map_err(|error| error.to_string())
        };
        let new = Attention::new;
        let name = "fp8_two_levels_f16_d64";
        assert_eq!(kernel(new(), Dtype::F32, &e4m3), Ok(name));
        assert_eq!(kernel(new().kernel(name), Dtype::F32, &e4m3), Ok(name));
        let other = new().kernel("fp8_two_levels_bf16_d64");
        let refused = kernel(other, Dtype::F32, &e4m3).expect_err("of another type");
        assert!(refused.contains("is for dtype bf16, not f32"), "{refused}");
        let fp8 = || new().fp8(Fp8::new());
        assert_eq!(kernel(fp8(), Dtype::Bf16, &wide), Ok("fp8_bf16_d64"));
        for args in [&rounded, &wide] {
            let refused = kernel(fp8(), Dtype::F32, args).expect_err("inputs in f32");
            assert_eq!(refused, Error::NoKernels(Dtype::F32).to_string());
        }
        let refused = kernel(new(), Dtype::F16, &wide).expect_err("without fp8");
        assert_eq!(refused, "o in f32 needs fp8");
    }

    #[test]
    fn fp8_has_no_gradients() {
        let x = Tensor::<f32>::zeros(&Device::cpu(), [1, 2, 3, 8]).expect("memory");
        let lse = Tensor::<f32, 3>::zeros(&Device::cpu(), [1, 2, 3]).expect("memory");
        let attention = Attention::new().fp8(Fp8::new());
        let backward = attention.backward(&x, &x, &x, &x, &lse, &x);
        assert_eq!(backward.expect_err("refused"), Error::ForwardOnly("fp8"));
        let ones = Tensor::<f32, 2>::zeros(&Device::cpu(), [1, 2]).expect("memory");
        let attention = Attention::new();
        let attention = attention.descales(&ones, &ones, &ones);
        let backward = attention.backward(&x, &x, &x, &x, &lse, &x);
        assert_eq!(backward.expect_err("refused"), Error::ForwardOnly("e4m3"));
    }
}
