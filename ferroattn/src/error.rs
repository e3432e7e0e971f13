//! Errors, and the arguments that cause them.

use crate::dtype::Dtype;
use crate::workspace::RawWorkspace;
use kernels::catalog::MAX_HEAD_DIM;

/// An attention call, allocation or device that could not be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages explain the fields")]
pub enum Error {
    /// A head dim that no kernel serves.
    #[error("dim is {0}; it must be from 1 to {MAX_HEAD_DIM}")]
    Dim(usize),
    /// A head dim of values that nothing serves.
    #[error("dim_v is {0}; it must be from 1 to {MAX_HEAD_DIM}")]
    ValueDim(usize),
    /// An argument that must be at least 1.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// Query heads that cannot be shared out among the key/value heads.
    #[error("heads is {heads}; it must be a multiple of kv_heads, which is {kv_heads}")]
    Heads { heads: usize, kv_heads: usize },
    /// A size that does not fit a kernel's integers.
    #[error("{argument} is {value}; it must be at most {max}")]
    TooLong {
        argument: &'static str,
        value: usize,
        max: u32,
    },
    /// Products that cannot be added up in f16.
    #[error("accumulation in f16 is for f16 inputs; for others it must be in f32")]
    Accumulation,
    /// An element type that no kernel has.
    #[error("no kernel computes {}, only f16 and bf16; use the CPU", .0.name())]
    NoKernels(Dtype),
    /// A head dim whose gradients only the CPU computes.
    #[error("no kernel computes the backward pass for dim {0}; use the CPU")]
    NoBackward(usize),
    /// A tensor with more bytes than the address space holds.
    #[error("the size of {0} overflows; use smaller sizes")]
    Overflow(&'static str),
    /// More blocks than one launch can have.
    #[error("the sizes make {blocks} blocks; {kernel} can launch at most {max}")]
    Grid {
        kernel: &'static str,
        blocks: u128,
        max: u32,
    },
    /// A softmax scale that is NaN or infinite.
    #[error("scale is {0}; it must be finite")]
    Scale(f32),
    /// A softcap that bounds no scores.
    #[error("softcap is {0}; it must be finite and above 0")]
    Softcap(f32),
    /// Packed sequences in several entries of a batch.
    #[error("batch is {0}; with packed sequences it must be 1")]
    PackedBatch(usize),
    /// Offsets of no sequence.
    #[error(
        "offsets_q has {0} elements; it must have one more than there are sequences, 2 or more"
    )]
    Offsets(usize),
    /// New keys that the cache has no room for.
    #[error("entry {entry} has {before} keys and gets {rows} more; it has room for {capacity}")]
    Full {
        entry: usize,
        before: usize,
        rows: usize,
        capacity: usize,
    },
    /// A row of a cache that two new keys would have.
    #[error("two new keys would be key {key} of entry {entry} of the cache")]
    Taken { entry: usize, key: usize },
    /// A slot that a cache does not have.
    #[error("slots[{entry}, {row}] is {slot}; the cache has {slots}")]
    Slot {
        entry: usize,
        row: usize,
        slot: i64,
        slots: usize,
    },
    /// A position that a rotary embedding does not have.
    #[error("entry {entry} has a row at position {position}; cos has {positions} positions")]
    Position {
        entry: usize,
        position: usize,
        positions: usize,
    },
    /// More pairs than a row has.
    #[error("cos has {pairs} pairs; rows of {dim} elements have at most {}", dim / 2)]
    RotaryDim { pairs: usize, dim: usize },
    /// Cosines and sines of a type that kernels do not read.
    #[error("cos and sin are {}; they must be f32 or {}", found.name(), dtype.name())]
    RotaryDtype { found: Dtype, dtype: Dtype },
    /// Pages of a number of keys that no kernel has.
    #[error("a page has {0} keys; it must have a power of 2")]
    Page(usize),
    /// A page that does not exist.
    #[error(
        "pages[{entry}, {index}] is {value}; it must be from 0 to {max}, for entry {entry} has {keys} keys"
    )]
    PageNumber {
        entry: usize,
        index: usize,
        value: i32,
        max: usize,
        keys: usize,
    },
    /// More pages than a table has room for.
    #[error("entry {entry} has {pages} pages; the table has room for {most}")]
    Pages {
        entry: usize,
        pages: usize,
        most: usize,
    },
    /// A last page of a wrong number of keys.
    #[error("last_page[{entry}] is {keys}; it must be from 1 to {page}")]
    LastPage {
        entry: usize,
        keys: i32,
        page: usize,
    },
    /// A length or an offset that is not allowed.
    #[error("{argument}[{index}] is {value}; it must be from {} to {max}", match min {
        0 => "0".to_owned(),
        min => format!("{min}, the offset before it,"),
    })]
    Entry {
        argument: &'static str,
        index: usize,
        value: i32,
        min: i32,
        max: usize,
    },
    /// An option that only the CPU computes.
    #[error("no kernel computes {0}; use the CPU")]
    NoOption(&'static str),
    /// An option that a call asks a kernel for and its text lacks: a fault of the library, or of the crate that made the kernel.
    #[error("the kernel {kernel} has no switch {switch}")]
    Switch {
        kernel: &'static str,
        switch: &'static str,
    },
    /// Options that exclude each other.
    #[error("{0} cannot be combined with {1}")]
    Excluded(&'static str, &'static str),
    /// An option without one that it needs.
    #[error("{0} needs {1}")]
    Needs(&'static str, &'static str),
    /// A prefix of another type than q, k and v.
    #[error("the prefix's k and v are {}; they must be {}", found.name(), dtype.name())]
    PrefixDtype { found: Dtype, dtype: Dtype },
    /// A prefix that does not end inside the last one of its pages.
    #[error(
        "the prefix has {keys} keys; with {pages} pages of {page} keys it must have from {} to {}",
        pages.saturating_sub(1).saturating_mul(*page).saturating_add(1).min(pages.saturating_mul(*page)),
        pages.saturating_mul(*page)
    )]
    PrefixKeys {
        keys: usize,
        page: usize,
        pages: usize,
    },
    /// Queries that a causal call lets see a part of a prefix.
    #[error(
        "entry {entry} has {queries} queries and {keys} keys; with causal and a prefix it must have {} keys or more",
        queries - 1
    )]
    OwnKeys {
        entry: usize,
        queries: usize,
        keys: usize,
    },
    /// An option of the forward pass alone.
    #[error("there are no gradients of a call with {0}")]
    ForwardOnly(&'static str),
    /// A gradient of an option that the call does not have.
    #[error("there is no gradient of {0} in a call without {0}")]
    NoGradient(&'static str),
    /// A tensor of an option whose shape does not match the other arguments.
    #[error("{argument} has shape {found:?}; it must be {allowed}, with the sizes of {full:?}")]
    OptionShape {
        argument: &'static str,
        allowed: &'static str,
        full: Vec<usize>,
        found: Vec<usize>,
    },
    /// A tensor whose shape does not match the other arguments.
    #[error("{argument} has shape {found:?}; it must be {expected:?} to match the other tensors")]
    Shape {
        argument: &'static str,
        expected: Vec<usize>,
        found: Vec<usize>,
    },
    /// A tensor or matrix with gaps in its rows.
    #[error("{argument} has stride {stride} in {axis}; it must be 1")]
    Stride {
        argument: &'static str,
        axis: &'static str,
        stride: isize,
    },
    /// Keys or values of e4m3 whose rows are not whole vectors.
    #[error(
        "rows of {0} are e4m3; they must be multiples of 16 numbers, and start at multiples of 16 bytes"
    )]
    E4m3Rows(&'static str),
    /// Descales of pages that are too small.
    #[error("pages of {0} keys have descales of their own; those must have 16 keys or more")]
    E4m3Page(usize),
    /// An output with two elements at one place.
    #[error("{argument} has overlapping strides {strides:?}; every element needs its own place")]
    Overlap {
        argument: &'static str,
        strides: Vec<isize>,
    },
    /// A score or mask of another crate that wants another number of arrays.
    #[error("custom has {found} arrays; it must have {wanted}")]
    Arrays { wanted: usize, found: usize },
    /// A mask of another crate whose later keys are seen by earlier queries.
    #[error("in batch entry {batch}, custom's queries of key {} begin or end before the ones of key {key}", key + 1)]
    CustomOrder { batch: usize, key: usize },
    /// A mask of another crate whose keys and queries disagree.
    #[error(
        "in batch entry {batch}, custom's keys of query {query} must be {}..{}, as its queries of each key say",
        keys[0], keys[1]
    )]
    CustomMask {
        batch: usize,
        query: usize,
        keys: [u32; 2],
    },
    /// The gradient of a bias that a score of another crate follows.
    #[error("the gradient of a bias is not computed with custom")]
    CustomBias,
    /// An array without elements.
    #[error("{0} is empty; it must have an element")]
    Empty(&'static str),
    /// A tensor that must be row-major without gaps.
    #[error("{0} is not contiguous; it must be row-major without gaps")]
    NotContiguous(&'static str),
    /// A tensor on another device than the other arguments.
    #[error("{argument} is on {}", match found == expected {
        true => format!("another {found} than the others; it must be on the same one"),
        false => format!("{found}; it must be on the device of the others, {expected}"),
    })]
    DeviceMismatch {
        argument: &'static str,
        /// The others' device, by name.
        expected: String,
        /// The tensor's device, by name.
        found: String,
    },
    /// Data of another length than the shape asks for.
    #[error("data has {found} elements; shape {shape:?} needs {expected}")]
    Length {
        shape: Vec<usize>,
        expected: usize,
        found: usize,
    },
    /// An axis that a tensor does not have.
    #[error("there is no axis {axis}; the tensor has {axes}")]
    Axis { axis: usize, axes: usize },
    /// Axes that are no order of a tensor's axes.
    #[error("axes {axes:?} do not name each of {} axes once", axes.len())]
    Axes { axes: Vec<usize> },
    /// Indices outside an axis.
    #[error("start {start} with length {len} is outside axis {axis}, which has extent {extent}")]
    Range {
        axis: usize,
        extent: usize,
        start: usize,
        len: usize,
    },
    /// A shape that no strides give.
    #[error(
        "shape {shape:?} with strides {strides:?} takes shape {to:?} only by a copy; call `try_clone` first"
    )]
    Reshape {
        shape: Vec<usize>,
        strides: Vec<isize>,
        to: Vec<usize>,
    },
    /// A shape that repeated elements do not fill.
    #[error("shape {shape:?} cannot be broadcast to {to:?}; only extents of 1 are repeated")]
    Broadcast { shape: Vec<usize>, to: Vec<usize> },
    /// A view that reaches outside its buffer.
    #[error(
        "shape {shape:?} with strides {strides:?} at offset {offset} reaches outside the buffer of {len} elements"
    )]
    OutOfBounds {
        shape: Vec<usize>,
        strides: Vec<isize>,
        offset: usize,
        len: usize,
    },
    /// A kernel name that is not in the table.
    #[error("there is no kernel {name:?}{}", near_names(.near))]
    UnknownKernel {
        name: String,
        near: Vec<&'static str>,
    },
    /// A kernel whose blocks need more shared memory than the device has.
    #[error(
        "kernel {kernel} needs {needed} bytes of shared memory for a block; the device has {available}{}",
        instead.map(|name| format!("; {name} would fit")).unwrap_or_default()
    )]
    SharedMemory {
        kernel: &'static str,
        needed: u32,
        available: u32,
        instead: Option<&'static str>,
    },
    /// A kernel that does not serve the problem or the device.
    #[error("kernel {kernel} {reason}")]
    UnsuitableKernel { kernel: String, reason: String },
    /// A kernel for GPUs on the CPU.
    #[error("kernel {0} runs on CUDA devices and the emulator, not on the CPU")]
    NotOnCpu(String),
    /// A kernel of matrix products in an attention call.
    #[error("kernel {0} multiplies matrices")]
    Multiplies(String),
    /// A program whose build found no compiler for the kernels, or lacks the feature `ptx`.
    #[cfg_attr(
        feature = "ptx",
        error(
            "this program was built without GPU kernels: they need rustc 1.95 or later with its library source \
             (`rustup component add rust-src`)"
        )
    )]
    #[cfg_attr(
        not(feature = "ptx"),
        error(
            "this program was built without GPU kernels: they need the feature `ptx` of the crate `ferroattn`"
        )
    )]
    NotCompiled,
    /// A call on the CPU in a program without the feature `cpu`.
    #[error(
        "this program was built without the CPU's calls: they need the feature `cpu` of the crate `ferroattn`"
    )]
    NoCpu,
    /// No NVIDIA driver on this machine.
    #[error("no NVIDIA driver: {0}")]
    NoDriver(String),
    /// No CUDA device of that index.
    #[error("there is no CUDA device {index}; this machine has {count}")]
    NoDevice { index: usize, count: usize },
    /// A device older than a kernel's target.
    #[error(
        "{device} has compute capability {}.{}; {needed_by} needs {}",
        found.0, found.1, needed
    )]
    ComputeCapability {
        device: String,
        found: (i32, i32),
        /// Name of the kernel, or "every kernel".
        needed_by: &'static str,
        /// Compute capabilities that run it, in words.
        needed: &'static str,
    },
    /// A driver that does not know the PTX version of the kernels.
    #[error(
        "the NVIDIA driver is too old for the PTX of {kernel}: it supports CUDA {}.{}; install a newer driver",
        supports.0, supports.1
    )]
    DriverTooOld {
        /// Name of the kernel.
        kernel: &'static str,
        supports: (i32, i32),
    },
    /// More memory than the device has free.
    #[error(
        "out of memory on {device}: {needed} bytes needed{}",
        free.map(|free| format!(", {free} free")).unwrap_or_default()
    )]
    OutOfMemory {
        device: String,
        needed: u64,
        /// Bytes free, where the device tells.
        free: Option<u64>,
    },
    /// A workspace of the caller that is too small.
    #[error("the workspace has {found} bytes; the call needs {needed}")]
    Workspace { needed: usize, found: usize },
    /// A workspace of the caller that begins anywhere.
    #[error("the workspace is at address {0:#x}; it must be at a multiple of {multiple}", multiple = RawWorkspace::ALIGNMENT)]
    WorkspaceAddress(u64),
    /// Any other failure that the driver reports, at once or from earlier asynchronous work.
    #[error("CUDA: {operation}: {message}")]
    Cuda {
        operation: &'static str,
        /// The driver's status, a `CUresult`.
        status: u32,
        message: String,
    },
    /// The emulator stopped a kernel, or could not load it.
    #[error("emulator: {0}")]
    Emulator(String),
}

