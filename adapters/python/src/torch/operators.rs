//! Names and signatures of the operators, and their registration.

use super::failure::Failure;
use super::options::Options;
use super::shim::{Kernel, StableValue, shim};
use super::{append, backward, csr, e4m3, forward, native};
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// The namespace of the operators.
const NAMESPACE: &CStr = c"ferroattn";

/// Keys of the devices.
const DEVICES: [&CStr; 2] = [c"CPU", c"CUDA"];

/// The function that PyTorch calls for an operator, which runs a body on the stack.
macro_rules! kernel {
    ($body:path) => {{
        unsafe extern "C-unwind" fn kernel(stack: *mut u64, arguments: u64, results: u64) {
            // SAFETY: PyTorch's word: the signature's arguments, and room for its results.
            unsafe { $crate::torch::operators::run(stack, arguments.max(results), $body) }
        }
        kernel
    }};
}
pub(super) use kernel;

/// Registers the operators, for good.
pub fn register() -> Result<(), String> {
    let options = Options::signature();
    define(&format!(
        "forward(Tensor q, Tensor k, Tensor v, {options}) -> (Tensor o, Tensor lse)"
    ))?;
    let call = format!(
        "Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool with_bias, \
         bool with_sinks, {options}"
    );
    define(&format!(
        "backward({call}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_bias, Tensor d_sinks)"
    ))?;
    define(&format!(
        "backward_into(Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, {call}) -> (Tensor d_bias, Tensor d_sinks)"
    ))?;
    define(&e4m3::signature())?;
    define(append::SIGNATURE)?;
    define(csr::SIGNATURE)?;
    define(
        "carry(Tensor? seqlens_q, Tensor? seqlens_k, Tensor? alibi_slopes, Tensor? sinks) -> ()",
    )?;
    implement(
        NAMESPACE,
        c"CompositeExplicitAutograd",
        c"carry",
        kernel!(native::carry),
    )?;
    for device in DEVICES {
        for (name, kernel) in native::OPERATORS {
            implement(c"aten", device, name, kernel)?;
        }
        implement(NAMESPACE, device, c"forward", kernel!(forward::operator))?;
        implement(NAMESPACE, device, c"backward", kernel!(backward::operator))?;
        implement(NAMESPACE, device, c"forward_e4m3", kernel!(e4m3::operator))?;
        implement(NAMESPACE, device, c"append", kernel!(append::operator))?;
        implement(NAMESPACE, device, c"csr_pages", kernel!(csr::operator))?;
        let into = kernel!(backward::operator_into);
        implement(NAMESPACE, device, c"backward_into", into)?;
    }
    Ok(())
}

fn define(signature: &str) -> Result<(), String> {
    let mut library = null_mut();
    let text = CString::new(signature).expect("no zeros");
    // SAFETY: the strings are valid during the calls, the pointer a local's. The library's object is never freed.
    let status = unsafe {
        match (shim().define_in)(NAMESPACE.as_ptr(), c"ferroattn".as_ptr(), 0, &mut library) {
            0 => (shim().define)(library, text.as_ptr()),
            status => status,
        }
    };
    expect(status, signature)
}

fn implement(namespace: &CStr, device: &CStr, name: &CStr, kernel: Kernel) -> Result<(), String> {
    let mut library = null_mut::<c_void>();
    // SAFETY: as of `define`; the kernel has the operator's signature.
    let status = unsafe {
        let file = c"ferroattn".as_ptr();
        match (shim().implement_in)(namespace.as_ptr(), device.as_ptr(), file, 0, &mut library) {
            0 => (shim().implement)(library, name.as_ptr(), kernel),
            status => status,
        }
    };
    expect(status, &name.to_string_lossy())
}

fn expect(status: i32, what: &str) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(format!("PyTorch does not register {what}")),
    }
}

/// Runs an operator's body on the stack; an error becomes PyTorch's.
///
/// # Safety
/// The stack has so many values, which are the operator's arguments.
pub unsafe fn run(
    stack: *mut StableValue,
    values: u64,
    body: fn(&mut [StableValue]) -> Result<(), Failure>,
) {
    // SAFETY: the caller's word.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe {
        body(std::slice::from_raw_parts_mut(stack, values as usize))
    }));
    match done {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => failure.throw(),
        Err(_) => Failure::other("a fault of the library").throw(),
    }
}
