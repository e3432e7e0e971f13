//! Candle's tensors, written in place.

use super::Memory;
use crate::op::NAME;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor};
use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;

/// What a call gives with the address of a tensor's storage, which nobody else reads or writes meanwhile.
///
/// Candle gives out storages to write only in its operations in place: the call is one.
pub(crate) fn in_place<M: Memory, T>(
    memory: &M,
    tensor: &Tensor,
    call: impl FnOnce(u64) -> Result<T>,
) -> Result<T> {
    let (mut call, mut result) = (Some(call), None);
    let write = |storage: &mut M::Storage| {
        let (address, _until_queued) = memory.write(storage)?;
        result = call.take().map(|call| call(address)).transpose()?;
        Ok(())
    };
    tensor.inplace_op1(&Write::<M, _> {
        call: RefCell::new(write),
        memory: PhantomData,
    })?;
    match result {
        Some(result) => Ok(result),
        None => candle_core::bail!("candle did not run an operation in place"),
    }
}

/// Whether tensors are parts of one storage, which has one lock.
pub(crate) fn share_storage(tensors: [&Tensor; 2]) -> bool {
    let [first, second] = tensors.map(|tensor| {
        let (storage, _) = tensor.storage_and_layout();
        std::ptr::from_ref::<Storage>(&storage).addr()
    });
    first == second
}

/// What is done with a storage to write.
struct Write<M, F> {
    call: RefCell<F>,
    memory: PhantomData<M>,
}

impl<M: Memory, F: FnMut(&mut M::Storage) -> Result<()>> Write<M, F> {
    fn run(&self, storage: &mut dyn Any) -> Result<()> {
        match storage.downcast_mut() {
            Some(storage) => (self.call.borrow_mut())(storage),
            None => candle_core::bail!("a tensor of the call is on another device than the others"),
        }
    }
}

impl<M: Memory, F: FnMut(&mut M::Storage) -> Result<()>> InplaceOp1 for Write<M, F> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        self.run(storage)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        self.run(storage)
    }
}
