//! The forward pass on q, k and v of e4m3, on a cache of it, or on inputs that are rounded to it, with o in f32.

use super::failure::Failure;
use super::forward::{Inputs, forward_of};
use super::options::{Options, descale};
use super::shim::StableValue;
use super::tensor::{Tensor, Type};
use super::value::{Arguments, results};
use ferroattn::{Dtype, RawE4m3, RawE4m3Cache};

/// The operator's name, arguments and results.
pub fn signature() -> String {
    format!(
        "forward_e4m3(Tensor q, Tensor k, Tensor v, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, \
         bool page_descales, int dtype, {}) -> (Tensor o, Tensor lse)",
        Options::signature()
    )
}

/// What multiplies numbers of e4m3, and the type of o.
struct Numbers {
    /// Of q, k and v.
    descales: [Option<Tensor>; 3],
    /// Whether each page has descales of its own.
    of_pages: bool,
    /// The type of o, but of a cache.
    dtype: Dtype,
}

/// The type of a number: its place among all.
fn of_number(number: i64) -> Result<Dtype, Failure> {
    let place = usize::try_from(number).ok();
    let dtype = place.and_then(|place| Dtype::ALL.get(place).copied());
    dtype.ok_or_else(|| Failure::value(format!("dtype is {number}; it must be 0, 1 or 2")))
}

/// Computes o and lse.
fn run(inputs: Inputs, numbers: &Numbers, options: &Options) -> Result<[Tensor; 2], Failure> {
    let inputs = inputs.in_rows()?;
    let place = inputs.q.place();
    let [q, k, v] = &numbers.descales;
    let q = descale("q_descale", q.as_ref(), place)?;
    let k = descale("k_descale", k.as_ref(), place)?;
    let v = descale("v_descale", v.as_ref(), place)?;
    if inputs.q.is_e4m3() {
        if numbers.of_pages {
            return Err(Failure::value("descales of pages need q of 16 bits"));
        }
        let raw = inputs.raw_of(options, numbers.dtype, [Type::E4m3; 2])?;
        let mut tensors = options.raw(&raw)?;
        let mut e4m3 = RawE4m3::default();
        (e4m3.q, e4m3.k, e4m3.v) = (q, k, v);
        tensors.e4m3 = Some(e4m3);
        return forward_of(&inputs.q, &raw, options, tensors);
    }
    if q.is_some() {
        return Err(Failure::value("q_descale needs q of float8_e4m3fn"));
    }
    let (dtype, _) = inputs.q.computed("q")?;
    if !inputs.k.is_e4m3() && numbers.dtype == Dtype::F32 {
        let raw = inputs.raw(options)?;
        let mut tensors = options.raw(&raw)?;
        tensors.f32_o = true;
        return forward_of(&inputs.q, &raw, options, tensors);
    }
    let raw = inputs.raw_of(options, dtype, [Type::Number(dtype), Type::E4m3])?;
    let mut tensors = options.raw(&raw)?;
    let of_pages = numbers.of_pages;
    tensors.e4m3_cache = Some(RawE4m3Cache { k, v, of_pages });
    forward_of(&inputs.q, &raw, options, tensors)
}

/// The operator `ferroattn::forward_e4m3`.
pub fn operator(stack: &mut [StableValue]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(stack);
    let inputs = Inputs::read(&mut arguments);
    let numbers = Numbers {
        descales: [(); 3].map(|()| arguments.optional_tensor()),
        of_pages: arguments.bool(),
        dtype: of_number(arguments.int())?,
    };
    let options = Options::read(&mut arguments, inputs.q.sizes().len())?;
    let outputs = run(inputs, &numbers, &options)?;
    results(stack, outputs);
    Ok(())
}
