//! o in f32: the sums that o of 16 bits is rounded from.

use super::options::padded;
use super::{e4m3, in_fp8};
use ferroattn::emulator::Options;
use ferroattn::{
    Attention, Class, Device, Dtype, Element, Error, F8E4M3, Fp8, RawForward, RawOptions, Tensor,
    Window, bf16, f16,
};
use libtest_mimic::Failed;
use ndarray::Array4;
use std::ptr::null_mut;
use tests::{Case, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("f32_of_e4m3", of_e4m3),
        Test::new("f32_of_16_bits", of_16_bits),
        Test::new("f32_of_options", of_options),
        Test::new("f32_of_one_key", of_one_key),
        Test::new("f32_of_no_keys", of_no_keys),
        Test::new("f32_wrong_calls", wrong_calls),
    ]
}

/// How rows of o lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Side by side.
    Contiguous,
    /// From an odd element on, an odd number of elements from each other.
    Odd,
    /// At multiples of 16 elements.
    Sixteenths,
}

impl Rows {
    const ALL: [Rows; 3] = [Rows::Contiguous, Rows::Odd, Rows::Sixteenths];

    /// A tensor on a device, full of NaN, as is what lies between its rows.
    pub fn poisoned<O: Element>(
        self,
        device: &Device,
        shape: [usize; 4],
    ) -> ferroattn::Result<Tensor<O>> {
        let [_, heads, rows, dim] = shape;
        let (first, row) = match self {
            Rows::Contiguous => (0, dim),
            Rows::Odd => (1, (dim + 1) | 1),
            Rows::Sixteenths => (16, (dim + 1).next_multiple_of(16)),
        };
        let count = shape[..3].iter().product::<usize>() * row + first;
        let buffer = Tensor::new(device, [count], &vec![O::from_f32(f32::NAN); count])?;
        let strides = [heads * rows * row, rows * row, row, 1].map(|stride| stride as isize);
        Tensor::from_buffer(buffer.into_buffer(), first, shape, strides)
    }
}

/// The elements of a tensor that was poisoned; what lies between its rows must be so still.
pub fn written<O: Element>(o: Tensor<O>) -> Result<Vec<O>, Failed> {
    let elements = o.to_vec()?;
    let all = o.into_buffer().to_vec()?;
    let [found, own] = [&all, &elements].map(|x| x.iter().filter(|x| !x.to_f32().is_nan()).count());
    match found == own {
        true => Ok(elements),
        false => Err(format!("{found} numbers in memory, {own} of them in o").into()),
    }
}

/// q, k and v of a call, with o of one type after the other.
trait Inputs {
    fn forward<O: Element>(
        &self,
        device: &Device,
        rows: Rows,
    ) -> Result<(Vec<O>, Vec<f32>), Failed>;
}

/// Checks that o in f32 has the elements which o of types of 16 bits has rounded, bit for bit, and many between.
fn rounds_to<T: Element>(device: &Device, inputs: &impl Inputs) -> Outcome {
    let (narrow, lse) = inputs.forward::<T>(device, Rows::Contiguous)?;
    for rows in Rows::ALL {
        let (wide, wide_lse) = inputs.forward::<f32>(device, rows)?;
        let rounded: Vec<f32> = wide.iter().map(|&x| T::from_f32(x).to_f32()).collect();
        for (i, (found, expected)) in rounded.iter().zip(&narrow).enumerate() {
            if found.to_bits() != expected.to_f32().to_bits() {
                return Err(format!("{rows:?}: element {i} is {}, {expected:?}", wide[i]).into());
            }
        }
        if wide_lse
            .iter()
            .zip(&lse)
            .any(|(a, b)| a.to_bits() != b.to_bits())
        {
            return Err(format!("{rows:?}: another lse").into());
        }
        let differ = wide.iter().zip(&rounded).filter(|(a, b)| a != b).count();
        let others = wide.iter().filter(|x| **x != 0.0).count();
        if 10 * differ < 9 * others || others == 0 {
            return Err(
                format!("{rows:?}: {differ} of {others} numbers have digits of f32").into(),
            );
        }
    }
    PASSED
}

/// Inputs that are e4m3 already.
struct OfE4m3(e4m3::Call);

