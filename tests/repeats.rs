//! Every run gives the same bits.

use crate::fp8::in_fp8;
use bytemuck::Pod;
use ferroattn::device::Emulator;
use ferroattn::emulator::Options;
use ferroattn::{
    Attention, BackwardInputs, Class, Device, Dtype, Element, F8E4M3, Fp8, RawForward, RawOptions,
    Tensor, bf16, f16,
};
use kernels::catalog::{Backward, Family, KERNELS};
use libtest_mimic::Failed;
use ndarray::Array4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tests::{Case, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let case = Case {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        seqlen_q: 200,
        seqlen_kv: 500,
        ..Case::default()
    };
    let packed = Case {
        seqlen_q: 50,
        ..case.clone()
    };
    let decode = Case {
        seqlen_q: 3,
        dim: 128,
        ..case.clone()
    };
    let mut tests = Vec::new();
    for (name, case) in [("forward", case), ("packed", packed), ("decode", decode)] {
        for splits in [1, 5] {
            for (mask, causal) in MASKS {
                let case = Case {
                    splits,
                    causal,
                    ..case.clone()
                };
                tests.push(Test::new(
                    format!("{name}_{mask}_{splits}_splits"),
                    move |device| {
                        repeat::<f16>(device, &case)?;
                        let dtype = Dtype::Bf16;
                        repeat::<bf16>(
                            device,
                            &Case {
                                dtype,
                                ..case.clone()
                            },
                        )
                    },
                ));
            }
        }
    }
    for (name, of_axes) in [
        ("batch_entries", [1, 4, 90]),
        ("heads", [2, 1, 90]),
        ("queries", [2, 4, 1]),
        ("all_axes", [1, 1, 1]),
    ] {
        let test = move |device: &Device| gradient_of_a_bias(device, of_axes);
        let test = Test::backward(format!("gradient_of_a_bias_summed_over_{name}"), test);
        tests.extend(test.emulated_as(Class::Sm90));
        tests.push(test);
    }
    for dim in [64, 128, 256] {
        let chain = Test::new(format!("fp8_d{dim}_chain"), move |device| {
            fp8_chain(device, dim)
        });
        tests.extend(chain.emulated_as(Class::Sm90));
        tests.push(chain.on_gpus());
        for (mask, causal) in MASKS {
            // Ragged, and more tiles than a GPU holds at a time.
            let heads = (1 << 14) / dim;
            let case = Case {
                heads,
                kv_heads: heads,
                seqlen_q: 90,
                seqlen_kv: 140,
                dim,
                causal,
                ..Case::default()
            };
            let (backward_case, fp8_case) = (case.clone(), in_fp8(case.clone()));
            tests.push(Test::cuda(
                format!("fp8_d{dim}_{mask}_beside_other_work"),
                move |device| {
                    let case = &fp8_case;
                    beside_other_work(case, forward::<f16>(device, case)?)?;
                    beside_other_work(case, forward_e4m3(device, case)?)
                },
            ));
            tests.push(Test::cuda(
                format!("forward_d{dim}_{mask}_beside_other_work"),
                move |device| beside_other_work(&case, forward::<f16>(device, &case)?),
            ));
            tests.push(Test::cuda(
                format!("backward_d{dim}_{mask}_beside_other_work"),
                move |device| {
                    let case = &backward_case;
                    beside_other_work(case, backward::<f16>(device, case)?)?;
                    let by_mma_sync = Case {
                        kernel: mma_sync_backward(device, case),
                        ..case.clone()
                    };
                    beside_other_work(&by_mma_sync, backward::<f16>(device, &by_mma_sync)?)
                },
            ));
        }
    }
    tests
}

const MASKS: [(&str, bool); 2] = [("full", false), ("causal", true)];

/// Runs the forward pass of a case several times; on the emulator, whose runs are alike, under other schedules.
pub fn repeat<T: Element>(device: &Device, case: &Case) -> Outcome {
    if device.is_emulator() {
        let facts = *device.facts().expect("it runs kernels");
        return case.check_schedules(2, |seed| {
            let options = Options {
                seed,
                ..Options::default()
            };
            Device::with_driver(Emulator::new(facts, options))
        });
    }
    // The CPU's threads share work anew in each run.
    let runs = if device.is_cpu() { 25 } else { 100 };
    same_bits(runs, case, forward::<T>(device, case)?)?;
    PASSED
}

