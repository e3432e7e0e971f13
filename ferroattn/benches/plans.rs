//! Time of a call on the host: its plan, and all that happens before the driver hears of it:
//! `cargo bench -p ferroattn --bench plans`.

mod silent;

use divan::Bencher;
use ferroattn::{
    Attention, Class, Device, Dtype, Facts, Plan, Problem, RawBackward, RawForward, RawWorkspace,
};
use std::ptr::null_mut;

fn main() {
    divan::main();
}

fn problem(dim: usize) -> Problem {
    let shape = [1, 2, 512, dim];
    Problem::new(shape, shape, shape, true, None).expect("a valid problem")
}

fn forward_plan(facts: &Facts, args: &RawForward) -> Plan {
    let call = Attention::new().causal(true);
    call.plan(Some(facts), Dtype::F16, args).expect("valid")
}

fn backward_plan(facts: &Facts, args: &RawBackward) -> Plan {
    let call = Attention::new().causal(true);
    let plan = call.backward_plan(Some(facts), Dtype::F16, args);
    plan.expect("valid")
}

#[divan::bench(args = [64, 128])]
fn forward(bencher: Bencher, dim: usize) {
    let facts = Facts::emulated(Class::Sm90);
    let args = RawForward::row_major(&problem(dim));
    bencher.bench_local(|| forward_plan(&facts, &args));
}

#[divan::bench(args = [64, 128])]
fn backward(bencher: Bencher, dim: usize) {
    let facts = Facts::emulated(Class::Sm90);
    let args = RawBackward::row_major(&problem(dim));
    bencher.bench_local(|| backward_plan(&facts, &args));
}

#[divan::bench(args = [64, 128])]
fn forward_queue(bencher: Bencher, dim: usize) {
    let args = RawForward::row_major(&problem(dim));
    queue(bencher, |facts| forward_plan(facts, &args));
}

#[divan::bench(args = [64, 128])]
fn backward_queue(bencher: Bencher, dim: usize) {
    let args = RawBackward::row_major(&problem(dim));
    queue(bencher, |facts| backward_plan(facts, &args));
}

/// Times the launches of a plan that is kept, without the driver.
fn queue(bencher: Bencher, plan: impl Fn(&Facts) -> Plan) {
    let device = Device::with_driver(silent::driver()).expect("kernels are compiled");
    let plan = plan(device.facts().expect("a GPU"));
    let workspace = RawWorkspace {
        address: RawWorkspace::ALIGNMENT,
        bytes: plan.workspace_bytes,
    };
    bencher.bench_local(|| {
        // SAFETY: nothing runs.
        unsafe { plan.run_in(&device, workspace, null_mut()) }.expect("nothing can fail");
    });
}
