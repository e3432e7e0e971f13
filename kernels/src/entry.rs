//! The entry points. The builder writes them, a line for each kernel that it compiles, as the kernel's
//! [specification](crate::catalog) says; cargo sees none.

use crate::abi::{BulkCopyParams, ForwardParams, GemmParams, PackParams};
use crate::attention::heads::{HeadGroup, OneHead};
use crate::attention::mask::{Causal, Either, Full};
use crate::attention::score::Scaled;
use crate::tile::{Accumulator as Single, Bf16, F16, HalfAccumulator as Half};
use crate::{attention, bulk_copy, gemm};

/// Defines an entry point: `NAME(PARAMS) = KERNEL`.
#[macro_export]
macro_rules! entry {
    ($name:ident($params:ty) = $kernel:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $name(params: $params) {
            // SAFETY: the launch is the caller's promise.
            unsafe { $kernel(&params) }
        }
    };
}

include!(env!("KERNEL_ENTRIES"));
