//! Packed queries as padded ones, and back: the library has no packed queries beside pages.
//!
//! All is done on the device, in the order of its stream: the host reads no offset of a GPU.

use crate::Attention;
use crate::tensors::{expect_device, expect_dtype};
use candle_core::{DType, Device, Result, Tensor};
use std::sync::{Mutex, PoisonError};

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
        let [lengths_q, lengths_k] = [lengths(seqlens_q, batch)?, lengths(seqlens_k, batch)?];
        let table = self.table(max_k)?;
        let attention = attention.pages(&table).padded(&lengths_q, &lengths_k);
        let most = max_q.min(total);
        let forward = |q: &Tensor| {
            let o = attention.forward(q, k, v)?;
            let (_, _, heads, dim_v) = o.dims4()?;
            o.reshape((batch * most, heads, dim_v))
        };
        if batch * most == total {
            // All sequences have that many queries.
            return match most {
                1 => forward(&q.unsqueeze(1)?),
                _ => forward(&q.reshape((batch, most, heads, dim))?),
            };
        }
        if most == 0 {
            candle_core::bail!("max_seqlen_q is 0; q has {total} rows")
        }
        let rows = rows_of_padded(seqlens_q, [batch, most, total])?;
        let padded = q.contiguous()?.index_select(&rows, 0)?;
        let o = forward(&padded.reshape((batch, most, heads, dim))?)?;
        let rows = rows_of_packed(seqlens_q, &lengths_q, [batch, most, total])?;
        o.index_select(&rows, 0)
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

/// The packed row of each row of a padded batch: behind a sequence's last one, any.
fn rows_of_padded(seqlens: &Tensor, [batch, most, total]: [usize; 3]) -> Result<Tensor> {
    let device = seqlens.device();
    let first = seqlens.narrow(0, 0, batch)?.unsqueeze(1)?;
    let rows = first.broadcast_add(&counted(most, device)?.unsqueeze(0)?)?;
    let last = Tensor::full(total as u32 - 1, (1, 1), device)?;
    rows.broadcast_minimum(&last)?.flatten_all()
}

/// The padded row of each packed row: it lies behind the rows that fill the sequences before.
fn rows_of_packed(
    seqlens: &Tensor,
    lengths: &Tensor,
    [batch, most, total]: [usize; 3],
) -> Result<Tensor> {
    let device = seqlens.device();
    let row = counted(total, device)?;
    let filled = Tensor::full(most as u32, batch, device)?.sub(lengths)?;
    let ends = seqlens.narrow(0, 1, batch)?.unsqueeze(0)?;
    let is_behind = row.unsqueeze(1)?.broadcast_ge(&ends)?;
    let is_behind = is_behind.to_dtype(DType::U32)?;
    let before = is_behind.broadcast_mul(&filled.unsqueeze(0)?)?.sum(1)?;
    let last = Tensor::full((batch * most) as u32 - 1, 1, device)?;
    (row + before)?.broadcast_minimum(&last)
}

/// The numbers 0, 1, 2, … of a device, which keeps them: their copy from the host may wait for a GPU's work.
fn counted(count: usize, device: &Device) -> Result<Tensor> {
    static KEPT: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let of_device = |numbers: &Tensor| numbers.device().same_device(device);
    match kept.iter().find(|numbers| of_device(numbers)) {
        Some(numbers) if numbers.elem_count() >= count => numbers.narrow(0, 0, count),
        _ => {
            let numbers = Tensor::arange(0, count.next_power_of_two() as u32, device)?;
            kept.retain(|numbers| !of_device(numbers));
            kept.push(numbers.clone());
            numbers.narrow(0, 0, count)
        }
    }
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
