//! From a call's tensors to its plan: what is checked, which kernel computes it, and what a device keeps.

use super::choice;
use super::fold::{folded, windowed};
use super::main_kernel::MainKernel;
use super::output::in_halves;
use super::plan::plan;
use super::prefix::divided;
use super::problem::Problem;
use super::raw::RawForward;
use super::without_maps::suited;
use crate::attention::{Attention, Wanted, read_shapes};
use crate::device::plans::Call;
use crate::device::{Device, Facts};
use crate::empty;
use crate::error::{Error, Result};
use crate::options::{self, FP8, Fp8, INVARIANT, RawOptions};
use crate::plan::{CPU, EMPTY, Plan, Steps};
use crate::tensor::{Dtype, expect_shape};
use std::sync::Arc;

impl Attention<'_> {
    /// The problem that the tensors pose, if they are what the call takes, and the tensors with all options.
    pub(super) fn checked(&self, args: &RawForward) -> Result<(Problem, RawForward)> {
        let RawForward {
            q,
            k,
            v,
            o,
            lse,
            options,
        } = args;
        let has_cache = options.cache_entries.is_some() || self.tensors.cache_entries.is_some();
        let own = self.tensors.pages.as_ref().map(|pages| pages.shape());
        let pages = options.pages.map(|pages| pages.shape).or(own);
        let entries = self.key_entries(options.sequences);
        let [of_k, of_v] = read_shapes(q.shape, k.shape, v.shape, has_cache, pages, entries)?;
        let problem = self.problem_of_entries(q.shape, of_k, of_v)?;
        if self.tensors.cache_descales.is_some() && options.e4m3_cache.is_none() {
            return Err(Error::Needs("cache_descales", options::E4M3_CACHE));
        }
        let mut options = options.or(self.tensors.raw(&problem)?);
        if options.e4m3.is_some() {
            options.fp8 = options.fp8.or(Some(Fp8::new()));
        } else if self.tensors.descales.is_some() {
            return Err(Error::Needs("descales", "q, k and v of e4m3"));
        }
        options.validate(&problem)?;
        expect_shape("o", &problem.o_shape(), &o.shape)?;
        expect_shape("lse", &problem.lse_shape(), &lse.shape)?;
        if !lse.layout().is_contiguous() {
            return Err(Error::NotContiguous("lse"));
        }
        for (argument, tensor) in [("q", q), ("k", k), ("v", v), ("o", o)] {
            tensor.expect_rows(argument, "dim")?;
        }
        if let Some(cache) = &options.e4m3_cache {
            cache.validate(&problem, &options, [k, v])?;
        }
        o.layout().expect_injective("o")?;
        let divided = [
            (self.splits > 1 && options.batch_invariant, INVARIANT),
            (self.splits > 0 && options.split_keys > 0, "split_keys"),
            (self.splits > 1 && options.fp8.is_some(), FP8),
        ];
        if let Some((_, other)) = divided.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(Error::Excluded("splits", other));
        }
        let options = RawOptions {
            values_in_keys: v.is_first_part_of(k) && options.e4m3_cache.is_none(),
            ..options
        };
        Ok((problem, RawForward { options, ..*args }))
    }

    /// The [plan](Self::plan_of) for a device, which keeps it.
    pub(super) fn kept_plan(
        &self,
        problem: &Problem,
        device: &Device,
        dtype: Dtype,
        args: &RawForward,
    ) -> Result<Arc<Plan>> {
        let make = || self.plan_of(problem, device.facts(), dtype, args);
        let (Some(gpu), Wanted::Best) = (device.gpu(), &self.kernel) else {
            return make().map(Arc::new);
        };
        let call = Call {
            dtype,
            problem: *problem,
            args: *args,
            splits: self.splits,
            any_order: false,
        };
        let addresses = [args.q, args.k, args.v, args.o].map(|tensor| tensor.address);
        gpu.forward.get_or_make(addresses, &call, make)
    }

    /// The launches of a valid problem, by the kernel that the call names or the best one; none on the CPU.
    pub(super) fn plan_of(
        &self,
        problem: &Problem,
        facts: Option<&Facts>,
        dtype: Dtype,
        args: &RawForward,
    ) -> Result<Plan> {
        if let Some(divided) = divided(dtype, problem, args)? {
            return divided.plan(self, facts, dtype);
        }
        let args = &match facts {
            None => *args,
            Some(_) => in_halves(dtype, args),
        };
        if problem.is_empty() {
            let name = self.kernel.name();
            choice::expect_named(name, dtype, problem, &args.options, facts)?;
            return match facts {
                None => Ok(Steps::default().finish(EMPTY, 1)),
                Some(_) => {
                    args.options.type_of_kernel(dtype)?;
                    empty::forward(problem, args)
                }
            };
        }
        let problem = &match facts {
            None => *problem,
            Some(_) => problem.in_vectors(),
        };
        // Kernels count keys in an entry of keys.
        let problem = &Problem {
            seqlen_kv: args.options.keys_of_entry(problem),
            ..*problem
        };
        let splits = (self.splits > 0).then_some(self.splits);
        if let Wanted::Planned(planner) = &self.kernel {
            let option = options::first(problem, &args.options);
            if let Some(option) = option.filter(|_| facts.is_some()) {
                return Err(Error::NoOption(option));
            }
            return planner.plan(facts, dtype.of_kernels()?, problem, args, splits);
        }
        let name = self.kernel.name();
        if let (Some(custom), Some(facts)) = (args.options.custom, facts) {
            options::expect_best(name)?;
            let (kernel, entry) = custom.kernels.forward(
                dtype.of_kernels()?,
                problem,
                facts,
                [&args.q, &args.k, &args.v],
            )?;
            let kernel = MainKernel {
                entry,
                ..kernel.into()
            };
            return plan(kernel, problem, facts, args, splits);
        }
        match choice::resolve(name, dtype, problem, &args.options, facts)?.zip(facts) {
            None => Ok(Steps::default().finish(CPU, 1)),
            Some((kernel, facts)) => {
                let args = &match args.options.e4m3_cache {
                    None => *args,
                    Some(_) => RawForward {
                        k: options::in_pairs(args.k),
                        v: options::in_pairs(args.v),
                        ..*args
                    },
                };
                let (problem, args) = windowed(problem, args).unwrap_or((*problem, *args));
                let (problem, args) = folded(&problem, &args).unwrap_or((problem, args));
                let kernel = suited(kernel, facts, &args);
                plan(kernel.into(), &problem, facts, &args, splits)
            }
        }
    }
}
