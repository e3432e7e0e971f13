//! The choice of a device, and advice where it could not be a GPU.

use crate::args::{DeviceName, Run};
use anyhow::{Result, ensure};
use ferroattn::emulator::Options;
use ferroattn::internals::ptx;
use ferroattn::{Device, Error};
use host::Cust;

/// A device to run on.
pub struct Chosen {
    pub device: Device,
    /// Why `auto` took no GPU.
    no_gpu: Option<Error>,
}

/// Opens the device; for `auto`, says on standard error which one it took and why.
pub fn choose(run: &Run) -> Result<Chosen> {
    ensure!(
        !run.counters || matches!(run.device, DeviceName::Emulator(_)),
        "--counters needs --device emulator"
    );
    let cuda = |index| Device::with_driver(Cust::open(index)?);
    let device = match run.device {
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
        DeviceName::Auto => match cuda(0) {
            Ok(device) => {
                eprintln!("device: {} (the first CUDA device)", device.name());
                device
            }
            Err(reason) => {
                eprintln!("device: CPU ({reason})");
                return Ok(Chosen {
                    device: Device::cpu(),
                    no_gpu: Some(reason),
                });
            }
        },
    };
    Ok(Chosen {
        device,
        no_gpu: None,
    })
}

impl Chosen {
    /// Ends the output with what is missing for a GPU, on standard error; not beside `--json`, which programs read.
    pub fn advise(&self, run: &Run) {
        if let Some(reason) = self.no_gpu.as_ref().filter(|_| !run.json) {
            for line in advice(reason, ptx::COMPILED) {
                eprintln!("note: {line}");
            }
        }
    }
}

/// Lines on each piece that a run on the CPU lacks for a GPU, and how to get it.
fn advice(reason: &Error, compiled: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if !compiled {
        lines.push(
            "this program was built without GPU kernels; type cargo xtask setup, then build again"
                .to_owned(),
        );
    }
    let missing = match reason {
        Error::NotCompiled => return lines,
        Error::NoDriver(_) => {
            "there is no NVIDIA driver; install one to compute on a GPU".to_owned()
        }
        Error::NoDevice { .. } => {
            "the NVIDIA driver finds no GPU; nvidia-smi lists those it has".to_owned()
        }
        other => format!("the GPU cannot be used: {other}"),
    };
    lines.push(format!("this ran on the CPU, because {missing}"));
    if compiled {
        lines.push("--device emulator runs the GPU's kernels here, checked and slowly".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::advice;
    use ferroattn::Error;

    #[test]
    fn advice_names_each_missing_piece_and_what_to_do() {
        let no_driver = Error::NoDriver("libcuda.so.1: no such file".to_owned());
        let no_device = Error::NoDevice { index: 0, count: 0 };
        let broken = Error::Cuda {
            operation: "opening the device",
            status: 46,
            message: "device busy".to_owned(),
        };
        for (reason, compiled, expected) in [
            (&Error::NotCompiled, false, &["cargo xtask setup"][..]),
            (&no_driver, false, &["cargo xtask setup", "install one"]),
            (&no_driver, true, &["install one", "--device emulator"]),
            (&no_device, true, &["nvidia-smi", "--device emulator"]),
            (&broken, true, &["device busy", "--device emulator"]),
        ] {
            let lines = advice(reason, compiled);
            assert_eq!(lines.len(), expected.len(), "{lines:?}");
            for (line, part) in lines.iter().zip(expected) {
                assert!(line.contains(part), "{line}");
            }
        }
    }
}
