//! Names of kernels, of the library's and of the ladder's.

use anyhow::Result;
use ferroattn::Error;
use ladder::Ladder;

/// The kernel of the ladder with this name and these options; `None` for other names.
///
/// # Errors
/// If the kernel has no such option.
pub fn on_ladder(name: &str) -> ferroattn::Result<Option<Ladder>> {
    match name.parse() {
        Ok(ladder) => Ok(Some(ladder)),
        Err(Error::UnknownKernel { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Leaves out reasons that depend on the device or the size.
///
/// # Errors
/// If the kernel does not exist.
pub fn exists<T>(served: ferroattn::Result<T>) -> Result<()> {
    match served {
        Err(error @ Error::UnknownKernel { .. }) => Err(with_rungs(error).into()),
        _ => Ok(()),
    }
}

/// The error about an unknown kernel, with similar names of the ladder where the library has none.
pub fn with_rungs(error: Error) -> Error {
    match error {
        Error::UnknownKernel { name, near } if near.is_empty() => {
            Ladder::named(&name).map_or_else(|error| error, |_| Error::UnknownKernel { name, near })
        }
        error => error,
    }
}
