//! The interface of a launch: the argument block that the host passes to a kernel by value.
//!
//! | module | what it holds |
//! |---|---|
//! | `tensor` | where a tensor lies in device memory |
//! | `forward` | arguments of an attention kernel |
//! | `fp8` | arguments of the kernels for FP8 |
//! | `backward` | arguments of the kernels of a backward pass |
//! | `gemm` | arguments of a matrix product |
//! | `append` | arguments of the kernel that appends keys and values to a cache |
//! | `csr` | arguments of the kernel that makes a table of pages of the CSR form |
//! | `pack` | arguments of a copy to aligned rows |
//! | `merge` | arguments of the kernels that merge results of attention |
//! | `sm90` | arguments of the attention kernels for Hopper |
//! | `event` | points in the work of its roles |
//! | `block_map` | arguments of the kernel that finds which blocks of keys a boolean mask shows |
//! | `bulk_copy` | arguments of the bulk copy |
//! | `e4m3` | arguments of the kernels that read and write a cache of e4m3 |
//! | `divide` | division by a number known before the launch |
//! | `options` | what a call asks for beside q, k and v |
//! | `order` | which block of a grid takes which tile |
//! | `pages` | the pages of keys and values that a table names |
//! | `ranges` | arguments of the kernel that finds what queries and keys see |
//! | `stored` | jobs of a launch that stores dS, and their order |

mod append;
mod backward;
mod block_map;
mod bulk_copy;
mod csr;
mod divide;
mod e4m3;
mod event;
mod forward;
mod fp8;
mod gemm;
mod merge;
mod options;
mod order;
mod pack;
mod pages;
mod ranges;
mod sm90;
mod spread;
mod stored;
mod tensor;

pub use append::{AppendParams, RowsRef};
pub use backward::{BackwardParams, FAR_LSE, PrepareParams, ROW_PADDING};
pub use block_map::{BlockMapParams, BlockMapRef, Coverage};
pub use bulk_copy::{BULK_BYTES, BulkCopyParams};
pub use csr::CsrParams;
pub use divide::Divisor;
pub use e4m3::{AppendE4m3Params, DescalesRef, E4m3Params};
pub use event::Event;
pub use forward::{ForwardParams, MAX_SEQLEN};
pub use fp8::{FP8_BLOCK, Fp8Params, RoundRowsParams, RoundValuesParams};
pub use gemm::{GemmParams, HopperGemmParams, MAX_DEPTH, MatrixRef};
pub use merge::{MergeBackwardParams, MergeParams, MergeParts, PartRef};
pub use options::{
    ARRAYS, ArrayRef, KeyRange, LengthsRef, NEAR_SOFTCAP, Options, PairsRef, QueryRange, QueryTile,
    Switch, Switches, UnitsRef,
};
pub use order::Order;
pub use pack::PackParams;
pub use pages::PagesRef;
pub use ranges::RangesParams;
pub use sm90::{Sm90BackwardParams, Sm90Params, TensorMap};
pub use spread::{SpreadParams, first_spread_row};
pub use stored::{Awaited, Stored, StoredJob, StoredSizes};
pub use tensor::TensorRef;
