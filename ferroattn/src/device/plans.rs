//! Plans that a device keeps: calls often come again with the same tensors.

use super::gpu::lock;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::Plan;
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Plans of a pass that are kept.
const KEPT: usize = 256;

/// A call by the best kernel: all that its plan depends on, beside the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call<A> {
    /// Type of the elements.
    pub dtype: Dtype,
    /// The problem, valid.
    pub problem: Problem,
    /// The tensors, with all options.
    pub args: A,
    /// [Splits](crate::Attention::splits) of the keys.
    pub splits: u32,
    /// Whether sums may have any order.
    pub any_order: bool,
}

/// Addresses of a call's tensors, by which it is found.
type Addresses = [u64; 4];

/// A call and its plan.
type Kept<A> = (Call<A>, Arc<Plan>);

/// Plans of a pass, of each four addresses the last one.
#[derive(Debug)]
pub struct Plans<A>(Mutex<HashMap<Addresses, Kept<A>, FixedState>>);

impl<A> Default for Plans<A> {
    fn default() -> Self {
        Plans(Mutex::default())
    }
}

impl<A: Copy + PartialEq> Plans<A> {
    /// The plan of this call, made if it is not there. A failure is not kept.
    pub fn get_or_make(
        &self,
        addresses: Addresses,
        call: &Call<A>,
        make: impl FnOnce() -> Result<Plan>,
    ) -> Result<Arc<Plan>> {
        if let Some((kept, plan)) = lock(&self.0).get(&addresses)
            && kept == call
        {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(make()?);
        let mut plans = lock(&self.0);
        if plans.len() == KEPT {
            plans.clear();
        }
        plans.insert(addresses, (*call, Arc::clone(&plan)));
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::plan::Steps;
    use std::cell::Cell;

    /// A call's difference, in what no address shows, to another.
    fn call(args: u32) -> Call<u32> {
        let shape = [1, 1, 8, 8];
        Call {
            dtype: Dtype::F16,
            problem: Problem::new(shape, shape, shape, false, None).expect("valid"),
            args,
            splits: 0,
            any_order: false,
        }
    }

    #[test]
    fn a_call_that_differs_has_a_plan_of_its_own() {
        let plans = Plans::default();
        let made = Cell::new(0);
        let get = |addresses, call: &Call<u32>| {
            let make = || {
                made.set(made.get() + 1);
                Ok(Steps::default().finish("kernel", made.get()))
            };
            let plan = plans.get_or_make(addresses, call, make);
            plan.expect("nothing fails").splits
        };
        let (here, there) = ([1, 2, 3, 4], [1, 2, 3, 5]);
        let first = call(1);
        assert_eq!([get(here, &first), get(here, &first)], [1, 1]);
        assert_eq!([get(there, &first), get(here, &first)], [2, 1]);
        let others = [
            call(2),
            Call { splits: 1, ..first },
            Call {
                any_order: true,
                ..first
            },
            Call {
                dtype: Dtype::Bf16,
                ..first
            },
            Call {
                problem: Problem {
                    causal: true,
                    ..first.problem
                },
                ..first
            },
        ];
        for (other, expected) in others.iter().zip(3..) {
            assert_eq!(get(here, other), expected, "{other:?}");
        }
        assert_eq!([get(here, &first), get(there, &first)], [8, 2]);
    }

    #[test]
    fn few_plans_are_kept_and_no_failure() {
        let plans = Plans::default();
        let failure = plans.get_or_make([0; 4], &call(0), || Err(Error::NotCompiled));
        assert_eq!(failure.err(), Some(Error::NotCompiled));
        for number in 0..=KEPT as u64 {
            let make = || Ok(Steps::default().finish("kernel", 1));
            let plan = plans.get_or_make([number; 4], &call(0), make);
            plan.expect("the failure is not kept");
        }
        assert_eq!(lock(&plans.0).len(), 1);
    }
}
