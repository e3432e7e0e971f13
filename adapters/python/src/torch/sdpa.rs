//! PyTorch's own operators behind `scaled_dot_product_attention`, replaced by these kernels.
//!
//! PyTorch chooses one of several operators for a call, each with its own arguments and gradient. All of those here read
//! `[batch, heads, seqlen, dim]`. What is not served goes to the operator `ferroattn::NAME`, with the arguments of
//! the one it replaces; the Python side registers it with PyTorch's kernel. It returns the tensors that the other returns.

use super::backward::{Gradients, Outputs, Wanted, backward};
use super::failure::Failure;
use super::forward::{Inputs, forward};
use super::operators::run;
use super::options::{Form, Options};
use super::shim::{Kernel, StableValue, shim};
use super::tensor::{Tensor, Type};
use super::value::{Arguments, pointer, results, value};
use ferroattn::{Attention, Dtype};
use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::slice;
use std::sync::Mutex;

/// An operator that is replaced.
struct Operator {
    name: &'static CStr,
    /// The one that PyTorch's kernel is behind.
    saved: &'static CStr,
    kernel: Kernel,
    /// Where q, k and v begin among the arguments.
    q: usize,
    /// Where the probability of dropout is.
    dropout: usize,
    /// Where it says if a mask of dropout is returned. Such operators return lengths, too.
    debug: Option<usize>,
    body: fn(&mut [StableValue]) -> Result<(), Failure>,
}

