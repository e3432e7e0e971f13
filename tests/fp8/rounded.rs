//! What the kernels that round leave in the workspace.

use ferroattn::{
    Attention, Device, Element, Fp8, Plan, RawForward, RawOptions, RawWorkspace, Rounded, Tensor,
};
use kernels::abi::{FP8_BLOCK, RoundRowsParams, RoundValuesParams};
use kernels::layout::fp8::{transposed_column, transposed_key, transposed_rows};
use ndarray::{Array4, Axis};
use std::mem::offset_of;
use std::ptr::null_mut;
use tests::{Case, Outcome, PASSED};

/// Rounded inputs, rotated or not, scales and means equal those of `Rounded`. Zeros lie behind rows of q and k, no NaN behind keys of v.
pub fn rounded<T: Element>(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv, dim) in [(1, 1, 8), (130, 129, 72), (3, 2500, 40), (200, 300, 256)] {
        let case = Case {
            dtype: T::DTYPE,
            batch: 2,
            heads: 4,
            kv_heads: 2,
            seqlen_q,
            seqlen_kv,
            dim,
            ..Case::default()
        };
        for hadamard in [false, true] {
            compare::<T>(device, &case, Fp8::new().hadamard(hadamard))?;
        }
    }
    PASSED
}

fn compare<T: Element>(device: &Device, case: &Case, fp8: Fp8) -> Outcome {
    let (problem, inputs) = (case.problem()?, case.inputs());
    let mut numbers = [inputs.q, inputs.k, inputs.v];
    for tensor in &mut numbers {
        // Rows and columns of all sizes, zeros among them.
        for (axis, sizes) in [
            (2, [1.0, 1e-4, 100.0, 1.0, 1.0]),
            (3, [1.0, 3.0, 0.0, 0.01, -1.0]),
        ] {
            for (i, mut part) in tensor.axis_iter_mut(Axis(axis)).enumerate() {
                part *= sizes[i % 5];
            }
        }
    }
    numbers[2] += 0.5;
    let [q, k, v] = numbers.map(|tensor| tensor.mapv(T::from_f32));
    let expected = Rounded::new(fp8, &problem, q.view(), k.view(), v.view());
    let device_copy = |x: &Array4<T>| {
        let shape = x.dim().into();
        Tensor::new(device, shape, x.as_slice().expect("row-major"))
    };
    let (q, k, v) = (device_copy(&q)?, device_copy(&k)?, device_copy(&v)?);
    let mut o = Tensor::<T>::zeros(device, problem.o_shape())?;
    let mut lse = Tensor::<f32, 3>::zeros(device, problem.lse_shape())?;
    let args = RawForward {
        q: q.as_raw(),
        k: k.as_raw(),
        v: v.as_raw(),
        o: o.as_raw_mut(),
        lse: lse.as_raw_mut(),
        options: RawOptions::default(),
    };
    let attention = Attention::new().fp8(fp8);
    let plan = attention.plan(device.facts(), T::DTYPE, &args)?;
    let memory = vec![0xff_u8; plan.workspace_bytes];
    let mut memory = Tensor::new(device, [memory.len()], &memory)?;
    let workspace = RawWorkspace {
        address: memory.as_raw_mut().address,
        bytes: plan.workspace_bytes,
    };
    // SAFETY: tensors and workspace live until the bytes are read.
    unsafe { plan.run_in(device, workspace, null_mut())? };
    let found = Found {
        plan: &plan,
        memory: &memory.to_vec()?,
    };
    // The main kernel rounds q, unless it is rotated.
    let first = plan.steps.len() - 4;
    assert_eq!(first, usize::from(fp8.hadamard), "launches that round q");
    if first == 1 {
        found.compare_rows(0, &expected.q, 1)?;
    }
    found.compare_rows(first, &expected.k, FP8_BLOCK as usize)?;
    found.compare_values(first + 2, &expected)
}

/// The workspace of a plan that ran.
struct Found<'a> {
    plan: &'a Plan,
    memory: &'a [u8],
}

impl Found<'_> {
    /// The bytes at the address that is a parameter of a step.
    fn at(&self, step: usize, parameter: usize) -> &[u8] {
        let address = &self.plan.steps[step].params[parameter..][..8];
        &self.memory[u64::from_ne_bytes(address.try_into().expect("8 bytes")) as usize..]
    }

    /// Compares rows of q or k, of which so many share a scale.
    fn compare_rows(&self, step: usize, expected: &Array4<f32>, shared: usize) -> Outcome {
        let rounded = self.at(step, offset_of!(RoundRowsParams, rounded));
        let scales = self.at(step, offset_of!(RoundRowsParams, scales));
        let (_, heads, rows, dim) = expected.dim();
        let row_bytes = dim.next_multiple_of(16);
        for ((b, h, i, column), &expected) in expected.indexed_iter() {
            let head = b * heads + h;
            let row = &rounded[(head * rows + i) * row_bytes..][..row_bytes];
            let scale = f32_at(scales, head * rows.div_ceil(shared) + i / shared);
            expect([b, h, i, column], number(row[column]) * scale, expected)?;
            if row[dim..].iter().any(|&byte| byte != 0) {
                return Err(format!("{:?} behind row {i}", &row[dim..]).into());
            }
        }
        PASSED
    }

    fn compare_values(&self, step: usize, expected: &Rounded) -> Outcome {
        let rounded = self.at(step, offset_of!(RoundValuesParams, rounded));
        let columns = self.at(step, offset_of!(RoundValuesParams, columns));
        let (batch, heads, keys, dim) = expected.v.dim();
        let row_bytes = keys.next_multiple_of(16);
        let v_rows = transposed_rows(dim as u32) as usize;
        for ((b, h, key, column), &value) in expected.v.indexed_iter() {
            let row = (b * heads + h) * v_rows + transposed_column(column as u32) as usize;
            let [scale, mean] = [0, 1].map(|i| f32_at(columns, 2 * row + i));
            let row = &rounded[row * row_bytes..][..row_bytes];
            let place = [b, h, key, column];
            expect(place, mean, expected.means[[b, h, column]])?;
            let x = number(row[transposed_key(key as u32) as usize]);
            expect(place, x * scale + mean, value)?;
        }
        // Probabilities are 0 behind the keys: no NaN may be there.
        let rows = rounded.chunks(row_bytes).take(batch * heads * v_rows);
        if let Some(byte) = rows.flatten().position(|&byte| byte & 0x7f == 0x7f) {
            return Err(format!("NaN at byte {byte} of the transposed values").into());
        }
        PASSED
    }
}

/// The numbers are equal; zeros may differ in sign.
fn expect(place: [usize; 4], found: f32, expected: f32) -> Outcome {
    match found == expected {
        true => PASSED,
        false => Err(format!("{found} at {place:?}, not {expected}").into()),
    }
}

fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_ne_bytes(bytes[4 * index..][..4].try_into().expect("4 bytes"))
}

/// The number of e4m3.
fn number(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match exponent {
        0 => mantissa * f32::powi(2.0, -9),
        _ => (8.0 + mantissa) * f32::powi(2.0, exponent - 10),
    };
    if byte < 0x80 { magnitude } else { -magnitude }
}
