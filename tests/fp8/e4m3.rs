//! Inputs that are e4m3 already: sums in two levels, descales, rows of any length anywhere.

use super::output::{Rows, written};
use super::{in_f64, in_fp8};
use ferroattn::check::{Expected, Forward, all_rows};
use ferroattn::emulator::Options;
use ferroattn::gemm::Accumulation;
use ferroattn::{
    Attention, Class, Device, Dtype, Element, F8E4M3, Fp8, Rounded, Tensor, bf16, f16,
};
use libtest_mimic::Failed;
use ndarray::{Array2, Array4, s};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::{Case, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("e4m3_lengths", lengths),
        Test::new("e4m3_heads", heads),
        Test::new("e4m3_every_number", every_number),
        Test::new("e4m3_hidden", hidden),
        Test::new("e4m3_steep", steep),
        Test::new("e4m3_flat", flat),
        Test::new("e4m3_repeats", repeats),
        Test::new("e4m3_wrong_calls", wrong_calls),
        Test::new("e4m3_loses_little", loses_little),
    ]
}

/// A call on inputs of e4m3.
pub struct Call {
    case: Case,
    pub inputs: [Array4<F8E4M3>; 3],
    /// Of q, k and v, `[batch, kv_heads]`.
    pub descales: [Array2<f32>; 3],
    hadamard: bool,
    /// Whether rows of inputs start at odd addresses, with NaN between.
    odd: bool,
    /// How rows of o lie.
    rows: Rows,
}

impl Call {
    /// A call on normal numbers, large parts of which e4m3 holds, and descales that make them small again.
    pub fn new(case: &Case) -> Self {
        let mut rng = StdRng::seed_from_u64(case.seed);
        let problem = case.problem().expect("valid");
        let shapes = [problem.q_shape(), problem.k_shape(), problem.v_shape()];
        let inputs = shapes.map(|shape| {
            Array4::from_shape_simple_fn(shape, || {
                F8E4M3::from_f32(100.0 * rng.sample::<f32, _>(StandardNormal))
            })
        });
        let shape = (problem.batch, problem.kv_heads);
        let descales = [0.012, 0.009, 0.01]
            .map(|most| Array2::from_shape_simple_fn(shape, || rng.random_range(0.5 * most..most)));
        Call {
            case: case.clone(),
            inputs,
            descales,
            hadamard: false,
            odd: false,
            rows: Rows::Contiguous,
        }
    }

    fn run(&self, device: &Device) -> Result<Vec<f32>, Failed> {
        match self.case.dtype {
            Dtype::Bf16 => self.run_in::<bf16>(device),
            Dtype::F32 => self.run_in::<f32>(device),
            _ => self.run_in::<f16>(device),
        }
    }

    /// The call without tensors.
    fn plain(&self) -> Attention<'static> {
        let plain = Attention::new().causal(self.case.causal);
        match self.case.scale {
            Some(scale) => plain.scale(scale),
            None => plain,
        }
    }

    /// Runs the call, with poisoned outputs whose rows lie so.
    pub fn forward<T: Element>(
        &self,
        device: &Device,
        rows: Rows,
    ) -> Result<(Vec<T>, Vec<f32>), Failed> {
        let problem = self.case.problem()?;
        let [q, k, v] = self.inputs.each_ref().map(|x| tensor(device, x, self.odd));
        let (q, k, v) = (q?, k?, v?);
        let [of_q, of_k, of_v] = self.descales.each_ref().map(|x| transposed(device, x));
        let (of_q, of_k, of_v) = (of_q?, of_k?, of_v?);
        let fp8 = Fp8::new().hadamard(self.hadamard);
        let modifiers = &self.case.modifiers;
        let own = modifiers.tensors(device, &problem, self.case.seed)?;
        let call = own.of(self.plain()).fp8(fp8);
        let call = call.descales(&of_q, &of_k, &of_v);
        let count = problem.lse_shape().iter().product::<usize>();
        let mut o = rows.poisoned(device, problem.o_shape())?;
        let mut lse = Tensor::new(device, problem.lse_shape(), &vec![f32::NAN; count])?;
        call.forward_e4m3_into(&q, &k, &v, &mut o, &mut lse)?;
        Ok((written(o)?, lse.to_vec()?))
    }

    /// Runs the call, and compares all rows.
    fn run_in<T: Element>(&self, device: &Device) -> Result<Vec<f32>, Failed> {
        let (o, lse) = self.forward::<T>(device, self.rows)?;
        let problem = self.case.problem()?;
        let fp8 = Fp8::new().hadamard(self.hadamard);
        let modifiers = &self.case.modifiers;
        let on_host = modifiers.tensors(&Device::cpu(), &problem, self.case.seed)?;
        let call = on_host.of(self.plain()).fp8(fp8);
        let options = call.host_options(&problem)?;
        let views = self.inputs.each_ref().map(|x| x.view());
        let descales = self.descales.each_ref().map(|x| x.view());
        let rounded = Rounded::of_e4m3_call(fp8, &problem, &options, views, descales);
        let expected = match device.is_cpu() && T::DTYPE == Dtype::F32 {
            true => Expected::of_rounded_in_f32,
            false => Expected::of_rounded::<T>,
        };
        let expected = expected(&problem, options, &rounded, &all_rows(&problem));
        let report = expected.compare(&Forward {
            problem: &problem,
            options,
            q: &[],
            k: &[],
            v: &[],
            o: &o,
            lse: &lse,
            acc: Accumulation::default(),
        });
        match report.passed() {
            true => Ok(o.into_iter().map(T::to_f32).collect()),
            false => Err(format!("{}: {report}", self.case).into()),
        }
    }
}

