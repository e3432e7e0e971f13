//! Where attention is computed: a CUDA device, the CPU, or an emulated GPU.

pub mod driver;
pub mod emulation;
pub mod event;

pub use event::Event;

use crate::error::{Error, Result};
use crate::forward::schedule::Facts;
use crate::ptx;
use crate::tensor::Buffer;
use bytemuck::Pod;
use driver::Gpu;
use emulation::Emulation;
use kernels::catalog::Arch;
use kernels::catalog::class::Class;
use std::sync::Arc;
use sysinfo::System;

/// A CUDA device, the CPU, or an emulated GPU. Clones are the same device.
///
/// Work on a device runs in the order of the calls, whatever thread they come from. On a CUDA
/// device it may still run when a call returns; reading a buffer waits for it.
///
/// ```
/// # fn main() -> attention::Result<()> {
/// use attention::Device;
///
/// let device = Device::cuda(0).unwrap_or_else(|reason| {
///     eprintln!("{reason}");
///     Device::cpu()
/// });
/// let buffer = device.upload(&[1.0_f32, 2.0])?;
/// assert_eq!(buffer.to_vec()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Device(Backend);

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Cpu,
    Cuda(Arc<Gpu>),
    Emulator(Arc<Emulation>),
}

impl Device {
    /// The CPU, with the threads of the current rayon pool.
    #[must_use]
    pub fn cpu() -> Self {
        Device(Backend::Cpu)
    }

    /// The CUDA device of this index.
    ///
    /// # Errors
    /// If there is no NVIDIA driver or no such device, if no kernels were compiled into this
    /// program, or if the device is older than all of them.
    pub fn cuda(index: usize) -> Result<Self> {
        let gpu = Gpu::open(index)?;
        if !ptx::COMPILED {
            return Err(Error::NotCompiled);
        }
        let found = gpu.compute_capability();
        match Arch::ALL.iter().map(|arch| arch.compute_capability()).min() {
            Some(needed) if found < needed => Err(Error::ComputeCapability {
                device: gpu.name().to_owned(),
                found,
                needed_by: "every kernel",
                needed,
            }),
            _ => Ok(Device(Backend::Cuda(Arc::new(gpu)))),
        }
    }

    /// A new emulated A100, which runs the PTX of the kernels on the CPU: slowly, with every access
    /// and every collective instruction checked, and counted if the options say so.
    ///
    /// ```
    /// # fn main() -> attention::Result<()> {
    /// use attention::{Attention, Device, Error, Tensor, emulator::Options, f16};
    ///
    /// let device = match Device::emulator(Options { counters: true, ..Options::default() }) {
    ///     Err(Error::NotCompiled) => return Ok(()),
    ///     device => device?,
    /// };
    /// let [q, k, v] = [(); 3].map(|()| Tensor::new(&device, [1, 1, 40, 64], &[f16::ONE; 2560]));
    /// Attention::new().forward(&q?, &k?, &v?)?;
    /// let launches = device.counters();
    /// let (kernel, counters) = launches.first().expect("a kernel ran");
    /// assert_eq!(counters.total_of("ldmatrix").bank_conflicts(), 0, "{kernel}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no kernels were compiled into this program.
    pub fn emulator(options: emulator::Options) -> Result<Self> {
        Self::emulator_of(Class::Sm80, options)
    }

    /// Like [`emulator`](Self::emulator), but the device of any class: an A100, an RTX 3090, an H100 or
    /// a B200, with its number of multiprocessors, its L2 cache and, whatever the options say, its
    /// shared memory. So kernels are chosen and work is divided as on that GPU.
    ///
    /// # Errors
    /// As [`emulator`](Self::emulator).
    pub fn emulator_of(class: Class, options: emulator::Options) -> Result<Self> {
        let emulation = Emulation::new(Facts::emulated(class), options)?;
        Ok(Device(Backend::Emulator(Arc::new(emulation))))
    }

    /// What each launch of the last call on an emulated GPU did, in their order, with the kernel's name:
    /// if the keys were split, the last is that of a combine kernel. Empty on other devices, and before
    /// a call.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, emulator::Counters)> {
        match &self.0 {
            Backend::Emulator(emulation) => emulation.counters(),
            Backend::Cpu | Backend::Cuda(_) => Vec::new(),
        }
    }

    /// `CPU`, `emulator`, or the marketing name of the GPU.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Backend::Cpu => "CPU",
            Backend::Cuda(gpu) => gpu.name(),
            Backend::Emulator(_) => "emulator",
        }
    }

    /// Whether this is the CPU.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        matches!(self.0, Backend::Cpu)
    }

    /// Whether this is an emulated GPU.
    #[must_use]
    pub fn is_emulator(&self) -> bool {
        matches!(self.0, Backend::Emulator(_))
    }

    /// Waits until all work on the device is done.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of that work.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0 {
            Backend::Cpu | Backend::Emulator(_) => Ok(()),
            Backend::Cuda(gpu) => gpu.synchronize(),
        }
    }

    /// Bytes of memory that can be allocated now.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn free_memory(&self) -> Result<u64> {
        match &self.0 {
            Backend::Cpu | Backend::Emulator(_) => Ok(free_host_memory()),
            Backend::Cuda(gpu) => gpu.free_memory(),
        }
    }

    /// Allocates a copy of `data` on the device.
    ///
    /// # Errors
    /// If there is not enough memory, or the driver reports another failure.
    pub fn upload<T: Pod>(&self, data: &[T]) -> Result<Buffer<T>> {
        Buffer::from_slice(self, data)
    }

    /// Marks this point in the device's work, to time what comes between two such points.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn event(&self) -> Result<Event> {
        Event::record(self)
    }

    /// What the schedules of its kernels depend on; `None` on the CPU.
    pub(crate) fn facts(&self) -> Option<&Facts> {
        match &self.0 {
            Backend::Cpu => None,
            Backend::Cuda(gpu) => Some(gpu.facts()),
            Backend::Emulator(emulation) => Some(emulation.facts()),
        }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0
    }

    pub(crate) fn from_backend(backend: Backend) -> Self {
        Device(backend)
    }

    pub(crate) fn out_of_memory(&self, needed: usize) -> Error {
        Error::OutOfMemory {
            device: self.name().to_owned(),
            needed: needed as u64,
            free: self.free_memory().unwrap_or(0),
        }
    }
}

/// The same memory is reachable: both are the CPU, or the same GPU, emulated or not.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Backend::Cpu, Backend::Cpu) => true,
            (Backend::Cuda(a), Backend::Cuda(b)) => a.index() == b.index(),
            (Backend::Emulator(a), Backend::Emulator(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Device {}

/// What the machine has left, or what its control group leaves this process if that is less.
fn free_host_memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let group = system
        .cgroup_limits()
        .map_or(u64::MAX, |limits| limits.free_memory);
    system.available_memory().min(group)
}
