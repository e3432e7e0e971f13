//! Options that borrow tensors.

use super::Attention;
use crate::options::{
    Borrowed, BorrowedCustom, BorrowedDescales, BorrowedPrefix, CustomArray, CustomKernels,
    MaskElement, Sequences,
};
use crate::tensor::{Element, Storage, TensorBase};

impl<'a> Attention<'a> {
    /// Slopes of ALiBi, `[heads]` or `[batch, heads]`: `slope * |i + seqlen_kv - seqlen_q - j|` is taken off the score
    /// of query `i` and key `j`, after a [`softcap`](Self::softcap). Its paper has [these](crate::alibi_slopes).
    /// [Packed](Self::packed) sequences may have slopes of their own, `[sequences, heads]`.
    ///
    /// Slopes with another number of axes do not compile.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 2, 8], &[0.0_f32; 16])?;
    /// let v = Tensor::new(&device, [1, 1, 2, 8], &[[1.0; 8], [3.0; 8]].concat())?;
    /// let slopes = Tensor::new(&device, [1], &[2_f32.ln()])?;
    /// let (o, _) = Attention::new().alibi(&slopes).forward(&q, &q, &v)?;
    /// // A key at distance 1 weighs a half.
    /// assert!((o.to_vec()?[0] - 2.5 / 1.5).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alibi<'b, const R: usize>(
        &self,
        slopes: &'b TensorBase<impl Storage<Item = f32>, R>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.alibi = Some((R, Borrowed::slopes(slopes))))
    }

    /// Sinks, `[heads]`: logits of keys without values, one more in the softmax of each row of a head. lse counts
    /// them: `lse = ln(exp(sink) + sum(exp(score)))`. A query that sees no key gets `o = 0` and `lse = sink`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 2, 8], &[0.0_f32; 16])?;
    /// let v = Tensor::new(&device, [1, 1, 2, 8], &[[1.0; 8], [3.0; 8]].concat())?;
    /// let sinks = Tensor::new(&device, [1], &[2_f32.ln()])?;
    /// let (o, lse) = Attention::new().sinks(&sinks).forward(&q, &q, &v)?;
    /// // The sink weighs as both keys do.
    /// assert!((o.to_vec()?[0] - 1.0).abs() < 1e-6);
    /// assert!((lse.to_vec()?[0] - 4_f32.ln()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sinks<'b>(&self, sinks: &'b TensorBase<impl Storage<Item = f32>, 1>) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.sinks = Some(sinks.into()))
    }

    /// A bias that is added to scores, after [`softcap`](Self::softcap) and [`alibi`](Self::alibi):
    /// `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]` of any strides, with stride 1 in the last axis. Axes of
    /// extent 1 are repeated. [`backward_all`](Self::backward_all) gives its gradient.
    ///
    /// A bias of -inf hides a key. The lowest finite number does not: where a row has no other, each key has the same weight.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 2, 8], &[0.0_f32; 16])?;
    /// let v = Tensor::new(&device, [1, 1, 2, 8], &[[1.0; 8], [3.0; 8]].concat())?;
    /// let bias = Tensor::new(&device, [1, 1, 1, 2], &[3_f32.ln(), 0.0])?;
    /// let (o, _) = Attention::new().bias(&bias).forward(&q, &q, &v)?;
    /// assert!((o.to_vec()?[0] - 6.0 / 4.0).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bias<'b, T: Element>(
        &self,
        bias: &'b TensorBase<impl Storage<Item = T>>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.bias = Some((T::DTYPE, bias.into())))
    }

    /// The keys that a query sees, if causal and window allow them, too:
    /// `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]` bytes, of which 0 hides a key, or
    /// `[batch or 1, heads or 1, seqlen_q or 1, ceil(seqlen_kv / 32)]` words, where key `j` is bit `j % 32` of word
    /// `j / 32`, and 0 hides it. Any strides will do, with stride 1 in the last axis; axes of extent 1 are repeated.
    ///
    /// A hidden pair has no part in any result, even where its numbers are NaN. A query that sees no key gets `o = 0`
    /// and `lse = -inf`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 2, 8], &[0.0_f32; 16])?;
    /// let v = Tensor::new(&device, [1, 1, 2, 8], &[[1.0; 8], [f32::NAN; 8]].concat())?;
    /// let bytes = Tensor::new(&device, [1, 1, 1, 2], &[1_u8, 0])?;
    /// let bits = Tensor::new(&device, [1, 1, 1, 1], &[0b01_u32])?;
    /// let (o, _) = Attention::new().mask(&bytes).forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [1.0; 16]);
    /// let (o, _) = Attention::new().mask(&bits).forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [1.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mask<'b, M: MaskElement>(
        &self,
        mask: &'b TensorBase<impl Storage<Item = M>>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.mask = Some((M::KEYS, mask.into())))
    }

    /// Sequences of any lengths, one after another: `batch` is 1, and of `n` sequences, sequence `s` has queries
    /// `offsets_q[s]..offsets_q[s + 1]` and keys `offsets_kv[s]..offsets_kv[s + 1]`. Both are `[n + 1]` with stride 1
    /// and never fall; sequences may be empty, and rows before the first and after the last are in none.
    ///
    /// A query sees keys of its own sequence alone. [`causal`](Self::causal), [`window`](Self::window) and
    /// [`alibi`](Self::alibi) take seqlen_q and seqlen_kv for the sequence's lengths and count rows from its first. A
    /// query of no sequence gets what one gets that sees no key. It takes the place of [`padded`](Self::padded).
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 3, 8], &[0.0_f32; 24])?;
    /// let v = Tensor::new(&device, [1, 1, 3, 8], &[[1.0; 8], [3.0; 8], [7.0; 8]].concat())?;
    /// // Of two rows and of one.
    /// let offsets = Tensor::new(&device, [3], &[0, 2, 3])?;
    /// let (o, _) = Attention::new().packed(&offsets, &offsets).forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [[2.0; 8], [2.0; 8], [7.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn packed<'b>(
        &self,
        offsets_q: &'b TensorBase<impl Storage<Item = i32>, 1>,
        offsets_kv: &'b TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let (q, kv) = (offsets_q.into(), offsets_kv.into());
        self.with(|call| call.tensors.sequences = Some(Sequences::Packed { q, kv }))
    }

    /// A length for each entry of the batch: entry `b` has queries `0..lengths_q[b]` and keys `0..lengths_kv[b]`, and
    /// the rows after them only fill the tensors. Both are `[batch]` with stride 1; a length may be 0.
    ///
    /// All else is as for [`packed`](Self::packed), whose place it takes.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// let k = Tensor::new(&device, [2, 1, 2, 8], &[0.0_f32; 32])?;
    /// let v = Tensor::new(&device, [2, 1, 2, 8], &[[1.0; 8], [3.0; 8], [5.0; 8], [f32::NAN; 8]].concat())?;
    /// let lengths_q = Tensor::new(&device, [2], &[1, 1])?;
    /// let lengths_kv = Tensor::new(&device, [2], &[2, 1])?;
    /// let (o, _) = Attention::new().padded(&lengths_q, &lengths_kv).forward(&q, &k, &v)?;
    /// assert_eq!(o.to_vec()?, [[2.0; 8], [5.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn padded<'b>(
        &self,
        lengths_q: &'b TensorBase<impl Storage<Item = i32>, 1>,
        lengths_kv: &'b TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let (q, kv) = (lengths_q.into(), lengths_kv.into());
        self.with(|call| call.tensors.sequences = Some(Sequences::Padded { q, kv }))
    }

    /// A length of keys for each entry of the batch, `[batch]` with stride 1: [`padded`](Self::padded), where all queries count.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// let k = Tensor::new(&device, [2, 1, 2, 8], &[0.0_f32; 32])?;
    /// let v = Tensor::new(&device, [2, 1, 2, 8], &[[1.0; 8], [3.0; 8], [5.0; 8], [f32::NAN; 8]].concat())?;
    /// let lengths = Tensor::new(&device, [2], &[2, 1])?;
    /// let (o, _) = Attention::new().padded_keys(&lengths).forward(&q, &k, &v)?;
    /// assert_eq!(o.to_vec()?, [[2.0; 8], [5.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn padded_keys<'b>(
        &self,
        lengths_kv: &'b TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let kv: Borrowed<'b, 1> = lengths_kv.into();
        let q = Borrowed::none(kv.raw.shape, kv.device.clone());
        self.with(|call| call.tensors.sequences = Some(Sequences::Padded { q, kv }))
    }

    /// Sequences whose queries lie one after another, as [`packed`](Self::packed) has them, and whose keys lie in
    /// [pages](Self::pages): `batch` is 1, and of `n` sequences, sequence `s` has queries `offsets_q[s]..offsets_q[s + 1]` and the first
    /// `lengths_kv[s]` keys of row `s` of the table, `[n, most]`. So prompts, in chunks of any lengths, go in one call with sequences
    /// that decode, and no query is copied.
    ///
    /// `seqlen_kv` of a [problem](Self::problem) counts all rows of the table. Biases, masks and custom scores do not go with packed
    /// queries; all else is as for [`packed`](Self::packed), whose place it takes.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// // Two queries of one sequence, and one of another.
    /// let q = Tensor::new(&device, [1, 1, 3, 8], &[0.0_f32; 24])?;
    /// // Three pages of one key.
    /// let cache = Tensor::new(&device, [3, 1, 1, 8], &[[1.0_f32; 8], [2.0; 8], [3.0; 8]].concat())?;
    /// let table = Tensor::new(&device, [2, 2], &[2, 0, 1, -1])?;
    /// let offsets = Tensor::new(&device, [3], &[0, 2, 3])?;
    /// let keys = Tensor::new(&device, [2], &[2, 1])?;
    /// let attention = Attention::new().causal(true).pages(&table).packed_queries(&offsets, &keys);
    /// let (o, _) = attention.forward(&q, &cache, &cache)?;
    /// assert_eq!(o.to_vec()?, [[3.0; 8], [2.0; 8], [2.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn packed_queries<'b>(
        &self,
        offsets_q: &'b TensorBase<impl Storage<Item = i32>, 1>,
        lengths_kv: &'b TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let (q, kv) = (offsets_q.into(), lengths_kv.into());
        self.with(|call| call.tensors.sequences = Some(Sequences::PackedQueries { q, kv }))
    }

    /// The first key of each entry of the batch, `[batch]` with stride 1: keys before it only fill the tensors, as those behind
    /// its [length](Self::padded), if it has one, do. So a batch of prompts may be padded on the left.
    ///
    /// [`causal`](Self::causal), [`window`](Self::window) and [`alibi`](Self::alibi) count from the last key, as ever. Packed
    /// sequences take none.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// let k = Tensor::new(&device, [2, 1, 2, 8], &[0.0_f32; 32])?;
    /// let v = Tensor::new(&device, [2, 1, 2, 8], &[[1.0; 8], [3.0; 8], [f32::NAN; 8], [5.0; 8]].concat())?;
    /// let first_keys = Tensor::new(&device, [2], &[0, 1])?;
    /// let (o, _) = Attention::new().causal(true).first_keys(&first_keys).forward(&q, &k, &v)?;
    /// assert_eq!(o.to_vec()?, [[2.0; 8], [5.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn first_keys<'b>(
        &self,
        first_keys: &'b TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.first_keys = Some(first_keys.into()))
    }

    /// The entry of k and v for each entry of the batch, `[batch]` with stride 1: k and v are a cache
    /// `[entries, kv_heads, seqlen_kv, dim]` of any number of entries, which a call reads where they lie. Entries may repeat.
    ///
    /// There are no gradients of such a call.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// let cache = Tensor::new(&device, [3, 1, 1, 8], &[[1.0_f32; 8], [2.0; 8], [3.0; 8]].concat())?;
    /// let entries = Tensor::new(&device, [2], &[2, 0])?;
    /// let (o, _) = Attention::new().cache_entries(&entries).forward(&q, &cache, &cache)?;
    /// assert_eq!(o.to_vec()?, [[3.0; 8], [1.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cache_entries<'b>(
        &self,
        entries: &'b TensorBase<impl Storage<Item = i32>, 1>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.cache_entries = Some(entries.into()))
    }

    /// The pages of each entry of the batch, `[batch, most]` with stride 1 in the last axis: k and v are
    /// `[pages, kv_heads, page, dim]`, any number of pages with `page` keys each, a power of 2, and `seqlen_kv` is `most * page`.
    /// Key `j` of entry `b` is row `j % page` of page `table[b, j / page]`. Pages may repeat, and any strides will do: so heads
    /// may lie outside of the keys or inside, and k and v in one tensor.
    ///
    /// [Lengths](Self::padded) say how many keys each entry has. Of pages behind its last key nothing is read, and their
    /// numbers in the table may be any.
    ///
    /// There are no gradients of such a call.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// // Three pages of one key.
    /// let cache = Tensor::new(&device, [3, 1, 1, 8], &[[1.0_f32; 8], [2.0; 8], [3.0; 8]].concat())?;
    /// let table = Tensor::new(&device, [2, 2], &[2, 0, 1, -1])?;
    /// let queries = Tensor::new(&device, [2], &[1, 1])?;
    /// let keys = Tensor::new(&device, [2], &[2, 1])?;
    /// let attention = Attention::new().pages(&table).padded(&queries, &keys);
    /// let (o, _) = attention.forward(&q, &cache, &cache)?;
    /// assert_eq!(o.to_vec()?, [[2.0; 8], [2.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn pages<'b>(&self, table: &'b TensorBase<impl Storage<Item = i32>, 2>) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.tensors.pages = Some(table.into()))
    }

    /// Descales of a [cache of e4m3](Self::forward_e4m3_cache), `[batch, kv_heads]` of any strides: keys are the cache's numbers times
    /// those of `k`, and values times those of `v`. They are finite. Default: all are 1.
    pub fn cache_descales<'b>(
        &self,
        k: &'b TensorBase<impl Storage<Item = f32>, 2>,
        v: &'b TensorBase<impl Storage<Item = f32>, 2>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let of = [k.into(), v.into()];
        let of_pages = false;
        self.with(|call| call.tensors.cache_descales = Some(BorrowedDescales { of, of_pages }))
    }

    /// [`cache_descales`](Self::cache_descales) of each [page](Self::pages), `[pages, kv_heads]`; pages have 16 keys or more.
    pub fn page_descales<'b>(
        &self,
        k: &'b TensorBase<impl Storage<Item = f32>, 2>,
        v: &'b TensorBase<impl Storage<Item = f32>, 2>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let of = [k.into(), v.into()];
        let of_pages = true;
        self.with(|call| call.tensors.cache_descales = Some(BorrowedDescales { of, of_pages }))
    }

    /// Keys and values that all entries of the batch share, before their own: k `[1, kv_heads, keys, dim]` and v
    /// `[1, kv_heads, keys, dim_v]`, of the type of q, k and v, of any strides with stride 1 in dim. The result is that of attention to
    /// the prefix and to an entry's own keys behind it, but the prefix is read once for the queries of all entries. lse counts both.
    ///
    /// An entry may have no keys of its own. [`causal`](Self::causal) hides own keys alone: each query sees all of the prefix, so an entry
    /// needs as many own keys as it has queries, less one. A GPU sees lengths with [`check_lengths`](Self::check_lengths) alone: without it
    /// queries of an entry with fewer keys see all of the prefix, too. So do queries behind an entry's [length](Self::padded), or of no
    /// [packed](Self::packed) sequence.
    ///
    /// Shapes, [problems](Self::problem) and lengths are those of own keys. A [named](Self::kernel) kernel computes both parts.
    /// Windows, ALiBi, biases, masks, first keys and custom scores do not go with a prefix, and there are no gradients. GPUs round
    /// the results for the prefix and for own keys to the element type before they are merged. Entries of several groups, each with
    /// its prefix, take a call for each group.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// let prefix = Tensor::new(&device, [1, 1, 2, 8], &[[1.0_f32; 8], [3.0; 8]].concat())?;
    /// // Of each entry one key.
    /// let own = Tensor::new(&device, [2, 1, 1, 8], &[[5.0_f32; 8], [8.0; 8]].concat())?;
    /// let attention = Attention::new().prefix(&prefix, &prefix);
    /// let (o, lse) = attention.forward(&q, &own, &own)?;
    /// let o = o.to_vec()?;
    /// assert!((o[0] - 3.0).abs() < 1e-5 && (o[8] - 4.0).abs() < 1e-5);
    /// assert!((lse.to_vec()?[0] - 3_f32.ln()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix<'b, T: Element>(
        &self,
        k: &'b TensorBase<impl Storage<Item = T>>,
        v: &'b TensorBase<impl Storage<Item = T>>,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let (dtype, k, v) = (T::DTYPE, k.into(), v.into());
        self.with(|call| call.tensors.prefix = Some(BorrowedPrefix::Keys { dtype, k, v }))
    }

    /// A [prefix](Self::prefix) in pages of k and v, `[n]` with stride 1: a call with [pages](Self::pages) reads the first `keys` keys of
    /// these pages before those of each entry's own. The last page has one of them or more; its other rows may hold anything.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [2, 1, 1, 8], &[0.0_f32; 16])?;
    /// // Three pages of two keys: one is shared, and has one key.
    /// let page = |keys: [f32; 2]| keys.map(|key| [key; 8]).concat();
    /// let cache = [page([1.0, 1.0]), page([4.0, f32::NAN]), page([7.0, 7.0])].concat();
    /// let cache = Tensor::new(&device, [3, 1, 2, 8], &cache)?;
    /// let (shared, own) = (Tensor::new(&device, [1], &[1])?, Tensor::new(&device, [2, 1], &[2, 0])?);
    /// let attention = Attention::new().prefix_pages(&shared, 1).pages(&own);
    /// let (o, _) = attention.forward(&q, &cache, &cache)?;
    /// let o = o.to_vec()?;
    /// assert!((o[0] - 6.0).abs() < 1e-5 && (o[8] - 2.0).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix_pages<'b>(
        &self,
        pages: &'b TensorBase<impl Storage<Item = i32>, 1>,
        keys: usize,
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let table = pages.into();
        self.with(|call| call.tensors.prefix = Some(BorrowedPrefix::Pages { table, keys }))
    }

    /// Whether a GPU, whose memory the host cannot see, checks offsets, lengths, first keys, entries of a cache and pages before it
    /// computes, and the call waits for that. Default: false; kernels then move what is not allowed, so that a call ends and stays inside its
    /// tensors whatever they hold. The CPU always checks.
    pub fn check_lengths(mut self, check: bool) -> Self {
        self.tensors.check_lengths = check;
        self
    }

    /// A score or mask of another crate, after all other options: the kernels that it made with its
    /// [`Custom`](crate::custom::Custom) type, and the arrays that the type reads.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::custom::{Call, Custom, Pair};
    /// use ferroattn::{Attention, CustomKernels, Device, Tensor};
    ///
    /// /// A penalty for each step of distance.
    /// #[derive(Clone, Copy)]
    /// struct Penalty;
    ///
    /// // SAFETY: the mask is the trait's own.
    /// unsafe impl Custom for Penalty {
    ///     const ARRAYS: usize = 1;
    ///     type Head<'a> = f32;
    ///
    ///     fn new(call: &Call, _head: u32) -> f32 {
    ///         call.array(0).at(0)
    ///     }
    ///
    ///     fn score(penalty: f32, score: f32, pair: Pair) -> f32 {
    ///         score - penalty * pair.distance.abs()
    ///     }
    /// }
    ///
    /// // SAFETY: there are no kernels. A crate with a build script has its COMPILED_MODULES here, for GPUs.
    /// static PENALTY: CustomKernels = unsafe { CustomKernels::new::<Penalty>("Penalty", None) };
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 2, 8], &[0.0_f32; 16])?;
    /// let penalty = Tensor::new(&device, [1], &[2_f32.ln()])?;
    /// let attention = Attention::new().custom(&PENALTY, [(&penalty).into()]);
    /// let (_, lse) = attention.forward(&q, &q, &q)?;
    /// // A key at distance 1 weighs a half.
    /// assert!((lse.to_vec()?[0] - 1.5_f32.ln()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn custom<'b, const N: usize>(
        &self,
        kernels: &'static CustomKernels,
        arrays: [CustomArray<'b>; N],
    ) -> Attention<'b>
    where
        'a: 'b,
    {
        let arrays = arrays.into();
        self.with(|call| call.tensors.custom = Some(BorrowedCustom { kernels, arrays }))
    }
}
