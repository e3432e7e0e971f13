//! Shapes and places of the tensors of a call that appends.

use crate::memory::share_storage;
use candle_core::{Layout, Result, Tensor};

/// Checks that a tensor that is read keeps out of the caches' storages, which are locked, and of candle's graph.
pub(super) fn expect_apart(
    name: &str,
    tensor: &Tensor,
    caches: [(&str, &Tensor); 2],
) -> Result<()> {
    if tensor.track_op() {
        candle_core::bail!("{name} has no gradient through a cache; pass {name}.detach()")
    }
    for (cache, written) in caches {
        if share_storage([tensor, written]) {
            candle_core::bail!(
                "{name} lies in the storage of {cache}, which is written; pass a copy"
            )
        }
    }
    Ok(())
}

/// An axis of a shape.
#[derive(Clone, Copy)]
enum Axis {
    Is(usize),
    /// Of any extent, with a name.
    Any(&'static str),
}

/// Checks the axes of all tensors.
pub(super) fn expect_shapes<'t>(
    tensors: impl Iterator<Item = (&'static str, &'t Tensor)> + Clone,
    [k, v]: [&Tensor; 2],
    k_cache: &Tensor,
) -> Result<()> {
    use Axis::{Any, Is};
    let (entry, [rows, kv_heads, dim]) = match *k.dims() {
        [batch, rows, kv_heads, dim] => (Some(batch), [rows, kv_heads, dim]),
        [rows, kv_heads, dim] => (None, [rows, kv_heads, dim]),
        _ => candle_core::bail!(
            "k has shape {:?}; it must be [batch, rows, kv_heads, dim] or [rows, kv_heads, dim]",
            k.dims()
        ),
    };
    let batch = Is(entry.unwrap_or(1));
    let of_entry = |axes: &[Axis]| -> Vec<Axis> {
        let entry = entry.map(Is);
        entry.into_iter().chain(axes.iter().copied()).collect()
    };
    let dim_v = v.dims().last().map_or(Any("dim_v"), |&dim| Is(dim));
    let extent = |axis: usize, name| k_cache.dims().get(axis).map_or(Any(name), |&size| Is(size));
    let [entries, keys] = [extent(0, "entries"), extent(1, "keys")];
    let mut names = tensors.clone().map(|(name, _)| name);
    let entries_or_batch =
        match names.any(|name| matches!(name, "pages" | "cache_entries" | "slots")) {
            true => Any("entries"),
            false => batch,
        };
    for (name, tensor) in tensors {
        let axes = match name {
            "k" => continue,
            "v" => of_entry(&[Is(rows), Is(kv_heads), Any("dim_v")]),
            "q" => of_entry(&[Any("seqlen_q"), Any("heads"), Is(dim)]),
            "k_cache" => vec![entries_or_batch, Any("keys"), Is(kv_heads), Is(dim)],
            "v_cache" => vec![entries, keys, Is(kv_heads), dim_v],
            "pages" => vec![batch, Any("most pages")],
            "slots" | "positions" => of_entry(&[Is(rows)]),
            // How many there are is checked by the library.
            "k_descale" | "v_descale" => vec![Any("batch or pages"), Is(kv_heads)],
            "cos" | "sin" => vec![Any("positions"), Any("rotary_dim / 2")],
            _ => vec![batch],
        };
        let fits = |(axis, extent): (&Axis, &usize)| match axis {
            Is(expected) => expected == extent,
            Any(_) => true,
        };
        let found = tensor.dims();
        if axes.len() != found.len() || !axes.iter().zip(found).all(fits) {
            let expected = axes.iter().map(|axis| match axis {
                Is(extent) => extent.to_string(),
                Any(name) => (*name).to_owned(),
            });
            let expected = expected.collect::<Vec<_>>().join(", ");
            candle_core::bail!("{name} has shape {found:?}; it must be [{expected}]")
        }
    }
    Ok(())
}

/// Whether parts of one storage have no element in common: one ends before the other, or they lie along an axis of one tensor.
pub(super) fn are_apart(first: &Layout, second: &Layout) -> bool {
    let mut layouts = [first, second];
    layouts.sort_by_key(|layout| layout.start_offset());
    let [first, second] = layouts;
    if first.dims().contains(&0) || second.dims().contains(&0) {
        return true;
    }
    let distance = second.start_offset() - first.start_offset();
    let last: usize = (first.stride().iter().zip(first.dims()))
        .map(|(stride, extent)| stride * (extent - 1))
        .sum();
    if distance > last {
        return true;
    }
    let extents = (first.dims().iter().zip(second.dims())).map(|(first, second)| first.max(second));
    let strides = first.stride().iter().zip(second.stride());
    let mut axes: Vec<_> = strides
        .zip(extents)
        .filter(|(_, extent)| **extent > 1)
        .collect();
    if axes.iter().any(|((first, second), _)| first != second) {
        return false;
    }
    // The two are one more axis: no step along an axis ends where shorter ones reach.
    axes.push(((&distance, &distance), &2));
    axes.sort_unstable();
    let mut reach = 0;
    axes.iter().all(|((stride, _), extent)| {
        let is_behind = **stride > reach;
        reach += *stride * (*extent - 1);
        is_behind
    })
}
