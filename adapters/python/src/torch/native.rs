//! Calls whose gradient PyTorch computes in its own binary.
//!
//! A gradient's formula in Python costs its thread twice what a small call takes (docs/python.md). PyTorch has an operator for other
//! libraries, `_scaled_dot_product_fused_attention_overrideable`, with no kernel for the CPU or CUDA, and a formula in C++:
//! it saves inputs and results, and hands them to `..._backward`. Both are registered here, and carry more than their names say:
//!
//! | in PyTorch's signature | here |
//! |---|---|
//! | `attn_bias` | the bias; or the mask, if it is boolean |
//! | `dropout_p` | the number of a set of [`Numbers`], from [`intern`] |
//! | `cum_seq_q`, `cum_seq_k` | lengths or offsets of queries and keys |
//! | `philox_seed`, `philox_offset` | slopes of ALiBi, and sinks without a gradient |
//!
//! The last two rows are results of the forward pass, which takes them from [`carry`], called on its thread just before.

use super::backward::{Outputs, Wanted, backward};
use super::failure::Failure;
use super::forward::{Inputs, forward};
use super::operators::run;
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
        forward_kernel,
    ),
    (
        c"_scaled_dot_product_fused_attention_overrideable_backward",
        backward_kernel,
    ),
];

/// Sets of numbers that calls had.
static SETS: RwLock<Vec<Numbers>> = RwLock::new(Vec::new());

/// Sets that are kept: programs have few, for each kind of layer one.
const MOST: usize = 1 << 12;

/// The number of a set, which it keeps; none if there are too many, or a number is wrong.
pub fn intern(numbers: Numbers) -> Option<usize> {
    let _valid = numbers.attention().ok()?;
    let mut sets = SETS.write().ok()?;
    if let Some(found) = sets.iter().position(|set| *set == numbers) {
        return Some(found);
    }
    (sets.len() < MOST).then(|| {
        sets.push(numbers);
        sets.len() - 1
    })
}

fn numbers(set: f64) -> Result<Numbers, Failure> {
    let sets = SETS.read().ok();
    let found = sets.and_then(|sets| sets.get(set as usize).copied());
    found.ok_or_else(|| Failure::value(format!("dropout_p is {set}, the number of no set")))
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
    set: f64,
    carried: Carried,
) -> Result<Options, Failure> {
    let numbers = numbers(set)?;
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
    let carried = CARRIED.take().unwrap_or_default();
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    let bias = arguments.optional_tensor();
    let set = arguments.float();
    arguments.skip(2);
    let _scale = arguments.optional_float();
    let options = options(&inputs, bias, set, carried)?;
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
    let set = arguments.float();
    arguments.skip(1);
    let (alibi, sinks) = (arguments.defined_tensor(), arguments.defined_tensor());
    let _scale = arguments.optional_float();
    let carried = Carried {
        seqlens,
        alibi,
        sinks,
    };
    let options = options(&inputs, bias, set, carried)?;
    let wanted = Wanted {
        bias: with_bias && options.bias.is_some(),
        sinks: false,
    };
    let outputs = Outputs {
        d_o,
        d_lse: None,
        o,
        lse,
    };
    let gradients = backward(inputs, outputs, &options, wanted, None)?;
    let [dq, dk, dv] = gradients.inputs;
    let d_bias = gradients.bias.unwrap_or_else(Tensor::undefined);
    results(stack, [dq, dk, dv, d_bias]);
    Ok(())
}

unsafe extern "C-unwind" fn forward_kernel(stack: *mut StableValue, arguments: u64, results: u64) {
    // SAFETY: PyTorch's word: the signature's arguments, and room for its results.
    unsafe { run(stack, arguments.max(results), forward_body) }
}

unsafe extern "C-unwind" fn backward_kernel(stack: *mut StableValue, arguments: u64, results: u64) {
    // SAFETY: PyTorch's word: the signature's arguments, and room for its results.
    unsafe { run(stack, arguments.max(results), backward_body) }
}
