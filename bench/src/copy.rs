//! The rate at which the device copies its memory: a bound for kernels that hardly compute.

use crate::stats;
use crate::subject::time;
use anyhow::Result;
use ferroattn::{Device, Tensor};

/// Elements of the buffer that is copied: 512 MB, far more than any cache holds.
const ELEMENTS: u32 = 1 << 27;

/// Untimed copies, and timed ones.
const COPIES: (usize, usize) = (3, 20);

/// The median rate in 10^9 bytes a second, read and written together.
///
/// # Errors
/// If the device has no room for two buffers, or fails.
pub fn bandwidth(device: &Device) -> Result<f64> {
    bandwidth_of(device, ELEMENTS)
}

fn bandwidth_of(device: &Device, elements: u32) -> Result<f64> {
    let data: Vec<u32> = (0..elements)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect();
    let source = Tensor::new(device, [data.len()], &data)?;
    let mut target = Tensor::new(device, [data.len()], &data)?;
    let (lead, timed) = COPIES;
    let times = time(device, lead, timed, || Ok(target.copy_from(&source)?))?;
    let bytes = 2 * size_of_val(data.as_slice());
    Ok(bytes as f64 / stats::median(&times) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::bandwidth_of;
    use ferroattn::Device;

    #[test]
    fn a_copy_takes_time() {
        let rate = bandwidth_of(&Device::cpu(), 1 << 16).expect("copied");
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
    }
}
