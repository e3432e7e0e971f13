//! Parts of the command beside the library: [`Cust`], its driver, and the host's free memory.

mod cust;

pub use cust::Cust;
use ferroattn::{Device, Result};
use sysinfo::System;

/// Bytes of memory that can be allocated on a device now. The memory of the CPU and of the emulator is the machine's,
/// or what its control group leaves this process if that is less.
///
/// # Errors
/// If the driver reports a failure.
pub fn free_memory(device: &Device) -> Result<u64> {
    Ok(device.free_memory()?.unwrap_or_else(|| {
        let mut system = System::new();
        system.refresh_memory();
        let group = system.cgroup_limits();
        let allowed = group.map_or(u64::MAX, |limits| limits.free_memory);
        system.available_memory().min(allowed)
    }))
}
