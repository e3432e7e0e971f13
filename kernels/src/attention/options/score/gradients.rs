//! The gradient of a bias.

use super::{Corner, place};
use crate::abi::{BackwardParams, Switch};
use crate::attention::options::pairs::Pairs;
use crate::ptx::{global, shuffle, special, switch};
use crate::tile::Accumulator;

const GRADIENT_VECTORS: u32 = Switch::BiasGradientVectors.constant().1;

/// [`Score::add_gradients`](super::Score::add_gradients) of scores with options.
///
/// # Safety
/// Its conditions.
#[inline(always)]
pub unsafe fn add<const MT: usize, const NT: usize, const VECTORS: bool>(
    params: &BackwardParams,
    head: [u32; 2],
    gradients: &[[Accumulator; NT]; MT],
    corner: Corner,
) {
    if switch::bias_gradient() == 0 {
        return;
    }
    let d_bias = Pairs::new(&params.d_bias, head, 4);
    let ends = [params.forward.seqlen_q, params.forward.seqlen_kv];
    for mt in 0..MT {
        for nt in 0..NT {
            let corner = corner.skip::<true>(mt, nt);
            // SAFETY: the caller's promise.
            unsafe {
                if VECTORS && switch::bias_gradient() == GRADIENT_VECTORS {
                    add_vectors(d_bias, ends, gradients[mt][nt], corner);
                } else {
                    add_elements(d_bias, ends, gradients[mt][nt], corner);
                }
            }
        }
    }
}

/// Adds a transposed tile to the gradient of a bias, of so many queries and keys, element by element.
///
/// # Safety
/// It has an element for each pair, which only such calls write.
#[inline(always)]
unsafe fn add_elements(
    d_bias: Pairs,
    [queries, keys]: [u32; 2],
    gradients: Accumulator,
    corner: Corner,
) {
    let lane = special::lane();
    for i in 0..8 {
        let [query, key] = place::<true>(lane, i as u32);
        let (query, key) = (corner.query as u32 + query, corner.key as u32 + key);
        let gradient = gradients.0[i];
        if gradient != 0.0 && query < queries && key < keys {
            // SAFETY: the caller's promise, for a pair that exists.
            unsafe { global::add_f32(d_bias.at_by_stride(query, key), gradient) }
        }
    }
}

/// [`add_elements`], four keys at a time: the four lanes that have neighbouring keys of four queries exchange them. A tile takes two
/// additions in the place of eight.
///
/// # Safety
/// The conditions of [`add_elements`], and rows are whole vectors of four elements. All lanes of the warp make the same call.
#[inline(always)]
unsafe fn add_vectors(
    d_bias: Pairs,
    [queries, keys]: [u32; 2],
    gradients: Accumulator,
    corner: Corner,
) {
    let lane = special::lane();
    for half in 0..2 {
        // Both columns of each half of the tile, in one half of its rows.
        let elements = [0, 1, 4, 5].map(|i| gradients.0[2 * half + i].to_bits());
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe { shuffle::transpose::<4, 8>(elements, lane) };
        let number = lane / 4 % 4;
        let query = corner.query as u32 + 2 * (lane % 4) + number % 2 + 8 * (number / 2);
        let key = corner.key as u32 + 4 * (lane / 16) + 8 * half as u32;
        // Sign bits aside, all are 0 where the mask hides them.
        if (a | b | c | d) << 1 != 0 && query < queries && key < keys {
            let [a, b, c, d] = [a, b, c, d].map(f32::from_bits);
            // SAFETY: the caller's promise, for pairs that exist.
            unsafe { global::add_f32x4(d_bias.at_by_stride(query, key), a, b, c, d) }
        }
    }
}
