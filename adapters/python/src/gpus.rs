//! The GPUs, opened once.

use ferroattn::{Device, Result};
use std::sync::OnceLock;

/// CUDA devices that are kept open; programs have fewer.
const MOST: usize = 64;

/// Devices that are open, by their index: a failure to open is not kept.
static OPEN: [OnceLock<Device>; MOST] = [const { OnceLock::new() }; MOST];

/// The CUDA device of an index.
pub fn open(index: usize) -> Result<Device> {
    let Some(slot) = OPEN.get(index) else {
        return Device::cuda(index);
    };
    if let Some(device) = slot.get() {
        return Ok(device.clone());
    }
    let device = Device::cuda(index)?;
    Ok(slot.get_or_init(|| device).clone())
}
