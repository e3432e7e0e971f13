//! Memory of the device and of the host.

use anyhow::{Context, Result, ensure};
use attention::{Device, Tensor};
use indicatif::HumanBytes;
use std::hint::black_box;

/// An output whose elements fail the check if a kernel leaves them out.
pub fn poisoned<T: bytemuck::Pod, const R: usize>(
    device: &Device,
    shape: [usize; R],
    poison: T,
) -> attention::Result<Tensor<T, R>> {
    Tensor::new(device, shape, &vec![poison; shape.iter().product()])
}

/// Bytes of a tensor.
pub fn bytes<const R: usize>(shape: [usize; R], element: usize) -> u128 {
    let extents = shape.into_iter().map(|extent| extent as u128);
    extents.product::<u128>() * element as u128
}

/// Compares the bytes that a device and the host, which may be one, need for these `sizes` with what is
/// free.
pub fn expect_free(device: &Device, on_device: u128, on_host: u128, sizes: &str) -> Result<()> {
    let (host, on_host) = if device.is_cpu() {
        (device.clone(), on_host + on_device)
    } else if device.is_emulator() {
        // Its memory is the host's, which takes two bytes for each.
        (device.clone(), on_host + 2 * on_device)
    } else {
        (Device::cpu(), on_host)
    };
    let mut needs = vec![(&host, on_host)];
    if *device != host {
        needs.push((device, on_device));
    }
    for (place, needed) in needs {
        let free = host::free_memory(place).context("cannot tell how much memory is free")?;
        ensure!(
            needed <= u128::from(free),
            "{sizes} too large: they need {} of memory on {}, which has {} free",
            shown(needed),
            place.name(),
            HumanBytes(free),
        );
    }
    // A limit on the process (`ulimit -v`) may be tighter; each thread and the program take a part of it.
    let threads = rayon::current_num_threads() as u128;
    let with_threads = on_host + (threads + 2) * (64 << 20);
    let mut all = Vec::<u8>::new();
    let allowed =
        usize::try_from(with_threads).is_ok_and(|size| all.try_reserve_exact(size).is_ok());
    black_box(all);
    ensure!(
        allowed,
        "{sizes} too large: they need {} of memory, more than this process may have",
        shown(on_host)
    );
    Ok(())
}

fn shown(bytes: u128) -> HumanBytes {
    HumanBytes(bytes.try_into().unwrap_or(u64::MAX))
}
