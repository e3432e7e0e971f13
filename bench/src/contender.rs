//! The project's own kernels, on one shape's inputs.

use crate::bench::Bench;
use crate::plan::Plan;
use crate::rounded::Rounded;
use crate::shape::{Pass, Shape};
use crate::subject::Contenders;
use anyhow::{Context, Result};
use ferroattn::{Attention, Device, Element};
use ladder::Ladder;

/// The chosen kernels on one shape's inputs.
pub struct Calls<T> {
    bench: Bench<T>,
    calls: Vec<(String, Attention<'static>, Option<u32>)>,
    /// The call in FP8 behind the first one, without what rounds.
    rounded: Option<Rounded>,
}

impl<T: Element> Calls<T> {
    /// Draws random inputs and checks each kernel's result.
    pub fn new(shape: &Shape, device: &Device, plan: &Plan) -> Result<Self> {
        let problem = shape.problem()?;
        let mut bench = match shape.pass {
            Pass::Forward => Bench::new(device, shape, plan.seed)?,
            Pass::Backward => Bench::backward(device, shape, plan.seed)?,
        };
        let invariant = plan.invariant.map(|keys| shape.invariant(keys));
        let mut calls = Vec::new();
        for shape in [*shape].iter().chain(&invariant) {
            for name in plan.kernel.kernels(device, shape)? {
                let attention = plan.kernel.attention(&name, shape, plan.splits);
                let (checked, splits) = match shape.pass {
                    Pass::Forward => {
                        let args = shape.planned(&problem);
                        let splits = attention.plan(device.facts(), T::DTYPE, &args)?.splits;
                        let ladder = name.parse::<Ladder>();
                        let acc = ladder.map(|ladder| ladder.sums_in()).unwrap_or_default();
                        (bench.check(&attention, acc), Some(splits))
                    }
                    Pass::Backward => {
                        let checked =
                            Bench::<T>::check_backward(device, shape, &attention, plan.seed);
                        (checked, None)
                    }
                };
                let name = name + &shape.end_of_names();
                checked.with_context(|| name.clone())?;
                calls.push((name, attention, splits));
            }
        }
        // Its plan has no tensors of options.
        let is_plain = !shape.sinks && shape.sequences.is_none() && !shape.uneven;
        let rounded = match (shape.fp8, &calls[..]) {
            (Some(inputs), [(_, attention, _), ..]) if inputs.rounding().is_some() && is_plain => {
                Rounded::new(&mut bench, device, attention)?
            }
            _ => None,
        };
        Ok(Calls {
            bench,
            calls,
            rounded,
        })
    }
}

impl<T: Element> Contenders for Calls<T> {
    fn names(&self) -> Vec<(String, Option<u32>)> {
        let calls = self.calls.iter();
        let calls = calls.map(|(name, _, splits)| (name.clone(), *splits));
        let rounded = self.rounded.iter();
        calls.chain(rounded.map(Rounded::name)).collect()
    }

    fn launch(&mut self, contender: usize) -> Result<()> {
        match (self.calls.get(contender), &self.rounded) {
            (Some((_, attention, _)), _) => self.bench.launch(attention),
            (None, rounded) => rounded.as_ref().expect("another contender").launch(),
        }
    }
}
