//! The functions of packed queries, and keys and values in pages.

use super::{Arguments, causal_right};
use crate::Attention;
use crate::padding::Paged;
use candle_core::{Result, Tensor};

/// Attention of packed queries to keys and values in pages, which a table names: q is `[total_q, heads, dim]`, k and v are
/// `[pages, page_block_size, kv_heads, dim]` of any number of pages, and the output is `[total_q, heads, dim]`.
///
/// Sequence `s` has queries `seqlens_q[s]..seqlens_q[s + 1]` and `seqlens_k[s + 1] - seqlens_k[s]` keys: key `j` is row
/// `j % page_block_size` of page `block_table[s, j / page_block_size]`. Offsets are u32 `[sequences + 1]`, those of queries from 0 to
/// `total_q`; the table is u32 or i32 `[sequences, most pages]`. Behind a sequence's last key no page is read. No sequence has
/// more queries than `max_seqlen_q` or more keys than `max_seqlen_k`: the launch depends on these. A page has a power of 2 of keys.
/// With `causal`, query `i` of a sequence sees keys up to `i + keys - queries`.
///
/// Queries are read where they lie, and nothing is read back from a GPU. There are no gradients.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// use candle_core::{DType, Device, Tensor};
/// use ferroattn_candle::flash_attn_varlen_paged;
///
/// let device = Device::Cpu;
/// // Pages of two keys: the first sequence has three keys, in pages 2 and 0; the second has one, in page 1.
/// let v = Tensor::new(&[5_f32, 99.0, 7.0, 99.0, 1.0, 3.0], &device)?;
/// let v = v.reshape((3, 2, 1, 1))?.broadcast_as((3, 2, 1, 8))?.contiguous()?;
/// let table = Tensor::new(&[[2_u32, 0], [1, 0]], &device)?;
/// let seqlens_k = Tensor::new(&[0_u32, 3, 4], &device)?;
/// // Two queries, and one.
/// let q = Tensor::zeros((3, 1, 8), DType::F32, &device)?;
/// let seqlens_q = Tensor::new(&[0_u32, 2, 3], &device)?;
/// let o = flash_attn_varlen_paged(&q, &v, &v, &seqlens_q, &seqlens_k, &table, 2, 3, 1.0, true, 2)?;
/// assert_eq!(o.mean((1, 2))?.to_vec1::<f32>()?, [2.0, 3.0, 7.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The conditions of [`Attention::forward`](crate::Attention::forward). The CPU checks offsets and pages; a GPU, whose memory the host
/// does not see, moves those that are not allowed.
#[expect(
    clippy::too_many_arguments,
    reason = "they are candle-flash-attn's, and the table"
)]
pub fn flash_attn_varlen_paged(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    page_block_size: usize,
) -> Result<Tensor> {
    flash_attn_varlen_paged_windowed(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        block_table,
        None,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal_right(causal),
        page_block_size,
        None,
    )
}

impl Attention {
    /// [`flash_attn_varlen_paged`] with these options, [descales](Self::cache_descales) of pages of F8E4M3 among them. It takes the place of
    /// [`pages`](Self::pages) and [`padded`](Self::padded).
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let device = Device::Cpu;
    /// // Two pages of 16 keys; the numbers of the second stand for twice as much.
    /// let pages = Tensor::ones((2, 16, 1, 16), DType::F8E4M3, &device)?;
    /// let descales = Tensor::new(&[[1_f32], [2.0]], &device)?;
    /// let table = Tensor::new(&[[0_u32], [1]], &device)?;
    /// let q = Tensor::zeros((3, 1, 16), DType::F16, &device)?;
    /// let [seqlens_q, seqlens_k] = [[0_u32, 2, 3], [0, 5, 9]].map(|seqlens| Tensor::new(&seqlens, &device));
    /// let attention = Attention::new().page_descales(&descales, &descales);
    /// let o = attention.forward_varlen_paged(&q, &pages, &pages, &seqlens_q?, &seqlens_k?, &table, 2, 5, 16)?;
    /// assert_eq!(o.to_dtype(DType::F32)?.mean((1, 2))?.to_vec1::<f32>()?, [1.0, 1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`flash_attn_varlen_paged`].
    #[expect(clippy::too_many_arguments, reason = "they are those of the functions")]
    pub fn forward_varlen_paged(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        seqlens_q: &Tensor,
        seqlens_k: &Tensor,
        block_table: &Tensor,
        max_seqlen_q: usize,
        max_seqlen_k: usize,
        page_block_size: usize,
    ) -> Result<Tensor> {
        let paged = Paged {
            seqlens: [seqlens_q, seqlens_k],
            max_seqlens: [max_seqlen_q, max_seqlen_k],
            block_table,
            page_block_size,
        };
        paged.forward(self.clone(), [q, k, v])
    }
}

