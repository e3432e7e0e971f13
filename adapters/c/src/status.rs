//! How calls end: a status for the caller, and a line of text for people.

use ferroattn::{Error, ErrorKind};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. Of all but `FERROATTN_STATUS_OK`, `ferroattn_last_error` has the reason.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FerroattnStatus {
    /// All went well.
    Ok = 0,
    /// An argument is wrong.
    Argument = 1,
    /// No kernel of the device, or none in this program, computes the call.
    Unsupported = 2,
    /// Memory ran out.
    Memory = 3,
    /// The device or its driver reports a failure, maybe of earlier work.
    Device = 4,
    /// A fault of the library.
    Fault = 5,
}

/// An error on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    status: FerroattnStatus,
    reason: String,
}

impl Failure {
    /// The failure of a wrong argument.
    pub fn argument(reason: impl Into<String>) -> Self {
        Failure {
            status: FerroattnStatus::Argument,
            reason: reason.into(),
        }
    }

    /// The failure of so many bytes that the host does not have.
    pub fn host_memory(bytes: usize) -> Self {
        Failure {
            status: FerroattnStatus::Memory,
            reason: format!("out of memory on the host: {bytes} bytes needed"),
        }
    }

    fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Failure {
            status: FerroattnStatus::Fault,
            reason: format!("a fault of the library: {}", text.unwrap_or("no message")),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Argument => FerroattnStatus::Argument,
            ErrorKind::Unsupported => FerroattnStatus::Unsupported,
            ErrorKind::Memory => FerroattnStatus::Memory,
            // Kinds that the library may add are no argument's fault.
            _ => FerroattnStatus::Device,
        };
        Failure {
            status,
            reason: error.to_string(),
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function of the interface, and keeps its error. No panic leaves it.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> FerroattnStatus {
    // A panic leaves nothing half done that a later call reads: devices and plans change in one step.
    let done = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|payload| Err(Failure::panicked(&*payload)));
    let Err(Failure { status, reason }) = done else {
        return FerroattnStatus::Ok;
    };
    LAST_ERROR.set(one_line(&reason));
    status
}

/// The text without ends of lines, and without zeros, which would end it for C.
pub(crate) fn one_line(text: &str) -> CString {
    let plain = text.replace(['\n', '\r', '\0'], " ");
    CString::new(plain).expect("no zeros")
}

/// Reason of this thread's last call that failed, in one line; empty if none has. It is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn ferroattn_last_error() -> *const c_char {
    // Where the thread ends, its text is gone.
    LAST_ERROR
        .try_with(|error| error.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Name of a status, as a constant text; `unknown` of another number.
#[unsafe(no_mangle)]
pub extern "C" fn ferroattn_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 6] = [
        c"ok",
        c"argument",
        c"unsupported",
        c"memory",
        c"device",
        c"fault",
    ];
    let name = usize::try_from(status).ok().and_then(|i| NAMES.get(i));
    name.unwrap_or(&c"unknown").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::{Failure, FerroattnStatus, ferroattn_last_error, ferroattn_status_name, guarded};
    use std::ffi::CStr;

    fn last_error() -> String {
        // SAFETY: the text is this thread's, which calls nothing meanwhile.
        let text = unsafe { CStr::from_ptr(ferroattn_last_error()) };
        text.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn panics_become_a_status() {
        assert_eq!(last_error(), "");
        let status = guarded(|| panic!("{} lines\nof text\0", 2));
        assert_eq!(status, FerroattnStatus::Fault);
        assert_eq!(last_error(), "a fault of the library: 2 lines of text ");
        guarded(|| panic!("plain"));
        assert_eq!(last_error(), "a fault of the library: plain");
        guarded(|| std::panic::panic_any(7));
        assert_eq!(last_error(), "a fault of the library: no message");
        assert_eq!(guarded(|| Ok(())), FerroattnStatus::Ok);
    }

    #[test]
    fn errors_are_a_threads_own() {
        guarded(|| Err(Failure::argument("here")));
        std::thread::spawn(|| assert_eq!(last_error(), ""))
            .join()
            .expect("no panic");
        assert_eq!(last_error(), "here");
    }

    #[test]
    fn statuses_have_names() {
        for (status, expected) in [(0, "ok"), (5, "fault"), (6, "unknown"), (-1, "unknown")] {
            // SAFETY: the text is constant.
            let name = unsafe { CStr::from_ptr(ferroattn_status_name(status)) };
            assert_eq!(name.to_str(), Ok(expected));
        }
    }
}
