//! q, k and v of calls on the device: of o's type, or e4m3.

use crate::args::Args;
use crate::cache::Cache;
use crate::e4m3::E4m3;
use ferroattn::check::{self, Forward, Report};
use ferroattn::{Attention, Device, Element, Problem, Result, Tensor};

/// What calls with o in `T` read, beside tensors of options.
pub enum Operands<T> {
    /// Of o's type.
    Alike { q: Tensor<T>, cache: Cache<T> },
    /// e4m3 before the call.
    E4m3(E4m3),
}

impl<T: Element> Operands<T> {
    /// Copies row-major q, k and v to the device.
    pub fn new(device: &Device, args: &Args, problem: &Problem, qkv: &[Vec<T>; 3]) -> Result<Self> {
        let [q, k, v] = qkv.each_ref().map(|numbers| &numbers[..]);
        Ok(match args.is_e4m3() {
            true => Operands::E4m3(E4m3::new(device, args, problem, [q, k, v])?),
            false => Operands::Alike {
                q: Tensor::new(device, problem.q_shape(), q)?,
                cache: Cache::new(device, &args.modifiers, problem, [k, v])?,
            },
        })
    }

    /// Computes o and lse; appends keys first, if calls do.
    pub fn forward(
        &mut self,
        call: &Attention,
        o: &mut Tensor<T>,
        lse: &mut Tensor<f32, 3>,
    ) -> Result<()> {
        match self {
            Operands::Alike { q, cache } => {
                cache.append()?;
                let call = cache.given_to(call);
                call.forward_into(q, &cache.k, &cache.v, o, lse)
            }
            Operands::E4m3(e4m3) => e4m3.forward(call, o, lse),
        }
    }

    /// Compares some rows of o and lse with the reference.
    pub fn check(&self, args: &Args, forward: &Forward<T>, rows: &[usize]) -> Report {
        match self {
            Operands::Alike { .. } => check::check(forward, rows),
            Operands::E4m3(e4m3) => e4m3.check(args, forward, rows),
        }
    }
}
