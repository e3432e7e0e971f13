//! PTX modules, their functions and launches.

use super::{Gpu, check, failure};
use crate::error::{Error, Result};
use cust::sys;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_void};

/// What has been loaded into a context, by name.
#[derive(Debug, Default)]
pub(super) struct Modules {
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: HashMap<&'static str, Function>,
}

/// A kernel that is ready to launch; valid as long as its [`Gpu`].
#[derive(Clone, Copy, Debug)]
pub struct Function(sys::CUfunction);

// SAFETY: module and function handles may be used from any thread.
unsafe impl Send for Modules {}

impl Modules {
    /// Unloads everything. The context must be current.
    pub fn unload(&mut self) {
        self.functions.clear();
        for (_, module) in self.modules.drain() {
            // SAFETY: the module was loaded once, and none of its functions remains.
            unsafe { sys::cuModuleUnload(module) };
        }
    }
}

impl Gpu {
    /// The function `name` of a module, which is loaded on first use, from its PTX. Its launches can use as
    /// much dynamic shared memory as the device has for a block.
    pub fn function(
        &self,
        name: &'static str,
        module: &'static str,
        ptx: impl FnOnce() -> Result<String>,
    ) -> Result<Function> {
        let mut modules = self.modules();
        if let Some(&function) = modules.functions.get(name) {
            return Ok(function);
        }
        let _current = self.enter()?;
        let handle = match modules.modules.entry(module) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(self.load(module, ptx()?)?),
        };
        let symbol = CString::new(name).expect("kernel names have no NUL");
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write, the module is loaded and the name ends with NUL.
        let status = unsafe { sys::cuModuleGetFunction(&mut raw, handle, symbol.as_ptr()) };
        check("looking up a kernel in its module", status)?;
        // Above 48 KB a kernel has to ask.
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let most = self.facts().shared.block as i32;
        // SAFETY: the function was just looked up.
        let status = unsafe { sys::cuFuncSetAttribute(raw, attribute, most) };
        check("reserving shared memory for a kernel", status)?;
        modules.functions.insert(name, Function(raw));
        Ok(Function(raw))
    }

    fn load(&self, name: &'static str, ptx: String) -> Result<sys::CUmodule> {
        let image = CString::new(ptx).expect("PTX has no NUL");
        let mut log = [0_u8; 4096];
        let mut keys = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image ends with NUL, and the two options describe `log`, which outlives the
        // call.
        let status = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                keys.len() as u32,
                keys.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        match status {
            sys::CUresult::CUDA_SUCCESS => Ok(module),
            sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Err(Error::DriverTooOld {
                module: name,
                supports: self.cuda_version()?,
            }),
            status => {
                let log = String::from_utf8_lossy(&log);
                let log = log.trim_end_matches('\0').trim().replace('\n', "; ");
                match failure("loading a PTX module", status as u32) {
                    Error::Cuda { operation, message } if !log.is_empty() => Err(Error::Cuda {
                        operation,
                        message: format!("{message}: {name}: {log}"),
                    }),
                    error => Err(error),
                }
            }
        }
    }

    /// Queues a launch of `blocks` blocks of `threads` threads with one argument of these bytes,
    /// passed by value.
    ///
    /// # Safety
    /// The function must be one of this GPU and take exactly one argument of this many bytes; what
    /// it reads and writes must be valid until it has run. `stream` must be null or a stream of this
    /// GPU's primary context.
    pub unsafe fn launch(
        &self,
        function: Function,
        blocks: u32,
        threads: u32,
        shared_bytes: u32,
        argument: &[u8],
        stream: *mut c_void,
    ) -> Result<()> {
        let _current = self.enter()?;
        let mut arguments = [argument.as_ptr().cast_mut().cast()];
        // SAFETY: the driver copies the argument before it returns; the rest is the caller's word.
        let status = unsafe {
            sys::cuLaunchKernel(
                function.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared_bytes,
                stream.cast(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("launching a kernel", status)
    }
}