macro_rules! operators {
    ($($index:literal: $name:literal, q $q:literal, dropout $dropout:literal, debug $debug:expr, $body:expr;)*) => {
        const OPERATORS: &[Operator] = &[$(Operator {
            name: match CStr::from_bytes_with_nul(concat!("_scaled_dot_product_", $name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a zero in a name"),
            },
            saved: match CStr::from_bytes_with_nul(concat!("ferroattn::_scaled_dot_product_", $name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a zero in a name"),
            },
            kernel: kernel::<$index>,
            q: $q,
            dropout: $dropout,
            debug: $debug,
            body: $body,
        }),*];
    };
}

operators! {
    0: "flash_attention", q 0, dropout 3, debug Some(5), flash;
    1: "flash_attention_backward", q 1, dropout 10, debug None, flash_backward;
    2: "cudnn_attention", q 0, dropout 5, debug Some(7), cudnn;
    3: "cudnn_attention_backward", q 1, dropout 13, debug None, cudnn_backward;
    4: "efficient_attention", q 0, dropout 5, debug None, efficient;
    5: "efficient_attention_backward", q 1, dropout 9, debug None, efficient_backward;
    6: "flash_attention_for_cpu", q 0, dropout 3, debug None, cpu;
    7: "flash_attention_for_cpu_backward", q 1, dropout 6, debug None, cpu_backward;
}

/// A library object of PyTorch, and the device whose operators it replaces.
struct Replaced {
    device: String,
    library: *mut c_void,
}

// SAFETY: PyTorch's registry takes calls of any thread.
unsafe impl Send for Replaced {}

static REPLACED: Mutex<Vec<Replaced>> = Mutex::new(Vec::new());

/// Replaces the operators of a device, `CPU` or `CUDA`: all or none. PyTorch has no kernels of those of GPUs for the CPU; these
/// are there on the CPU, too.
pub fn replace(device: &CStr) -> Result<(), String> {
    let mut replaced = REPLACED.lock().map_err(|_| "a fault of the library")?;
    let mut library = null_mut();
    let is_of = |operator: &&Operator| {
        let of_cpu = operator
            .name
            .to_bytes()
            .windows(8)
            .any(|part| part == b"_for_cpu");
        device == c"CPU" || !of_cpu
    };
    // SAFETY: the strings are valid during the calls, the pointer a local's; kernels have the operators' signatures.
    unsafe {
        let (namespace, file) = (c"aten".as_ptr(), c"ferroattn".as_ptr());
        if (shim().implement_in)(namespace, device.as_ptr(), file, 0, &mut library) != 0 {
            return Err("PyTorch gives no library for its operators".to_owned());
        }
        for operator in OPERATORS.iter().filter(is_of) {
            if (shim().implement)(library, operator.name.as_ptr(), operator.kernel) != 0 {
                (shim().forget)(library);
                return Err(format!("PyTorch does not replace {:?}", operator.name));
            }
        }
    }
    let device = device.to_string_lossy().into_owned();
    replaced.push(Replaced { device, library });
    Ok(())
}

/// Puts PyTorch's own kernels of a device back.
pub fn restore(device: &CStr) {
    let Ok(mut replaced) = REPLACED.lock() else {
        return;
    };
    replaced.retain(|entry| {
        let stays = entry.device.as_bytes() != device.to_bytes();
        if !stays {
            // SAFETY: the object is this one's, used for the last time.
            unsafe { (shim().forget)(entry.library) };
        }
        stays
    });
}

unsafe extern "C-unwind" fn kernel<const I: usize>(
    stack: *mut StableValue,
    arguments: u64,
    results: u64,
) {
    let operator = &OPERATORS[I];
    let values = arguments.max(results);
    // SAFETY: PyTorch's word: the signature's arguments, and room for its results.
    unsafe {
        if is_served(operator, slice::from_raw_parts(stack, values as usize)) {
            return run(stack, values, operator.body);
        }
        let lengths = [0, 1].map(|i| {
            let tensor = Tensor::owned(pointer(*stack.add(operator.q + i)));
            ManuallyDrop::new(tensor).sizes()[2].cast_unsigned()
        });
        let status = (shim().call)(operator.saved.as_ptr(), c"".as_ptr(), stack);
        if status != 0 {
            Failure::other("PyTorch's own kernel failed").throw();
        }
        if operator.debug.is_some() {
            // The saved operator leaves lengths out: that function of PyTorch mixes up results of several types.
            let stack = slice::from_raw_parts_mut(stack, values as usize);
            stack.copy_within(4..7, 6);
            stack[4..6].copy_from_slice(&lengths);
        }
    }
}

/// The largest head dim that a GPU computes gradients of: a forward pass does not tell if one follows.
const MOST_WITH_GRADIENTS: i64 = 256;

/// Whether these kernels compute the call.
fn is_served(operator: &Operator, stack: &[StableValue]) -> bool {
    let debug = operator.debug.is_some_and(|place| stack[place] as u8 != 0);
    if f64::from_bits(stack[operator.dropout]) != 0.0 || debug {
        return false;
    }
    // SAFETY: the arguments are tensors, whose references stay the stack's.
    let [q, k, v] = [0, 1, 2]
        .map(|i| unsafe { ManuallyDrop::new(Tensor::owned(pointer(stack[operator.q + i]))) });
    let place = q.place();
    let most = match place.is_cuda() {
        true => MOST_WITH_GRADIENTS,
        false => 1024,
    };
    let computes = |tensor: &Tensor| {
        let [_, _, _, dim] = tensor.sizes() else {
            return false;
        };
        tensor.number("").is_ok() && (1..=most).contains(dim)
    };
    let of_cpu = q.number("").is_ok_and(|dtype| dtype == Dtype::F32);
    [&q, &k, &v].into_iter().all(|tensor| computes(tensor))
        && !(of_cpu && place.is_cuda())
        && place.device().is_ok()
}

/// A call as all operators pose it.
struct Call {
    bias: Option<Tensor>,
    causal: bool,
    /// Whether query `i` of a causal call sees keys up to `i`, and no others.
    top_left: bool,
    scale: Option<f64>,
    like_inputs: bool,
}

impl Call {
    fn options(self, q: &Tensor, k: &Tensor) -> Result<Options, Failure> {
        let (queries, keys) = (q.sizes()[2] as usize, k.sizes()[2] as usize);
        let mut attention = Attention::new();
        let mut kept = None;
        match (self.causal, self.top_left) {
            (true, true) if keys > queries => {
                attention = attention.causal(true);
                kept = Some(queries);
            }
            // A window counts from the last key.
            (true, true) => attention = attention.window(None, queries - keys),
            (causal, _) => attention = attention.causal(causal),
        }
        if let Some(scale) = self.scale {
            attention = attention.scale(scale as f32);
        }
        if kept.is_some() && self.bias.is_some() {
            return Err(Failure::value("a causal call takes no attn_mask"));
        }
        Ok(Options {
            bias: self
                .bias
                .map(|bias| bias.of_pairs(keys as i64))
                .transpose()?,
            like_inputs: self.like_inputs,
            keys: kept,
            ..Options::new(attention, Form::HeadsFirst)
        })
    }

    fn forward(self, inputs: Inputs) -> Result<[Tensor; 2], Failure> {
        let options = self.options(&inputs.q, &inputs.k)?;
        forward(inputs, &options)
    }

    fn backward(self, inputs: Inputs, outputs: Outputs, bias: bool) -> Result<Gradients, Failure> {
        let options = self.options(&inputs.q, &inputs.k)?;
        let wanted = Wanted { bias, sinks: false };
        backward(inputs, outputs, &options, wanted, None)
    }
}

/// Seed and offset of a dropout that is none.
fn no_seed(of: Type, seeds: i64) -> Result<[Tensor; 2], Failure> {
    let place = super::device::Place::cpu();
    Ok([
        match seeds {
            0 => Tensor::ordered([], [], of, place)?,
            _ => Tensor::ordered([seeds], [0], of, place)?,
        },
        Tensor::ordered([], [], of, place)?,
    ])
}

/// Writes results of the operators that tell lengths, too.
fn results_with_lengths(
    stack: &mut [StableValue],
    [o, lse]: [Tensor; 2],
    lengths: [i64; 2],
    [seed, offset]: [Tensor; 2],
) {
    let none = || value(Tensor::undefined());
    let [queries, keys] = lengths.map(i64::cast_unsigned);
    let (o, lse, seed, offset) = (value(o), value(lse), value(seed), value(offset));
    let all = [o, lse, none(), none(), queries, keys, seed, offset, none()];
    stack[..9].copy_from_slice(&all);
}

fn lengths(inputs: &Inputs) -> [i64; 2] {
    [inputs.q.sizes()[2], inputs.k.sizes()[2]]
}

fn flash(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    arguments.skip(1);
    let causal = arguments.bool();
    arguments.skip(1);
    let call = Call {
        bias: None,
        causal,
        top_left: false,
        scale: arguments.optional_float(),
        like_inputs: true,
    };
    let lengths = lengths(&inputs);
    let outputs = call.forward(inputs)?;
    results_with_lengths(stack, outputs, lengths, no_seed(Type::Uint64, 2)?);
    Ok(())
}

fn flash_backward(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let d_o = arguments.tensor();
    let inputs = Inputs::read(&mut arguments);
    let (o, lse) = (arguments.tensor(), arguments.tensor());
    let _offsets = [arguments.tensor(), arguments.tensor()];
    arguments.skip(3);
    let causal = arguments.bool();
    let _seed = [arguments.tensor(), arguments.tensor()];
    let call = Call {
        bias: None,
        causal,
        top_left: false,
        scale: arguments.optional_float(),
        like_inputs: true,
    };
    let outputs = Outputs::new(d_o, o, lse);
    results(stack, call.backward(inputs, outputs, false)?.inputs);
    Ok(())
}

fn cudnn(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    let bias = arguments.optional_tensor();
    arguments.skip(2);
    let causal = arguments.bool();
    arguments.skip(1);
    let call = Call {
        bias,
        causal,
        top_left: true,
        scale: arguments.optional_float(),
        like_inputs: true,
    };
    let lengths = lengths(&inputs);
    let [o, lse] = call.forward(inputs)?;
    let lse = lse.with_last_axis()?;
    results_with_lengths(stack, [o, lse], lengths, no_seed(Type::Int64, 0)?);
    Ok(())
}

fn cudnn_backward(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let d_o = arguments.tensor();
    let inputs = Inputs::read(&mut arguments);
    let (o, lse) = (arguments.tensor(), arguments.tensor());
    let _seed = [arguments.tensor(), arguments.tensor()];
    let bias = arguments.defined_tensor();
    let _offsets = [arguments.tensor(), arguments.tensor()];
    arguments.skip(3);
    let call = Call {
        bias,
        causal: arguments.bool(),
        top_left: true,
        scale: arguments.optional_float(),
        like_inputs: true,
    };
    let outputs = Outputs::new(d_o, o, lse.without_last_axis()?);
    results(stack, call.backward(inputs, outputs, false)?.inputs);
    Ok(())
}

/// Rows of lse that the operator of efficient attention pads their number to.
const LSE_ROWS: i64 = 32;

/// Elements that rows of a bias' gradient are padded to there.
const BIAS_ROWS: i64 = 16;

fn efficient(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    let bias = arguments.optional_tensor();
    let with_lse = arguments.bool();
    arguments.skip(1);
    let call = Call {
        bias,
        causal: arguments.bool(),
        top_left: true,
        scale: arguments.optional_float(),
        like_inputs: false,
    };
    let [o, mut lse] = call.forward(inputs)?;
    let &[batch, heads, queries] = lse.sizes() else {
        return Err(Failure::other("lse has three axes"));
    };
    let rows = match with_lse {
        true => (queries + LSE_ROWS - 1) / LSE_ROWS * LSE_ROWS,
        false => 0,
    };
    if rows != queries {
        let float = Type::Number(Dtype::F32);
        let padded = Tensor::ordered([batch, heads, rows], [0, 1, 2], float, lse.place())?;
        if with_lse {
            padded.first(queries)?.copy(&lse)?;
        }
        lse = padded;
    }
    let [seed, offset] = no_seed(Type::Int64, 0)?;
    results(stack, [o, lse, seed, offset]);
    Ok(())
}

fn efficient_backward(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let d_o = arguments.tensor();
    let inputs = Inputs::read(&mut arguments);
    let bias = arguments.defined_tensor();
    let (o, lse) = (arguments.tensor(), arguments.tensor());
    let _seed = [arguments.tensor(), arguments.tensor()];
    arguments.skip(1);
    let wants_bias = arguments.bool_of_list(3) && bias.is_some();
    let d_bias = match &bias {
        Some(bias) if wants_bias => bias.like_in_rows_of(BIAS_ROWS)?,
        _ => Tensor::undefined(),
    };
    let call = Call {
        bias,
        causal: arguments.bool(),
        top_left: true,
        scale: arguments.optional_float(),
        like_inputs: false,
    };
    let outputs = Outputs::new(d_o, o, lse.first(inputs.q.sizes()[2])?);
    let gradients = call.backward(inputs, outputs, wants_bias)?;
    if let Some(found) = gradients.bias {
        d_bias.copy(&found)?;
    }
    let [dq, dk, dv] = gradients.inputs;
    results(stack, [dq, dk, dv, d_bias]);
    Ok(())
}

fn cpu(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    arguments.skip(1);
    let causal = arguments.bool();
    let call = Call {
        bias: arguments.optional_tensor(),
        causal,
        top_left: true,
        scale: arguments.optional_float(),
        like_inputs: true,
    };
    let [o, rows] = call.forward(inputs)?;
    // Heads of one row lie side by side there, and compiled programs rely on it.
    let lse = rows.like_with_heads_last()?;
    lse.copy(&rows)?;
    results(stack, [o, lse]);
    Ok(())
}

fn cpu_backward(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let d_o = arguments.tensor();
    let inputs = Inputs::read(&mut arguments);
    let (o, lse) = (arguments.tensor(), arguments.tensor());
    arguments.skip(1);
    let causal = arguments.bool();
    let call = Call {
        bias: arguments.optional_tensor(),
        causal,
        top_left: true,
        scale: arguments.optional_float(),
        like_inputs: false,
    };
    let outputs = Outputs::new(d_o, o, lse);
    results(stack, call.backward(inputs, outputs, false)?.inputs);
    Ok(())
}
