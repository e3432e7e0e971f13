//! A device that launches kernels: its driver, what is loaded, and what the last call did.

use super::driver::{Driver, Handle, Stream};
use crate::error::{Error, Result};
use crate::plan;
use ::emulator::{Counters, TensorMap};
use kernels::abi::Switches;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const UNSUPPORTED_PTX_VERSION: u32 = 222;

/// Tensor maps that a device keeps.
const KEPT_MAPS: usize = 256;

/// What each launch of a call did, with the kernel's name, in launch order.
pub type Launches = Vec<(&'static str, Counters)>;

/// A driver with its modules.
#[derive(Debug)]
pub struct Gpu {
    driver: Box<dyn Driver>,
    loaded: Mutex<Loaded>,
    maps: Mutex<HashMap<TensorMap, [u8; 128]>>,
    launches: Mutex<Launches>,
}

/// A name, the address of its crate's modules, since types of two crates may have one name, and what is on.
type Key = (&'static str, usize, Switches);

/// What is loaded.
#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<Key, Handle>,
    functions: HashMap<Key, Handle>,
}

impl Gpu {
    /// A device with nothing loaded.
    pub fn new(driver: impl Driver + 'static) -> Self {
        Gpu {
            driver: Box::new(driver),
            loaded: Mutex::default(),
            maps: Mutex::default(),
            launches: Mutex::default(),
        }
    }

    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The function of a kernel; its module is loaded on first use.
    pub fn function(&self, kernel: &plan::Entry) -> Result<Handle> {
        let &plan::Entry {
            name,
            module,
            modules: of_crate,
            switches,
            ..
        } = kernel;
        let of_crate = of_crate.map_or(0, |modules| modules.as_ptr().addr());
        let Loaded { modules, functions } = &mut *lock(&self.loaded);
        let entry = match functions.entry((name, of_crate, switches)) {
            Entry::Occupied(entry) => return Ok(*entry.get()),
            Entry::Vacant(entry) => entry,
        };
        let module = match modules.entry((module, of_crate, switches)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let text = match self.driver.reads_marks() {
                    true => kernel.marked_text()?,
                    false => kernel.text()?,
                };
                let text = switches.written(text).map_err(|switch| Error::Switch {
                    kernel: name,
                    switch: switch.name(),
                })?;
                *entry.insert(self.load(module, text)?)
            }
        };
        let symbol = CString::new(name).expect("kernel names have no NUL");
        // SAFETY: the module was loaded, and `drop` alone unloads it.
        Ok(*entry.insert(unsafe { self.driver.function(module, &symbol)? }))
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

    fn load(&self, module: &'static str, ptx: String) -> Result<Handle> {
        let ptx = CString::new(ptx).expect("PTX has no NUL");
        let mut log = [0; 4096];
        match self.driver.load(module, &ptx, &mut log) {
            Err(Error::Cuda {
                status: UNSUPPORTED_PTX_VERSION,
                ..
            }) => Err(Error::DriverTooOld {
                module,
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
                    message = format!("{message}: {module}: {}", log.replace('\n', "; "));
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
    pub unsafe fn allocate(&self, bytes: usize, stream: Option<Stream>) -> Result<u64> {
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

    /// Keeps what the launches of a call did.
    pub fn keep(&self, launches: Launches) {
        *lock(&self.launches) = launches;
    }

    /// What the launches of the last call did.
    pub fn launches(&self) -> Launches {
        lock(&self.launches).clone()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The primary context may outlive this driver: leave nothing in it.
        for (_, module) in lock(&self.loaded).modules.drain() {
            // SAFETY: nobody else has `self`, so no launch uses the module's functions.
            unsafe { self.driver.unload(module) };
        }
    }
}

/// Locks a table of a device. A panic while one is locked leaves nothing half-changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Emulator, Facts};
    use crate::ptx;
    use ::emulator::Options;
    use kernels::abi::Switch;
    use kernels::catalog::Target;
    use kernels::catalog::class::Class;

    /// A kernel of a crate that has no other.
    fn kernel() -> plan::Entry {
        let text =
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";
        plan::Entry {
            name: "k",
            module: "m",
            target: Target::Sm80,
            threads: 32,
            modules: ptx::group(&[("m", None)], &[text]),
            switches: Switches::NONE,
        }
    }

    #[test]
    fn kernels_of_two_crates_may_have_one_name() {
        let facts = Facts::emulated(Class::Sm80);
        let gpu = Gpu::new(Emulator::new(facts, Options::default()));
        let [a, b] = [kernel(), kernel()];
        let function = |kernel| gpu.function(kernel).expect("a kernel");
        assert_eq!(function(&a), function(&a));
        assert_ne!(function(&a), function(&b));
    }

    #[test]
    fn a_switch_that_a_text_lacks_is_an_error() {
        let facts = Facts::emulated(Class::Sm80);
        let gpu = Gpu::new(Emulator::new(facts, Options::default()));
        let switches = Switches::NONE.with(Switch::Softcap, true);
        let found = gpu.function(&plan::Entry {
            switches,
            ..kernel()
        });
        let switch = "softcap";
        assert_eq!(
            found,
            Err(Error::Switch {
                kernel: "k",
                switch
            })
        );
    }
}