/// Runs a call on small keys, and compares all rows; NaN and the largest number lie where no query sees a key.
pub fn check_unseen(device: &Device, case: &Case, unseen: &[[usize; 2]]) -> Result<(), Failed> {
    let mut call = Call::new(case);
    // Beside the largest number, a scale leaves nothing of these.
    const SMALL: f32 = 1.0 / 8192.0;
    call.inputs[1].mapv_inplace(|x| F8E4M3::from_f32(SMALL * x.to_f32()));
    call.descales[1].mapv_inplace(|x| x / SMALL);
    for (i, &[entry, key]) in unseen.iter().enumerate() {
        let number = F8E4M3::from_bits(if i % 2 == 0 { 0x7f } else { 0x7e });
        for tensor in &mut call.inputs[1..] {
            tensor.slice_mut(s![entry, .., key, ..]).fill(number);
        }
    }
    call.run(device).map(drop)
}

/// Runs a call on normal numbers, and compares all rows.
pub fn check(device: &Device, case: &Case, hadamard: bool) -> Result<(), Failed> {
    let call = Call {
        hadamard,
        ..Call::new(case)
    };
    call.run(device).map(drop)
}

/// Runs a call on normal numbers, with rows of o that lie so, and compares all rows.
pub fn check_rows(device: &Device, case: &Case, rows: Rows) -> Result<(), Failed> {
    let call = Call {
        rows,
        ..Call::new(case)
    };
    call.run(device).map(drop)
}

/// The numbers on a device; at odd addresses if `odd`, with NaN between rows.
fn tensor(
    device: &Device,
    numbers: &Array4<F8E4M3>,
    odd: bool,
) -> ferroattn::Result<Tensor<F8E4M3>> {
    let (batch, heads, rows, dim) = numbers.dim();
    let row = if odd { dim + 3 } else { dim };
    let mut bytes = vec![F8E4M3::from_bits(0x7f); 1 + batch * heads * rows * row];
    for (i, of_row) in numbers.rows().into_iter().enumerate() {
        let to = &mut bytes[1 + i * row..][..dim];
        to.iter_mut().zip(of_row).for_each(|(to, x)| *to = *x);
    }
    if !odd {
        return Tensor::new(device, [batch, heads, rows, dim], &bytes[1..]);
    }
    let buffer = Tensor::new(device, [bytes.len()], &bytes)?.into_buffer();
    let strides = [heads * rows * row, rows * row, row, 1].map(|stride| stride as isize);
    Tensor::from_buffer(buffer, 1, [batch, heads, rows, dim], strides)
}

/// Numbers that lie side by side along the first axis.
fn transposed(device: &Device, numbers: &Array2<f32>) -> ferroattn::Result<Tensor<f32, 2>> {
    let (rows, columns) = numbers.dim();
    let numbers: Vec<f32> = numbers.t().iter().copied().collect();
    Tensor::new(device, [columns, rows], &numbers)?.transpose(0, 1)
}

/// Lengths around tiles, blocks and levels, in all head dims, among them some that are padded; rows anywhere, o of any type.
fn lengths(device: &Device) -> Outcome {
    for (i, (seqlen_q, seqlen_kv, dim)) in [
        (1, 1, 64),
        (65, 17, 128),
        (130, 129, 256),
        (193, 640, 128),
        (3, 1100, 64),
        (64, 700, 256),
        (100, 140, 9),
        (70, 300, 72),
    ]
    .into_iter()
    .enumerate()
    {
        for causal in [false, true] {
            let case = Case {
                dtype: [Dtype::F16, Dtype::F32, Dtype::Bf16, Dtype::F32][i % 4],
                seqlen_q,
                seqlen_kv,
                dim,
                causal,
                ..in_fp8(Case::default())
            };
            let call = Call {
                odd: causal == (i % 2 == 0),
                rows: [Rows::Contiguous, Rows::Odd][usize::from(causal)],
                hadamard: i % 4 == 1,
                ..Call::new(&case)
            };
            call.run(device)?;
        }
    }
    PASSED
}

