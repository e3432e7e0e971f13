//! The choice of a device.

use crate::args::{DeviceName, Run};
use anyhow::{Result, ensure};
use attention::Device;
use attention::emulator::Options;
use host::Cust;

/// Opens the device; for `auto`, says on standard error which one it took and why.
pub fn choose(run: &Run) -> Result<Device> {
    ensure!(
        !run.counters || matches!(run.device, DeviceName::Emulator(_)),
        "--counters needs --device emulator"
    );
    let cuda = |index| Device::with_driver(Cust::open(index)?);
    Ok(match run.device {
        DeviceName::Cpu => Device::cpu(),
        DeviceName::Emulator(class) => Device::emulator_of(
            class,
            Options {
                seed: run.seed,
                counters: run.counters,
                ..Options::default()
            },
        )?,
        DeviceName::Cuda(index) => cuda(index)?,
        DeviceName::Auto => cuda(0)
            .inspect(|device| eprintln!("device: {} (the first CUDA device)", device.name()))
            .unwrap_or_else(|reason| {
                eprintln!("device: CPU ({reason})");
                Device::cpu()
            }),
    })
}
