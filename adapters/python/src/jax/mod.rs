//! Attention as custom calls of XLA, which JAX compiles to.
//!
//! | file | what it holds |
//! |---|---|
//! | `abi` | structs and numbers of XLA's foreign function interface |
//! | `frame` | arrays, attributes and the stream of a call |
//! | `failure` | errors, and how they reach XLA |
//! | `call` | tensors and options of a call |
//!
//! XLA calls a handler once to ask what it is, then for each call. On a GPU a handler launches kernels on XLA's stream, in memory
//! that is a result of the call: nothing is allocated and nothing waits. So XLA may capture a call in a CUDA graph, even the
//! first one, whose kernels are loaded while the capture goes on.

mod abi;
mod call;
mod failure;
mod frame;

use abi::{CallFrame, Metadata, MetadataExtension};
use call::{Call, PAIRS, workspace};
use failure::Failure;
use ferroattn::{Device, RawBackward};
use frame::Frame;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// A device, and the stream there.
type Place = (Device, *mut c_void);

/// Computes o and lse on the CPU.
///
/// # Safety
/// XLA calls it, with a frame whose arrays have the elements that they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_jax_forward_cpu(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { handle(frame, cpu, forward) }
}

/// Computes o and lse on a GPU.
///
/// # Safety
/// The conditions of [`ferroattn_jax_forward_cpu`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_jax_forward_cuda(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { handle(frame, cuda, forward) }
}

/// Computes gradients on the CPU.
///
/// # Safety
/// The conditions of [`ferroattn_jax_forward_cpu`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_jax_backward_cpu(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { handle(frame, cpu, backward) }
}

/// Computes gradients on a GPU.
///
/// # Safety
/// The conditions of [`ferroattn_jax_forward_cpu`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_jax_backward_cuda(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { handle(frame, cuda, backward) }
}

/// Answers what the handler is, or runs it. Returns null, or an error of XLA.
///
/// # Safety
/// The frame is XLA's.
unsafe fn handle(
    frame: *mut CallFrame,
    place: fn(&Frame) -> Result<Place, Failure>,
    pass: fn(&Frame, Place) -> Result<(), Failure>,
) -> *mut c_void {
    // SAFETY: XLA's frame is live during the call.
    let frame = unsafe { &*frame };
    // SAFETY: XLA's list of extensions is live, too.
    if let Some(extension) = unsafe { asked(frame) } {
        // SAFETY: the kind says that it is this struct, whose facts are the handler's to write.
        unsafe { tell(&mut *(*extension).metadata) };
        return null_mut();
    }
    let run = || {
        // SAFETY: no one asks for facts, so XLA wants the call run.
        let frame = unsafe { Frame::new(frame)? };
        pass(&frame, place(&frame)?)
    };
    // A panic leaves nothing half done that a later call reads.
    let done = catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(Failure::internal("a fault of the library")));
    match done {
        Ok(()) => null_mut(),
        // SAFETY: XLA's functions are live as long as the program.
        Err(failure) => failure.into_error(unsafe { &*frame.api }),
    }
}

/// The extension that asks for facts, if the frame has it.
///
/// # Safety
/// The frame is XLA's.
unsafe fn asked(frame: &CallFrame) -> Option<*mut MetadataExtension> {
    let mut next = frame.head.extension;
    while !next.is_null() {
        // SAFETY: extensions are a list whose end is null.
        let extension = unsafe { &*next };
        if extension.kind == abi::METADATA {
            return Some(next.cast());
        }
        next = extension.next;
    }
    None
}

/// Says which version the handler is made for, and that CUDA graphs may hold its launches.
fn tell(metadata: &mut Metadata) {
    [metadata.version.major, metadata.version.minor] = abi::VERSION;
    metadata.traits = abi::COMMAND_BUFFER_COMPATIBLE;
}

fn cpu(_: &Frame) -> Result<Place, Failure> {
    Ok((Device::cpu(), null_mut()))
}

fn cuda(frame: &Frame) -> Result<Place, Failure> {
    Ok((crate::gpus::open(frame.gpu()?)?, frame.stream()?))
}

fn forward(frame: &Frame, (device, stream): Place) -> Result<(), Failure> {
    let call = Call::read(frame)?;
    // SAFETY: arrays are XLA's, live in the order of its stream; results and the workspace, which is one, lie apart.
    unsafe {
        let (attention, dtype) = (&call.attention, call.dtype);
        attention.forward_raw_in(&device, dtype, &call.tensors, workspace(frame)?, stream)?;
    }
    Ok(())
}

fn backward(frame: &Frame, (device, stream): Place) -> Result<(), Failure> {
    let call = Call::read(frame)?;
    let gradient = |name| frame.tensor(name, frame::number(call.dtype), call.form.axes());
    let gradients = [gradient("dq")?, gradient("dk")?, gradient("dv")?];
    let mut args = RawBackward::new(&call.tensors, gradient("d_o")?, gradients);
    let float = abi::element::F32;
    args.d_lse = frame.optional("d_lse", float, call.form.axes_of_rows())?;
    args.d_bias = frame.optional("d_bias", float, PAIRS)?;
    args.d_sinks = frame.optional("d_sinks", float, [Some(0)])?;
    // SAFETY: arrays are XLA's, live in the order of its stream; results and the workspace, which is one, lie apart.
    unsafe {
        let (attention, dtype) = (&call.attention, call.dtype);
        attention.backward_raw_in(&device, dtype, &args, workspace(frame)?, stream)?;
    }
    Ok(())
}
