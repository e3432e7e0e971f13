//! Options of an attention call beyond plain and causal attention, and the tensors that it takes for them.

mod blocks;
mod borrowed;
mod custom;
mod custom_arrays;
#[cfg(test)]
mod definition;
mod e4m3_cache;
#[cfg(test)]
mod faults;
mod first;
mod fp8;
#[cfg(feature = "cpu")]
mod head;
#[cfg(test)]
mod huge;
mod mask;
mod names;
mod numbers;
mod pages;
#[cfg(test)]
mod passes;
mod prefix;
mod prefix_tensors;
mod ranges;
mod raw;
#[cfg(test)]
pub(crate) mod samples;
mod sequences;
mod slopes;
mod tensors;
#[cfg(test)]
mod tests;
mod validate;
mod window;

pub(crate) use blocks::{Tiles, WARPGROUP_ROWS};
pub(crate) use borrowed::{Borrowed, BorrowedDescales};
pub use custom::{CustomKernels, RawArray, RawCustom};
pub(crate) use custom_arrays::BorrowedCustom;
pub use custom_arrays::CustomArray;
pub use e4m3_cache::RawE4m3Cache;
pub(crate) use e4m3_cache::{descales_ref, in_pairs};
pub(crate) use first::{
    first, first_beside_cache, first_beside_fp8, first_not_in_fp8, first_of_pairs, first_of_scores,
    has_far_scale,
};
pub use fp8::{Fp8, RawE4m3};
#[cfg(feature = "cpu")]
pub use head::HostOptions;
#[cfg(feature = "cpu")]
pub(crate) use head::{Head, tanh_error};
pub use mask::MaskElement;
use names::PACKED_QUERIES;
pub(crate) use names::{CACHE, E4M3, E4M3_CACHE, FP8, INVARIANT, PAGES, PREFIX};
pub(crate) use pages::{expect_last_page, read_pages};
pub use prefix::RawPrefix;
pub(crate) use prefix_tensors::BorrowedPrefix;
pub(crate) use ranges::{QueryTiles, Tables, Units};
pub(crate) use raw::Part;
pub(crate) use raw::{PAIRS, full, score_shape};
pub use raw::{RawBias, RawMask, RawOptions};
pub use sequences::{RawSequences, Sequences};
pub(crate) use sequences::{Sequence, Spaced};
pub use slopes::alibi_slopes;
pub(crate) use tensors::TensorOptions;
pub use window::{ParseWindowError, Window};

use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::{Dtype, RawTensor};
use kernels::abi::{
    BlockMapRef, Divisor, LengthsRef, NEAR_SOFTCAP, Options, PagesRef, PairsRef, Switch, Switches,
    UnitsRef,
};

/// Whether scores may be so large that lse in f32 [has no digits left](kernels::abi::FAR_LSE) for the row's sum: where the call adds
/// to them.
pub(crate) fn may_be_far(p: &Problem, tensors: &RawOptions) -> bool {
    has_far_scale(p)
        || tensors.alibi.is_some()
        || tensors.sinks.is_some()
        || tensors.bias.is_some()
        || tensors.custom.is_some()
}

/// Checks that a call with a score or mask of another crate names no kernel.
pub(crate) fn expect_best(name: Option<&str>) -> Result<()> {
    let refused = |name| Err(Error::unsuitable(name, "computes no custom"));
    name.map_or(Ok(()), refused)
}

/// The options in the form that kernels read.
pub(crate) fn of_kernels(p: &Problem, tensors: &RawOptions) -> Options {
    let bound =
        |keys: Option<usize>| keys.map_or(i32::MAX, |keys| keys.min(i32::MAX as usize) as i32);
    let [alibi_batch, alibi_head] = tensors.alibi.map_or([0; 2], |alibi| alibi.used_strides());
    // The batch's stride.
    let shares_bias = tensors
        .bias
        .is_some_and(|bias| bias.tensor.used_strides()[0] == 0);
    let table = tensors.pages.map(|pages| pages.address);
    let cache = table.or(tensors.cache_entries.map(|entries| entries.address));
    let [sinks_head] = tensors.sinks.map_or([0], |sinks| sinks.used_strides());
    Options {
        alibi: tensors.alibi.map_or(0, |alibi| alibi.address),
        alibi_batch: alibi_batch as i64,
        alibi_head: alibi_head as i64,
        sinks: tensors.sinks.map_or(0, |sinks| sinks.address),
        sinks_head: sinks_head as i64,
        left: bound(p.window.left),
        right: if p.causal { 0 } else { bound(p.window.right) },
        softcap: p.softcap.unwrap_or(f32::INFINITY),
        dim_v: p.dim_v as u32,
        key_ranges: 0,
        query_ranges: 0,
        bias: pairs(tensors.bias.map(|bias| bias.tensor)),
        entries: Divisor::new(if shares_bias { p.batch as u32 } else { 1 }),
        cache_entries: 0,
        cache: cache.unwrap_or(0),
        pages: PagesRef::default(),
        units: UnitsRef::default(),
        tiles: 0,
        mask: pairs(tensors.mask.map(|mask| mask.tensor)),
        custom: tensors
            .custom
            .map_or_else(Default::default, |custom| custom.arrays.map(Into::into)),
        blocks: BlockMapRef::default(),
        query_blocks: BlockMapRef::default(),
        lengths: LengthsRef::default(),
    }
}

/// A tensor with an element for each pair, as kernels read it; none at address 0.
pub(crate) fn pairs(tensor: Option<RawTensor>) -> PairsRef {
    tensor.map_or(PairsRef::default(), |tensor| {
        let [batch_stride, head_stride, query_stride, _] =
            tensor.used_strides().map(|stride| stride as i64);
        PairsRef {
            address: tensor.address,
            batch_stride,
            head_stride,
            query_stride,
        }
    })
}

/// The switches that are on in a kernel with options.
pub(crate) fn switches(p: &Problem, tensors: &RawOptions) -> Switches {
    let of_sequences = tensors.has_slopes_of_sequences();
    let bias = |dtype| tensors.bias.is_some_and(|bias| bias.dtype == dtype);
    let is_near = |cap| cap <= NEAR_SOFTCAP;
    Switches::NONE
        .with(Switch::Softcap, p.softcap.is_some_and(is_near))
        .with(
            Switch::SoftcapFar,
            p.softcap.is_some_and(|cap| !is_near(cap)),
        )
        // Scores with slopes are scaled before the softmax, which then subtracts maxima without an error.
        .with(
            Switch::Alibi,
            (tensors.alibi.is_some() || has_far_scale(p)) && !of_sequences,
        )
        .with(Switch::AlibiRows, of_sequences)
        .with(Switch::Ranges, tensors.has_ranges())
        .with(Switch::BiasF16, bias(Dtype::F16))
        .with(Switch::BiasBf16, bias(Dtype::Bf16))
        .with(Switch::BiasF32, bias(Dtype::F32))
        .with(
            Switch::MaskBytes,
            tensors.mask.is_some_and(|mask| !mask.bits),
        )
        .with(Switch::MaskBits, tensors.mask.is_some_and(|mask| mask.bits))
        .with(Switch::Pages, tensors.pages.is_some())
        .with(Switch::Tiles, tensors.has_packed_queries())
        .with(Switch::F32Output, tensors.f32_o)
}
