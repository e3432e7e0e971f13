//! The kernel for `sm_90a`, on an emulated H100 and on GPUs of compute capability 9.0.

use ferroattn::emulator::Options;
use ferroattn::internals::Steps;
use ferroattn::{Class, Device, Tensor, f16};
use kernels::abi::{BULK_BYTES, BulkCopyParams};
use kernels::catalog::{self, Auxiliary, Family};
use libtest_mimic::Completion;
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    // No piece, fewer than stages, and rounds that differ between blocks.
    let cases = [(0, 1), (1, 1), (3, 1), (9, 2), (37, 5)];
    cases
        .map(|(pieces, blocks)| {
            let name = format!("{pieces}_pieces_{blocks}_blocks");
            Test::kernels(name, move |device| flips_signs(device, pieces, blocks))
        })
        .into()
}

fn flips_signs(device: &Device, pieces: u32, blocks: u32) -> Outcome {
    let emulated;
    let device = if device.is_emulator() {
        emulated = Device::emulator_of(Class::Sm90, Options::default())?;
        &emulated
    } else {
        device
    };
    let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::BulkCopy));
    let found = device.facts().expect("it runs kernels").compute_capability;
    if !kernel.target.runs_on(found) {
        return Ok(Completion::ignored_with("its GPU has no sm_90a"));
    }
    let count = (pieces * BULK_BYTES / 2).max(1) as usize;
    let numbers: Vec<_> = (0..count)
        .map(|i| f16::from_f32((i % 2000) as f32 + 1.0))
        .collect();
    let from = Tensor::new(device, [1, 1, 1, count], &numbers)?;
    let mut to = Tensor::new(device, [1, 1, 1, count], &vec![f16::ZERO; count])?;
    let params = BulkCopyParams {
        from: from.address(),
        to: to.address_mut(),
        pieces,
        blocks,
    };
    let (mut steps, blocks) = (Steps::default(), u128::from(blocks));
    steps.launch(kernel.into(), blocks, kernel.launch.shared_bytes, &params)?;
    let plan = steps.finish(kernel.name, 1);
    // SAFETY: the parameters are the kernel's, and the buffers outlive the call.
    unsafe { plan.run(device, std::ptr::null_mut())? };
    let copied = to.to_vec()?;
    let whole = (pieces * BULK_BYTES / 2) as usize;
    for (i, (copied, number)) in copied.iter().zip(&numbers).enumerate().take(whole) {
        assert_eq!(*copied, -*number, "number {i}");
    }
    PASSED
}