impl Inputs for OfE4m3 {
    fn forward<O: Element>(
        &self,
        device: &Device,
        rows: Rows,
    ) -> Result<(Vec<O>, Vec<f32>), Failed> {
        self.0.forward::<O>(device, rows)
    }
}

/// Inputs of type `T`, which the call rounds.
struct Of16Bits<'a, T> {
    case: &'a Case,
    qkv: [Array4<T>; 3],
}

impl<'a, T: Element> Of16Bits<'a, T> {
    fn new(case: &'a Case) -> Self {
        let inputs = case.inputs();
        let qkv = [inputs.q, inputs.k, inputs.v].map(|x| x.mapv(T::from_f32));
        Of16Bits { case, qkv }
    }
}

impl<T: Element> Inputs for Of16Bits<'_, T> {
    fn forward<O: Element>(
        &self,
        device: &Device,
        rows: Rows,
    ) -> Result<(Vec<O>, Vec<f32>), Failed> {
        let (case, problem) = (self.case, self.case.problem()?);
        let upload =
            |x: &Array4<T>| Tensor::new(device, x.dim().into(), x.as_slice().expect("row-major"));
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (upload(q)?, upload(k)?, upload(v)?);
        let mut o = rows.poisoned::<O>(device, problem.o_shape())?;
        let mut lse = Tensor::<f32, 3>::zeros(device, problem.lse_shape())?;
        let mut options = RawOptions::default();
        options.f32_o = O::DTYPE != T::DTYPE;
        let args = RawForward {
            q: q.as_raw(),
            k: k.as_raw(),
            v: v.as_raw(),
            o: o.as_raw_mut(),
            lse: lse.as_raw_mut(),
            options,
        };
        let own = case.modifiers.tensors(device, &problem, case.seed)?;
        let fp8 = Fp8::new().hadamard(case.modifiers.hadamard);
        let call = own.of(Attention::new().causal(case.causal)).fp8(fp8);
        // SAFETY: the tensors live until they are read, and nothing else has them.
        unsafe { call.forward_raw(device, T::DTYPE, &args, null_mut())? };
        Ok((written(o)?, lse.to_vec()?))
    }
}

/// Ragged rows, rows that see no key, sums of several levels, and dims whose last pair of columns has one.
fn of_e4m3(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv, dim) in [
        (70, 900, 64),
        (130, 17, 128),
        (65, 500, 256),
        (33, 140, 9),
        (40, 60, 122),
    ] {
        let case = in_fp8(Case {
            batch: 2,
            heads: 2,
            kv_heads: 1,
            seqlen_q,
            seqlen_kv,
            dim,
            causal: true,
            ..Case::default()
        });
        let call = OfE4m3(e4m3::Call::new(&case));
        rounds_to::<f16>(device, &call)?;
        rounds_to::<bf16>(device, &call)?;
    }
    PASSED
}

/// The same sums of inputs that the call rounds, or rotates and rounds.
fn of_16_bits(device: &Device) -> Outcome {
    for (i, (seqlen_q, seqlen_kv, dim)) in
        [(3, 40, 64), (130, 170, 128), (100, 300, 256), (33, 140, 9)]
            .into_iter()
            .enumerate()
    {
        let case = in_fp8(Case {
            heads: 2,
            kv_heads: 1,
            seqlen_q,
            seqlen_kv,
            dim,
            causal: i % 2 == 0,
            modifiers: Modifiers {
                hadamard: i % 2 == 1,
                ..Modifiers::default()
            },
            ..Case::default()
        });
        rounds_to::<f16>(device, &Of16Bits::<f16>::new(&case))?;
        rounds_to::<bf16>(device, &Of16Bits::<bf16>::new(&case))?;
    }
    PASSED
}

/// Windows that leave rows without a key, sinks, softcaps, padded entries; heads of one query, which become queries of one head.
fn of_options(device: &Device) -> Outcome {
    let in_window = in_fp8(Case {
        seqlen_q: 150,
        seqlen_kv: 90,
        heads: 4,
        kv_heads: 4,
        modifiers: Modifiers {
            window: Window {
                left: Some(20),
                right: Some(0),
            },
            softcap: Some(5.0),
            sinks: true,
            ..Modifiers::default()
        },
        ..Case::default()
    });
    let (padded, _) = padded();
    let folded = in_fp8(Case {
        seqlen_q: 1,
        seqlen_kv: 300,
        heads: 6,
        kv_heads: 2,
        modifiers: Modifiers {
            softcap: Some(5.0),
            ..Modifiers::default()
        },
        ..Case::default()
    });
    for case in [in_window, padded, folded] {
        rounds_to::<f16>(device, &Of16Bits::<f16>::new(&case))?;
        rounds_to::<bf16>(device, &OfE4m3(e4m3::Call::new(&case)))?;
    }
    PASSED
}