/// Sums of a bias' gradient over axes of extent 1: on the emulator under other schedules, else run after run. Some rows have an
/// lse far from 0.
fn gradient_of_a_bias(device: &Device, [batch, heads, queries]: [usize; 3]) -> Outcome {
    let mut first: Option<Vec<u32>> = None;
    for run in 0..if device.is_emulator() { 3 } else { 20 } {
        let device = match device.is_emulator() {
            false => device.clone(),
            true => {
                let options = Options {
                    seed: run,
                    ..Options::default()
                };
                let facts = *device.facts().expect("it runs kernels");
                Device::with_driver(Emulator::new(facts, options))?
            }
        };
        let case = Case {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            seqlen_q: 90,
            seqlen_kv: 140,
            ..Case::default()
        };
        let [q, k, v] = inputs::<f16>(&device, &case)?;
        let row = |row: usize| if row.is_multiple_of(3) { -1e6 } else { 0.25 };
        let bias: Vec<f32> = (0..batch * heads * queries * 140)
            .map(|i| row(i / 140))
            .collect();
        let bias = Tensor::new(&device, [batch, heads, queries, 140], &bias)?;
        let call = Attention::new().bias(&bias);
        let (o, lse) = call.forward(&q, &k, &v)?;
        let all = call.backward_all(&BackwardInputs::new(&q, &k, &v, &o, &lse, &q))?;
        let d_bias = all.d_bias.expect("there is a bias").to_vec()?;
        let bits = d_bias.into_iter().map(f32::to_bits).collect();
        if first.as_ref().is_some_and(|first| *first != bits) {
            return Err(format!("run {run}: other bits").into());
        }
        first = Some(bits);
    }
    PASSED
}

/// Calls in FP8, each on the o of the one before, queued at once: launches of one begin before the other ends. Two buffers take turns, so that
/// memory that a call reads early has other numbers than in the call before.
fn fp8_chain(device: &Device, dim: usize) -> Outcome {
    // On a GPU, more tiles than it holds at a time, and fewer.
    let (calls, rows, turns, columns) = match device.is_emulator() {
        true => (4, 70, 1, &[256][..]),
        false => (20, 1000, 20, &[1 << 12, 1 << 9][..]),
    };
    for heads in columns.iter().map(|columns| columns / dim) {
        let shape = [2, heads, rows, dim];
        let numbers: Vec<_> = (0..shape.iter().product::<usize>())
            .map(|i| f16::from_f32((i as f32 * 0.7).sin() + (i % 7) as f32))
            .collect();
        let mut q = Tensor::new(device, shape, &numbers)?;
        let mut buffers = [Tensor::zeros(device, shape)?, Tensor::zeros(device, shape)?];
        let mut lse = Tensor::<f32, 3>::zeros(device, [2, heads, rows])?;
        let mut run = |waits: bool| -> ferroattn::Result<Vec<u16>> {
            buffers[0].copy_from(&q)?;
            for call in 0..calls {
                let [from, to] = [call % 2, 1 - call % 2].map(|i| buffers[i].as_raw_mut());
                let args = RawForward {
                    q: q.as_raw_mut(),
                    k: from,
                    v: from,
                    o: to,
                    lse: lse.as_raw_mut(),
                    options: RawOptions::default(),
                };
                // SAFETY: the tensors live until the numbers are read, and each has memory of its own; null is the default stream.
                unsafe {
                    let attention = Attention::new().fp8(Fp8::new());
                    attention.forward_raw(device, Dtype::F16, &args, std::ptr::null_mut())?;
                }
                if waits {
                    lse.to_vec()?;
                }
            }
            let o = buffers[calls % 2].to_vec()?;
            Ok(o.into_iter().map(f16::to_bits).collect())
        };
        let expected = run(true)?;
        if expected.iter().all(|&bits| bits == expected[0]) {
            return Err("o is the same everywhere".into());
        }
        for turn in 0..turns {
            if run(false)? != expected {
                return Err(format!("{heads} heads, turn {turn}: other bits").into());
            }
        }
    }
    PASSED
}

/// Runs once, and shows the bytes of each result.
trait Run: Fn(&mut dyn FnMut(&[u8])) -> ferroattn::Result<()> {}

impl<F: Fn(&mut dyn FnMut(&[u8])) -> ferroattn::Result<()>> Run for F {}

