//! Functions of PyTorch's C interface for other libraries, `torch/csrc/inductor/aoti_torch/c/shim.h`, which keeps old ones.

use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// `RTLD_NOLOAD` of glibc: a library that is loaded, or none.
const RTLD_NOLOAD: c_int = 4;

/// An operator's argument or result: a number, or a pointer.
pub type StableValue = u64;

/// An operator as PyTorch calls it: arguments lie on the stack, and results replace them.
pub type Kernel =
    unsafe extern "C-unwind" fn(stack: *mut StableValue, arguments: u64, results: u64);

/// A status: 0 if all went well.
type Status = i32;

/// Declares the functions, and how they are found.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $library:ident $symbol:literal: $type:ty,)*) => {
        /// The functions.
        #[derive(Debug)]
        pub struct Shim { $($(#[$doc])* pub $field: $type,)* }

        impl Shim {
            /// # Safety
            /// The libraries are PyTorch's.
            unsafe fn find(libraries: &Libraries) -> Result<Self, String> {
                Ok(Shim { $($field: {
                    // SAFETY: the library is PyTorch's, whose function has this type.
                    unsafe { symbol::<$type>(libraries.$library.as_ref(), $symbol)? }
                },)* })
            }
        }
    };
}

functions! {
    delete = cpu "aoti_torch_delete_tensor_object": unsafe extern "C" fn(*mut c_void) -> Status,
    sizes = cpu "aoti_torch_get_sizes": unsafe extern "C" fn(*mut c_void, *mut *const i64) -> Status,
    strides = cpu "aoti_torch_get_strides": unsafe extern "C" fn(*mut c_void, *mut *const i64) -> Status,
    rank = cpu "aoti_torch_get_dim": unsafe extern "C" fn(*mut c_void, *mut i64) -> Status,
    address = cpu "aoti_torch_get_data_ptr": unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> Status,
    offset = cpu "aoti_torch_get_storage_offset": unsafe extern "C" fn(*mut c_void, *mut i64) -> Status,
    dtype = cpu "aoti_torch_get_dtype": unsafe extern "C" fn(*mut c_void, *mut i32) -> Status,
    device_type = cpu "aoti_torch_get_device_type": unsafe extern "C" fn(*mut c_void, *mut i32) -> Status,
    device_index = cpu "aoti_torch_get_device_index": unsafe extern "C" fn(*mut c_void, *mut i32) -> Status,
    /// Rank, sizes, strides, dtype, device type and index.
    empty = cpu "aoti_torch_empty_strided":
        unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut *mut c_void) -> Status,
    /// Destination, source, whether it may return early.
    copy = cpu "aoti_torch_copy_": unsafe extern "C" fn(*mut c_void, *mut c_void, i32) -> Status,
    defined = cpu "aoti_torch_is_defined": unsafe extern "C" fn(*mut c_void, *mut bool) -> Status,
    undefined = cpu "aoti_torch_new_uninitialized_tensor": unsafe extern "C" fn(*mut *mut c_void) -> Status,
    /// Tensor, rank, sizes, strides, offset of the view.
    view = cpu "aoti_torch__reinterpret_tensor":
        unsafe extern "C" fn(*mut c_void, i64, *const i64, *const i64, i64, *mut *mut c_void) -> Status,
    zero = cpu "aoti_torch_zero_": unsafe extern "C" fn(*mut c_void) -> Status,
    f16 = cpu "aoti_torch_dtype_float16": unsafe extern "C" fn() -> i32,
    bf16 = cpu "aoti_torch_dtype_bfloat16": unsafe extern "C" fn() -> i32,
    f32 = cpu "aoti_torch_dtype_float32": unsafe extern "C" fn() -> i32,
    i32 = cpu "aoti_torch_dtype_int32": unsafe extern "C" fn() -> i32,
    i64 = cpu "aoti_torch_dtype_int64": unsafe extern "C" fn() -> i32,
    u64 = cpu "aoti_torch_dtype_uint64": unsafe extern "C" fn() -> i32,
    u8 = cpu "aoti_torch_dtype_uint8": unsafe extern "C" fn() -> i32,
    bool = cpu "aoti_torch_dtype_bool": unsafe extern "C" fn() -> i32,
    e4m3 = cpu "aoti_torch_dtype_float8_e4m3fn": unsafe extern "C" fn() -> i32,
    device_cpu = cpu "aoti_torch_device_type_cpu": unsafe extern "C" fn() -> i32,
    device_cuda = cpu "aoti_torch_device_type_cuda": unsafe extern "C" fn() -> i32,
    /// Namespace, file, line.
    define_in = cpu "aoti_torch_library_init_fragment":
        unsafe extern "C" fn(*const c_char, *const c_char, u32, *mut *mut c_void) -> Status,
    /// Namespace, dispatch key, file, line.
    implement_in = cpu "aoti_torch_library_init_impl":
        unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut *mut c_void) -> Status,
    define = cpu "aoti_torch_library_def": unsafe extern "C" fn(*mut c_void, *const c_char) -> Status,
    implement = cpu "aoti_torch_library_impl": unsafe extern "C" fn(*mut c_void, *const c_char, Kernel) -> Status,
    /// Gives back what was registered in a library.
    forget = cpu "aoti_torch_delete_library_object": unsafe extern "C" fn(*mut c_void) -> Status,
    /// Name, overload, stack.
    call = cpu "aoti_torch_call_dispatcher":
        unsafe extern "C" fn(*const c_char, *const c_char, *mut StableValue) -> Status,
    list_item = cpu "torch_list_get_item": unsafe extern "C" fn(*mut c_void, usize, *mut StableValue) -> Status,
    delete_list = cpu "torch_delete_list": unsafe extern "C" fn(*mut c_void) -> Status,
    /// The operator `delete` of C++, which frees what PyTorch allocates for an optional argument.
    delete_optional = cpp "_ZdlPv": unsafe extern "C" fn(*mut c_void),
    /// `c10::detail::torchCheckFail` throws PyTorch's error: function, file, line, message.
    throw = c10 "_ZN3c106detail14torchCheckFailEPKcS2_jS2_":
        unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> !,
}

