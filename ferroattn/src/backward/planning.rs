//! From a backward call's tensors to its plan: what is checked, which kernels compute it, and what a device keeps.

use super::packed::Call;
use super::raw::RawBackward;
use super::{choice, plan};
use crate::attention::{Attention, Wanted};
use crate::device::{Device, Facts, plans};
use crate::empty;
use crate::error::{Error, Result};
use crate::forward::{self, Problem};
use crate::options::{
    CACHE, E4M3, E4M3_CACHE, FP8, PAGES, PAIRS, PREFIX, expect_best, full, score_shape,
};
use crate::plan::{CPU, EMPTY, Plan, Steps};
use crate::tensor::{Dtype, expect_shape};
use std::sync::Arc;

impl Attention<'_> {
    /// The problem that the tensors pose, if they are what the call takes, and the tensors with all options.
    pub(super) fn backward_checked(&self, args: &RawBackward) -> Result<(Problem, RawBackward)> {
        let &RawBackward {
            q,
            k,
            v,
            o,
            lse,
            d_o,
            d_lse,
            dq,
            dk,
            dv,
            options,
            d_sinks,
            d_bias,
        } = args;
        let own = &self.tensors;
        for (argument, is_on) in [
            (
                CACHE,
                options.cache_entries.is_some() || own.cache_entries.is_some(),
            ),
            (PAGES, options.pages.is_some() || own.pages.is_some()),
            (PREFIX, options.prefix.is_some() || own.prefix.is_some()),
            (FP8, options.fp8.is_some() || own.fp8.is_some()),
            (
                E4M3_CACHE,
                options.e4m3_cache.is_some() || own.cache_descales.is_some(),
            ),
            (E4M3, options.e4m3.is_some() || own.descales.is_some()),
        ] {
            if is_on {
                return Err(Error::ForwardOnly(argument));
            }
        }
        let problem = self.problem(q.shape, k.shape, v.shape)?;
        let options = options.or(own.raw(&problem)?);
        options.validate(&problem)?;
        for (argument, tensor, shape) in [
            ("o", o, problem.o_shape()),
            ("d_o", d_o, problem.o_shape()),
            ("dq", dq, problem.q_shape()),
            ("dk", dk, problem.k_shape()),
            ("dv", dv, problem.v_shape()),
        ] {
            expect_shape(argument, &shape, &tensor.shape)?;
        }
        for (argument, tensor) in [("lse", Some(lse)), ("d_lse", d_lse)] {
            let Some(tensor) = tensor else { continue };
            expect_shape(argument, &problem.lse_shape(), &tensor.shape)?;
            if !tensor.layout().is_contiguous() {
                return Err(Error::NotContiguous(argument));
            }
        }
        let inputs = [("q", q), ("k", k), ("v", v), ("o", o), ("d_o", d_o)];
        let gradients = [("dq", dq), ("dk", dk), ("dv", dv)];
        for (argument, tensor) in inputs.into_iter().chain(gradients) {
            tensor.expect_rows(argument, "dim")?;
        }
        for (argument, tensor) in gradients {
            tensor.layout().expect_injective(argument)?;
        }
        if let Some(d_sinks) = d_sinks {
            options.sinks.ok_or(Error::NoGradient("sinks"))?;
            expect_shape("d_sinks", &[problem.heads], &d_sinks.shape)?;
            d_sinks.expect_span("d_sinks")?;
            d_sinks.layout().expect_injective("d_sinks")?;
        }
        if let Some(d_bias) = d_bias {
            options.bias.ok_or(Error::NoGradient("bias"))?;
            if options.custom.is_some() {
                return Err(Error::CustomBias);
            }
            full(&d_bias, "d_bias", PAIRS, score_shape(&problem, 1))?;
            d_bias.expect_rows("d_bias", "seqlen_kv")?;
            d_bias.layout().expect_injective("d_bias")?;
        }
        Ok((problem, RawBackward { options, ..*args }))
    }

    /// The [plan](Self::backward_plan_of) for a device, which keeps it.
    pub(super) fn kept_backward_plan(
        &self,
        problem: &Problem,
        device: &Device,
        dtype: Dtype,
        args: &RawBackward,
    ) -> Result<Arc<Plan>> {
        let make = || self.backward_plan_of(problem, device.facts(), dtype, args);
        let (Some(gpu), Wanted::Best) = (device.gpu(), &self.kernel) else {
            return make().map(Arc::new);
        };
        let call = plans::Call {
            dtype,
            problem: *problem,
            args: *args,
            splits: 1,
            any_order: self.any_order,
        };
        let addresses = [args.q, args.k, args.dq, args.dk].map(|tensor| tensor.address);
        gpu.backward.get_or_make(addresses, &call, make)
    }

    pub(super) fn backward_plan_of(
        &self,
        problem: &Problem,
        facts: Option<&Facts>,
        dtype: Dtype,
        args: &RawBackward,
    ) -> Result<Plan> {
        let name = self.kernel.name();
        if problem.is_empty() {
            return match facts {
                None => {
                    forward::choice::expect_named(name, dtype, problem, &args.options, None)?;
                    Ok(Steps::default().finish(EMPTY, 1))
                }
                Some(_) => {
                    dtype.of_kernels()?;
                    name.map_or(Ok(()), choice::expect_gradients)?;
                    empty::backward(args)
                }
            };
        }
        if let Wanted::Planned(_) = self.kernel {
            let reason = "computes no gradients";
            return Err(Error::unsuitable("of another crate", reason));
        }
        let Some(facts) = facts else {
            forward::choice::resolve(name, dtype, problem, &args.options, None)?;
            return Ok(Steps::default().finish(CPU, 1));
        };
        let problem = &problem.in_vectors();
        let invariant = args.options.batch_invariant;
        let call = Call::new(problem, args, !self.any_order || invariant);
        let packed = match choice::takes_packed(name) {
            true if invariant => Some(call.of_sequences()),
            true => call.packed(facts),
            false => None,
        };
        let call = packed.unwrap_or(call);
        let main = match args.options.custom {
            None => choice::resolve(name, dtype, facts, &call)?,
            Some(custom) => {
                expect_best(name)?;
                let of = dtype.of_kernels()?;
                let candidates = choice::candidates(of, facts, &call);
                let (kernel, entry) = custom.kernels.first(candidates, of, problem, facts)?;
                choice::Main::new(kernel, entry)
            }
        };
        plan::plan(main, facts, &call)
    }
}
