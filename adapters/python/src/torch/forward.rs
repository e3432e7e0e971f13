//! The forward pass.

use super::device::Place;
use super::failure::Failure;
use super::options::{Form, Options};
use super::shim::StableValue;
use super::tensor::{Tensor, Type};
use super::value::{Arguments, results};
use ferroattn::{Dtype, RawForward, RawOptions, RawTensor, RawWorkspace};

/// Queries, keys and values of a call.
#[derive(Debug)]
pub struct Inputs {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
}

/// Inputs by address, and what is common to all of them.
#[derive(Clone, Copy, Debug)]
pub struct RawInputs {
    pub q: RawTensor,
    pub k: RawTensor,
    pub v: RawTensor,
    pub dtype: Dtype,
    pub place: Place,
}

impl Inputs {
    /// Reads them.
    pub fn read(arguments: &mut Arguments) -> Self {
        let [q, k, v] = [(); 3].map(|()| arguments.tensor());
        Inputs { q, k, v }
    }

    /// These, or copies with rows side by side.
    pub fn in_rows(self) -> Result<Self, Failure> {
        Ok(Inputs {
            q: self.q.in_rows()?,
            k: self.k.in_rows()?,
            v: self.v.in_rows()?,
        })
    }

    /// The tensors by address, all of q's type.
    pub fn raw(&self, options: &Options) -> Result<RawInputs, Failure> {
        let (dtype, _) = self.q.computed("q")?;
        self.raw_of(options, dtype, [Type::Number(dtype); 2])
    }

    /// The tensors by address, of a call whose o has this type: q, and k and v, have these.
    pub fn raw_of(
        &self,
        options: &Options,
        dtype: Dtype,
        [of_q, of_keys]: [Type; 2],
    ) -> Result<RawInputs, Failure> {
        let form = options.form;
        let of_pages = form.of_keys(options.pages.is_some());
        let place = self.q.place();
        let raw = |name, tensor: &Tensor, form: Form, of| -> Result<RawTensor, Failure> {
            form.expect(name, tensor)?;
            tensor.expect(name, of, place)?;
            Ok(tensor.raw(form.axes()))
        };
        let mut inputs = RawInputs {
            q: raw("q", &self.q, form, of_q)?,
            k: raw("k", &self.k, of_pages, of_keys)?,
            v: raw("v", &self.v, of_pages, of_keys)?,
            dtype,
            place,
        };
        if let Some(keys) = options.keys {
            (inputs.k.shape[2], inputs.v.shape[2]) = (keys, keys);
        }
        Ok(inputs)
    }
}

/// Computes o and lse.
pub fn forward(inputs: Inputs, options: &Options) -> Result<[Tensor; 2], Failure> {
    let inputs = inputs.in_rows()?;
    let raw = inputs.raw(options)?;
    forward_of(&inputs.q, &raw, options, options.raw(&raw)?)
}

/// Computes o and lse of inputs by address, with these tensors of options.
pub fn forward_of(
    of_q: &Tensor,
    raw: &RawInputs,
    options: &Options,
    tensors: RawOptions,
) -> Result<[Tensor; 2], Failure> {
    let form = options.form;
    let &RawInputs {
        q,
        k,
        v,
        dtype,
        place,
    } = raw;
    let [batch, heads, seqlen, _] = q.shape;
    let shape = [batch, heads, seqlen, v.shape[3]];
    let of_o = if tensors.f32_o { Dtype::F32 } else { dtype };
    let o = options.allocate(shape, of_o, place, of_q)?;
    let lse = form.allocate_rows(shape, place)?;
    let args = RawForward {
        q,
        k,
        v,
        o: o.raw(form.axes()),
        lse: form.rows("lse", &lse)?,
        options: tensors,
    };
    let (device, stream) = place.device()?;
    let mut work = None;
    // SAFETY: tensors are PyTorch's, live in the order of its current stream; outputs and workspace are new.
    let done = unsafe {
        let allocate = |bytes| workspace(bytes, place, &mut work);
        options
            .attention
            .forward_raw_with(&device, dtype, &args, allocate, stream)
    };
    done?;
    Ok([o, lse])
}

/// Memory of PyTorch for a call's work. Given back while the work runs, it goes to later work of the stream alone.
pub fn workspace(
    bytes: usize,
    place: Place,
    kept: &mut Option<Tensor>,
) -> ferroattn::Result<RawWorkspace> {
    if bytes == 0 {
        return Ok(RawWorkspace::default());
    }
    let memory = Tensor::bytes(bytes, place).map_err(|_| ferroattn::Error::OutOfMemory {
        device: "the GPU".to_owned(),
        needed: bytes as u64,
        free: None,
    })?;
    let address = memory.address();
    *kept = Some(memory);
    Ok(RawWorkspace { address, bytes })
}

/// The operator `ferroattn::forward`.
pub fn operator(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    let options = Options::read(&mut arguments, inputs.q.sizes().len())?;
    let outputs = forward(inputs, &options)?;
    results(stack, outputs);
    Ok(())
}