/// A row that sees one key is its value times one number near 1, to f32's last digits: roundings of 8 bits change no column alone.
pub fn of_one_key(device: &Device) -> Outcome {
    let case = in_fp8(Case {
        seqlen_q: 3,
        seqlen_kv: 1,
        dim: 64,
        ..Case::default()
    });
    let call = e4m3::Call::new(&case);
    let (o, _) = call.forward::<f32>(device, Rows::Contiguous)?;
    let values = call.inputs[2].mapv(|x| x.to_f32() * call.descales[2][[0, 0]]);
    let values = values.as_slice().expect("row-major");
    for row in o.chunks(64) {
        let weight = row.iter().sum::<f32>() / values.iter().sum::<f32>();
        for (o, value) in row.iter().zip(values) {
            if (o - weight * value).abs() > 1e-6 * value.abs() || (weight - 1.0).abs() > 0.01 {
                return Err(format!("{o}, not {value} times {weight}").into());
            }
        }
    }
    PASSED
}

/// Zeros for all elements where there is no key at all, and nothing between rows.
fn of_no_keys(device: &Device) -> Outcome {
    let case = in_fp8(Case {
        seqlen_q: 5,
        seqlen_kv: 0,
        dim: 24,
        ..Case::default()
    });
    let wide = Of16Bits::<f16>::new(&case);
    for rows in Rows::ALL {
        for (o, lse) in [
            e4m3::Call::new(&case).forward::<f32>(device, rows)?,
            wide.forward::<f32>(device, rows)?,
        ] {
            let is_lowest = |x: &f32| *x == f32::NEG_INFINITY;
            if o.iter().any(|x| x.to_bits() != 0) || !lse.iter().all(is_lowest) {
                return Err(format!("{o:?}, {lse:?}").into());
            }
        }
    }
    PASSED
}

/// Calls that have no o in f32: each error says what lacks.
fn wrong_calls(device: &Device) -> Outcome {
    let shape = [1, 2, 5, 16];
    let x = Tensor::<f16>::zeros(device, shape)?;
    let mut o = Tensor::<f32>::zeros(device, shape)?;
    let mut lse = Tensor::<f32, 3>::zeros(device, [1, 2, 5])?;
    let mut options = RawOptions::default();
    options.f32_o = true;
    let args = RawForward {
        q: x.as_raw(),
        k: x.as_raw(),
        v: x.as_raw(),
        o: o.as_raw_mut(),
        lse: lse.as_raw_mut(),
        options,
    };
    // SAFETY: the tensors live until the end, and nothing else has them.
    let found = unsafe { Attention::new().forward_raw(device, Dtype::F16, &args, null_mut()) };
    if found != Err(Error::Needs("o in f32", "fp8")) {
        return Err(format!("{found:?} of a call without fp8").into());
    }
    // Inputs in f32 are the CPU's alone.
    let wide = Tensor::<f32>::zeros(device, shape)?;
    let found = Attention::new()
        .fp8(Fp8::new())
        .forward(&wide, &wide, &wide);
    let expected = match device.is_cpu() {
        true => None,
        false => Some(Error::NoKernels(Dtype::F32)),
    };
    if found.as_ref().err() != expected.as_ref() {
        return Err(format!("{:?} of inputs in f32", found.err()).into());
    }
    // No other class multiplies e4m3.
    let ampere = Device::emulator_of(Class::Sm80, Options::default())?;
    let x = Tensor::<F8E4M3>::zeros(&ampere, shape)?;
    match Attention::new().forward_e4m3::<f32>(&x, &x, &x) {
        Err(Error::NoOption("fp8")) => PASSED,
        found => Err(format!("{:?} of a class without fp8", found.err()).into()),
    }
}