/// [`flash_attn_varlen_paged`] with the window of [`flash_attn_windowed`](crate::flash_attn_windowed) in each sequence, and a
/// softcap if there is one.
///
/// Name and arguments are candle-flash-attn's. `mm_prefix_ranges` must be `None`.
///
/// # Errors
/// The conditions of [`flash_attn_varlen_paged`], or there are `mm_prefix_ranges`.
#[expect(clippy::too_many_arguments, reason = "they are candle-flash-attn's")]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if mm_prefix_ranges.is_some() {
        candle_core::bail!(
            "mm_prefix_ranges is not served; pass None, or Attention::mask with padded queries"
        )
    }
    flash_attn_varlen_paged_alibi_windowed_softcap(
        q,
        k,
        v,
        None,
        seqlens_q,
        seqlens_k,
        block_table,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        page_block_size,
        softcap.unwrap_or_default(),
    )
}

/// [`flash_attn_varlen_paged`] with the slopes of [`flash_attn_alibi`](crate::flash_attn_alibi).
///
/// # Errors
/// The conditions of [`flash_attn_varlen_paged`].
#[expect(
    clippy::too_many_arguments,
    reason = "they are candle-flash-attn's, and the table"
)]
pub fn flash_attn_varlen_paged_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    page_block_size: usize,
) -> Result<Tensor> {
    flash_attn_varlen_paged_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        block_table,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal_right(causal),
        page_block_size,
    )
}

/// [`flash_attn_varlen_paged_windowed`] with the slopes of [`flash_attn_alibi`](crate::flash_attn_alibi).
///
/// # Errors
/// The conditions of [`flash_attn_varlen_paged`].
#[expect(
    clippy::too_many_arguments,
    reason = "they are candle-flash-attn's, and the table"
)]
pub fn flash_attn_varlen_paged_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
) -> Result<Tensor> {
    flash_attn_varlen_paged_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        seqlens_q,
        seqlens_k,
        block_table,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        page_block_size,
        0.0,
    )
}

/// [`flash_attn_varlen_paged_windowed`] with slopes, if there are any, and a softcap, of which 0 is none.
///
/// # Errors
/// The conditions of [`flash_attn_varlen_paged`].
#[expect(
    clippy::too_many_arguments,
    reason = "they are candle-flash-attn's, and the table"
)]
pub fn flash_attn_varlen_paged_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
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
    arguments.attention(max_seqlen_k).forward_varlen_paged(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        block_table,
        max_seqlen_q,
        max_seqlen_k,
        page_block_size,
    )
}

/// [`flash_attn_varlen_paged_windowed`] with the [sinks](crate::Attention::sinks) of each head, and a softcap, of which 0 is none.
///
/// # Errors
/// The conditions of [`flash_attn_varlen_paged`].
#[expect(
    clippy::too_many_arguments,
    reason = "they are candle-flash-attn's, and the table"
)]
pub fn flash_attn_varlen_paged_sinks_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    sinks: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: f32,
) -> Result<Tensor> {
    let arguments = Arguments {
        alibi_slopes: None,
        softmax_scale,
        window_size_left,
        window_size_right,
        softcap,
        sinks: Some(sinks),
    };
    arguments.attention(max_seqlen_k).forward_varlen_paged(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        block_table,
        max_seqlen_q,
        max_seqlen_k,
        page_block_size,
    )
}
