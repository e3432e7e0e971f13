//! New keys and values, written into a cache in place.

mod call;
mod shapes;

use crate::descales::Descales;
use call::Call;
use candle_core::{Result, Tensor};

/// New keys and values, written into a cache behind those that it has, by one launch. New keys are rotated on the way, and queries
/// beside them, if there is a [rotary embedding](Self::rotary).
///
/// New keys are `[batch, rows, kv_heads, dim]` and values `[batch, rows, kv_heads, dim_v]`, or of three axes, `[rows, kv_heads, dim]`,
/// which is a batch of one entry. The cache is `[entries or pages, keys, kv_heads, dim]` and `[…, dim_v]`, an entry for each entry
/// of the batch unless the call says otherwise. Its last axes have stride 1; else any views will do, also two of one tensor. Caches have
/// the type of the rows, or F8E4M3, to which rows divided by [descales](Self::descales) are rounded.
///
/// A cache is written in place: all tensors of its storage see what is new. Other tensors of the call lie in other storages.
/// There are no gradients.
///
/// The CPU refuses rows that have no place in the cache, and two of one place; a GPU, whose memory the host does not see, does not
/// write rows without a place, and takes the nearest position that the embedding has.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// use candle_core::{DType, Device, Tensor};
/// use ferroattn_candle::{Append, Attention};
///
/// let device = Device::Cpu;
/// // Room for four keys of two sequences.
/// let cache = Tensor::zeros((2, 2, 4, 1, 8), DType::F32, &device)?;
/// let (k_cache, v_cache) = (cache.get(0)?, cache.get(1)?);
/// let mut lengths = Tensor::zeros(2, DType::U32, &device)?;
/// for step in 0..3 {
///     let token = Tensor::full(step as f32, (2, 1, 1, 8), &device)?;
///     lengths = Append::new().lengths(&lengths).run(&token, &token, &k_cache, &v_cache)?;
/// }
/// assert_eq!(lengths.to_vec1::<u32>()?, [3, 3]);
///
/// let (q, queries) = (Tensor::zeros((2, 1, 1, 8), DType::F32, &device)?, Tensor::ones(2, DType::U32, &device)?);
/// let o = Attention::new().padded(&queries, &lengths).forward(&q, &k_cache, &v_cache)?;
/// assert_eq!(o.flatten_all()?.to_vec1::<f32>()?, [1.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Append {
    lengths: Option<Tensor>,
    pages: Option<Tensor>,
    cache_entries: Option<Tensor>,
    slots: Option<Tensor>,
    positions: Option<Tensor>,
    rotary: Option<[Tensor; 2]>,
    descales: Option<Descales>,
    interleaved: bool,
    q_at_first: bool,
}

impl Append {
    /// Rows behind none, in an entry of the cache for each entry of the batch, without rotation.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many keys each entry of the batch has before, `[batch]` of i32 or u32: new row `i` becomes key `lengths[b] + i`, at that
    /// position. Default: none has any.
    pub fn lengths(mut self, lengths: &Tensor) -> Self {
        self.lengths = Some(lengths.clone());
        self
    }

    /// The pages of each entry of the batch, `[batch, most]` of i32 or u32, of a power of 2 of keys each, as for
    /// [`Attention::pages`](crate::Attention::pages). Of pages, [entries](Self::cache_entries) and [slots](Self::slots) a call has one.
    pub fn pages(mut self, table: &Tensor) -> Self {
        self.pages = Some(table.clone());
        self
    }

    /// The entry of the cache for each entry of the batch, `[batch]` of i32 or u32.
    pub fn cache_entries(mut self, entries: &Tensor) -> Self {
        self.cache_entries = Some(entries.clone());
        self
    }

    /// Where each new row goes, i64 `[batch, rows]`, or `[rows]` beside keys of three axes: row `slot % keys` of entry or page
    /// `slot / keys`, or nowhere if it is negative. Lengths, if there are some, then say positions alone.
    pub fn slots(mut self, slots: &Tensor) -> Self {
        self.slots = Some(slots.clone());
        self
    }

    /// The position of each new row, and of the query beside it, i32 or u32 of the shape of [slots](Self::slots). Default:
    /// `lengths[b] + i`.
    pub fn positions(mut self, positions: &Tensor) -> Self {
        self.positions = Some(positions.clone());
        self
    }

