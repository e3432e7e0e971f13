//! Kernels in place of those whose tensor maps cannot describe a tensor.

use super::RawForward;
use crate::device::Facts;
use crate::tensor_map::has_map;
use kernels::catalog::select::is_wide;
use kernels::catalog::{self, Family, Forward, Kernel, Kind, Loop, MaskKind, Rows};
use kernels::layout::latent::LatentMemory;

/// The kernel, or the one that computes the same without tensor maps, where they cannot describe a tensor.
pub(super) fn suited(kernel: &'static Kernel, facts: &Facts, args: &RawForward) -> &'static Kernel {
    match lacks_map(kernel, args) {
        true => without_maps(kernel, facts),
        false => kernel,
    }
}

/// Whether a kernel loads a tensor by a map, and no map can describe it. Grouped kernels copy q without one. A box of a
/// page starts at a multiple of 8 rows of a tile, where its swizzle begins anew.
fn lacks_map(kernel: &Kernel, args: &RawForward) -> bool {
    let forward = kernel.forward().expect("it computes attention");
    let by_maps: &[_] = match forward.kind.rows {
        _ if !kernel.takes_maps() || forward.kind.multiplies_e4m3() => &[],
        Rows::Head => &[args.q, args.k, args.v],
        Rows::Group => &[args.k, args.v],
    };
    let is_small = args.options.pages.is_some() && args.k.shape[2] < 8;
    !by_maps.is_empty() && is_small || !by_maps.iter().all(has_map)
}

/// The kernel that computes the same without tensor maps.
fn without_maps(kernel: &Kernel, facts: &Facts) -> &'static Kernel {
    let forward = kernel.forward().expect("it computes attention");
    let (main_loop, mask) = match forward.kind.mask {
        mask if !is_wide(forward.dim) => (Loop::Sm80, mask),
        MaskKind::Options => (Loop::Wide, MaskKind::Options),
        _ => (Loop::Wide, MaskKind::Either),
    };
    let (rows, dim) = match forward.is_latent() {
        true => (Rows::Head, LatentMemory::DIM_V),
        false => (forward.kind.rows, forward.dim),
    };
    let kind = Kind {
        main_loop,
        rows,
        mask,
    };
    let instead = Forward::of(kind, forward.dtype, dim, facts.class().into());
    catalog::kernel(Family::Forward(
        instead.expect("every head dim has a kernel"),
    ))
}
