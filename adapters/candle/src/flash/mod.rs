//! The functions of candle-flash-attn, under their names and with their arguments.

mod paged;

pub use paged::{
    flash_attn_varlen_paged, flash_attn_varlen_paged_alibi, flash_attn_varlen_paged_alibi_windowed,
    flash_attn_varlen_paged_alibi_windowed_softcap, flash_attn_varlen_paged_sinks_windowed_softcap,
    flash_attn_varlen_paged_windowed,
};

use crate::Attention;
use candle_core::{Result, Tensor};

/// Options that the arguments of the functions ask for.
struct Arguments<'a> {
    alibi_slopes: Option<&'a Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
    sinks: Option<&'a Tensor>,
}

impl Arguments<'_> {
    /// Attention of sequences that have no more keys than this.
    fn attention(&self, max_seqlen_k: usize) -> Attention {
        // A bound of more keys than there are is none. Calls without a window have faster kernels.
        let left = self.window_size_left.filter(|&left| left < max_seqlen_k);
        let right = self
            .window_size_right
            .filter(|&right| right <= max_seqlen_k);
        let mut attention = Attention::new()
            .scale(self.softmax_scale)
            .causal(right == Some(0))
            .window(left, right.filter(|&right| right > 0));
        if self.softcap != 0.0 {
            attention = attention.softcap(self.softcap);
        }
        if let Some(slopes) = self.alibi_slopes {
            attention = attention.alibi(slopes);
        }
        if let Some(sinks) = self.sinks {
            attention = attention.sinks(sinks);
        }
        attention
    }
}

/// The right bound of a window that a causal mask is.
fn causal_right(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// Attention, `softmax(softmax_scale * Q K^T) V`, of q `[batch, seqlen_q, heads, dim]`.
///
/// k and v are `[batch, seqlen_k, kv_heads, dim]`, and the output has q's shape. With `causal`, query `i` sees keys up to
/// `i + seqlen_k - seqlen_q`.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// use candle_core::{DType, Device, Tensor};
///
/// let q = Tensor::ones((2, 100, 8, 64), DType::BF16, &Device::Cpu)?;
/// let k = Tensor::ones((2, 100, 2, 64), DType::BF16, &Device::Cpu)?;
/// let o = ferroattn_candle::flash_attn(&q, &k, &k, 0.125, true)?;
/// assert_eq!(o.dims(), q.dims());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The conditions of [`Attention::forward`].
pub fn flash_attn(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal_right(causal))
}

/// [`flash_attn`] with a sliding window: query `i` sees keys `i + offset - window_size_left ..= i + offset + window_size_right`.
///
/// The offset is `seqlen_k - seqlen_q`; `None` is no bound on that side. Nor is a right bound of more keys than there are.
///
/// # Errors
/// The conditions of [`Attention::forward`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(
        q,
        k,
        v,
        None,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// [`flash_attn`] with slopes of ALiBi, f32 `[heads]`: `slope * |i + seqlen_k - seqlen_q - j|` is taken off scores.
///
/// # Errors
/// The conditions of [`Attention::forward`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        softmax_scale,
        None,
        causal_right(causal),
    )
}

/// [`flash_attn_windowed`] with the slopes of [`flash_attn_alibi`].
///
/// # Errors
/// The conditions of [`Attention::forward`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// [`flash_attn_windowed`] with slopes, if there are any, and scores `softcap * tanh(score / softcap)`; a softcap of 0 is none.
///
/// # Errors
/// The conditions of [`Attention::forward`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let arguments = Arguments {
        alibi_slopes,
        softmax_scale,
        window_size_left,
        window_size_right,
        softcap,
        sinks: None,
    };
    // Other shapes are an error of the call.
    let max_seqlen_k = k.dims().get(1).copied().unwrap_or_default();
    arguments.attention(max_seqlen_k).forward(q, k, v)
}

/// [`flash_attn`] of packed sequences: q is `[total_q, heads, dim]`, k and v are `[total_k, kv_heads, dim]`.
///
/// Sequence `s` has queries `seqlens_q[s]..seqlens_q[s + 1]` and keys `seqlens_k[s]..seqlens_k[s + 1]`, of u32 or i32.
/// No sequence has more keys than `max_seqlen_k`. `max_seqlen_q` is not read.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// use candle_core::{DType, Device, Tensor};
///
/// let q = Tensor::ones((5, 8, 64), DType::BF16, &Device::Cpu)?;
/// // Of two rows and of three.
/// let seqlens = Tensor::new(&[0_u32, 2, 5], &Device::Cpu)?;
/// let o = ferroattn_candle::flash_attn_varlen(&q, &q, &q, &seqlens, &seqlens, 3, 3, 0.125, true)?;
/// assert_eq!(o.dims(), q.dims());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The conditions of [`Attention::forward`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_windowed(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal_right(causal),
    )
}

/// [`flash_attn_varlen`] with the window of [`flash_attn_windowed`] in each sequence.
///
/// # Errors
/// The conditions of [`Attention::forward`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        None,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// [`flash_attn_varlen`] with the slopes of [`flash_attn_alibi`].
///
/// # Errors
/// The conditions of [`Attention::forward`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal_right(causal),
    )
}

/// [`flash_attn_varlen_windowed`] with the slopes of [`flash_attn_alibi`].
///
/// # Errors
/// The conditions of [`Attention::forward`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// [`flash_attn_varlen_windowed`] with slopes and softcap of [`flash_attn_alibi_windowed_softcap`].
///
/// # Errors
/// The conditions of [`Attention::forward`].
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    _max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let arguments = Arguments {
        alibi_slopes,
        softmax_scale,
        window_size_left,
        window_size_right,
        softcap,
        sinks: None,
    };
    let attention = arguments.attention(max_seqlen_k);
    attention.packed(seqlens_q, seqlens_k).forward(q, k, v)
}
