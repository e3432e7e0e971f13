//! The kernels' PTX on the emulator, as a device.

use crate::error::{Error, Result};
use crate::forward::schedule::Facts;
use crate::ptx;
use emulator::{Argument, Counters, Module, Options};
use kernels::catalog::Kernel;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// An emulated GPU: its memory, the modules loaded so far, and what the last call did.
pub struct Emulation {
    memory: emulator::Memory,
    facts: Facts,
    options: Options,
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
    counters: Mutex<Vec<(&'static str, Counters)>>,
}

impl Emulation {
    /// An emulated GPU with nothing in its memory, and shared memory as the facts say.
    pub fn new(facts: Facts, options: Options) -> Result<Self> {
        if !ptx::COMPILED {
            return Err(Error::NotCompiled);
        }
        Ok(Emulation {
            memory: emulator::Memory::new(),
            facts,
            options: Options {
                max_shared_bytes: facts.shared.block,
                ..options
            },
            modules: Mutex::default(),
            counters: Mutex::default(),
        })
    }

    /// What the GPU offers.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Runs a kernel with one parameter block over a grid in one dimension, of blocks with so much
    /// shared memory; returns what it did.
    pub fn launch(
        &self,
        kernel: &'static Kernel,
        blocks: u32,
        shared_bytes: u32,
        params: &[u8],
    ) -> Result<Counters> {
        let module = self.module(kernel.module())?;
        emulator::launch(
            &self.memory,
            module.entry(kernel.name).map_err(failure)?,
            [blocks, 1, 1],
            [kernel.threads(), 1, 1],
            shared_bytes,
            &[Argument::Bytes(params)],
            &self.options,
        )
        .map_err(failure)
    }

    /// Keeps what the launches of a call did, each with its kernel's name.
    pub fn count(&self, launches: Vec<(&'static str, Counters)>) {
        *lock(&self.counters) = launches;
    }

    /// What the launches of the last call did.
    pub fn counters(&self) -> Vec<(&'static str, Counters)> {
        lock(&self.counters).clone()
    }

    fn module(&self, name: &'static str) -> Result<Arc<Module>> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(name) {
            return Ok(Arc::clone(module));
        }
        let text = ptx::module(name).ok_or(Error::NotCompiled)?;
        let module = Arc::new(Module::parse(&text, &format!("{name}.ptx")).map_err(failure)?);
        modules.insert(name, Arc::clone(&module));
        Ok(module)
    }
}

impl fmt::Debug for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Emulation")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A buffer in the memory of an emulated GPU, freed when dropped.
#[derive(Debug)]
pub struct Memory {
    emulation: Arc<Emulation>,
    address: u64,
}

impl Memory {
    /// A buffer that holds a copy of `data`.
    pub fn from_bytes(emulation: &Arc<Emulation>, data: &[u8]) -> Self {
        let mut memory = Self::uninitialized(emulation, data.len());
        memory.write(0, data);
        memory
    }

    /// A buffer of which no kernel may read what none has written.
    pub fn uninitialized(emulation: &Arc<Emulation>, bytes: usize) -> Self {
        Memory {
            emulation: Arc::clone(emulation),
            address: emulation.memory.allocate(bytes),
        }
    }

    /// Copies bytes from `offset` on to the host.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let read = self.emulation.memory.read(self.address + offset as u64, to);
        read.expect("bytes of the buffer");
    }

    /// Overwrites bytes from `offset` on.
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        let address = self.address + offset as u64;
        let written = self.emulation.memory.write(address, from);
        written.expect("bytes of the buffer");
    }

    /// Overwrites bytes from `offset` on with bytes of another buffer.
    pub fn copy_from(&mut self, offset: usize, source: &Self, source_offset: usize, bytes: usize) {
        let mut data = vec![0; bytes];
        source.read(source_offset, &mut data);
        self.write(offset, &data);
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The device.
    pub fn emulation(&self) -> &Arc<Emulation> {
        &self.emulation
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let freed = self.emulation.memory.free(self.address);
        freed.expect("the buffer is this one's alone");
    }
}

fn failure(error: emulator::Error) -> Error {
    Error::Emulator {
        report: error.to_string(),
    }
}

/// A panic while one of these is locked leaves nothing half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::Emulation;
    use crate::error::Error;
    use crate::forward::schedule::Facts;
    use kernels::abi::ForwardParams;
    use kernels::catalog::KERNELS;
    use kernels::catalog::class::Class;

    /// Even what nobody checked before does not run in more shared memory than the device has.
    #[test]
    fn blocks_have_the_devices_shared_memory() {
        let facts = Facts::emulated(Class::Sm86);
        let emulation = match Emulation::new(facts, emulator::Options::default()) {
            Err(Error::NotCompiled) => return,
            emulation => emulation.expect("an emulated GPU"),
        };
        let mut kernels = KERNELS.iter();
        let large = kernels.find(|kernel| kernel.shared_bytes() > facts.shared.block);
        let params = [0; size_of::<ForwardParams>()];
        let large = large.expect("an A100's");
        let refused = emulation.launch(large, 1, large.shared_bytes(), &params);
        match refused {
            Err(Error::Emulator { report }) => assert!(report.contains("101376"), "{report}"),
            other => panic!("{other:?}"),
        }
    }
}
