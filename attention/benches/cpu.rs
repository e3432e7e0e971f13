//! The CPU path: `cargo bench -p host`.

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