/// Grouped heads, several entries, and descales of both signs, small, large and NaN.
fn heads(device: &Device) -> Outcome {
    let case = Case {
        batch: 2,
        heads: 6,
        kv_heads: 3,
        seqlen_q: 70,
        seqlen_kv: 140,
        dim: 64,
        ..in_fp8(Case::default())
    };
    for scale in [None, Some(-0.2)] {
        let mut call = Call::new(&Case {
            scale,
            ..case.clone()
        });
        for descale in &mut call.descales {
            descale[[0, 1]] *= -1.0;
        }
        call.descales[0][[1, 0]] *= -1e-6;
        call.descales[1][[1, 1]] *= 1e3;
        call.descales[2][[1, 2]] *= 1e-4;
        call.run(device)?;
        call.descales[1][[0, 0]] = f32::NAN;
        call.run(device)?;
    }
    PASSED
}

/// Each of the 256 numbers in q, in k and in v, of which two are NaN.
fn every_number(device: &Device) -> Outcome {
    let case = Case {
        seqlen_q: 64,
        seqlen_kv: 256,
        dim: 128,
        ..in_fp8(Case::default())
    };
    for which in 0..3 {
        let mut call = Call::new(&case);
        for (i, x) in call.inputs[which].iter_mut().enumerate() {
            let bits = (i % 128 + i / 128 * 131) % 256;
            // A NaN in each row would leave no other results.
            let is_spared = bits & 0x7f == 0x7f && i % 7 != 0;
            *x = F8E4M3::from_bits(if is_spared { 0x80 } else { bits as u8 });
        }
        call.run(device)?;
    }
    PASSED
}

/// NaN in values and keys that some rows do not see.
pub fn hidden(device: &Device) -> Outcome {
    for dim in [64, 128, 256] {
        let case = Case {
            seqlen_q: 150,
            seqlen_kv: 300,
            dim,
            causal: true,
            ..in_fp8(Case::default())
        };
        for key in [299, 200, 170] {
            for which in [1, 2] {
                let mut call = Call::new(&case);
                call.inputs[which][[0, 0, key, 5]] = F8E4M3::from_bits(0xff);
                call.run(device)?;
            }
        }
    }
    PASSED
}

/// Maxima that rise and fall by far over several levels: outer sums follow.
fn steep(device: &Device) -> Outcome {
    for dim in [64, 128, 256] {
        let case = Case {
            seqlen_q: 130,
            seqlen_kv: 1500,
            dim,
            ..in_fp8(Case::default())
        };
        let mut call = Call::new(&case);
        let sizes = [
            0.02, 0.2, 0.05, 1.0, 0.01, 0.6, 2.0, 0.1, 0.3, 3.0, 0.2, 0.1,
        ];
        for ((_, _, key, _), x) in call.inputs[1].indexed_iter_mut() {
            *x = F8E4M3::from_f32(x.to_f32() * sizes[key / 128]);
        }
        call.run(device)?;
    }
    PASSED
}

/// Every run gives the same bits, also where blocks take tiles as they come.
fn repeats(device: &Device) -> Outcome {
    let case = Case {
        batch: 2,
        heads: 3,
        kv_heads: 3,
        seqlen_q: 400,
        seqlen_kv: 900,
        dim: 64,
        causal: true,
        ..in_fp8(Case::default())
    };
    let call = Call::new(&case);
    let first = call.run(device)?;
    for _ in 0..2 {
        if call.run(device)? != first {
            return Err("another result".into());
        }
    }
    PASSED
}

/// Arguments that are wrong, one at a time, each named in one line.
fn wrong_calls(device: &Device) -> Outcome {
    let zeros = |shape| Tensor::<F8E4M3>::zeros(device, shape);
    let q = zeros([2, 4, 5, 16])?;
    let k = zeros([2, 2, 7, 16])?;
    let of = |shape| Tensor::<f32, 2>::zeros(device, shape);
    let (right, wrong) = (of([2, 2])?, of([2, 4])?);
    let attention = Attention::new();
    let refused = |attention: &Attention, v: &Tensor<F8E4M3>, reason: &str| {
        let found = attention.forward_e4m3::<f16>(&q, &k, v);
        let Err(error) = found else {
            return Err(Failed::from(format!("{reason}: accepted")));
        };
        let error = error.to_string();
        match error.contains(reason) && !error.contains('\n') {
            true => Ok(()),
            false => Err(format!("{error}, not {reason}").into()),
        }
    };
    refused(&attention.descales(&wrong, &right, &right), &k, "q_descale")?;
    refused(&attention.descales(&right, &wrong, &right), &k, "k_descale")?;
    refused(&attention.descales(&right, &right, &wrong), &k, "v_descale")?;
    refused(&attention, &zeros([2, 2, 6, 16])?, "v has shape")?;
    refused(&attention.clone().splits(2), &k, "splits")?;
    refused(&attention.clone().scale(1e5), &k, "scale")?;
    let slopes = Tensor::<f32, 2>::zeros(device, [2, 4])?;
    refused(&attention.alibi(&slopes), &k, "alibi")?;
    let mut o = Tensor::<f16>::zeros(device, [2, 4, 6, 16])?;
    let mut lse = Tensor::<f32, 3>::zeros(device, [2, 4, 5])?;
    let call = attention.descales(&right, &right, &right);
    if call.forward_e4m3_into(&q, &k, &k, &mut o, &mut lse).is_ok() {
        return Err("o of another shape was accepted".into());
    }
    let half = Tensor::<f16>::zeros(device, [2, 2, 5, 16])?;
    match call.forward(&half, &half, &half) {
        Err(error) if error.to_string().contains("descales") => PASSED,
        _ => Err("descales of inputs of 16 bits were accepted".into()),
    }
}