    /// A rotary embedding (arXiv 2104.09864): cosines and sines, `[positions, rotary_dim / 2]` of f32 or the keys' type. Pair `i` of
    /// a row `(x, y)` at position `p` becomes `(x cos[p, i] - y sin[p, i], x sin[p, i] + y cos[p, i])`; elements behind the first
    /// `rotary_dim` stay.
    pub fn rotary(mut self, cos: &Tensor, sin: &Tensor) -> Self {
        self.rotary = Some([cos.clone(), sin.clone()]);
        self
    }

    /// Descales of caches of F8E4M3, f32 `[batch, kv_heads]` each, of any strides: a number times the descale is near the row's element.
    /// They are finite and not 0; elements beyond 448 times the descale become that. Default: 1.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Append;
    ///
    /// let cache = || Tensor::zeros((1, 2, 1, 16), DType::F8E4M3, &Device::Cpu);
    /// let (k_cache, v_cache) = (cache()?, cache()?);
    /// let token = Tensor::full(3_f32, (1, 1, 1, 16), &Device::Cpu)?.to_dtype(DType::F16)?;
    /// let descale = Tensor::new(&[[0.5_f32]], &Device::Cpu)?;
    /// Append::new().descales(&descale, &descale).run(&token, &token, &k_cache, &v_cache)?;
    /// let numbers = k_cache.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    /// assert_eq!(numbers, [[6.0; 16], [0.0; 16]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn descales(self, k: &Tensor, v: &Tensor) -> Self {
        self.with_descales([k, v], false)
    }

    /// [`descales`](Self::descales) of each page, f32 `[pages, kv_heads]`; of [slots](Self::slots), of each entry or page of the cache.
    pub fn page_descales(self, k: &Tensor, v: &Tensor) -> Self {
        self.with_descales([k, v], true)
    }

    fn with_descales(mut self, of: [&Tensor; 2], of_pages: bool) -> Self {
        self.descales = Some(Descales::of_cache(of, of_pages));
        self
    }

    /// Whether elements `2i` and `2i + 1` are a pair (GPT-J). Default: false; elements `i` and `i + rotary_dim / 2` are (Llama).
    pub fn interleaved(mut self, interleaved: bool) -> Self {
        self.interleaved = interleaved;
        self
    }

    /// Whether all queries of an entry have the position of the first one. Default: false.
    pub fn q_at_first(mut self, at_first: bool) -> Self {
        self.q_at_first = at_first;
        self
    }

    /// Writes new keys and values, and returns how many keys each entry has then: `[batch]` of the lengths' type, or u32.
    ///
    /// # Errors
    /// Says which tensor is wrong, or what the device lacks. A failure while a GPU writes shows when results are read.
    pub fn run(
        &self,
        k: &Tensor,
        v: &Tensor,
        k_cache: &Tensor,
        v_cache: &Tensor,
    ) -> Result<Tensor> {
        let call = Call::new(self, [k, v], [k_cache, v_cache], None)?;
        let (_, lengths) = call.run()?;
        Ok(lengths)
    }

    /// Like [`run`](Self::run), and rotates queries `[batch, seqlen_q, heads, dim]`, or of three axes as the keys are: returns these,
    /// row-major, and the lengths.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Append;
    ///
    /// let device = Device::Cpu;
    /// // A quarter turn at position 1.
    /// let (cos, sin) = (Tensor::new(&[[1_f32], [0.0]], &device)?, Tensor::new(&[[0_f32], [1.0]], &device)?);
    /// let token = Tensor::new(&[[[1_f32, 2.0, 3.0]], [[1.0, 2.0, 3.0]]], &device)?;
    /// let cache = Tensor::zeros((2, 1, 2, 1, 3), DType::F32, &device)?;
    /// let append = Append::new().rotary(&cos, &sin);
    /// let (q, _) = append.run_with(&token, &token, &cache.get(0)?, &cache.get(1)?, &token)?;
    /// assert_eq!(q.flatten_all()?.to_vec1::<f32>()?, [1.0, 2.0, 3.0, -2.0, 1.0, 3.0]);
    /// let keys = cache.get(0)?.flatten_all()?.to_vec1::<f32>()?;
    /// assert_eq!(keys, [1.0, 2.0, 3.0, -2.0, 1.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`run`](Self::run).
    pub fn run_with(
        &self,
        k: &Tensor,
        v: &Tensor,
        k_cache: &Tensor,
        v_cache: &Tensor,
        q: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let call = Call::new(self, [k, v], [k_cache, v_cache], Some(q))?;
        let (rotated, lengths) = call.run()?;
        Ok((rotated.expect("a call with queries rotates them"), lengths))
    }
}
