//! An emulated GPU as a driver: the kernels' PTX, run on the CPU.

use super::driver::{Driver, Handle, Launch, RawStream};
use super::facts::Facts;
use super::gpu::lock;
use crate::error::{Error, Result};
use crate::tensor_map::{Swizzle, TensorMap};
use ::emulator::{Argument, Counters, Memory, Module, Options};
use kernels::layout::element;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A piece of the bytes that memory is filled with.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// An emulated GPU; calls return when their work is done.
pub struct Emulator {
    memory: Memory,
    facts: Facts,
    options: Options,
    /// Texts to load in place of others, by kernel.
    replaced: HashMap<String, String>,
    /// A module's handle is its index.
    modules: Mutex<Vec<Arc<Module>>>,
    /// Functions, whose handles are their indices.
    functions: Mutex<Vec<(Arc<Module>, String)>>,
    /// Counters of each launch of the last call, with the kernel's name.
    counters: Mutex<Vec<(&'static str, Counters)>>,
    /// Events are the nanoseconds since then.
    start: Instant,
}

impl Emulator {
    /// An emulated GPU with nothing in its memory; the facts decide the shared memory of a block, whatever the
    /// options say.
    pub fn new(facts: Facts, options: Options) -> Self {
        Emulator {
            memory: Memory::new(),
            facts,
            options: Options {
                max_shared_bytes: facts.shared.block,
                ..options
            },
            replaced: HashMap::new(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            counters: Mutex::default(),
            start: Instant::now(),
        }
    }

    /// Loads another text in place of a kernel's own: how a test shows that a fault in a kernel is noticed.
    pub fn with_ptx(mut self, kernel: impl Into<String>, text: impl Into<String>) -> Self {
        self.replaced.insert(kernel.into(), text.into());
        self
    }
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Emulator")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

// SAFETY: it checks each access, and addresses of its own.
unsafe impl Driver for Emulator {
    fn name(&self) -> &str {
        "emulator"
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn index(&self) -> Option<usize> {
        None
    }

    fn cuda_version(&self) -> Result<(i32, i32)> {
        Ok((0, 0))
    }

    fn free_memory(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let allocated = self.memory.try_allocate(bytes);
        allocated.ok_or_else(|| Error::OutOfMemory {
            device: self.name().to_owned(),
            needed: bytes as u64,
            free: None,
        })
    }

    unsafe fn free(&self, address: u64) {
        let freed = self.memory.free(address);
        freed.expect("callers free what they allocated");
    }

    unsafe fn allocate_in(&self, _: RawStream, bytes: usize) -> Result<u64> {
        self.allocate(bytes)
    }

    unsafe fn free_in(&self, _: RawStream, address: u64) {
        // SAFETY: the caller's word.
        unsafe { self.free(address) };
    }

    unsafe fn wait(&self, _: RawStream) -> Result<()> {
        Ok(())
    }

    unsafe fn zero(&self, address: u64, bytes: usize, _: RawStream) -> Result<()> {
        for start in (0..bytes).step_by(ZEROS.len()) {
            let zeros = &ZEROS[..ZEROS.len().min(bytes - start)];
            // SAFETY: the caller's word.
            unsafe { self.upload(address + start as u64, zeros)? }
        }
        Ok(())
    }

    unsafe fn fill(&self, address: u64, bytes: usize, word: u32, _: RawStream) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.upload(address, &word.to_ne_bytes().repeat(bytes / 4)) }
    }

    unsafe fn upload(&self, to: u64, data: &[u8]) -> Result<()> {
        let written = self.memory.write(to, data);
        written.expect("callers write where they allocated");
        Ok(())
    }

    unsafe fn download(&self, from: u64, data: &mut [u8]) -> Result<()> {
        let read = self.memory.read(from, data);
        read.expect("callers read where they allocated");
        Ok(())
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let mut data = vec![0; bytes];
        // SAFETY: the caller's word.
        unsafe {
            self.download(from, &mut data)?;
            self.upload(to, &data)
        }
    }

    fn reads_marks(&self) -> bool {
        true
    }

    fn load(&self, kernel: &str, ptx: &CStr, _: &mut [u8]) -> Result<Handle> {
        let text = match self.replaced.get(kernel) {
            Some(text) => text,
            None => ptx.to_str().expect("PTX is UTF-8"),
        };
        let parsed = Module::shared(text, &format!("{kernel}.ptx")).map_err(failure)?;
        Ok(push(&self.modules, parsed))
    }

    unsafe fn unload(&self, _: Handle) {}

    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle> {
        let module = Arc::clone(&lock(&self.modules)[module.0.addr()]);
        let name = name.to_string_lossy().into_owned();
        module.entry(&name).map_err(failure)?;
        Ok(push(&self.functions, (module, name)))
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]> {
        let ([s0, s1, s2, s3], [b0, b1, b2, b3]) = (map.sizes, map.box_sizes);
        let [t0, t1, t2] = map.strides;
        let map = ::emulator::TensorMap {
            address: map.address,
            element_bytes: element::BYTES,
            rank: 4,
            sizes: [s0, s1, s2, s3, 0],
            strides: [t0, t1, t2, 0],
            box_sizes: [b0, b1, b2, b3, 0],
            swizzle: match map.swizzle {
                Swizzle::B64 => ::emulator::Swizzle::B64,
                Swizzle::B128 => ::emulator::Swizzle::B128,
            },
        };
        Ok(map.encode())
    }

    fn begin(&self) {
        lock(&self.counters).clear();
    }

    fn counters(&self) -> Vec<(&'static str, Counters)> {
        lock(&self.counters).clone()
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<()> {
        let (module, name) = lock(&self.functions)[launch.function.0.addr()].clone();
        let counters = ::emulator::launch(
            &self.memory,
            module.entry(&name).map_err(failure)?,
            [launch.blocks, 1, 1],
            [launch.threads, 1, 1],
            launch.shared_bytes,
            &[Argument::Bytes(launch.argument)],
            &::emulator::Options {
                cluster: launch.cluster,
                ..self.options
            },
        );
        let counters = counters.map_err(failure)?;
        lock(&self.counters).push((launch.name, counters));
        Ok(())
    }

    fn create_stream(&self) -> Result<Handle> {
        Ok(Handle(null_mut()))
    }

    unsafe fn destroy_stream(&self, _: Handle) {}

    unsafe fn wait_for(&self, _: RawStream, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn record(&self, _: RawStream) -> Result<Handle> {
        let nanoseconds = self.start.elapsed().as_nanos() as usize;
        Ok(Handle(without_provenance_mut(nanoseconds)))
    }

    unsafe fn reach(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<Duration> {
        let nanoseconds = end.0.addr().saturating_sub(start.0.addr());
        Ok(Duration::from_nanos(nanoseconds as u64))
    }

    unsafe fn forget(&self, _: Handle) {}
}

/// Appends to a table and returns the index as a handle.
fn push<T>(table: &Mutex<Vec<T>>, value: T) -> Handle {
    let mut table = lock(table);
    table.push(value);
    Handle(without_provenance_mut(table.len() - 1))
}

fn failure(error: ::emulator::Error) -> Error {
    Error::Emulator(error.to_string())
}
