//! The rate at which the device copies its memory: what a kernel that does little else is held to.

use crate::stats;
use anyhow::Result;
use attention::Device;

/// Elements of the buffer that is copied: 512 MB, far more than any cache holds.
const ELEMENTS: u32 = 1 << 27;

/// Copies before the timed ones, and those.
const COPIES: (usize, usize) = (3, 20);

/// 10^9 bytes a second, read and written together, at the median of some copies.
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
    let source = device.upload(&data)?;
    let mut target = device.upload(&data)?;
    let (lead, timed) = COPIES;
    for _ in 0..lead {
        target.copy_from(&source)?;
    }
    let mut events = Vec::with_capacity(timed);
    for _ in 0..timed {
        let start = device.event()?;
        target.copy_from(&source)?;
        events.push([start, device.event()?]);
    }
    let times = events.iter().map(|[start, end]| end.since(start));
    let seconds = times.map(|time| Ok(time?.as_secs_f64()));
    let seconds = seconds.collect::<attention::Result<Vec<_>>>()?;
    let bytes = 2 * size_of_val(data.as_slice());
    Ok(bytes as f64 / stats::median(&seconds) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::bandwidth_of;
    use attention::Device;

    #[test]
    fn a_copy_takes_time() {
        let rate = bandwidth_of(&Device::cpu(), 1 << 16).expect("copied");
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
    }
}
