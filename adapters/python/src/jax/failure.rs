//! Errors of handlers, and how they reach XLA.

use super::abi::{Api, ErrorCreate, code, head};
use ferroattn::{Error, ErrorKind};
use std::ffi::{CString, c_void};

/// Why a handler failed.
#[derive(Debug)]
pub enum Failure {
    /// A fault of the call, or of this library.
    Own { code: u32, reason: String },
    /// An error of a function of XLA, which goes back as it came.
    OfXla(*mut c_void),
}

impl Failure {
    /// A fault of the call.
    pub fn argument(reason: impl Into<String>) -> Self {
        Failure::Own {
            code: code::INVALID_ARGUMENT,
            reason: reason.into(),
        }
    }

    /// A fault of this library, or of XLA.
    pub fn internal(reason: impl Into<String>) -> Self {
        Failure::Own {
            code: code::INTERNAL,
            reason: reason.into(),
        }
    }

    /// The error that XLA reports, which owns it.
    pub fn into_error(self, api: &Api) -> *mut c_void {
        let (code, reason) = match self {
            Failure::Own { code, reason } => (code, reason),
            Failure::OfXla(error) => return error,
        };
        let text = reason.replace(['\n', '\r', '\0'], " ");
        let message = CString::new(text).expect("no zeros");
        let mut args = ErrorCreate {
            head: head::<ErrorCreate>(),
            message: message.as_ptr(),
            code,
        };
        // SAFETY: the arguments are valid during the call, which copies the text.
        unsafe { (api.error_create)(&mut args) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Argument => code::INVALID_ARGUMENT,
            ErrorKind::Unsupported => code::UNIMPLEMENTED,
            ErrorKind::Memory => code::RESOURCE_EXHAUSTED,
            _ => code::INTERNAL,
        };
        Failure::Own {
            code,
            reason: error.to_string(),
        }
    }
}
