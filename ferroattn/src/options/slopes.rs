//! The slopes of ALiBi.

/// The slopes of ALiBi's paper for so many heads: `2^(-8 (h + 1) / heads)` for head `h`.
///
/// ```
/// assert_eq!(ferroattn::alibi_slopes(4), [0.25, 0.0625, 0.015625, 0.00390625]);
/// ```
///
/// # Panics
/// If the host has no memory for them.
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let slope = |head: usize| (-8.0 * (head + 1) as f64 / heads as f64).exp2() as f32;
    (0..heads).map(slope).collect()
}
