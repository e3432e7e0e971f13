//! Structs and numbers of XLA's foreign function interface.
//!
//! They are those of version 0.1, the oldest that XLA takes. Later ones to 0.4 have them, and more behind their ends.

use std::ffi::{c_char, c_void};

/// The version that a handler says it is made for: major, minor.
pub const VERSION: [i32; 2] = [0, 1];

/// Numbers of types of elements.
pub mod element {
    pub const PRED: u32 = 1;
    pub const S32: u32 = 4;
    pub const S64: u32 = 5;
    pub const U8: u32 = 6;
    pub const F16: u32 = 10;
    pub const F32: u32 = 11;
    pub const BF16: u32 = 16;
}

/// Numbers of kinds of attributes.
pub mod attribute {
    pub const SCALAR: u32 = 3;
    pub const STRING: u32 = 4;
}

/// Numbers of reasons of errors.
pub mod code {
    pub const INVALID_ARGUMENT: u32 = 3;
    pub const RESOURCE_EXHAUSTED: u32 = 8;
    pub const UNIMPLEMENTED: u32 = 12;
    pub const INTERNAL: u32 = 13;
}

/// The kind of the extension that asks for [`Metadata`].
pub const METADATA: u32 = 1;

/// The trait of a handler whose launches a CUDA graph may hold: the same ones in each call with the same attributes and shapes.
pub const COMMAND_BUFFER_COMPATIBLE: u32 = 1;

/// What begins each struct but the smallest: its size, and a list of more.
#[repr(C)]
pub struct Head {
    pub struct_size: usize,
    pub extension: *mut Extension,
}

/// One of a list of additions to a struct.
#[repr(C)]
pub struct Extension {
    pub struct_size: usize,
    pub kind: u32,
    pub next: *mut Extension,
}

/// The extension of a call that asks for facts about the handler, and for nothing else.
#[repr(C)]
pub struct MetadataExtension {
    pub base: Extension,
    pub metadata: *mut Metadata,
}

#[repr(C)]
pub struct Version {
    pub head: Head,
    pub major: i32,
    pub minor: i32,
}

/// Facts about a handler.
#[repr(C)]
pub struct Metadata {
    pub struct_size: usize,
    pub version: Version,
    pub traits: u32,
}

/// An array, row-major.
#[repr(C)]
pub struct Buffer {
    pub head: Head,
    pub element: u32,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

/// Arguments or results of a call. The one kind that there is of both is a [`Buffer`].
#[repr(C)]
pub struct Buffers {
    pub head: Head,
    pub size: i64,
    pub kinds: *const u32,
    pub buffers: *const *const Buffer,
}

#[repr(C)]
pub struct Text {
    pub first: *const u8,
    pub bytes: usize,
}

#[repr(C)]
pub struct Scalar {
    pub element: u32,
    pub value: *const c_void,
}

/// Attributes of a call, by their names. Of a kind `SCALAR` the value is a [`Scalar`], of `STRING` a [`Text`].
#[repr(C)]
pub struct Attributes {
    pub head: Head,
    pub size: i64,
    pub kinds: *const u32,
    pub names: *const *const Text,
    pub values: *const *const c_void,
}

/// A call of a handler.
#[repr(C)]
pub struct CallFrame {
    pub head: Head,
    pub api: *const Api,
    pub context: *mut c_void,
    pub stage: u32,
    pub arguments: Buffers,
    pub results: Buffers,
    pub attributes: Attributes,
}

#[repr(C)]
pub struct ErrorCreate {
    pub head: Head,
    pub message: *const c_char,
    pub code: u32,
}

#[repr(C)]
pub struct StreamGet {
    pub head: Head,
    pub context: *mut c_void,
    pub stream: *mut c_void,
}

#[repr(C)]
pub struct DeviceOrdinalGet {
    pub head: Head,
    pub context: *mut c_void,
    pub ordinal: i32,
}

/// A function of XLA that returns an error, or null.
pub type Function<A> = unsafe extern "C" fn(*mut A) -> *mut c_void;

/// Functions of XLA.
#[repr(C)]
pub struct Api {
    pub head: Head,
    pub version: Version,
    pub internal: *const c_void,
    pub error_create: Function<ErrorCreate>,
    /// Of errors, the message and the end; a registration.
    pub unused: [*const c_void; 3],
    pub stream_get: Function<StreamGet>,
    /// Of types, states, memory, threads, futures and runs.
    pub unused_too: [*const c_void; 12],
    pub device_ordinal_get: Function<DeviceOrdinalGet>,
}

/// The head of a struct of XLA that a handler fills.
pub fn head<T>() -> Head {
    Head {
        struct_size: size_of::<T>(),
        extension: std::ptr::null_mut(),
    }
}