/// The current stream of a CUDA device: in a library of its own, which a PyTorch for the CPU lacks.
pub type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> Status;

#[derive(Debug)]
struct Libraries {
    cpu: Option<Library>,
    c10: Option<Library>,
    cpp: Option<Library>,
    cuda: Option<Library>,
}

static SHIM: OnceLock<Shim> = OnceLock::new();
static CURRENT_STREAM: OnceLock<CurrentStream> = OnceLock::new();

/// Finds the functions in the libraries of a folder, which are loaded.
pub fn load(folder: &str) -> Result<(), String> {
    let open = |name: &str| {
        let path = match name.contains('.') {
            true => Path::new(name).to_owned(),
            false => Path::new(folder).join(format!("lib{name}.so")),
        };
        // SAFETY: the library is loaded already, so nothing of it runs.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_NOLOAD) }.ok()
    };
    let libraries = Libraries {
        cpu: open("torch_cpu"),
        c10: open("c10"),
        cpp: open("libstdc++.so.6"),
        cuda: open("torch_cuda"),
    };
    // SAFETY: the libraries are PyTorch's, by the caller's word.
    let shim = unsafe { Shim::find(&libraries)? };
    // SAFETY: the library is PyTorch's.
    let stream = unsafe {
        symbol::<CurrentStream>(
            libraries.cuda.as_ref(),
            "aoti_torch_get_current_cuda_stream",
        )
    };
    SHIM.get_or_init(|| shim);
    if let Ok(stream) = stream {
        CURRENT_STREAM.get_or_init(|| stream);
    }
    // The functions live as long as the program.
    std::mem::forget(libraries);
    Ok(())
}

/// The functions, which are loaded before any operator runs.
pub fn shim() -> &'static Shim {
    SHIM.get().expect("loaded before operators are registered")
}

/// The function that tells streams, in a PyTorch for CUDA.
pub fn current_stream() -> Option<CurrentStream> {
    CURRENT_STREAM.get().copied()
}

/// # Safety
/// The symbol is of this type, a function's.
unsafe fn symbol<T: Copy>(library: Option<&Library>, name: &str) -> Result<T, String> {
    let missing = || format!("PyTorch lacks {name}; PyTorch 2.10 and later have it");
    let library = library.ok_or_else(missing)?;
    // SAFETY: the caller's word.
    unsafe { library.get::<T>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| missing())
}
