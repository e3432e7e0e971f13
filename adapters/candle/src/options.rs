//! The options of an attention call.

use crate::call::Call;
use crate::descales::E4m3;
use crate::learned;
use crate::op::Op;
use crate::prefix::Prefix;
use crate::tensors::{Rows, Tensors, dtype, expect_device, expect_dtype, in_rows};
use candle_core::{DType, Error, Result, Tensor};
use ferroattn::{Fp8, Problem};
use std::sync::OnceLock;

/// Options of scaled dot-product attention, `softmax(scale * Q K^T + mask) V`, and the tensors of some of them.
///
/// q is `[batch, seqlen_q, heads, dim]`, k is `[batch, seqlen_kv, kv_heads, dim]` and v is `[batch, seqlen_kv, kv_heads, dim_v]`.
/// `heads` is a multiple of `kv_heads`; head dims are from 1 to 1024. [Packed](Self::packed) sequences have no axis `batch`. Any
/// strides will do: a tensor is copied only where its last axis has another stride than 1.
///
/// f16 and bf16 are computed with f32 sums; the CPU computes f32, too. Lengths, heads and the batch may be 0.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// use candle_core::{DType, Device, Tensor, Var};
/// use ferroattn_candle::Attention;
///
/// let device = Device::Cpu;
/// let q = Var::zeros((1, 3, 4, 16), DType::F32, &device)?;
/// let k = Tensor::zeros((1, 5, 2, 16), DType::F32, &device)?;
/// let v = Tensor::ones((1, 5, 2, 8), DType::F32, &device)?;
/// let sinks = Var::zeros(4, DType::F32, &device)?;
///
/// let o = Attention::new().causal(true).sinks(&sinks).forward(&q, &k, &v)?;
/// assert_eq!(o.dims(), [1, 3, 4, 8]);
/// // The first query sees three keys beside the sink.
/// assert_eq!(o.flatten_all()?.to_vec1::<f32>()?[0], 0.75);
///
/// let gradients = o.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&q).expect("a gradient").dims(), q.dims());
/// // Weight that moves to a sink takes value from o.
/// assert!(gradients.get(&sinks).expect("a gradient").to_vec1::<f32>()?[0] < 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Attention {
    options: ferroattn::Attention<'static>,
    pub(crate) tensors: Tensors,
}

impl Attention {
    /// No mask, scale `1 / sqrt(dim)`.
    pub fn new() -> Self {
        Self::default()
    }

