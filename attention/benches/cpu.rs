//! The CPU path, and the emulator: `cargo bench -p attention`.

use attention::emulator::Options;
use attention::{Attention, Device, Element, Tensor, bf16, f16};
use divan::Bencher;
use divan::counter::ItemsCount;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

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
    let mut rng = SmallRng::seed_from_u64(0);
    let mut tensor = || {
        let shape = [1, 4, seqlen, dim];
        let data: Vec<T> = (0..shape.iter().product())
            .map(|_| T::from_f32(rng.sample(StandardNormal)))
            .collect();
        Tensor::new(&Device::cpu(), shape, &data).expect("a valid tensor")
    };
    let (q, k, v) = (tensor(), tensor(), tensor());
    let call = Attention::new().causal(causal);
    let problem = attention::Problem::new(q.shape(), k.shape(), v.shape(), causal, None)
        .expect("a valid problem");
    bencher
        .counter(ItemsCount::new(problem.flops() as u64))
        .bench_local(|| call.forward(&q, &k, &v).expect("a valid call"));
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
