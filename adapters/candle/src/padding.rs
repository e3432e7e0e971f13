//! Packed queries and keys in pages, with offsets of both: the host reads no offset of a GPU.

use crate::Attention;
use crate::tensors::{expect_device, expect_dtype};
use candle_core::{DType, Device, Result, Tensor};

/// Packed queries, and keys in pages.
pub(crate) struct Paged<'a> {
    /// Offsets of queries and of keys, u32 `[batch + 1]`. Those of keys only say how many a sequence has.
    pub seqlens: [&'a Tensor; 2],
    /// The most queries and keys of a sequence.
    pub max_seqlens: [usize; 2],
    /// `[batch, most pages]`.
    pub block_table: &'a Tensor,
    pub page_block_size: usize,
}

impl Paged<'_> {
    /// The output `[total_q, heads, dim_v]` for q `[total_q, heads, dim]`, and k and v `[pages, page_block_size, kv_heads, dim or dim_v]`.
    pub fn forward(&self, attention: Attention, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let &[total, heads, dim] = q.dims() else {
            let found = q.dims();
            candle_core::bail!("q has shape {found:?}; it must be [total_q, heads, dim]")
        };
        if k.dims().get(1) != Some(&self.page_block_size) {
            let (found, page) = (k.dims(), self.page_block_size);
            candle_core::bail!("k has shape {found:?}; it must be [pages, {page}, kv_heads, dim]")
        }
        let [seqlens_q, seqlens_k] = self.seqlens;
        let [max_q, max_k] = self.max_seqlens;
        let batch = self.batch(q.device())?;
        if q.device().is_cpu() {
            expect_offsets("seqlens_q", seqlens_q, max_q, Some(total))?;
            expect_offsets("seqlens_k", seqlens_k, max_k, None)?;
        }
        if max_q == 0 && total > 0 {
            candle_core::bail!("max_seqlen_q is 0; q has {total} rows")
        }
        let lengths_k = lengths(seqlens_k, batch)?;
        let table = self.table(max_k)?;
        let attention = attention.pages(&table);
        if batch * max_q.min(total) != total {
            return attention
                .packed_queries(seqlens_q, &lengths_k)
                .forward(q, k, v);
        }
        // All sequences have that many queries: their keys are divided among blocks in parts of one size.
        let padded = q.reshape((batch, total / batch, heads, dim))?;
        let attention = attention.padded(&lengths(seqlens_q, batch)?, &lengths_k);
        attention.forward(&padded, k, v)?.flatten(0, 1)
    }

    /// How many sequences there are.
    fn batch(&self, device: &Device) -> Result<usize> {
        let [queries, keys] = self.seqlens;
        for (name, tensor) in [("seqlens_q", queries), ("seqlens_k", keys)] {
            expect_device(name, tensor, ("q", device))?;
            expect_dtype(name, tensor, &[DType::U32])?;
        }
        match (queries.dims(), keys.dims()) {
            (&[numbers], &[of_keys]) if numbers == of_keys && numbers > 1 => Ok(numbers - 1),
            (queries, keys) => candle_core::bail!(
                "seqlens_q and seqlens_k have shapes {queries:?} and {keys:?}; they must be [sequences + 1], 2 or more"
            ),
        }
    }

    /// The table, as far as the longest sequence needs it: the launch depends on its length.
    fn table(&self, max_seqlen_k: usize) -> Result<Tensor> {
        let &[_, most] = self.block_table.dims() else {
            let found = self.block_table.dims();
            candle_core::bail!("block_table has shape {found:?}; it must be [batch, most pages]")
        };
        let pages = max_seqlen_k.div_ceil(self.page_block_size.max(1)).max(1);
        self.block_table.narrow(1, 0, pages.min(most))
    }
}

/// How many rows each sequence has.
fn lengths(seqlens: &Tensor, batch: usize) -> Result<Tensor> {
    seqlens.narrow(0, 1, batch)? - seqlens.narrow(0, 0, batch)?
}

/// Checks offsets in the host's memory.
///
/// # Errors
/// If they fall, a sequence has more rows than `most`, or they do not reach from 0 to `end`.
fn expect_offsets(name: &str, seqlens: &Tensor, most: usize, end: Option<usize>) -> Result<()> {
    let offsets = seqlens.to_vec1::<u32>()?;
    for (index, pair) in offsets.windows(2).enumerate() {
        let (from, to) = (pair[0] as usize, pair[1] as usize);
        if !(from..=from.saturating_add(most)).contains(&to) {
            candle_core::bail!(
                "{name}[{}] is {to}; it must be from {from} to {}",
                index + 1,
                from.saturating_add(most)
            )
        }
    }
    let [first, .., last] = offsets[..] else {
        return Ok(());
    };
    match end {
        Some(end) if (first, last as usize) != (0, end) => {
            candle_core::bail!("{name} is from {first} to {last}; it must be from 0 to {end}")
        }
        _ => Ok(()),
    }
}
