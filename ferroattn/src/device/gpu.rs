//! A device that launches kernels: its driver, and what is loaded.

use super::driver::{Driver, Handle, RawStream};
use super::plans::Plans;
use crate::backward::RawBackward;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::forward::RawForward;
use crate::recent::Recent;
use crate::tensor_map::TensorMap;
use foldhash::fast::FixedState;
use kernels::abi::Switches;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const UNSUPPORTED_PTX_VERSION: u32 = 222;

/// Tensor maps that a device keeps.
const KEPT_MAPS: usize = 256;

/// A driver with its modules.
#[derive(Debug)]
pub struct Gpu {
    driver: Box<dyn Driver>,
    kernels: Mutex<HashMap<Key, Slot, FixedState>>,
    maps: Mutex<HashMap<TensorMap, [u8; 128], FixedState>>,
    /// Plans of forward passes.
    pub forward: Plans<RawForward>,
    /// Plans of backward passes.
    pub backward: Plans<RawBackward>,
}

/// A kernel's name, its module, the address of its crate's modules, since kernels of two crates may have one name, and what is on.
type Key = (&'static str, &'static str, usize, Switches);

/// A kernel that is loaded, or not yet. It is locked while the driver compiles it: who wants this kernel waits, others do not.
type Slot = Arc<Mutex<Option<Loaded>>>;

/// A module with its only kernel.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    module: Handle,
    function: Handle,
}

impl Gpu {
    /// A device with nothing loaded.
    pub fn new(driver: impl Driver + 'static) -> Self {
        Gpu {
            driver: Box::new(driver),
            kernels: Mutex::default(),
            maps: Mutex::default(),
            forward: Plans::default(),
            backward: Plans::default(),
        }
    }

    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The function of a kernel, which is compiled on first use. A failure is not kept.
    pub fn function(&self, kernel: &Entry) -> Result<Handle> {
        let slot = Arc::clone(lock(&self.kernels).entry(key(kernel)).or_default());
        let mut slot = lock(&slot);
        if let Some(Loaded { function, .. }) = *slot {
            return Ok(function);
        }
        Ok(slot.insert(self.load(kernel)?).function)
    }

