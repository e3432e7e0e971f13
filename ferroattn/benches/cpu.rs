//! The CPU path, and the emulator: `cargo bench -p ferroattn`.

use divan::Bencher;
use divan::counter::ItemsCount;
use ferroattn::emulator::Options;
use ferroattn::{Attention, Device, Element, Problem, Tensor, bf16, f16, random};

fn main() {
    divan::main();
}

/// Items are floating-point operations, so that `Gitem/s` are GFLOP/s.
#[divan::bench(
    types = [f16, bf16],
    args = [(1024, 64, false), (1024, 128, false), (4096, 64, false), (4096, 64, true)],
    sample_count = 10,
)]
fn forward<T: Element>(bencher: Bencher, (seqlen, dim, causal): (usize, usize, bool)) {
    let shape = [1, 4, seqlen, dim];
    let problem = Problem::new(shape, shape, shape, causal, None).expect("a valid problem");
    let inputs = random::inputs::<T>(&problem, 0);
    let [q, k, v] =
        inputs.map(|data| Tensor::new(&Device::cpu(), shape, &data).expect("a valid tensor"));
    let call = Attention::new().causal(causal);
    bencher
        .counter(ItemsCount::new(problem.flops() as u64))
        .bench_local(|| call.forward(&q, &k, &v).expect("a valid call"));
}

/// Items of the backward pass are floating-point operations, too, 2.5 times as many.
#[divan::bench(
    types = [f16, f32],
    args = [(1024, 64, false), (1024, 128, false), (4096, 64, false), (4096, 64, true)],
    sample_count = 10,
)]
fn backward<T: Element>(bencher: Bencher, (seqlen, dim, causal): (usize, usize, bool)) {
    let shape = [1, 4, seqlen, dim];
    let problem = Problem::new(shape, shape, shape, causal, None).expect("a valid problem");
    let [q, k, v] = random::inputs::<T>(&problem, 0);
    let d_o = random::output_gradient(&problem, 0);
    let [q, k, v, d_o] = [q, k, v, d_o]
        .map(|data| Tensor::new(&Device::cpu(), shape, &data).expect("a valid tensor"));
    let call = Attention::new().causal(causal);
    let (o, lse) = call.forward(&q, &k, &v).expect("a valid call");
    bencher
        .counter(ItemsCount::new(problem.backward_flops() as u64))
        .bench_local(|| {
            call.backward(&q, &k, &v, &o, &lse, &d_o)
                .expect("a valid call")
        });
}

/// One head of 1024 queries and keys on the emulator; items are warp-instructions.
#[divan::bench(args = [false, true])]
fn emulated(bencher: Bencher, counters: bool) {
    let device = |counters| {
        Device::emulator(Options {
            counters,
            ..Options::default()
        })
    };
    let call = |device: &Device| {
        let tensor = || Tensor::new(device, [1, 1, 1024, 64], &[f16::ONE; 1024 * 64]);
        let (q, k, v) = (tensor()?, tensor()?, tensor()?);
        Attention::new().forward(&q, &k, &v)
    };
    let counted = device(true).expect("kernels");
    call(&counted).expect("a valid call");
    let executed = counted.counters()[0].1.total().executed as usize;
    let device = device(counters).expect("kernels");
    bencher
        .counter(ItemsCount::new(executed))
        .bench_local(|| call(&device).expect("a valid call"));
}
