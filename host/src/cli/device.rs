//! The choice of a device.

use super::args::{Args, DeviceName};
use attention::emulator::Options;
use attention::{Device, Result};

/// Opens the device; for `auto`, says on standard error which one it took and why.
pub fn choose(args: &Args) -> Result<Device> {
    match args.device {
        DeviceName::Cpu => Ok(Device::cpu()),
        DeviceName::Emulator(class) => Device::emulator_of(
            class,
            Options {
                seed: args.seed,
                counters: args.counters,
                ..Options::default()
            },
        ),
        DeviceName::Cuda(index) => Device::cuda(index),
        DeviceName::Auto => Ok(match Device::cuda(0) {
            Ok(device) => {
                eprintln!("device: {} (the first CUDA device)", device.name());
                device
            }
            Err(reason) => {
                eprintln!("device: CPU ({reason})");
                Device::cpu()
            }
        }),
    }
}
