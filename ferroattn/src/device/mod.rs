//! Where attention is computed: a CUDA device, the CPU, or an emulated GPU.

#[cfg(feature = "cuda")]
mod attributes;
#[cfg(feature = "cuda")]
mod binding;
mod class;
#[cfg(feature = "cuda")]
mod cuda;
pub mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod event;
mod facts;
mod gpu;
pub(crate) mod memory;
pub(crate) mod plans;
mod stream;
#[cfg(test)]
mod watched;

#[cfg(feature = "cuda")]
pub use binding::{Binding, Cudarc, passed};
pub use class::Class;
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaDriver};
pub use driver::{Driver, RawStream};
#[cfg(feature = "emulator")]
pub use emulator::Emulator;
pub use event::Event;
pub use facts::{Facts, SharedMemory};
pub(crate) use gpu::Gpu;
pub(crate) use memory::Memory;
pub use stream::Stream;

pub use crate::tensor_map::{Swizzle, TensorMap};

use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::ptx;
#[cfg(feature = "emulator")]
use ::emulator::{Counters, Options};
use kernels::catalog::Target;
use std::sync::Arc;

/// A CUDA device, the CPU, or an emulated GPU. Clones are the same device.
///
/// Work on a device runs in the order of the calls, whatever thread they come from, unless they are on [streams](Stream). On a CUDA
/// device it may still run when a call returns; reading a buffer waits for it.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::Device;
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
pub struct Device(pub(crate) Option<Arc<Gpu>>);

impl Device {
    /// The CPU, with the threads of the current rayon pool. It computes with the feature `cpu`; without it, it holds tensors.
    pub fn cpu() -> Self {
        Device(None)
    }

    /// The CUDA device of this index. Feature `cuda`.
    ///
    /// # Errors
    /// If there is no NVIDIA driver or no such device, if no kernels were compiled into this
    /// program, or if the device is older than all of them.
    #[cfg(feature = "cuda")]
    pub fn cuda(index: usize) -> Result<Self> {
        Self::with_driver(Cuda::open(index)?)
    }

    /// A device that launches through this driver.
    ///
    /// # Errors
    /// If no kernels were compiled into this program, as without the feature `ptx`, the device is older than all of them, or no device has its facts.
    pub fn with_driver(driver: impl Driver + 'static) -> Result<Self> {
        if !ptx::COMPILED {
            return Err(Error::NotCompiled);
        }
        driver.facts().validate()?;
        let found = driver.facts().compute_capability;
        // All devices that run another target run this one.
        let needed = Target::SM80;
        if !needed.runs_on(found) {
            return Err(Error::ComputeCapability {
                device: driver.name().to_owned(),
                found,
                needed_by: "every kernel",
                needed: needed.devices,
            });
        }
        Ok(Device(Some(Arc::new(Gpu::new(driver)))))
    }

    /// A new emulated A100, which runs the PTX of the kernels on the CPU: slowly, with every access
    /// and every collective instruction checked, and counted if the options say so. Feature `emulator`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Error, Tensor, emulator::Options, f16};
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
    #[cfg(feature = "emulator")]
    pub fn emulator(options: Options) -> Result<Self> {
        Self::emulator_of(Class::Sm80, options)
    }

    /// A new emulated device of a class: an A100, an RTX 3090, an H100 or a B200. Its number of
    /// multiprocessors, L2 cache and shared memory are that GPU's, so kernels are chosen and work is
    /// divided as there. Feature `emulator`.
    ///
    /// # Errors
    /// The conditions of [`emulator`](Self::emulator).
    #[cfg(feature = "emulator")]
    pub fn emulator_of(class: Class, options: Options) -> Result<Self> {
        Self::with_driver(Emulator::new(Facts::emulated(class), options))
    }

