//! The output file, which appears whole or not at all.

use anyhow::{Context, Result, ensure};
use attention::{Dtype, Element, Problem};
use safetensors::tensor::{Dtype as FileDtype, TensorView, serialize};
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

/// Fails if nothing can be written there, before any work is done.
pub fn probe(path: &Path) -> Result<()> {
    ensure!(
        !path.is_dir(),
        "--output: {} is a folder; it must be a file",
        path.display()
    );
    temporary(path).map(drop)
}

/// Writes o and lse.
pub fn write<T: Element>(path: &Path, problem: &Problem, o: &[T], lse: &[f32]) -> Result<()> {
    let dtype = match T::DTYPE {
        Dtype::F16 => FileDtype::F16,
        Dtype::Bf16 => FileDtype::BF16,
    };
    let (o_shape, lse_shape) = (problem.q_shape().to_vec(), problem.lse_shape().to_vec());
    let tensors = [
        (
            "o",
            TensorView::new(dtype, o_shape, bytemuck::cast_slice(o))?,
        ),
        (
            "lse",
            TensorView::new(FileDtype::F32, lse_shape, bytemuck::cast_slice(lse))?,
        ),
    ];
    let bytes = serialize(tensors, None)?;
    let mut file = temporary(path)?;
    file.write_all(&bytes).with_context(|| unwritable(path))?;
    file.persist(path).with_context(|| unwritable(path))?;
    Ok(())
}

/// A file beside `path`, so that it can be renamed; it is removed if it is not.
fn temporary(path: &Path) -> Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    // By default only the owner may read a temporary file; this one is to stay.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
        .tempfile_in(folder)
        .with_context(|| unwritable(path))
}

fn unwritable(path: &Path) -> String {
    format!("--output: cannot write {}", path.display())
}