    /// Compiles kernels, several at once. Gives the first failure, in their order.
    pub fn load_all(&self, kernels: impl Iterator<Item = Entry>) -> Result<()> {
        let mut keys = HashSet::new();
        let kernels: Vec<_> = kernels.filter(|kernel| keys.insert(key(kernel))).collect();
        // Two at least: one may wait for a caller that compiles the kernel already.
        let threads = thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
        let rest = Mutex::new(kernels.iter().enumerate());
        let next = || lock(&rest).next();
        let failures = Mutex::new(BTreeMap::new());
        let load = || {
            while let Some((i, kernel)) = next() {
                if let Err(error) = self.function(kernel) {
                    lock(&failures).insert(i, error);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..threads.min(kernels.len()) {
                scope.spawn(load);
            }
        });
        let first = lock(&failures).pop_first();
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// A tensor map, encoded; a few are kept, since calls often come again with the same tensors.
    pub fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]> {
        let mut maps = lock(&self.maps);
        if let Some(encoded) = maps.get(map) {
            return Ok(*encoded);
        }
        if maps.len() == KEPT_MAPS {
            maps.clear();
        }
        let encoded = self.driver.tensor_map(map)?;
        maps.insert(*map, encoded);
        Ok(encoded)
    }

    fn load(&self, kernel: &Entry) -> Result<Loaded> {
        let found = self.driver.facts().compute_capability;
        if !kernel.target.runs_on(found) {
            return Err(Error::ComputeCapability {
                device: self.driver.name().to_owned(),
                found,
                needed_by: kernel.name,
                needed: kernel.target.devices,
            });
        }
        let ptx = match self.driver.reads_marks() {
            true => kept_text(kernel)?,
            false => kernel.text()?.into(),
        };
        let ptx = CString::new(&*ptx).expect("PTX has no NUL");
        let name = CString::new(kernel.name).expect("kernel names have no NUL");
        let module = self.compile(kernel.name, &ptx)?;
        // SAFETY: the module was just loaded.
        match unsafe { self.driver.function(module, &name) } {
            Ok(function) => Ok(Loaded { module, function }),
            Err(error) => {
                // SAFETY: nobody else knows the module.
                unsafe { self.driver.unload(module) };
                Err(error)
            }
        }
    }

    fn compile(&self, kernel: &'static str, ptx: &CStr) -> Result<Handle> {
        let mut log = [0; 4096];
        match self.driver.load(kernel, ptx, &mut log) {
            Err(Error::Cuda {
                status: UNSUPPORTED_PTX_VERSION,
                ..
            }) => Err(Error::DriverTooOld {
                kernel,
                supports: self.driver.cuda_version()?,
            }),
            Err(Error::Cuda {
                operation,
                status,
                mut message,
            }) => {
                let log = String::from_utf8_lossy(&log);
                let log = log.trim_end_matches('\0').trim();
                if !log.is_empty() {
                    message = format!("{message}: {kernel}: {}", log.replace('\n', "; "));
                }
                Err(Error::Cuda {
                    operation,
                    status,
                    message,
                })
            }
            loaded => loaded,
        }
    }

    /// Allocates at once, or in the order of a stream.
    ///
    /// # Safety
    /// The stream, if any, is valid.
    pub unsafe fn allocate(&self, bytes: usize, stream: Option<RawStream>) -> Result<u64> {
        let allocated = match stream {
            None => self.driver.allocate(bytes),
            // SAFETY: the caller's word.
            Some(stream) => unsafe { self.driver.allocate_in(stream, bytes) },
        };
        allocated.map_err(|error| match error {
            Error::Cuda {
                status: OUT_OF_MEMORY,
                ..
            } => self.out_of_memory(bytes),
            error => error,
        })
    }

    fn out_of_memory(&self, needed: usize) -> Error {
        Error::OutOfMemory {
            device: self.driver.name().to_owned(),
            needed: needed as u64,
            free: self.driver.free_memory().ok().flatten(),
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The primary context may outlive this driver: leave nothing in it.
        for (_, slot) in lock(&self.kernels).drain() {
            if let Some(Loaded { module, .. }) = *lock(&slot) {
                // SAFETY: nobody else has `self`, so no launch uses the module's function.
                unsafe { self.driver.unload(module) };
            }
        }
    }
}

fn key(kernel: &Entry) -> Key {
    let of_crate = kernel.modules.map_or(0, |modules| modules.as_ptr().addr());
    (kernel.name, kernel.module, of_crate, kernel.switches)
}

/// Marked texts that the process keeps, some 200 KB each.
const KEPT_TEXTS: usize = 64;

/// The [marked text](Entry::marked_text) of a kernel, which is made once for the many emulated devices that a program
/// may open: 6 to 8 % of the CPU's time in the tests `emulator::kernels`.
fn kept_text(kernel: &Entry) -> Result<Arc<str>> {
    static KEPT: Recent<Key, Arc<str>> = Recent::new(KEPT_TEXTS);
    KEPT.get(key(kernel), || Ok(kernel.marked_text()?.into()))
}

/// Locks a table of a device. A panic while one is locked leaves nothing half-changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Class;
    use crate::device::watched::Watched;
    use crate::ptx;
    use kernels::abi::Switch;
    use kernels::catalog::Target;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;

    /// Longer than any step of a test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Kernels of a crate that has no others, in one module.
    fn kernels<const N: usize>(names: [&'static str; N]) -> [Entry; N] {
        let head = ".version 7.0\n.target sm_80\n.address_size 64\n".to_owned();
        let switch = ".reg .b32 switch_alibi; mov.b32 switch_alibi, 0;\nmov.b32 %r1, switch_alibi;";
        let body = format!(".reg .b32 %r<2>;\n{switch}\nret;\n");
        let kernel = |name| format!(".visible .entry {name}()\n{{\n{body}}}\n");
        let text = head + &names.map(kernel).concat();
        let modules = ptx::group(&[("m", None)], &[&text]);
        names.map(|name| Entry {
            name,
            module: "m",
            target: Target::SM80,
            threads: 32,
            modules,
            switches: Switches::NONE,
        })
    }

    fn watched(before_load: impl Fn(&str) -> Result<()> + Send + Sync + 'static) -> Gpu {
        Gpu::new(Watched::new(Class::Sm80, before_load))
    }

    fn failure() -> Error {
        Error::Emulator("no".to_owned())
    }

    #[test]
    fn kernels_of_two_crates_may_have_one_name() {
        let gpu = watched(|_| Ok(()));
        let [[a], [b]] = [kernels(["k"]), kernels(["k"])];
        let function = |kernel| gpu.function(kernel).expect("a kernel");
        assert_eq!(function(&a), function(&a));
        assert_ne!(function(&a), function(&b));
    }

    #[test]
    fn a_switch_that_a_text_lacks_is_an_error() {
        let gpu = watched(|_| Ok(()));
        let [kernel] = kernels(["k"]);
        let switches = Switches::NONE.with(Switch::Softcap, true);
        let found = gpu.function(&Entry { switches, ..kernel });
        let (kernel, switch) = ("k", "softcap");
        assert_eq!(found, Err(Error::Switch { kernel, switch }));
    }

    #[test]
    fn each_combination_of_options_is_compiled() {
        let loads = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&loads);
        let gpu = watched(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let [kernel] = kernels(["k"]);
        let switches = Switches::NONE.with(Switch::Alibi, true);
        let with_option = Entry { switches, ..kernel };
        for kernel in [kernel, with_option, kernel, with_option] {
            gpu.function(&kernel).expect("a kernel");
        }
        assert_eq!(loads.load(Ordering::Relaxed), 2);
    }

    /// `slow` is not compiled before `fast` is.
    #[test]
    fn a_kernel_does_not_wait_for_another() {
        let (started, start) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let released = Mutex::new(released);
        let gpu = watched(move |kernel| {
            if kernel == "slow" {
                started.send(()).expect("the test waits");
                let released = lock(&released).recv_timeout(LONG);
                return released.map_err(|_| failure());
            }
            Ok(())
        });
        let [slow, fast] = kernels(["slow", "fast"]);
        thread::scope(|scope| {
            let slow = scope.spawn(|| gpu.function(&slow));
            start.recv_timeout(LONG).expect("it is being compiled");
            gpu.function(&fast).expect("compiled");
            // Nobody hears it if `slow` gave up.
            let _ = release.send(());
            let slow = slow.join().expect("no panic");
            slow.expect("`fast` is compiled meanwhile");
        });
    }

    #[test]
    fn threads_share_a_kernel() {
        const THREADS: usize = 4;
        let loads = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&loads);
        let gpu = watched(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            // The others come while it is being compiled.
            (0..1000).for_each(|_| thread::yield_now());
            Ok(())
        });
        let [kernel] = kernels(["k"]);
        let together = Barrier::new(THREADS);
        let function = || {
            together.wait();
            gpu.function(&kernel).expect("compiled")
        };
        let functions = thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(function));
            threads.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        assert_eq!(functions, [functions[0]; THREADS]);
    }

    #[test]
    fn a_failure_is_not_kept() {
        let fails = Mutex::new(true);
        let gpu = watched(move |_| match std::mem::take(&mut *lock(&fails)) {
            true => Err(failure()),
            false => Ok(()),
        });
        let [kernel] = kernels(["k"]);
        assert_eq!(gpu.function(&kernel), Err(failure()));
        gpu.function(&kernel).expect("compiled");
    }

    /// Of two kernels that are compiled at once, each waits until the other one is, too.
    #[test]
    fn several_kernels_are_compiled_at_once() {
        let (to_second, second) = mpsc::channel();
        let (to_first, first) = mpsc::channel();
        let (first, second) = (Mutex::new(first), Mutex::new(second));
        let gpu = watched(move |kernel| {
            let (to, from) = match kernel {
                "first" => (&to_second, &first),
                _ => (&to_first, &second),
            };
            let _ = to.send(());
            lock(from).recv_timeout(LONG).map_err(|_| failure())
        });
        let [first, second] = kernels(["first", "second"]);
        let all = [first, second, first, second].into_iter();
        gpu.load_all(all).expect("compiled at once");
    }

    #[test]
    fn the_first_failure_of_several_is_given() {
        let failing = |name: &str| Error::Emulator(name.to_owned());
        let loads = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&loads);
        let gpu = watched(move |kernel| {
            counted.fetch_add(1, Ordering::Relaxed);
            match kernel {
                "b" | "c" => Err(failing(kernel)),
                _ => Ok(()),
            }
        });
        let all = kernels(["a", "b", "c", "d"]);
        assert_eq!(gpu.load_all(all.into_iter()), Err(failing("b")));
        assert_eq!(loads.load(Ordering::Relaxed), 4);
    }
}