    /// Compiles the kernels of plans, several at once, so that no call with these plans waits for it.
    ///
    /// A GPU's driver compiles a kernel when a call first needs it, for each combination of options anew: 0.3 to 2 seconds,
    /// or milliseconds where the driver has it on disk from an earlier program. The CPU compiles nothing, and its plans are
    /// empty.
    ///
    /// A plan for one call serves others too. Which kernels a call needs depends on dtype, head dims, masks and options,
    /// on whether rows are aligned, and on lengths: whether keys are split, and how large tiles are.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Dtype, Problem, RawBackward, RawForward};
    ///
    /// let device = Device::cuda(0).unwrap_or(Device::cpu());
    /// let attention = Attention::new().causal(true).softcap(30.0);
    /// let (q, kv) = ([4, 32, 2048, 128], [4, 8, 2048, 128]);
    /// let problem = attention.problem(q, kv, kv)?;
    /// let (forward, backward) = (RawForward::row_major(&problem), RawBackward::row_major(&problem));
    /// device.warm_up(&[
    ///     attention.plan(device.facts(), Dtype::Bf16, &forward)?,
    ///     attention.backward_plan(device.facts(), Dtype::Bf16, &backward)?,
    /// ])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the device does not run a kernel, or the driver reports a failure: the first one, in the order of the plans. All
    /// other kernels are compiled.
    pub fn warm_up(&self, plans: &[Plan]) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        let steps = plans.iter().flat_map(|plan| &plan.steps);
        gpu.load_all(steps.map(|step| step.entry))
    }

    /// Counters of each launch of the last call on an emulated GPU, with the kernel's name, in launch order.
    /// Empty on other devices, and before a call. Feature `emulator`.
    #[cfg(feature = "emulator")]
    pub fn counters(&self) -> Vec<(&'static str, Counters)> {
        let counters = self.gpu().map(|gpu| gpu.driver().counters());
        counters.unwrap_or_default()
    }

    /// `CPU`, `emulator`, or the marketing name of the GPU.
    pub fn name(&self) -> &str {
        self.gpu().map_or("CPU", |gpu| gpu.driver().name())
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this is an emulated GPU.
    pub fn is_emulator(&self) -> bool {
        self.gpu().is_some_and(|gpu| gpu.driver().index().is_none())
    }

    /// Waits until all work on the device is done.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), |gpu| gpu.driver().synchronize())
    }

    /// Bytes of memory that can be allocated now; `None` on the CPU and the emulator, whose memory is the host's.
    ///
    /// # Errors
    /// If the driver reports a failure.
    pub fn free_memory(&self) -> Result<Option<u64>> {
        self.gpu()
            .map_or(Ok(None), |gpu| gpu.driver().free_memory())
    }

    /// The facts that plans depend on; `None` on the CPU.
    pub fn facts(&self) -> Option<&Facts> {
        self.gpu().map(|gpu| gpu.driver().facts())
    }

    /// The GPU that launches kernels; `None` on the CPU.
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.0.as_ref()
    }

    pub(crate) fn out_of_memory(&self, needed: usize) -> Error {
        Error::OutOfMemory {
            device: self.name().to_owned(),
            needed: needed as u64,
            free: self.free_memory().ok().flatten(),
        }
    }
}

/// Equal devices reach the same memory: both are the CPU, the same emulated GPU, or the same GPU through any driver.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (self.gpu(), other.gpu()) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                let [index, other] = [a, b].map(|gpu| gpu.driver().index());
                Arc::ptr_eq(a, b) || (index.is_some() && index == other)
            }
            _ => false,
        }
    }
}

impl Eq for Device {}

