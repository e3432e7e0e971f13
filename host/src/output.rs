//! The output file: a regular file appears whole or not at all; devices and pipes are written straight.

use anyhow::{Context, Result, bail, ensure};
use ferroattn::{Dtype, Element, Problem};
use rustix::fs::{AtFlags, CWD, linkat};
use safetensors::tensor::{Dtype as FileDtype, TensorView, serialize};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An output file, opened but not yet changed.
pub struct Output {
    /// The path as it was typed.
    typed: PathBuf,
    file: File,
    /// The path that a nameless `file` gets after it is written.
    target: Option<PathBuf>,
}

/// Row-major gradients.
pub struct Gradients<T> {
    /// dq, dk and dv.
    pub inputs: [Vec<T>; 3],
    /// Gradient of the sinks, `[heads]`, if there are any.
    pub d_sinks: Option<Vec<f32>>,
    /// Gradient of the bias, and its shape, if there is one.
    pub d_bias: Option<([usize; 4], Vec<f32>)>,
}

/// Results: row-major tensors.
pub struct Results<T> {
    /// o and lse.
    pub forward: Option<(Vec<T>, Vec<f32>)>,
    pub gradients: Option<Gradients<T>>,
}

impl Output {
    /// Opens the file before any work is done; `input` is the file that q, k and v come from.
    ///
    /// # Errors
    /// If it cannot be written, or is the input.
    pub fn open(typed: &Path, input: Option<&Metadata>) -> Result<Self> {
        let shown = typed.display();
        let existing = match fs::metadata(typed) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            found => Some(found.with_context(|| unwritable(typed))?),
        };
        if let Some(existing) = &existing {
            ensure!(
                !existing.is_dir(),
                "--output: {shown} is a folder; it must be a file"
            );
            let inode = |file: &Metadata| (file.dev(), file.ino());
            ensure!(
                input.map(inode) != Some(inode(existing)),
                "--output: {shown} is the file of --input, which would be lost"
            );
        }
        let (file, target) = open(typed, existing).with_context(|| unwritable(typed))?;
        Ok(Output {
            typed: typed.to_owned(),
            file,
            target,
        })
    }

    /// Writes what was computed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write<T: Element>(&self, problem: &Problem, results: &Results<T>) -> Result<()> {
        let dtype = match T::DTYPE {
            Dtype::F16 => FileDtype::F16,
            Dtype::Bf16 => FileDtype::BF16,
            Dtype::F32 => FileDtype::F32,
            other => bail!("files have no {}", other.name()),
        };
        let mut tensors = Vec::new();
        if let Some((o, lse)) = &results.forward {
            let lse_shape = problem.lse_shape().to_vec();
            tensors.push((
                "o",
                dtype,
                problem.o_shape().to_vec(),
                bytemuck::cast_slice(o),
            ));
            tensors.push(("lse", FileDtype::F32, lse_shape, bytemuck::cast_slice(lse)));
        }
        if let Some(gradients) = &results.gradients {
            let [dq, dk, dv] = &gradients.inputs;
            for (name, shape, gradient) in [
                ("dq", problem.q_shape(), dq),
                ("dk", problem.k_shape(), dk),
                ("dv", problem.v_shape(), dv),
            ] {
                tensors.push((name, dtype, shape.to_vec(), bytemuck::cast_slice(gradient)));
            }
            let d_sinks = gradients.d_sinks.as_ref();
            let d_sinks = d_sinks.map(|d_sinks| ("d_sinks", vec![problem.heads], d_sinks));
            let d_bias = gradients.d_bias.as_ref();
            let d_bias = d_bias.map(|(shape, d_bias)| ("d_bias", shape.to_vec(), d_bias));
            for (name, shape, gradient) in [d_sinks, d_bias].into_iter().flatten() {
                let bytes = bytemuck::cast_slice(gradient);
                tensors.push((name, FileDtype::F32, shape, bytes));
            }
        }
        let views = tensors
            .into_iter()
            .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape, bytes)?)));
        let bytes = serialize(views.collect::<Result<Vec<_>>>()?, None)?;
        self.put(&bytes).with_context(|| unwritable(&self.typed))
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        fill(&self.file, bytes)?;
        let Some(target) = &self.target else {
            return Ok(());
        };
        // Some file systems cannot name a nameless file.
        publish(&self.file, target).or_else(|_| fill(&File::create(target)?, bytes))
    }
}

/// Writes `bytes`, in place of what a regular file holds.
fn fill(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(bytes)
}

/// Opens what `typed` names, and says which path a nameless file is for.
fn open(typed: &Path, existing: Option<Metadata>) -> io::Result<(File, Option<PathBuf>)> {
    let mut options = OpenOptions::new();
    options.write(true);
    if let Some(existing) = &existing {
        // Files that must not be written are not replaced either.
        let file = options.open(typed)?;
        if !existing.is_file() {
            return Ok((file, None));
        }
    }
    let target = resolve(typed)?;
    match nameless(folder(&target)) {
        Ok(file) => {
            if let Some(existing) = existing {
                file.set_permissions(existing.permissions())?;
            }
            Ok((file, Some(target)))
        }
        // Some file systems have no nameless files, and some folders take no new ones.
        Err(_) => Ok((options.create(true).open(target)?, None)),
    }
}

/// The path behind symbolic links; the file need not exist.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    while let Ok(link) = fs::read_link(&target) {
        target = folder(&target).join(link);
    }
    match target.as_os_str().as_encoded_bytes().last() {
        None | Some(b'/') => Err(ErrorKind::InvalidFilename.into()),
        Some(_) => Ok(target),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file without a name; it vanishes if the program ends before [`publish`], even by a signal.
#[cfg(target_os = "linux")]
fn nameless(folder: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags).open(folder)
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &Path) -> io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

/// Gives a nameless file its path; an older file there is replaced.
fn publish(file: &File, target: &Path) -> io::Result<()> {
    let link = |path: &Path| {
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
    };
    match link(target) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // A link cannot replace a file, but renaming one can: it has another name for a moment.
            let beside = tempfile::Builder::new().make_in(folder(target), link)?;
            beside.persist(target).map_err(|error| error.error)
        }
        linked => linked,
    }
}

fn unwritable(path: &Path) -> String {
    format!("--output: cannot write {}", path.display())
}
