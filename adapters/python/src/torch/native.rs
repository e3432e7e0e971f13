//! Calls whose gradient PyTorch computes in its own binary.
//!
//! A gradient's formula in Python costs its thread twice what a small call takes (docs/python.md). PyTorch has an operator for other
//! libraries, `_scaled_dot_product_fused_attention_overrideable`, with no kernel for the CPU or CUDA, and a formula in C++:
//! it saves inputs and results, and hands them to `..._backward`. Both are registered here, and carry more than their names say:
//!
//! | in PyTorch's signature | here |
//! |---|---|
//! | `attn_bias` | the bias; or the mask, if it is boolean |
//! | `dropout_p` | the number of a [`Set`] of options, from [`intern`] |
//! | `cum_seq_q`, `cum_seq_k` | lengths or offsets of queries and keys |
//! | `philox_seed`, `philox_offset` | slopes of ALiBi, and sinks without a gradient |
//!
//! The last two rows are results of the forward pass, which takes them from [`carry`], called on its thread just before, if the set
//! says so: what a call that failed has left behind is nobody's.

use super::backward::{Outputs, Wanted, backward};
use super::failure::Failure;
use super::forward::{Inputs, forward};
use super::operators::kernel;
use super::options::{Numbers, Options};
use super::shim::{Kernel, StableValue};
use super::tensor::Tensor;
use super::value::{Arguments, results, value};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::RwLock;

/// PyTorch's operators, and the kernels that are registered for them.
pub const OPERATORS: [(&CStr, Kernel); 2] = [
    (
        c"_scaled_dot_product_fused_attention_overrideable",
        kernel!(forward_body),
    ),
    (
        c"_scaled_dot_product_fused_attention_overrideable_backward",
        kernel!(backward_body),
    ),
];

/// A set of options that are numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Set {
    pub numbers: Numbers,
    /// Whether the call has tensors that are carried.
    pub carries: bool,
}

/// Sets that calls had.
static SETS: RwLock<Vec<Set>> = RwLock::new(Vec::new());

/// Sets that are kept: programs have few, for each kind of layer one.
const MOST: usize = 1 << 12;

/// The number of a set, which is kept; none if there are too many, or a number is wrong.
pub fn intern(set: Set) -> Option<usize> {
    let _valid = set.numbers.attention().ok()?;
    let mut sets = SETS.write().ok()?;
    if let Some(found) = sets.iter().position(|kept| *kept == set) {
        return Some(found);
    }
    (sets.len() < MOST).then(|| {
        sets.push(set);
        sets.len() - 1
    })
}

fn set(number: f64) -> Result<Set, Failure> {
    let sets = SETS.read().ok();
    let found = sets.and_then(|sets| sets.get(number as usize).copied());
    found.ok_or_else(|| Failure::value(format!("dropout_p is {number}, the number of no set")))
}

/// Tensors of options that the operator has no arguments for.
#[derive(Debug, Default)]
struct Carried {
    seqlens: [Option<Tensor>; 2],
    alibi: Option<Tensor>,
    sinks: Option<Tensor>,
}

thread_local! {
    static CARRIED: Cell<Option<Carried>> = const { Cell::new(None) };
}

/// The operator `ferroattn::carry`: keeps tensors for the next call of this thread.
pub fn carry(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let mut tensor = || arguments.optional_tensor();
    CARRIED.set(Some(Carried {
        seqlens: [tensor(), tensor()],
        alibi: tensor(),
        sinks: tensor(),
    }));
    Ok(())
}

fn options(
    inputs: &Inputs,
    bias: Option<Tensor>,
    numbers: Numbers,
    carried: Carried,
) -> Result<Options, Failure> {
    let pairs = bias.map(Tensor::in_rows).transpose()?;
    let (mask, bias) = match pairs {
        Some(pairs) if pairs.is_bool() => (Some(pairs), None),
        pairs => (None, pairs),
    };
    Ok(Options {
        bias,
        mask,
        sinks: carried.sinks,
        alibi: carried.alibi,
        seqlens: carried.seqlens,
        ..Options::new(numbers.attention()?, numbers.form(inputs.q.sizes().len()))
    })
}

fn forward_body(stack: &mut [StableValue]) -> Result<(), Failure> {
    let carried = CARRIED.take();
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    let bias = arguments.optional_tensor();
    let number = arguments.float();
    arguments.skip(2);
    let _scale = arguments.optional_float();
    let Set { numbers, carries } = set(number)?;
    let carried = match carries {
        true => carried.ok_or_else(|| Failure::other("nothing is carried to the call"))?,
        false => Carried::default(),
    };
    let options = options(&inputs, bias, numbers, carried)?;
    let [o, lse] = forward(inputs, &options)?;
    let saved = |tensor: Option<Tensor>| value(tensor.unwrap_or_else(Tensor::undefined));
    let [seqlens_q, seqlens_k] = options.seqlens.map(saved);
    let (alibi, sinks) = (saved(options.alibi), saved(options.sinks));
    let none = value(Tensor::undefined());
    stack[..9].copy_from_slice(&[
        value(o),
        value(lse),
        seqlens_q,
        seqlens_k,
        0,
        0,
        alibi,
        sinks,
        none,
    ]);
    Ok(())
}

fn backward_body(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let d_o = arguments.tensor();
    let inputs = Inputs::read(&mut arguments);
    let bias = arguments.defined_tensor();
    let with_bias = arguments.bool_of_list(3);
    let (o, lse) = (arguments.tensor(), arguments.tensor());
    let seqlens = [arguments.defined_tensor(), arguments.defined_tensor()];
    arguments.skip(2);
    let number = arguments.float();
    arguments.skip(1);
    let (alibi, sinks) = (arguments.defined_tensor(), arguments.defined_tensor());
    let _scale = arguments.optional_float();
    let carried = Carried {
        seqlens,
        alibi,
        sinks,
    };
    let options = options(&inputs, bias, set(number)?.numbers, carried)?;
    let wanted = Wanted {
        bias: with_bias && options.bias.is_some(),
        sinks: false,
    };
    let outputs = Outputs::new(d_o, o, lse);
    let gradients = backward(inputs, outputs, &options, wanted, None)?;
    let [dq, dk, dv] = gradients.inputs;
    let d_bias = gradients.bias.unwrap_or_else(Tensor::undefined);
    results(stack, [dq, dk, dv, d_bias]);
    Ok(())
}
