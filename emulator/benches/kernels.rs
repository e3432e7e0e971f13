//! Kernels of attention on the emulator, in the shapes of its tests: two sequences, few heads, ragged lengths.
//! `cargo bench -p emulator --bench kernels`.

use divan::Bencher;
use ferroattn::emulator::Options;
use ferroattn::{Attention, Class, Device, Element, Problem, Tensor, Window, f16, random};

fn main() {
    divan::main();
}

/// Inputs on an emulated device.
struct Inputs {
    problem: Problem,
    device: Device,
    q: Tensor<f16, 4>,
    k: Tensor<f16, 4>,
    v: Tensor<f16, 4>,
}

impl Inputs {
    /// Two sequences, four query heads to two of keys.
    fn new(class: Class, seqlen_q: usize, seqlen_kv: usize, dim: usize, causal: bool) -> Self {
        let device = Device::emulator_of(class, Options::default()).expect("kernels were compiled");
        let (q, kv) = ([2, 4, seqlen_q, dim], [2, 2, seqlen_kv, dim]);
        let problem = Problem::new(q, kv, kv, causal, None).expect("a valid problem");
        let tensors = random::inputs::<f16>(&problem, 0);
        let [q, k, v] = [q, kv, kv]
            .into_iter()
            .zip(tensors)
            .map(|(shape, data)| tensor(&device, shape, &data))
            .collect::<Vec<_>>()
            .try_into()
            .expect("three tensors");
        Inputs {
            problem,
            device,
            q,
            k,
            v,
        }
    }

    fn bench(&self, bencher: Bencher, call: &Attention) {
        bencher.bench_local(|| {
            let forward = call.forward(&self.q, &self.k, &self.v);
            forward.expect("a valid call")
        });
    }
}

fn tensor<T: Element>(device: &Device, shape: [usize; 4], data: &[T]) -> Tensor<T, 4> {
    Tensor::new(device, shape, data).expect("a valid tensor")
}

/// A forward pass by `mma.sync`.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn forward_f16_d64_causal(bencher: Bencher) {
    let call = Attention::new()
        .causal(true)
        .kernel("forward_f16_d64_causal");
    Inputs::new(Class::Sm80, 165, 341, 64, true).bench(bencher, &call);
}

/// A forward pass by `wgmma` and tensor copies.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn hopper_f16_d128(bencher: Bencher) {
    let call = Attention::new().kernel("hopper_f16_d128");
    Inputs::new(Class::Sm90, 165, 341, 128, false).bench(bencher, &call);
}

/// A forward pass with a window, a softcap and sinks.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn hopper_optional_f16_d128(bencher: Bencher) {
    let inputs = Inputs::new(Class::Sm90, 165, 341, 128, false);
    let sinks = random::sinks(&inputs.problem, 0);
    let sinks = Tensor::new(&inputs.device, [sinks.len()], &sinks).expect("a valid tensor");
    let window = Window {
        left: Some(70),
        right: Some(5),
    };
    let call = Attention::new()
        .kernel("hopper_optional_f16_d128")
        .window(window.left, window.right)
        .softcap(20.0)
        .sinks(&sinks);
    inputs.bench(bencher, &call);
}

/// A forward pass of a wide head.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn wide_f16_d768(bencher: Bencher) {
    let call = Attention::new();
    Inputs::new(Class::Sm80, 101, 149, 768, false).bench(bencher, &call);
}

/// A short forward pass on a new device, as most tests have it: the kernel's text is read, too.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn new_device(bencher: Bencher) {
    bencher.bench_local(|| {
        let inputs = Inputs::new(Class::Sm80, 130, 100, 64, false);
        let forward = Attention::new()
            .kernel("optional_f16_d64")
            .forward(&inputs.q, &inputs.k, &inputs.v);
        forward.expect("a valid call")
    });
}

/// The gradients, by `mma.sync` and by `wgmma`.
#[divan::bench(args = [Class::Sm80, Class::Sm90], sample_count = 3, sample_size = 1)]
fn backward_f16_d64(bencher: Bencher, class: Class) {
    let inputs = Inputs::new(class, 150, 150, 64, true);
    let Inputs {
        problem,
        device,
        q,
        k,
        v,
    } = &inputs;
    let call = Attention::new().causal(true);
    let (o, lse) = call.forward(q, k, v).expect("a valid call");
    let d_o = random::output_gradient::<f16>(problem, 0);
    let d_o = tensor(device, [2, 4, 150, 64], &d_o);
    bencher.bench_local(|| {
        let gradients = call.backward(q, k, v, &o, &lse, &d_o);
        gradients.expect("a valid call")
    });
}
