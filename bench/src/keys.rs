//! K and V on a device: in rows or pages, or behind a prefix that all sequences share.

use crate::shape::Shape;
use bytemuck::Pod;
use ferroattn::{Device, Element, Tensor};

/// K or V on a device, of row-major elements; heads lie inside of the keys of pages, as engines have them.
pub fn keys<T: Pod>(
    device: &Device,
    shape: &Shape,
    dim: usize,
    elements: &[T],
) -> ferroattn::Result<Tensor<T>> {
    let kv_shape @ [pages, heads, page, _] = shape.kv_shape(dim);
    if shape.prefix.is_some() {
        let of_heads = elements.chunks(shape.seqlen_kv() * dim);
        let own: Vec<T> = of_heads
            .flat_map(|head| &head[shape.prefix() * dim..])
            .copied()
            .collect();
        return Tensor::new(device, kv_shape, &own);
    }
    if shape.page.is_none() {
        return Tensor::new(device, kv_shape, elements);
    }
    let mut keys = Tensor::zeros(device, [pages, page, heads, dim])?.transpose(1, 2)?;
    keys.copy_from_slice(elements)?;
    Ok(keys)
}

/// The prefix on a device, of the elements of K or V of all entries.
pub fn prefix<T: Element>(
    device: &Device,
    shape: &Shape,
    dim: usize,
    elements: &[T],
) -> ferroattn::Result<Tensor<T>> {
    let (heads, keys) = (shape.kv_heads(), shape.prefix());
    let of_heads = elements.chunks(shape.seqlen_kv() * dim).take(heads);
    let shared: Vec<T> = of_heads
        .flat_map(|head| &head[..keys * dim])
        .copied()
        .collect();
    Tensor::new(device, [1, heads, keys, dim], &shared)
}