/// The kind of an [`Error`], for callers that act by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is wrong, alone or beside the others: another call is needed.
    Argument,
    /// Nothing computes the call on this device, or in this build: another device may.
    Unsupported,
    /// Memory is short: the call may succeed later, or a smaller one.
    Memory,
    /// A device, its driver or an emulated kernel failed.
    Device,
}

/// Result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error's kind.
    ///
    /// ```
    /// use ferroattn::{Attention, Device, ErrorKind, Tensor};
    ///
    /// let q = Tensor::<f32>::zeros(&Device::cpu(), [1, 2, 5, 8])?;
    /// let error = Attention::new().scale(f32::NAN).forward(&q, &q, &q).expect_err("no scale");
    /// assert_eq!(error.kind(), ErrorKind::Argument);
    /// # Ok::<(), ferroattn::Error>(())
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::NoKernels(_)
            | Error::NoBackward(_)
            | Error::NoOption(_)
            | Error::ForwardOnly(_)
            | Error::SharedMemory { .. }
            | Error::UnsuitableKernel { .. }
            | Error::NotOnCpu(_)
            | Error::Multiplies(_)
            | Error::NotCompiled
            | Error::NoCpu
            | Error::NoDriver(_)
            | Error::NoDevice { .. }
            | Error::ComputeCapability { .. }
            | Error::DriverTooOld { .. } => ErrorKind::Unsupported,
            Error::OutOfMemory { .. } | Error::Overflow(_) => ErrorKind::Memory,
            Error::Cuda { .. } | Error::Emulator(_) | Error::Switch { .. } => ErrorKind::Device,
            _ => ErrorKind::Argument,
        }
    }

    /// The error of a kernel that does not serve the problem or the device.
    pub fn unsuitable(kernel: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::UnsuitableKernel {
            kernel: kernel.into(),
            reason: reason.into(),
        }
    }

    /// The error of a name that no kernel has; `names` are all there are. Lists the three most similar to it, best
    /// first.
    pub fn unknown_kernel(name: &str, names: impl Iterator<Item = &'static str>) -> Self {
        let mut near: Vec<_> = names
            .map(|known| (strsim::jaro_winkler(known, name), known))
            .filter(|&(similarity, _)| similarity > 0.7)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0));
        Error::UnknownKernel {
            name: name.to_owned(),
            near: near.into_iter().take(3).map(|(_, known)| known).collect(),
        }
    }
}

pub(crate) fn expect_at_most(argument: &'static str, value: usize, max: u32) -> Result<()> {
    if value <= max as usize {
        return Ok(());
    }
    Err(Error::TooLong {
        argument,
        value,
        max,
    })
}

/// Checks that a tensor has the shape that its call gives it.
pub(crate) fn expect_shape(
    argument: &'static str,
    expected: &[usize],
    found: &[usize],
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape {
        argument,
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}

fn near_names(near: &[&str]) -> String {
    match near {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(", ")),
    }
}