/// Runs a thousand times while another stream keeps the GPU busy.
fn beside_other_work(case: &Case, run: impl Run) -> Outcome {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| -> ferroattn::Result<()> {
            let q = Tensor::<bf16>::zeros(&Device::cuda(0)?, [1, 16, 1000, 128])?;
            while !done.load(Ordering::Relaxed) {
                Attention::new().forward(&q, &q, &q)?.1.to_vec()?;
            }
            Ok(())
        });
        let repeated = same_bits(1000, case, run);
        done.store(true, Ordering::Relaxed);
        other.join().expect("the other work does not panic")?;
        repeated?;
        PASSED
    })
}

/// Runs so many times.
fn same_bits(count: usize, case: &Case, run: impl Run) -> Result<(), Failed> {
    let mut first = Vec::new();
    run(&mut |result| first.push(result.to_vec()))?;
    for number in 1..count {
        let mut results = first.iter();
        let mut same = true;
        run(&mut |result| same &= results.next().is_some_and(|first| first == result))?;
        if !same {
            return Err(format!("{case}: run {number} differs from the first").into());
        }
    }
    Ok(())
}

/// The forward pass of a case: o and lse.
fn forward<T: Element>(device: &Device, case: &Case) -> ferroattn::Result<impl Run> {
    let [q, k, v] = inputs::<T>(device, case)?;
    let options = case.options(device);
    Ok(move |show: &mut dyn FnMut(&[u8])| {
        let (o, lse) = options.forward(&q, &k, &v)?;
        show(bytemuck::cast_slice(&o.to_vec()?));
        show(bytemuck::cast_slice(&lse.to_vec()?));
        Ok(())
    })
}

/// The forward pass of a case whose inputs are e4m3: o and lse.
fn forward_e4m3(device: &Device, case: &Case) -> ferroattn::Result<impl Run> {
    let [q, k, v] = inputs_of(device, case, F8E4M3::from_f32)?;
    let options = Attention::new().causal(case.causal);
    Ok(move |show: &mut dyn FnMut(&[u8])| {
        let (o, lse) = options.forward_e4m3::<f16>(&q, &k, &v)?;
        show(bytemuck::cast_slice(&o.to_vec()?));
        show(bytemuck::cast_slice(&lse.to_vec()?));
        Ok(())
    })
}

/// The backward pass of a case, deterministic: dq, dk and dv. The gradient of o is q.
fn backward<T: Element>(device: &Device, case: &Case) -> ferroattn::Result<impl Run> {
    let [q, k, v] = inputs::<T>(device, case)?;
    let options = Attention::new().causal(case.causal);
    let (o, lse) = options.forward(&q, &k, &v)?;
    let options = match &case.kernel {
        Some(kernel) => options.kernel(kernel),
        None => options,
    };
    Ok(move |show: &mut dyn FnMut(&[u8])| {
        let (dq, dk, dv) = options.backward(&q, &k, &v, &o, &lse, &q)?;
        for gradient in [dq, dk, dv] {
            show(bytemuck::cast_slice(&gradient.to_vec()?));
        }
        Ok(())
    })
}

/// q, k and v of a case's seed.
fn inputs<T: Element>(device: &Device, case: &Case) -> ferroattn::Result<[Tensor<T>; 3]> {
    inputs_of(device, case, T::from_f32)
}

/// [`inputs`] in another type.
fn inputs_of<T: Pod>(
    device: &Device,
    case: &Case,
    round: impl Fn(f32) -> T,
) -> ferroattn::Result<[Tensor<T>; 3]> {
    let inputs = case.inputs();
    let upload = |values: &Array4<f32>| {
        let data: Vec<T> = values.iter().map(|&value| round(value)).collect();
        Tensor::new(device, values.dim().into(), &data)
    };
    Ok([upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?])
}

/// The main kernel by `mma.sync` for the gradients of a case.
fn mma_sync_backward(device: &Device, case: &Case) -> Option<String> {
    let class = device.facts()?.class().into();
    let kernel = KERNELS.iter().find(|kernel| match kernel.family {
        Family::Backward(Backward::Main(main)) => {
            let serves = main.dim as usize == case.dim && case.dtype == main.dtype.into();
            serves && kernel.classes.contains(&class)
        }
        _ => false,
    })?;
    Some(kernel.name.to_owned())
}
