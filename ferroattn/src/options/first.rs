//! The first option of a call that kernels lack, by name.

use super::names::{CACHE, E4M3, E4M3_CACHE, FP8, INVARIANT, LENGTHS, PAGES, PREFIX};
use super::{RawOptions, Window};
use crate::forward::Problem;

/// Products of ordinary size stay far below 2^30 times this: above, a rounded maximum may be off by 64.
const FAR_SCALE: f32 = 65536.0;

/// The first option of a call that plain kernels lack, by name.
pub(crate) fn first(p: &Problem, tensors: &RawOptions) -> Option<&'static str> {
    let options = [
        (E4M3_CACHE, tensors.e4m3_cache.is_some()),
        ("dim_v other than dim", p.dim_v != p.dim),
        ("window", p.window != Window::NONE),
        ("softcap", p.softcap.is_some()),
        ("scale of 65536 or more", has_far_scale(p)),
        ("alibi", tensors.alibi.is_some()),
        ("sinks", tensors.sinks.is_some()),
        ("bias", tensors.bias.is_some()),
        ("mask", tensors.mask.is_some()),
        (LENGTHS, tensors.sequences.is_some()),
        ("first_keys", tensors.first_keys.is_some()),
        (CACHE, tensors.cache_entries.is_some()),
        (PAGES, tensors.pages.is_some()),
        ("custom", tensors.custom.is_some()),
        (INVARIANT, tensors.batch_invariant),
        (FP8, tensors.fp8.is_some()),
        (E4M3, tensors.e4m3.is_some()),
    ];
    let (name, _) = options.into_iter().find(|(_, is_on)| *is_on)?;
    Some(name)
}

/// The first option of a call that kernels which read a cache lack, by name.
pub(crate) fn first_beside_cache(p: &Problem, tensors: &RawOptions) -> Option<&'static str> {
    let beside = RawOptions {
        cache_entries: None,
        ..*tensors
    };
    first(p, &beside)
}

/// The first option of a call that all kernels for FP8 lack, by name.
pub(crate) fn first_not_in_fp8(p: &Problem, tensors: &RawOptions) -> Option<&'static str> {
    let plain = Problem {
        window: Window::NONE,
        softcap: None,
        ..*p
    };
    let tensors = RawOptions {
        sinks: None,
        sequences: None,
        first_keys: None,
        ..*tensors
    };
    first_beside_fp8(&plain, &tensors)
}

/// The first option of a call in FP8 that its kernels without options lack, by name.
pub(crate) fn first_beside_fp8(p: &Problem, tensors: &RawOptions) -> Option<&'static str> {
    let of_dims = Problem { dim_v: p.dim, ..*p };
    let beside = RawOptions {
        fp8: None,
        e4m3: None,
        ..*tensors
    };
    let others = [
        (PREFIX, tensors.prefix.is_some()),
        ("split_keys", tensors.split_keys > 0),
    ];
    let other = others.into_iter().find(|(_, is_on)| *is_on);
    first(&of_dims, &beside).or(other.map(|(name, _)| name))
}

/// The first option of a call that kernels whose tiles have rows of several heads lack, by name.
pub(crate) fn first_of_pairs(p: &Problem, tensors: &RawOptions) -> Option<&'static str> {
    let plain = Problem {
        window: Window::NONE,
        softcap: None,
        scale: 1.0,
        ..*p
    };
    let of_pairs = RawOptions {
        bias: tensors.bias,
        mask: tensors.mask,
        custom: tensors.custom,
        ..RawOptions::default()
    };
    first(&plain, &of_pairs)
}

/// The first option of a call that changes scores, by name: kernels of latent attention lack these.
pub(crate) fn first_of_scores(p: &Problem, tensors: &RawOptions) -> Option<&'static str> {
    let of_scores = Problem {
        window: Window::NONE,
        dim_v: p.dim,
        ..*p
    };
    let tensors = RawOptions {
        sequences: None,
        first_keys: None,
        cache_entries: None,
        pages: None,
        ..*tensors
    };
    first(&of_scores, &tensors)
}

/// Whether the softmax may not scale products: their maximum times the scale is rounded by more than exponentials bear.
pub(crate) fn has_far_scale(p: &Problem) -> bool {
    p.scale.abs() >= FAR_SCALE
}
