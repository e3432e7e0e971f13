//! Appending on the CPU.

use super::numbers::{Places, places};
use super::{RawAppend, RawRotary};
use crate::device::Device;
use crate::error::Result;
use crate::tensor::{Dtype, Element, RawTensor};
use float8::F8E4M3;
use half::{bf16, f16};
use ndarray::{Array2, ArrayView1, ArrayView4, ArrayViewMut1, ArrayViewMut4, s};

/// Appends the rows of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`append_raw`](crate::append_raw) on the CPU.
pub unsafe fn append_raw(dtype: Dtype, args: &RawAppend) -> Result<()> {
    let append = match dtype {
        Dtype::F16 => append_of::<f16>,
        Dtype::Bf16 => append_of::<bf16>,
        Dtype::F32 => append_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { append(args) }
}

/// # Safety
/// The conditions of [`append_raw`], with `T` the element type.
unsafe fn append_of<T: Element>(args: &RawAppend) -> Result<()> {
    // SAFETY: the caller vouches for the memory.
    let places = unsafe { places(&Device::cpu(), args)? };
    // SAFETY: as above.
    let rotary = args.rotary.map(|rotary| unsafe { Rotary::new(rotary) });
    // SAFETY: as above.
    let [k, v] = [args.k, args.v].map(|rows| unsafe { rows.view::<T, _>() });
    let rotary = rotary.as_ref();
    // SAFETY: nothing else touches the caches, which have a place for each element; descales are in readable memory.
    unsafe {
        match args.e4m3_cache {
            None => {
                let same = |_, _| (T::from_f32 as fn(f32) -> T, |x: T| x);
                copy(k, args.k_cache.view_mut(), &places, rotary, same);
                copy(v, args.v_cache.view_mut(), &places, None, same);
            }
            Some(cache) => {
                let of = |descales: Option<RawTensor<2>>| {
                    let descales = descales.map(|descales| descales.view::<f32, _>());
                    move |batch: usize, [entry, head]: [usize; 2]| {
                        let entry = if cache.of_pages { entry } else { batch };
                        let factor = 1.0 / descales.map_or(1.0, |descales| descales[[entry, head]]);
                        let number = move |x: f32| F8E4M3::from_f32(x * factor);
                        (number, move |x: T| number(x.to_f32()))
                    }
                };
                copy(k, args.k_cache.view_mut(), &places, rotary, of(cache.k));
                copy(v, args.v_cache.view_mut(), &places, None, of(cache.v));
            }
        }
    }
    if let Some([q, to]) = args.q {
        let [_, heads, rows, _] = q.shape;
        let at_first = args.rotary.is_some_and(|rotary| rotary.q_at_first);
        for (b, places) in places.iter().enumerate() {
            for (h, row) in (0..heads).flat_map(|h| (0..rows).map(move |row| (h, row))) {
                let position = places.position(if at_first { 0 } else { row });
                // SAFETY: the row is read before its place, which may be the same, is written.
                let numbers = unsafe { q.view::<T, _>() }
                    .slice_move(s![b, h, row, ..])
                    .to_owned();
                // SAFETY: nothing else touches the place now.
                let mut to = unsafe { to.view_mut::<T, _>() };
                let to = to.slice_mut(s![b, h, row, ..]);
                let same = (T::from_f32 as fn(f32) -> T, |x: T| x);
                rotate(numbers.view(), to, rotary, position, same);
            }
        }
    }
    if let Some(new_lengths) = args.new_lengths {
        // SAFETY: as above.
        let mut lengths = unsafe { new_lengths.view_mut::<i32, _>() };
        for (length, places) in lengths.iter_mut().zip(&places) {
            *length = (places.before() + args.k.shape[2]) as i32;
        }
    }
    Ok(())
}

/// Copies rows to their places, rotated if there is a rotary embedding. `kept` says what becomes of numbers and of elements: of a
/// batch entry, and an entry of the cache and a head.
fn copy<T: Element, N, F: Fn(f32) -> N, G: Fn(T) -> N>(
    from: ArrayView4<T>,
    mut to: ArrayViewMut4<N>,
    places: &[Places],
    rotary: Option<&Rotary>,
    kept: impl Fn(usize, [usize; 2]) -> (F, G),
) {
    let heads = from.dim().1;
    for (batch, places) in places.iter().enumerate() {
        for (row, place) in places.rows.iter().enumerate() {
            let Some([entry, key]) = *place else { continue };
            for head in 0..heads {
                let to = to.slice_mut(s![entry, head, key, ..]);
                let from = from.slice(s![batch, head, row, ..]);
                let kept = kept(batch, [entry, head]);
                rotate(from, to, rotary, places.position(row), kept);
            }
        }
    }
}

/// A row at a position, rotated if there is a rotary embedding.
fn rotate<T: Element, N>(
    from: ArrayView1<T>,
    mut to: ArrayViewMut1<N>,
    rotary: Option<&Rotary>,
    position: usize,
    (number, element): (impl Fn(f32) -> N, impl Fn(T) -> N),
) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = element(*from);
    }
    let Some(rotary) = rotary else { return };
    let pairs = rotary.cos.ncols();
    for pair in 0..pairs {
        let [a, b] = match rotary.interleaved {
            true => [2 * pair, 2 * pair + 1],
            false => [pair, pair + pairs],
        };
        let [cos, sin] = [&rotary.cos, &rotary.sin].map(|table| table[[position, pair]]);
        let [x, y] = [a, b].map(|place| from[place].to_f32());
        to[a] = number(x * cos - y * sin);
        to[b] = number(x * sin + y * cos);
    }
}

/// Cosines and sines in `f32`.
struct Rotary {
    cos: Array2<f32>,
    sin: Array2<f32>,
    interleaved: bool,
}

impl Rotary {
    /// # Safety
    /// Cosines and sines are in readable memory, aligned, and nothing writes them during the call.
    unsafe fn new(rotary: RawRotary) -> Self {
        let [cos, sin] = [rotary.cos, rotary.sin].map(|table| {
            // SAFETY: the caller's word.
            unsafe {
                match rotary.dtype {
                    Dtype::F16 => table.view::<f16, _>().mapv(f16::to_f32),
                    Dtype::Bf16 => table.view::<bf16, _>().mapv(bf16::to_f32),
                    Dtype::F32 => table.view::<f32, _>().to_owned(),
                }
            }
        });
        Rotary {
            cos,
            sin,
            interleaved: rotary.interleaved,
        }
    }
}