/// Keys that all count alike, with large values of one sign, on which the sums of both levels have to fit f16.
pub fn flat(device: &Device) -> Outcome {
    for dim in [64, 128, 256] {
        let case = in_fp8(Case {
            seqlen_q: 70,
            seqlen_kv: 5000,
            dim,
            ..Case::default()
        });
        let mut call = Call::new(&case);
        call.inputs[0]
            .slice_mut(s![.., .., ..40, ..])
            .fill(F8E4M3::ZERO);
        call.inputs[2].mapv_inplace(|v| F8E4M3::from_f32(400.0 + 0.1 * v.to_f32()));
        call.run(device)?;
    }
    PASSED
}

/// Values with a mean: o loses less than 0.5 % where tensor cores cut sums.
fn loses_little(device: &Device) -> Outcome {
    let lost = loss(device, 2048, None)?;
    match lost.abs() < 0.005 {
        true => PASSED,
        false => Err(format!("o lost {lost}").into()),
    }
}

/// An emulator that cuts sums as tensor cores do: one level loses more than two may.
pub fn one_level_loses_more(_: &Device) -> Outcome {
    let options = Options {
        truncated_fp8_sums: true,
        ..Options::default()
    };
    let device = Device::emulator_of(Class::Sm90, options)?;
    loses_little(&device)?;
    let lost = loss(&device, 2048, Some("fp8_f16_d64"))?;
    match lost > 0.005 {
        true => PASSED,
        false => Err(format!("one level lost {lost}").into()),
    }
}

/// What o loses with more and more keys, by sums in two levels less than 0.5 %.
pub fn loses_little_of_any_length(device: &Device) -> Outcome {
    for keys in [1024, 4096, 16384, 65536] {
        let [two, one] = [None, Some("fp8_f16_d64")].map(|kernel| loss(device, keys, kernel));
        let (two, one) = (two?, one?);
        println!("{keys} keys: two levels lose {two:.5}, one loses {one:.5}");
        if two.abs() > 0.005 {
            return Err(format!("o of {keys} keys lost {two}").into());
        }
    }
    PASSED
}

/// How much shorter o of values of mean 1 is than it should be, on so many keys.
fn loss(device: &Device, keys: usize, kernel: Option<&str>) -> Result<f64, Failed> {
    let case = Case {
        seqlen_q: 64,
        seqlen_kv: keys,
        dim: 64,
        ..in_fp8(Case::default())
    };
    // Scores differ by about 1: every key counts.
    let case = Case {
        scale: Some(1e-5),
        ..case
    };
    let mut call = Call::new(&case);
    call.inputs[2].mapv_inplace(|x| F8E4M3::from_f32(1.0 + 0.005 * x.to_f32()));
    call.descales[2].fill(1.0);
    let problem = case.problem()?;
    let [q, k, v] = call.inputs.each_ref().map(|x| tensor(device, x, false));
    let (q, k, v) = (q?, k?, v?);
    let mut attention = Attention::new();
    if let Some(kernel) = kernel {
        attention = attention.kernel(kernel);
    }
    let attention = attention.scale(problem.scale);
    let (o, _) = attention.forward_e4m3::<f16>(&q, &k, &v)?;
    let found: f64 = o.to_vec()?.into_iter().map(|x| f64::from(x.to_f32())).sum();
    let ones = Array2::ones((1, 1));
    let descales = [0, 1, 2].map(|_| ones.view());
    let views = call.inputs.each_ref().map(|x| x.view());
    let rounded = Rounded::of_e4m3(Fp8::new(), &problem, views, descales);
    let exact = in_f64(&problem, &rounded, false).sum();
    Ok(1.0 - found / exact)
}