    /// The softmax scale; finite, of any sign. Default: `1 / sqrt(dim)`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.options = self.options.scale(scale);
        self
    }

    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q` (aligned bottom-right). A query that sees no key gets
    /// `o = 0`.
    pub fn causal(mut self, causal: bool) -> Self {
        self.options = self.options.causal(causal);
        self
    }

    /// The sliding window: query `i` sees only keys `i + offset - left ..= i + offset + right`.
    ///
    /// The offset is `seqlen_kv - seqlen_q`; `None` is no bound on that side. With [`causal`](Self::causal), right is 0.
    pub fn window(
        mut self,
        left: impl Into<Option<usize>>,
        right: impl Into<Option<usize>>,
    ) -> Self {
        self.options = self.options.window(left, right);
        self
    }

    /// A bound of scores: a score becomes `softcap * tanh(score / softcap)`; finite and above 0. Default: none.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.options = self.options.softcap(softcap);
        self
    }

    /// Slopes of ALiBi in f32, `[heads]`, `[batch, heads]` or, of packed sequences, `[sequences, heads]`.
    ///
    /// `slope * |i + seqlen_kv - seqlen_q - j|` is taken off the score of query `i` and key `j`, after a
    /// [`softcap`](Self::softcap). Slopes have no gradient: those that candle tracks are an error.
    pub fn alibi(mut self, slopes: &Tensor) -> Self {
        self.tensors.alibi = Some(slopes.clone());
        self
    }

    /// A bias that is added to scores, `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]` of f16, bf16 or f32.
    ///
    /// It is added after softcap and ALiBi. Axes of extent 1 are repeated. It has a gradient, summed in f32; -inf hides a key.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{Device, Tensor, Var};
    /// use ferroattn_candle::Attention;
    ///
    /// let q = Tensor::zeros((1, 1, 1, 8), candle_core::DType::F32, &Device::Cpu)?;
    /// let v = Tensor::new(&[[1_f32; 8], [3.0; 8]], &Device::Cpu)?.reshape((1, 2, 1, 8))?;
    /// let bias = Var::new(&[[[[3_f32.ln(), 0.0]]]], &Device::Cpu)?;
    /// let o = Attention::new().bias(&bias).forward(&q, &v, &v)?;
    /// // The first key weighs 3/4.
    /// assert!((o.mean_all()?.to_scalar::<f32>()? - 1.5).abs() < 1e-6);
    ///
    /// let gradients = o.mean_all()?.backward()?;
    /// let d_bias = gradients.get(&bias).expect("a gradient").flatten_all()?.to_vec1::<f32>()?;
    /// assert!((d_bias[0] + 0.375).abs() < 1e-6 && (d_bias[1] - 0.375).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.tensors.bias = Some(bias.clone());
        self
    }

    /// The keys that a query sees, if causal and window allow them, too: u8 of a bias's shape, where 0 hides a key. A hidden
    /// pair has no part in any result, even where its numbers are NaN.
    pub fn mask(mut self, mask: &Tensor) -> Self {
        self.tensors.mask = Some(mask.clone());
        self
    }

    /// Sinks, `[heads]` of f16, bf16 or f32: logits of keys without values, one more in the softmax of each row of a head. They
    /// have gradients.
    pub fn sinks(mut self, sinks: &Tensor) -> Self {
        self.tensors.sinks = Some(sinks.clone());
        self
    }

    /// Sequences of any lengths, one after another, and q, k and v of three axes, `[rows, heads, dim]`. Of `n` sequences, sequence
    /// `s` has queries `offsets_q[s]..offsets_q[s + 1]` and keys `offsets_kv[s]..offsets_kv[s + 1]`. Offsets are `[n + 1]` of i32 or
    /// u32, and never fall.
    ///
    /// A query sees keys of its own sequence alone. Causal mask, window and ALiBi count in its sequence. Rows of no sequence get
    /// `o = 0`. The CPU checks offsets; a GPU, whose memory the host does not see, moves those that are not allowed.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let q = Tensor::zeros((3, 1, 8), DType::F32, &Device::Cpu)?;
    /// let v = Tensor::new(&[[1_f32; 8], [3.0; 8], [7.0; 8]], &Device::Cpu)?.unsqueeze(1)?;
    /// // Of two rows and of one.
    /// let offsets = Tensor::new(&[0_u32, 2, 3], &Device::Cpu)?;
    /// let o = Attention::new().packed(&offsets, &offsets).forward(&q, &q, &v)?;
    /// assert_eq!(o.mean((1, 2))?.to_vec1::<f32>()?, [2.0, 2.0, 7.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn packed(self, offsets_q: &Tensor, offsets_kv: &Tensor) -> Self {
        self.rows([true; 2], offsets_q, offsets_kv)
    }

    /// Sequences whose queries lie one after another, as [`packed`](Self::packed) has them, and whose keys lie in [pages](Self::pages): q
    /// is `[rows, heads, dim]`, and of `n` sequences, sequence `s` has the first `lengths_kv[s]` keys of row `s` of the table, `[n, most]`.
    /// So prompts, in chunks of any lengths, go in one call with sequences that decode, and no query is copied. Offsets are `[n + 1]` and
    /// lengths `[n]` of i32 or u32. Biases and masks do not go with them.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let device = &Device::Cpu;
    /// // Three pages of one key.
    /// let pages = Tensor::new(&[[1_f32; 8], [2.0; 8], [3.0; 8]], device)?.reshape((3, 1, 1, 8))?;
    /// let table = Tensor::new(&[[2_u32, 0], [1, 0]], device)?;
    /// let q = Tensor::zeros((3, 1, 8), DType::F32, device)?;
    /// // Two queries of a sequence with two keys, and one of a sequence with one.
    /// let (offsets, keys) = (Tensor::new(&[0_u32, 2, 3], device)?, Tensor::new(&[2_u32, 1], device)?);
    /// let attention = Attention::new().causal(true).pages(&table).packed_queries(&offsets, &keys);
    /// let o = attention.forward(&q, &pages, &pages)?;
    /// assert_eq!(o.mean((1, 2))?.to_vec1::<f32>()?, [3.0, 2.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn packed_queries(self, offsets_q: &Tensor, lengths_kv: &Tensor) -> Self {
        self.rows([true, false], offsets_q, lengths_kv)
    }

    /// A length for each entry of the batch: entry `b` has queries `0..lengths_q[b]` and keys `0..lengths_kv[b]`, and the rows after
    /// them only fill the tensors. Both are `[batch]` of i32 or u32; a length may be 0. All else is as for [`packed`](Self::packed),
    /// whose place it takes.
    pub fn padded(self, lengths_q: &Tensor, lengths_kv: &Tensor) -> Self {
        self.rows([false; 2], lengths_q, lengths_kv)
    }

    fn rows(mut self, packed: [bool; 2], q: &Tensor, kv: &Tensor) -> Self {
        let numbers = [q.clone(), kv.clone()];
        self.tensors.rows = Some(Rows { packed, numbers });
        self
    }

    /// The pages of each entry of the batch, `[batch, most]` of i32 or u32: k is `[pages, page, kv_heads, dim]` and v is
    /// `[pages, page, kv_heads, dim_v]`, any number of pages with `page` keys each, a power of 2. `seqlen_kv` is `most * page`. Key
    /// `j` of entry `b` is row `j % page` of page `table[b, j / page]`.
    ///
    /// [Lengths](Self::padded) say how many keys each entry has: behind its last key nothing is read of a page, and the table may
    /// have any numbers. A table is best narrowed to the longest entry. There are no gradients. Queries of uneven numbers, one after
    /// another, are those of [`forward_varlen_paged`](Self::forward_varlen_paged).
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let device = Device::Cpu;
    /// let q = Tensor::zeros((2, 1, 1, 8), DType::F32, &device)?;
    /// // Three pages of one key.
    /// let cache = Tensor::new(&[[1_f32; 8], [2.0; 8], [3.0; 8]], &device)?.reshape((3, 1, 1, 8))?;
    /// let table = Tensor::new(&[[2_u32, 0], [1, 99]], &device)?;
    /// let queries = Tensor::new(&[1_u32, 1], &device)?;
    /// let keys = Tensor::new(&[2_u32, 1], &device)?;
    /// let attention = Attention::new().pages(&table).padded(&queries, &keys);
    /// let o = attention.forward(&q, &cache, &cache)?;
    /// assert_eq!(o.flatten_all()?.to_vec1::<f32>()?, [2.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pages(mut self, table: &Tensor) -> Self {
        self.tensors.pages = Some(table.clone());
        self
    }

    /// The entry of k and v for each entry of the batch, `[batch]` of i32 or u32: k and v are a cache of any number of entries, read
    /// where they lie. Entries may repeat. There are no gradients.
    pub fn cache_entries(mut self, entries: &Tensor) -> Self {
        self.tensors.cache_entries = Some(entries.clone());
        self
    }

    /// Keys and values that all entries of the batch share, before their own, which a call reads once: k is `[1, keys, kv_heads, dim]` and v
    /// `[1, keys, kv_heads, dim_v]` of q's type, without the first axis beside packed sequences.
    ///
    /// [`causal`](Self::causal) hides own keys alone, of which an entry needs as many as it has queries, less one. Windows, ALiBi, biases
    /// and masks do not go with a prefix, and there are no gradients.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::Attention;
    ///
    /// let device = Device::Cpu;
    /// let q = Tensor::zeros((2, 1, 1, 8), DType::F32, &device)?;
    /// let prefix = Tensor::new(&[[1_f32; 8], [3.0; 8]], &device)?.reshape((1, 2, 1, 8))?;
    /// // Of each entry one key.
    /// let own = Tensor::new(&[[5_f32; 8], [8.0; 8]], &device)?.reshape((2, 1, 1, 8))?;
    /// let o = Attention::new().prefix(&prefix, &prefix).forward(&q, &own, &own)?;
    /// let o = o.mean((1, 2, 3))?.to_vec1::<f32>()?;
    /// assert!((o[0] - 3.0).abs() < 1e-5 && (o[1] - 4.0).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(mut self, k: &Tensor, v: &Tensor) -> Self {
        self.tensors.prefix = Some(Prefix::Keys([k.clone(), v.clone()]));
        self
    }

    /// A [prefix](Self::prefix) in pages of k and v, `[pages]` of i32 or u32, of a call with [pages](Self::pages): the first `keys` keys of
    /// these. The last page has one of them or more; its other rows may hold anything.
    pub fn prefix_pages(mut self, pages: &Tensor, keys: usize) -> Self {
        let table = pages.clone();
        self.tensors.prefix = Some(Prefix::Pages { table, keys });
        self
    }

    /// Whether gradients have the same bits in every run on a device. Default: true; false may be faster on a GPU.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.options = self.options.deterministic(deterministic);
        self
    }

    /// Whether results of a query have the same bits beside any neighbours in the batch, and in any chunk of its sequence; gradients
    /// beside any neighbours. Default: false.
    pub fn batch_invariant(mut self, invariant: bool) -> Self {
        self.options = self.options.batch_invariant(invariant);
        self
    }

    /// How q, k and v are rounded to e4m3, which Hopper's tensor cores multiply at twice the rate. Default: `None`, they are not.
    ///
    /// [`Fp8::hadamard`](method@Fp8::hadamard) rotates q and k first. Such a call may have a window, a softcap, sinks and lengths, no other
    /// option, and no gradients.
    ///
    /// ```
    /// # fn main() -> candle_core::Result<()> {
    /// use candle_core::{DType, Device, Tensor};
    /// use ferroattn_candle::{Attention, Fp8};
    ///
    /// let q = Tensor::zeros((1, 2, 1, 64), DType::F16, &Device::Cpu)?;
    /// let v = Tensor::ones((1, 2, 1, 64), DType::F16, &Device::Cpu)?;
    /// let rotated = Attention::new().fp8(Fp8::new().hadamard(true));
    /// let o = rotated.forward(&q, &q, &v)?.to_dtype(DType::F32)?;
    /// assert_eq!(o.flatten_all()?.to_vec1::<f32>()?, [1.0; 128]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fp8(mut self, fp8: impl Into<Option<Fp8>>) -> Self {
        self.options = self.options.fp8(fp8);
        self
    }

    /// Keys of a split on a GPU, in place of as many splits as fill it. Default: 0, off.
    pub fn split_keys(mut self, keys: u32) -> Self {
        self.options = self.options.split_keys(keys);
        self
    }

    /// The output, `[batch, seqlen_q, heads, dim_v]` and row-major, or `[rows, heads, dim_v]` of packed sequences.
    ///
    /// Candle's graph has it with the gradients of q, k, v, bias and sinks. Those of the gradients themselves do not exist.
    ///
    /// # Errors
    /// Says which tensor is wrong, or what the device lacks. A failure while a GPU computes shows when results are read. A GPU has no
    /// gradients for head dims above 256, which shows in `backward`.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        if q.dtype() == DType::F8E4M3 {
            candle_core::bail!("q is of F8E4M3, which Attention::forward_e4m3 takes")
        }
        let e4m3 = (k.dtype() == DType::F8E4M3).then_some(E4m3::Cache);
        self.forward_of([q, k, v], q.dtype(), e4m3)
    }

    /// The output, of this type, of tensors that hold e4m3 or elements of the type.
    pub(crate) fn forward_of(
        &self,
        [q, k, v]: [&Tensor; 3],
        dtype: DType,
        e4m3: Option<E4m3>,
    ) -> Result<Tensor> {
        expect_types([q, k, v], dtype, e4m3)?;
        if let Some(descales) = &self.tensors.descales {
            descales.expect(e4m3)?;
        }
        let problem = self.problem(q, k, v)?;
        let tensors = self.tensors.of_call(&problem, dtype, q.device())?;
        let learn = tensors.learn();
        let call = Call {
            options: self.options.clone(),
            tensors,
            problem,
            dtype,
            e4m3,
            lse: OnceLock::new(),
        };
        let [q, k, v] = [in_rows(q)?, in_rows(k)?, in_rows(v)?];
        match learn {
            true => learned::apply([&q, &k, &v], call),
            false => q.apply_op3(&k, &v, Op(call)),
        }
    }

    /// The problem that q, k and v pose, if they are what the call takes.
    fn problem(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Problem> {
        let [packed, packed_keys] = self.tensors.packed();
        if packed_keys && self.tensors.has_cache() {
            candle_core::bail!(
                "packed sequences have no pages or entries of a cache; padded ones have, and packed_queries"
            )
        }
        for (name, tensor) in [("k", k), ("v", v)] {
            expect_device(name, tensor, ("q", q.device()))?;
        }
        let [q, k, v] = [
            sizes("q", q, packed)?,
            sizes("k", k, packed_keys)?,
            sizes("v", v, packed_keys)?,
        ];
        let [batch, .., dim] = q;
        let entries = if self.tensors.has_cache() {
            k[0]
        } else {
            batch
        };
        let [_, kv_heads, rows, _] = k;
        for (name, found, dim) in [("k", k, dim), ("v", v, v[3])] {
            let expected = [entries, kv_heads, rows, dim];
            if found != expected {
                let [found, expected] = [found, expected].map(|sizes| in_axes(sizes, packed_keys));
                candle_core::bail!("{name} has shape {found}; it must be {expected}")
            }
        }
        let pages = self.tensors.pages.as_ref().map(Tensor::dims);
        let pages = pages.map(|dims| dims.last().copied().unwrap_or_default());
        let entries = self.tensors.key_entries();
        let seqlen_kv = rows.saturating_mul(pages.unwrap_or(1).saturating_mul(entries));
        let [k, v] = [k, v].map(|[.., dim]| [batch, kv_heads, seqlen_kv, dim]);
        self.options.problem(q, k, v).map_err(Error::wrap)
    }
}

