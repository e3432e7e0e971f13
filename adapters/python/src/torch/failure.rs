//! Errors of operators, and how they reach Python.

use super::shim::shim;
use ferroattn::{Error, ErrorKind};
use std::ffi::CString;

/// Why an operator failed.
#[derive(Debug)]
pub struct Failure {
    /// The exception that the Python side raises for it.
    exception: &'static str,
    reason: String,
}

impl Failure {
    /// An argument of a wrong value or shape.
    pub fn value(reason: impl Into<String>) -> Self {
        Failure {
            exception: "ValueError",
            reason: reason.into(),
        }
    }

    /// An argument of a wrong type.
    pub fn dtype(reason: impl Into<String>) -> Self {
        Failure {
            exception: "TypeError",
            reason: reason.into(),
        }
    }

    /// A failure of PyTorch's allocator, which tells why on standard error.
    pub fn memory(sizes: &[i64]) -> Self {
        Failure {
            exception: "MemoryError",
            reason: format!("out of memory: PyTorch gives no tensor of sizes {sizes:?}"),
        }
    }

    /// A failure of anything else.
    pub fn other(reason: impl Into<String>) -> Self {
        Failure {
            exception: "RuntimeError",
            reason: reason.into(),
        }
    }

    /// Throws PyTorch's error, which becomes a `RuntimeError`; its text begins with the name of the exception that is meant.
    pub fn throw(self) -> ! {
        let Failure { exception, reason } = self;
        let text = format!("ferroattn.{exception}: {}", reason.replace('\0', " "));
        let text = CString::new(text).expect("no zeros");
        // SAFETY: the strings are valid during the call; the exception passes frames of Rust that let it through.
        unsafe {
            (shim().throw)(
                c"ferroattn".as_ptr(),
                c"ferroattn".as_ptr(),
                0,
                text.as_ptr(),
            )
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exception = match error.kind() {
            ErrorKind::Argument => "ValueError",
            ErrorKind::Unsupported => "NotImplementedError",
            ErrorKind::Memory => "MemoryError",
            _ => "RuntimeError",
        };
        Failure {
            exception,
            reason: error.to_string(),
        }
    }
}
