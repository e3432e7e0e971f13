//! New keys and values, written into a cache.

use super::device::Place;
use super::failure::Failure;
use super::options::{Form, descale, numbers, pages};
use super::shim::StableValue;
use super::tensor::{Tensor, Type};
use super::value::{Arguments, results};
use ferroattn::{RawAppend, RawE4m3Cache, RawRotary, RawTensor, append_raw};

/// The operator's name, arguments and results.
pub const SIGNATURE: &str = "append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? q, \
    Tensor? lengths, Tensor? pages, Tensor? cache_entries, Tensor? slots, Tensor? positions, Tensor? cos, Tensor? sin, \
    Tensor? k_descale, Tensor? v_descale, bool page_descales, bool interleaved, bool q_at_first, bool heads_first) -> (Tensor rotated, Tensor new_lengths)";

/// Arguments of the operator.
struct Call {
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q: Option<Tensor>,
    lengths: Option<Tensor>,
    pages: Option<Tensor>,
    cache_entries: Option<Tensor>,
    slots: Option<Tensor>,
    positions: Option<Tensor>,
    rotary: [Option<Tensor>; 2],
    descales: [Option<Tensor>; 2],
    page_descales: bool,
    interleaved: bool,
    q_at_first: bool,
    heads_first: bool,
}

impl Call {
    fn read(arguments: &mut Arguments) -> Result<Self, Failure> {
        let [k, v, k_cache, v_cache] = [(); 4].map(|()| arguments.tensor());
        let [q, lengths, pages, cache_entries] = [(); 4].map(|()| arguments.optional_tensor());
        let [slots, positions, cos, sin] = [(); 4].map(|()| arguments.optional_tensor());
        let descales = [(); 2].map(|()| arguments.optional_tensor());
        let in_rows = |tensor: Option<Tensor>| tensor.map(Tensor::in_rows).transpose();
        Ok(Call {
            page_descales: arguments.bool(),
            interleaved: arguments.bool(),
            q_at_first: arguments.bool(),
            heads_first: arguments.bool(),
            k: k.in_rows()?,
            v: v.in_rows()?,
            k_cache,
            v_cache,
            q: in_rows(q)?,
            lengths,
            pages,
            cache_entries,
            slots,
            positions,
            rotary: [in_rows(cos)?, in_rows(sin)?],
            descales,
        })
    }

    /// Appends, and returns the rotated queries and how many keys each entry has then.
    fn run(&self) -> Result<[Tensor; 2], Failure> {
        let (dtype, place) = self.k.computed("k")?;
        let of = Type::Number(dtype);
        let form = Form::of(self.k.sizes().len(), self.heads_first);
        let of_cache = Form::of(4, self.heads_first);
        let raw = |form: Form, name: &str, tensor: &Tensor, of| -> Result<RawTensor, Failure> {
            form.expect(name, tensor)?;
            tensor.expect(name, of, place)?;
            Ok(tensor.raw(form.axes()))
        };
        let is_e4m3 = self.k_cache.is_e4m3();
        let of_keys = if is_e4m3 { Type::E4m3 } else { of };
        let mut args = RawAppend::new(
            [raw(form, "k", &self.k, of)?, raw(form, "v", &self.v, of)?],
            [
                raw(of_cache, "k_cache", &self.k_cache, of_keys)?,
                raw(of_cache, "v_cache", &self.v_cache, of_keys)?,
            ],
        );
        let [k, v] = &self.descales;
        let cache = RawE4m3Cache {
            k: descale("k_descale", k.as_ref(), place)?,
            v: descale("v_descale", v.as_ref(), place)?,
            of_pages: self.page_descales,
        };
        if !is_e4m3 && cache != RawE4m3Cache::default() {
            return Err(Failure::value("descales need caches of float8_e4m3fn"));
        }
        args.e4m3_cache = is_e4m3.then_some(cache);
        let [batch, _, rows, _] = args.k.shape;
        let rotated = match &self.q {
            // Operators return tensors.
            None => Tensor::ordered([0], [0], of, place)?,
            Some(q) => {
                let q = raw(form, "q", q, of)?;
                let rotated = form.allocate(q.shape, dtype, place, None)?;
                args.q = Some([q, rotated.raw(form.axes())]);
                rotated
            }
        };
        let lengths = Tensor::ordered([batch as i64], [0], Type::Int32, place)?;
        if rows == 0 {
            // Nothing may be launched.
            self.lengths
                .as_ref()
                .map_or_else(|| lengths.zero(), |before| lengths.copy(before))?;
        }
        args.lengths = numbers("lengths", self.lengths.as_ref(), place)?;
        args.new_lengths = Some(lengths.raw([Some(0)]));
        args.pages = pages(self.pages.as_ref(), place)?;
        args.cache_entries = numbers("cache_entries", self.cache_entries.as_ref(), place)?;
        let of_rows = |name, tensor: &Option<Tensor>, of| match tensor {
            None => Ok(None),
            Some(tensor) => of_rows(name, tensor, of, form, place).map(Some),
        };
        args.slots = of_rows("slots", &self.slots, Type::Int64)?;
        args.positions = of_rows("positions", &self.positions, Type::Int32)?;
        args.rotary = self.rotary(place)?;
        let (device, stream) = place.device()?;
        // SAFETY: tensors are PyTorch's, live in the order of its current stream; results are new, and the caches lie apart
        // from the other tensors, as the operator asks.
        unsafe { append_raw(&device, dtype, &args, stream)? };
        Ok([rotated, lengths])
    }

    fn rotary(&self, place: Place) -> Result<Option<RawRotary>, Failure> {
        let (cos, sin) = match &self.rotary {
            [None, None] => return Ok(None),
            [Some(cos), Some(sin)] => (cos, sin),
            _ => {
                return Err(Failure::value(
                    "a rotary embedding needs both cosines and sines",
                ));
            }
        };
        let dtype = cos.number("cos")?;
        let raw = |name, tensor: &Tensor| {
            tensor.expect(name, Type::Number(dtype), place)?;
            tensor.expect_rank(name, 2, "[positions, rotary_dim / 2]")?;
            Ok::<_, Failure>(tensor.raw([Some(0), Some(1)]))
        };
        Ok(Some(RawRotary {
            dtype,
            cos: raw("cos", cos)?,
            sin: raw("sin", sin)?,
            interleaved: self.interleaved,
            q_at_first: self.q_at_first,
        }))
    }
}

/// Whole numbers, one for each new row.
fn of_rows(
    name: &str,
    tensor: &Tensor,
    of: Type,
    form: Form,
    place: Place,
) -> Result<RawTensor<2>, Failure> {
    tensor.expect(name, of, place)?;
    match form {
        Form::Packed => {
            tensor.expect_rank(name, 1, "[total]")?;
            Ok(tensor.raw([None, Some(0)]))
        }
        _ => {
            tensor.expect_rank(name, 2, "[batch, seqlen]")?;
            Ok(tensor.raw([Some(0), Some(1)]))
        }
    }
}

/// The operator `ferroattn::append`.
pub fn operator(stack: &mut [StableValue]) -> Result<(), Failure> {
    let call = Call::read(&mut Arguments::new(stack))?;
    results(stack, call.run()?);
    Ok(())
}