/// The sizes of a tensor in the library's order, `[batch, heads, rows, dim]`.
fn sizes(name: &str, tensor: &Tensor, packed: bool) -> Result<[usize; 4]> {
    match (packed, tensor.dims()) {
        (false, &[batch, rows, heads, dim]) => Ok([batch, heads, rows, dim]),
        (true, &[rows, heads, dim]) => Ok([1, heads, rows, dim]),
        (false, dims) => {
            candle_core::bail!("{name} has shape {dims:?}; it must be [batch, rows, heads, dim]")
        }
        (true, dims) => {
            candle_core::bail!(
                "{name} has shape {dims:?}; of packed sequences it must be [rows, heads, dim]"
            )
        }
    }
}

/// Sizes in candle's order of axes.
fn in_axes([batch, heads, rows, dim]: [usize; 4], packed: bool) -> String {
    match packed {
        true => format!("{:?}", [rows, heads, dim]),
        false => format!("{:?}", [batch, rows, heads, dim]),
    }
}

/// Checks the types of q, k and v, of which some hold e4m3, and of the output.
fn expect_types([q, k, v]: [&Tensor; 3], of_o: DType, e4m3: Option<E4m3>) -> Result<()> {
    dtype(of_o)?;
    for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
        let found = tensor.dtype();
        match e4m3 {
            Some(E4m3::Cache) if name == "q" => {}
            Some(_) => expect_dtype(name, tensor, &[DType::F8E4M3])?,
            None if found == of_o => {}
            None => candle_core::bail!("{name} is of {found:?}; it must be of q's type, {of_o:?}"),
        }
    }
    Ok(())
}
