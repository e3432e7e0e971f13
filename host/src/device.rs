//! The choice of a device.

use crate::args::DeviceName;
use anyhow::{Result, ensure};
use attention::Device;
use attention::emulator::Options;

/// Opens the device; for `auto`, says on standard error which one it took and why.
pub fn choose(name: DeviceName, seed: u64, counters: bool) -> Result<Device> {
    ensure!(
        !counters || matches!(name, DeviceName::Emulator(_)),
        "--counters needs --device emulator"
    );
    Ok(match name {
        DeviceName::Cpu => Device::cpu(),
        DeviceName::Emulator(class) => Device::emulator_of(
            class,
            Options {
                seed,
                counters,
                ..Options::default()
            },
        )?,
        DeviceName::Cuda(index) => Device::cuda(index)?,
        DeviceName::Auto => match Device::cuda(0) {
            Ok(device) => {
                eprintln!("device: {} (the first CUDA device)", device.name());
                device
            }
            Err(reason) => {
                eprintln!("device: CPU ({reason})");
                Device::cpu()
            }
        },
    })
}