#[cfg(test)]
mod tests {
    use super::watched::Watched;
    use super::{Device, Facts};
    use crate::device::Class;
    use crate::error::{Error, Result};
    use crate::plan::Steps;
    use crate::{Attention, Dtype, RawBackward, RawForward, Tensor, f16};
    use ::emulator::Options;
    use kernels::abi::ForwardParams;
    use kernels::catalog::KERNELS;
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Even a plan for another device does not run in more shared memory than this one has.
    #[test]
    fn blocks_have_the_devices_shared_memory() {
        let device = match Device::emulator_of(Class::Sm86, Options::default()) {
            Err(Error::NotCompiled) => return,
            device => device.expect("an emulated GPU"),
        };
        let most = Facts::emulated(Class::Sm86).shared.block;
        let mut kernels = KERNELS.iter();
        let large = kernels.find(|kernel| kernel.launch.shared_bytes > most);
        let large = large.expect("an A100's");
        let params = ForwardParams::default();
        let mut steps = Steps::default();
        let launched = steps.launch(large.into(), 1, large.launch.shared_bytes, &params);
        launched.expect("one block");
        let plan = steps.finish(large.name, 1);
        // SAFETY: the emulator refuses the launch, and checks every access of one that it does not.
        let refused = unsafe { plan.run(&device, std::ptr::null_mut()) };
        match refused {
            Err(Error::Emulator(report)) => assert!(report.contains("101376"), "{report}"),
            other => panic!("{other:?}"),
        }
    }

    /// Kernels with options, the forward pass split, on devices with and without kernels for Hopper.
    #[test]
    fn after_a_warm_up_nothing_is_compiled() -> Result<()> {
        for class in [Class::Sm80, Class::Sm90] {
            let loads = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&loads);
            let driver = Watched::new(class, move |_: &str| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            let device = match Device::with_driver(driver) {
                Err(Error::NotCompiled) => return Ok(()),
                device => device?,
            };
            let (q, k) = ([1, 2, 40, 64], [1, 1, 200, 64]);
            let bias = Tensor::new(&device, [1, 1, 1, 200], &[0.5_f32; 200])?;
            let mask = Tensor::new(&device, [1, 1, 1, 200], &[1_u8; 200])?;
            let attention = Attention::new().splits(2).bias(&bias).mask(&mask);
            let problem = attention.problem(q, k, k)?;
            let plans = [
                attention.plan(device.facts(), Dtype::F16, &RawForward::row_major(&problem))?,
                attention.backward_plan(
                    device.facts(),
                    Dtype::F16,
                    &RawBackward::row_major(&problem),
                )?,
            ];
            device.warm_up(&plans)?;
            let steps = plans.iter().flat_map(|plan| &plan.steps);
            let kernels: HashSet<_> = steps.map(|step| step.entry.name).collect();
            let compiled = loads.load(Ordering::Relaxed);
            assert_eq!(compiled as usize, kernels.len(), "{kernels:?}");
            let q = Tensor::new(&device, q, &[f16::ONE; 2 * 40 * 64])?;
            let k = Tensor::new(&device, k, &[f16::ONE; 200 * 64])?;
            let (o, lse) = attention.forward(&q, &k, &k)?;
            attention.backward(&q, &k, &k, &o, &lse, &q)?;
            assert_eq!(loads.load(Ordering::Relaxed), compiled);
        }
        Ok(())
    }

    /// Not of those before: nothing is launched without keys.
    #[test]
    fn counters_are_of_the_last_call() -> Result<()> {
        let device = match Device::emulator(Options::default()) {
            Err(Error::NotCompiled) => return Ok(()),
            device => device?,
        };
        let q = Tensor::new(&device, [1, 1, 40, 64], &[f16::ONE; 40 * 64])?;
        let none = Tensor::<f16>::zeros(&device, [1, 1, 0, 64])?;
        for (k, launches) in [(&q, 1), (&q, 1), (&none, 0)] {
            Attention::new().forward(&q, k, k)?;
            let kernels = Vec::from_iter(device.counters().iter().map(|(kernel, _)| *kernel));
            assert_eq!(kernels.len(), launches, "{kernels:?}");
        }
        Ok(())
    }

    #[test]
    fn the_cpu_has_nothing_to_warm_up() -> Result<()> {
        let shape = [1, 1, 8, 64];
        let problem = Attention::new().problem(shape, shape, shape)?;
        let plan = Attention::new().plan(None, Dtype::F16, &RawForward::row_major(&problem))?;
        Device::cpu().warm_up(&[plan])
    }
}
