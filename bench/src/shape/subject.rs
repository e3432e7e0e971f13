//! An attention call, measured: its row in a table, bytes and operations, and who computes it.

use super::{Dtype, Fp8Inputs, Pass, Shape};
use crate::choice::{ANY_ORDER, Choice};
use crate::contender::Calls;
use crate::names::{exists, on_ladder};
use crate::plan::Plan;
use crate::subject::{Contenders, Subject};
use anyhow::Result;
use ferroattn::{Device, Problem, bf16, f16, kernel};
use serde_json::{Value, json};

/// The peer that ratios compare with: FlashAttention-2.
pub const BASELINE: &str = "SDPA flash";

impl Subject for Shape {
    const BASELINE: &str = BASELINE;
    const RATIO: &str = "ratio to flash";
    const COLUMNS: &[&str] = &["B", "H", "N", "D", "dtype", "mask"];
    const NUMBERS: usize = 4;

    fn peers(shapes: &[Self]) -> &'static str {
        match shapes.iter().any(Shape::has_options) {
            true => "options",
            false => "attention",
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.batch.to_string(),
            self.heads_label(),
            self.seqlen_label(),
            self.dim_label(),
            self.dtype.to_string(),
            self.mask(),
        ]
    }

    fn bytes(&self) -> f64 {
        let keys = match self.lengths() {
            Some(lengths) => lengths.iter().map(|&length| length as usize).sum(),
            None => self.prefix() + self.batch * self.own_keys(),
        };
        let both = self.dim + self.dim_v();
        let of_key = if self.values_in_keys { self.dim } else { both };
        let queries = self.batch * self.heads * self.seqlen;
        // Forward q, k, v and o; backward also their gradients.
        let tensors = if self.pass.is_forward() { 1 } else { 2 };
        let [q_bytes, key_bytes] = match self.fp8 {
            Some(Fp8Inputs::E4m3) => [1, 1],
            Some(Fp8Inputs::Cache) => [2, 1],
            _ => [2, 2],
        };
        let of_queries = queries * (q_bytes * self.dim + size_of::<u16>() * self.dim_v());
        let bytes = tensors * (of_queries + key_bytes * self.kv_heads() * keys * of_key);
        let pairs = self.seqlen * self.seqlen_kv();
        let bias = match (self.bias, self.pass) {
            (false, _) => 0,
            (true, Pass::Forward) => size_of::<u16>(),
            (true, Pass::Backward) => size_of::<u16>() + size_of::<f32>(),
        };
        let mask = usize::from(self.block_mask.is_some());
        (bytes + (self.heads * bias + mask) * pairs) as f64
    }

    fn flops(&self) -> Result<f64> {
        let flops = match self.pass {
            Pass::Forward => Problem::flops,
            Pass::Backward => Problem::backward_flops,
        };
        let all: f64 = self.problems()?.iter().map(flops).sum();
        Ok(all * self.shown(&self.problem()?))
    }

    fn setup(&self) -> Result<Value> {
        let mut setup = json!(self.problem()?);
        setup["dtype"] = json!(self.dtype);
        setup["pass"] = json!(self.pass);
        setup["alibi"] = json!(self.alibi);
        setup["sinks"] = json!(self.sinks);
        setup["bias"] = json!(self.bias);
        setup["block_mask"] = json!(self.block_mask);
        setup["offsets"] = json!(self.offsets());
        setup["lengths"] = json!(self.lengths());
        setup["page"] = json!(self.page);
        setup["prefix"] = json!(self.prefix);
        setup["values_in_keys"] = json!(self.values_in_keys);
        setup["fp8"] = json!(self.fp8);
        Ok(setup)
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let (dtype, problem) = (self.dtype.into(), self.problem()?);
        let name = match self.pass {
            Pass::Forward => name,
            Pass::Backward => name.strip_suffix(ANY_ORDER).unwrap_or(name),
        };
        match on_ladder(name)? {
            Some(_) => Ok(()),
            None => exists(kernel::check(
                None,
                name,
                dtype,
                &problem,
                &self.planned_options(),
            )),
        }
    }

    fn kernels(&self, choice: &Choice, device: &Device) -> Result<Vec<String>> {
        choice.kernels(device, self)
    }

    fn contenders(&self, device: &Device, plan: &Plan) -> Result<Box<dyn Contenders>> {
        Ok(match self.dtype {
            Dtype::F16 => Box::new(Calls::<f16>::new(self, device, plan)?),
            Dtype::Bf16 => Box::new(Calls::<bf16>::new(self, device, plan)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::shape::tests::SHAPE;
    use crate::subject::Subject;

    #[test]
    fn names_are_known_without_a_gpu() {
        for name in [
            "cpu",
            "forward_f16_d128",
            "naive",
            "split-q:stages=2:acc=f16",
        ] {
            assert!(SHAPE.check_name(name).is_ok(), "{name}");
        }
        for (name, reason) in [
            ("forward_f16_d65", "forward_f16_d64"),
            ("splitq", "split-q"),
            ("split-q:foo", "has no option foo"),
            ("naive:stages=x", "has no option stages=x"),
        ] {
            let error = SHAPE.check_name(name).expect_err(name).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
