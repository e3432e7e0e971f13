//! The backward pass.

use super::device::Place;
use super::failure::Failure;
use super::forward::{Inputs, RawInputs, workspace};
use super::options::Options;
use super::shim::StableValue;
use super::tensor::{Tensor, Type};
use super::value::{Arguments, results};
use ferroattn::{Dtype, RawBackward, RawForward};

/// Tensors that a backward pass reads beside the inputs of its forward pass.
#[derive(Debug)]
pub struct Outputs {
    pub d_o: Tensor,
    pub d_lse: Option<Tensor>,
    pub o: Tensor,
    pub lse: Tensor,
}

impl Outputs {
    /// Those of a call whose lse has no gradient.
    pub fn new(d_o: Tensor, o: Tensor, lse: Tensor) -> Self {
        Outputs {
            d_o,
            d_lse: None,
            o,
            lse,
        }
    }
}

/// Which gradients of options are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub bias: bool,
    pub sinks: bool,
}

/// Gradients of a call.
#[derive(Debug)]
pub struct Gradients {
    /// Of q, k and v.
    pub inputs: [Tensor; 3],
    /// Of the bias, if it is wanted.
    pub bias: Option<Tensor>,
    /// Of the sinks, if they are wanted.
    pub sinks: Option<Tensor>,
}

/// Computes the gradients, those of q, k and v in tensors that are given or new.
pub fn backward(
    inputs: Inputs,
    outputs: Outputs,
    options: &Options,
    wanted: Wanted,
    given: Option<[Tensor; 3]>,
) -> Result<Gradients, Failure> {
    let inputs = inputs.in_rows()?;
    let (d_o, o) = (outputs.d_o.in_rows()?, outputs.o.in_rows()?);
    let lse = outputs.lse.contiguous()?;
    let d_lse = outputs.d_lse.map(Tensor::contiguous).transpose()?;
    let form = options.form;
    let raw = inputs.raw(options)?;
    let RawInputs {
        q,
        k,
        v,
        dtype,
        place,
    } = raw;
    let float = Type::Number(Dtype::F32);
    for (name, tensor, of) in [
        ("d_o", Some(&d_o), Type::Number(dtype)),
        ("o", Some(&o), Type::Number(dtype)),
        ("lse", Some(&lse), float),
        ("d_lse", d_lse.as_ref(), float),
    ] {
        let Some(tensor) = tensor else { continue };
        tensor.expect(name, of, place)?;
    }
    form.expect("d_o", &d_o)?;
    form.expect("o", &o)?;
    let gradient = |input: &Tensor| {
        let shape = input.raw(form.axes()).shape;
        options.allocate(shape, dtype, place, input)
    };
    let gradients = match given {
        None => [
            gradient(&inputs.q)?,
            gradient(&inputs.k)?,
            gradient(&inputs.v)?,
        ],
        Some(given) => {
            for (name, tensor) in ["dq", "dk", "dv"].iter().zip(&given) {
                form.expect(name, tensor)?;
                tensor.expect(name, Type::Number(dtype), place)?;
            }
            given
        }
    };
    let d_bias = match &options.bias {
        Some(bias) if wanted.bias => {
            let sizes = bias.sizes().try_into();
            let sizes: [i64; 4] = sizes.map_err(|_| Failure::value("bias must have four axes"))?;
            Some(Tensor::ordered(sizes, [0, 1, 2, 3], float, place)?)
        }
        _ => None,
    };
    let d_sinks = match wanted.sinks {
        true => Some(Tensor::ordered([q.shape[1] as i64], [0], float, place)?),
        false => None,
    };
    let forward = RawForward {
        q,
        k,
        v,
        o: o.raw(form.axes()),
        lse: form.rows("lse", &lse)?,
        options: options.raw(&raw)?,
    };
    let [dq, mut dk, mut dv] = gradients.each_ref().map(|tensor| tensor.raw(form.axes()));
    if options.keys.is_some() {
        // Keys that no query sees have gradients of 0.
        gradients[1].zero()?;
        gradients[2].zero()?;
        (dk.shape, dv.shape) = (k.shape, v.shape);
    }
    let mut args = RawBackward::new(&forward, d_o.raw(form.axes()), [dq, dk, dv]);
    args.d_lse = match &d_lse {
        Some(d_lse) => Some(form.rows("d_lse", d_lse)?),
        None => None,
    };
    let pairs = [Some(0), Some(1), Some(2), Some(3)];
    args.d_bias = d_bias.as_ref().map(|tensor| tensor.raw(pairs));
    args.d_sinks = d_sinks.as_ref().map(|tensor| tensor.raw([Some(0)]));
    let (device, stream) = place.device()?;
    let mut work = None;
    // SAFETY: tensors are PyTorch's, live in the order of its current stream; outputs and workspace are new.
    let done = unsafe {
        let allocate = |bytes| workspace(bytes, place, &mut work);
        options
            .attention
            .backward_raw_with(&device, dtype, &args, allocate, stream)
    };
    done?;
    Ok(Gradients {
        inputs: gradients,
        bias: d_bias,
        sinks: d_sinks,
    })
}

/// The operator `ferroattn::backward`.
pub fn operator(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let call = Call::read(&mut arguments)?;
    let place = call.inputs.q.place();
    let gradients = call.gradients(None)?;
    let [d_bias, d_sinks] = of_options(gradients.bias, gradients.sinks, place)?;
    let [dq, dk, dv] = gradients.inputs;
    results(stack, [dq, dk, dv, d_bias, d_sinks]);
    Ok(())
}

/// The operator `ferroattn::backward_into`.
pub fn operator_into(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let given = [(); 3].map(|()| arguments.tensor());
    let call = Call::read(&mut arguments)?;
    let place = call.inputs.q.place();
    let gradients = call.gradients(Some(given))?;
    results(stack, of_options(gradients.bias, gradients.sinks, place)?);
    Ok(())
}

/// Gradients of options, without an element if they are not wanted: operators return tensors.
fn of_options(
    bias: Option<Tensor>,
    sinks: Option<Tensor>,
    place: Place,
) -> Result<[Tensor; 2], Failure> {
    let none = || Tensor::ordered([0], [0], Type::Number(Dtype::F32), place);
    Ok([bias.map_or_else(none, Ok)?, sinks.map_or_else(none, Ok)?])
}

/// Arguments of both operators.
struct Call {
    inputs: Inputs,
    outputs: Outputs,
    wanted: Wanted,
    options: Options,
}

impl Call {
    fn gradients(self, given: Option<[Tensor; 3]>) -> Result<Gradients, Failure> {
        backward(self.inputs, self.outputs, &self.options, self.wanted, given)
    }

    fn read(arguments: &mut Arguments) -> Result<Self, Failure> {
        let d_o = arguments.tensor();
        let d_lse = arguments.optional_tensor();
        let inputs = Inputs::read(arguments);
        let (o, lse) = (arguments.tensor(), arguments.tensor());
        let wanted = Wanted {
            bias: arguments.bool(),
            sinks: arguments.bool(),
        };
        let options = Options::read(arguments, inputs.q.sizes().len())?;
        let outputs = Outputs { d_o, d_lse, o, lse };
        Ok(Call {
            inputs,
            outputs,
            wanted,
            options,
        })
    }
}
