//! The entry points. The builder writes them, a line for each kernel that it compiles, as the kernel's specification says.
//!
//! They are a crate of their own, since the compiler reads it for each part of the catalog: the kernels are read once.
#![no_std]
#![feature(abi_ptx, asm_experimental_arch)]

use kernels::abi::{
    AppendE4m3Params, AppendParams, BackwardParams, BlockMapParams, BulkCopyParams, CsrParams, E4m3Params, ForwardParams, Fp8Params, GemmParams,
    HopperGemmParams, MergeBackwardParams, MergeParams, PackParams, PrepareParams, RangesParams,
    RoundRowsParams, RoundValuesParams,
    Sm90BackwardParams, Sm90Params, SpreadParams,
};
use kernels::attention::auxiliary::source::E4m3;
use kernels::attention::forward::{OneLevel, TwoLevels, Unwatched};
use kernels::attention::options::group_score::GroupScore;
use kernels::attention::options::mask::{Causal, Either, Full};
use kernels::attention::options::ranges::{Ranges, Spans};
use kernels::attention::options::score::{Optional, Scaled};
use kernels::attention::workload::heads::{HeadGroup, HeadOrGroup, HeadSlice, OneHead};
use kernels::tile::{Accumulator as Single, Bf16, F16, HalfAccumulator as Half};
use kernels::{attention, bulk_copy, entry, gemm};

include!(env!("KERNEL_ENTRIES"));
