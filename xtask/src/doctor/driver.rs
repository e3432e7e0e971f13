//! The NVIDIA driver of this machine, asked through its library, which programs use too.

use kernels::catalog::Target;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int};

/// A driver.
pub struct Driver {
    /// Newest version of CUDA that it supports.
    pub cuda: (i32, i32),
    pub gpus: Vec<Gpu>,
}

/// A GPU that the driver finds.
pub struct Gpu {
    pub name: String,
    pub compute_capability: (i32, i32),
}

impl Driver {
    /// Opens the driver's library.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn find() -> Result<Self, String> {
        const LIBRARY: &str = if cfg!(windows) {
            "nvcuda.dll"
        } else {
            "libcuda.so.1"
        };
        // SAFETY: the driver library may be loaded at any time, from any thread.
        let library = unsafe { Library::new(LIBRARY) };
        let library = library.map_err(|_| format!("no {LIBRARY}; install NVIDIA's driver"))?;
        // SAFETY: the functions are called with the types that `cuda.h` declares.
        unsafe { ask(&library) }.map_err(|error| error.to_string())
    }

    /// The newest CUDA that it supports.
    pub fn version(&self) -> String {
        let (major, minor) = self.cuda;
        format!("CUDA {major}.{minor}")
    }

    /// Names and compute capabilities of all GPUs.
    ///
    /// # Errors
    /// If none of them runs a kernel.
    pub fn gpus(&self) -> Result<String, String> {
        let name = |gpu: &Gpu| {
            let (major, minor) = gpu.compute_capability;
            format!("{} ({major}.{minor})", gpu.name)
        };
        let names = Vec::from_iter(self.gpus.iter().map(name)).join(", ");
        let mut gpus = self.gpus.iter();
        match gpus.any(|gpu| Target::SM80.runs_on(gpu.compute_capability)) {
            true => Ok(names),
            false if names.is_empty() => Err("the driver finds no GPU".to_owned()),
            false => Err(format!("{names} is too old")),
        }
    }

    /// Whether it compiles a version of PTX, such as `ptx81`: CUDA 11.N brought PTX 7.N, and CUDA 12.1 PTX 8.1
    /// (the release notes of the PTX ISA).
    pub fn knows(&self, ptx_version: &str) -> bool {
        let version = ptx_version.trim_start_matches("ptx").parse::<i32>();
        version.is_ok_and(|version| self.cuda >= (version / 10 + 4, version % 10))
    }
}

type Status = c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> Status;

/// # Safety
/// The library must be the CUDA driver.
unsafe fn ask(library: &Library) -> Result<Driver, libloading::Error> {
    // SAFETY: types of `cuda.h`, whose functions write through pointers to live variables; a name ends within its array.
    unsafe {
        let init = library.get::<unsafe extern "C" fn(u32) -> Status>("cuInit")?;
        let version = library.get::<Count>("cuDriverGetVersion")?;
        let count = library.get::<Count>("cuDeviceGetCount")?;
        let device_name = library
            .get::<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status>("cuDeviceGetName")?;
        let attribute = library.get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status>(
            "cuDeviceGetAttribute",
        )?;
        let (mut cuda, mut devices) = (0, 0);
        version(&mut cuda);
        // Without a GPU `cuInit` fails, and the count stays 0.
        if init(0) == 0 {
            count(&mut devices);
        }
        let gpu = |device| {
            let mut name = [0; 256];
            device_name(name.as_mut_ptr(), 255, device);
            // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and MINOR.
            let [major, minor] = [75, 76].map(|kind| {
                let mut value = 0;
                attribute(&mut value, kind, device);
                value
            });
            Gpu {
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                compute_capability: (major, minor),
            }
        };
        Ok(Driver {
            cuda: (cuda / 1000, cuda % 1000 / 10),
            gpus: (0..devices).map(gpu).collect(),
        })
    }
}
