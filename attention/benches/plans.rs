//! Time of a call on the host before the driver hears of it: `cargo bench -p attention --bench plans`.

use attention::{Attention, Class, Dtype, Facts, Problem, RawBackward, RawForward};
use divan::Bencher;

fn main() {
    divan::main();
}

fn problem(dim: usize) -> Problem {
    let shape = [1, 2, 512, dim];
    Problem::new(shape, shape, shape, true, None).expect("a valid problem")
}

#[divan::bench(args = [64, 128])]
fn forward(bencher: Bencher, dim: usize) {
    let (facts, args) = (
        Facts::emulated(Class::Sm90),
        RawForward::row_major(&problem(dim)),
    );
    let call = Attention::new().causal(true);
    bencher.bench_local(|| call.plan(Some(&facts), Dtype::F16, &args).expect("valid"));
}

#[divan::bench(args = [64, 128])]
fn backward(bencher: Bencher, dim: usize) {
    let (facts, args) = (
        Facts::emulated(Class::Sm90),
        RawBackward::row_major(&problem(dim)),
    );
    let call = Attention::new().causal(true);
    bencher.bench_local(|| {
        call.backward_plan(Some(&facts), Dtype::F16, &args)
            .expect("valid")
    });
}
