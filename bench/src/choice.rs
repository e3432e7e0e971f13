//! Which of the project's kernels to time.

use crate::names::{on_ladder, with_rungs};
use crate::shape::{Pass, Shape};
use anyhow::{Result, bail};
use ferroattn::{Accumulation, Attention, Device, Error, kernel};
use ladder::{Ladder, OStore, Rung, Swizzles};

/// The end of the name of a backward kernel that may sum dq in any order.
pub const ANY_ORDER: &str = ":any-order";

/// Which kernels to time.
#[derive(Clone, Debug)]
pub enum Choice {
    /// The library's own choice.
    Auto,
    /// Every kernel that serves the shape.
    All,
    /// Every kernel of the ladder that serves the shape: the best launch, and each option in turn.
    Ladder,
    /// The kernels with these names that serve the shape. Names of the [ladder](Ladder) may have options.
    Named(Vec<String>),
}

impl From<&str> for Choice {
    fn from(name: &str) -> Self {
        match name {
            "auto" => Choice::Auto,
            "all" => Choice::All,
            "ladder" => Choice::Ladder,
            names => Choice::Named(names.split(',').map(str::to_owned).collect()),
        }
    }
}

impl Choice {
    /// Names of the kernels for a shape, the default kernel first.
    ///
    /// # Errors
    /// If a name or an option is unknown, or no kernel serves the shape.
    pub fn kernels(&self, device: &Device, shape: &Shape) -> Result<Vec<String>> {
        if shape.pass == Pass::Backward {
            return self.backward_kernels(device, shape);
        }
        let (dtype, problem) = (shape.dtype.into(), shape.problem()?);
        let options = shape.planned_options();
        let mut names = match self {
            Choice::Auto | Choice::All => {
                let names = kernel::suitable(device.facts(), dtype, &problem, &options)?;
                names.into_iter().map(str::to_owned).collect()
            }
            Choice::Ladder => ladder().map(|kernel| kernel.to_string()).collect(),
            Choice::Named(names) => names.clone(),
        };
        let (mut serving, mut refusal) = (Vec::new(), None);
        if matches!(self, Choice::Auto) {
            names.truncate(1);
        }
        for name in names {
            let served = match on_ladder(&name)? {
                Some(_) if shape.has_options() => Err(Error::unsuitable(
                    &*name,
                    "has plain and causal attention alone",
                )),
                Some(ladder) => ladder.check(device, dtype, &problem),
                None => kernel::check(device.facts(), &name, dtype, &problem, &options),
            };
            match served {
                Ok(()) => serving.push(name),
                Err(error @ Error::UnknownKernel { .. }) => return Err(with_rungs(error).into()),
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(error) if serving.is_empty() => Err(error.into()),
            _ => Ok(serving),
        }
    }

    /// Names of the kernels for a backward pass: the best, and the best with sums in [any order](ANY_ORDER), or the named ones.
    fn backward_kernels(&self, device: &Device, shape: &Shape) -> Result<Vec<String>> {
        let names = match self {
            Choice::Named(names) => names.clone(),
            // Batch invariant gradients have one order.
            Choice::Auto | Choice::All if shape.invariant.is_some() => vec!["auto".to_owned()],
            Choice::Auto | Choice::All => ["", ANY_ORDER].map(|end| format!("auto{end}")).into(),
            Choice::Ladder => bail!("the ladder has no backward pass"),
        };
        let args = shape.planned_backward(&shape.problem()?);
        let kernels = names.into_iter().map(|name| {
            let attention = self.attention(&name, shape, 0);
            let plan = attention.backward_plan(device.facts(), shape.dtype.into(), &args)?;
            let end = if name.ends_with(ANY_ORDER) {
                ANY_ORDER
            } else {
                ""
            };
            Ok(plan.kernel.to_owned() + end)
        });
        kernels.collect()
    }

    /// The call that runs the kernel `name`, one of [`kernels`](Self::kernels), on `splits` splits of the keys; 0
    /// means the default, which batch invariant calls have.
    pub fn attention(&self, name: &str, shape: &Shape, splits: u32) -> Attention<'static> {
        let attention = match shape.invariant {
            None => shape.attention().splits(splits),
            Some(_) => shape.attention(),
        };
        if shape.pass == Pass::Backward {
            let kernel = name.strip_suffix(ANY_ORDER);
            let attention = attention.deterministic(kernel.is_none());
            return match kernel.unwrap_or(name) {
                "auto" => attention,
                name => attention.kernel(name),
            };
        }
        match (self, name.parse::<Ladder>()) {
            (Choice::Auto, _) => attention,
            (_, Ok(ladder)) => attention.planner(ladder),
            (_, Err(_)) => attention.kernel(name),
        }
    }
}

/// The kernels of the ladder: the best launch of each and, for kernels with options, each option in turn.
fn ladder() -> impl Iterator<Item = Ladder> {
    Rung::ALL.iter().flat_map(|&rung| {
        let best = Ladder::new(rung);
        let mut kernels = vec![best];
        if rung.has_options() {
            kernels.extend((1..=3).map(|n| Ladder {
                stages: Some(n),
                ..best
            }));
            let swizzles = Swizzles::ALL.iter().map(|&s| Some(s));
            kernels.extend(swizzles.map(|swizzles| Ladder { swizzles, ..best }));
            let acc = Some(Accumulation::Half);
            kernels.push(Ladder { acc, ..best });
            let o_stores = OStore::ALL.iter().map(|&o| Some(o));
            kernels.extend(o_stores.map(|o_store| Ladder { o_store, ..best }));
        }
        kernels
    })
}

#[cfg(test)]
mod tests {
    use super::Choice;
    use crate::shape::tests::SHAPE;
    use ferroattn::Device;
    use std::num::NonZeroUsize;

    #[test]
    fn of_named_kernels_those_that_serve() {
        let kernels = |names| {
            let choice = Choice::from(names);
            let kernels = choice.kernels(&Device::cpu(), &SHAPE);
            kernels
                .map(|names| names.join(" "))
                .map_err(|error| error.to_string())
        };
        assert_eq!(kernels("cpu"), Ok("cpu".to_owned()));
        assert_eq!(kernels("decode_f16_d64,cpu"), Ok("cpu".to_owned()));
        for (names, reason) in [
            ("decode_f16_d64,packed_f16_d64", "CUDA"),
            ("cpu,decode_f16_d65", "decode_f16_d64"),
            ("cpu,", "\"\""),
            ("cpu,split-q:swizzle=foo", "has no option swizzle=foo"),
        ] {
            let error = kernels(names).expect_err(names);
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_ladder_has_no_options() {
        let [mut sinks, mut bias, mut block_mask, mut dim_v] = [SHAPE; 4];
        sinks.sinks = true;
        bias.bias = true;
        block_mask.block_mask = NonZeroUsize::new(2);
        dim_v.dim_v = Some(32);
        for shape in [sinks, bias, block_mask, dim_v] {
            let kernels = |names| {
                let kernels = Choice::from(names).kernels(&Device::cpu(), &shape);
                kernels.map_err(|error| error.to_string())
            };
            assert_eq!(kernels("cpu,split-q"), Ok(vec!["cpu".to_owned()]));
            let error = kernels("split-q").expect_err("options");
            assert!(error.contains("split-q has plain and causal"), "{error}");
        }
    }
}
