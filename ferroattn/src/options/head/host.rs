//! Tensors of options in host memory.

use super::Head;
use super::bias::HeadBias;
use super::mask::HeadMask;
use super::sequences::HeadSequences;
use crate::attention::Attention;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::options::pages::{expect_pages, read_keys};
use crate::options::{Fp8, PREFIX, RawE4m3Cache, RawOptions, Sequences};
use crate::tensor::{Element, RawTensor};
use bytemuck::Pod;
use float8::F8E4M3;
use ndarray::{Array2, Array4, ArrayView2, ArrayView4, CowArray, Ix2, Ix4, s};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

/// Tensors of a call's options in host memory, for [`check`](crate::check) and
/// [`backward::check`](crate::backward::check). Default: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions<'a> {
    /// Valid to read during `'a`.
    raw: RawOptions,
    /// Numbers that are allowed, like all that follow.
    sequences: Option<Sequences<&'a [i32]>>,
    first_keys: Option<&'a [i32]>,
    cache_entries: Option<&'a [i32]>,
    tensors: PhantomData<&'a [f32]>,
}

impl<'a> Attention<'a> {
    /// The tensors of the call's options, which are on the CPU, for a check of the problem.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::check::{self, Forward};
    /// use ferroattn::{Accumulation, Attention, Device, Tensor};
    ///
    /// let device = Device::cpu(); // or another; the options' tensors go to both
    /// let (shape, data) = ([1, 2, 3, 8], [0.25_f32; 48]);
    /// let q = Tensor::new(&device, shape, &data)?;
    /// let sinks = Tensor::new(&device, [2], &[0.5, -1.0])?;
    /// let attention = Attention::new().sinks(&sinks);
    /// let (o, lse) = attention.forward(&q, &q, &q)?;
    ///
    /// let problem = attention.problem(shape, shape, shape)?;
    /// let forward = Forward {
    ///     problem: &problem,
    ///     options: attention.host_options(&problem)?,
    ///     q: &data,
    ///     k: &data,
    ///     v: &data,
    ///     o: &o.to_vec()?,
    ///     lse: &lse.to_vec()?,
    ///     acc: Accumulation::Single,
    /// };
    /// assert!(check::check(&forward, &check::all_rows(&problem)).passed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says which field of the problem is wrong, which tensor is wrong or on another device, or which length or offset is not allowed.
    pub fn host_options(&self, problem: &Problem) -> Result<HostOptions<'a>> {
        problem.validate()?;
        self.tensors.expect_device(&Device::cpu())?;
        let raw = self.tensors.raw(problem)?;
        raw.validate(problem)?;
        if raw.prefix.is_some() {
            return Err(Error::Excluded(PREFIX, "host_options"));
        }
        // SAFETY: the call borrows the tensors for `'a`, and they are in host memory.
        unsafe { raw.host(problem, ANY_CACHE) }
    }
}

/// Entries of a cache whose tensors come later.
const ANY_CACHE: usize = 1 << 31;

impl RawOptions {
    /// The tensors, which are valid for the problem and in host memory, if their numbers are allowed for a cache of so many entries.
    ///
    /// # Safety
    /// Every element lies in readable memory, aligned, and nothing writes it during `'a`.
    pub(crate) unsafe fn host<'a>(&self, p: &Problem, cache: usize) -> Result<HostOptions<'a>> {
        let pairs = [
            ("bias", self.bias.map(|bias| bias.tensor)),
            ("mask", self.mask.map(|mask| mask.tensor)),
        ];
        for (argument, tensor) in pairs {
            tensor.map_or(Ok(()), |tensor| tensor.expect_countable(argument))?;
        }
        // SAFETY: the caller's word.
        let view = |tensor: &RawTensor<1>| unsafe { tensor.view::<i32, _>() };
        let slice = |tensor: &RawTensor<1>| match tensor.address {
            // All queries of each entry.
            0 => &[],
            _ => view(tensor).to_slice().expect("stride 1"),
        };
        for numbers in self.numbers(p, cache)? {
            numbers.expect(slice(&numbers.tensor))?;
        }
        let sequences = self.sequences.map(|sequences| sequences.map(slice));
        // SAFETY: as above.
        let pages = self.pages.map(|pages| unsafe { pages.view::<i32, _>() });
        for (entry, numbers) in pages.iter().flat_map(|pages| pages.rows()).enumerate() {
            let all = self.keys_of_entry(p);
            let keys = read_keys(all, sequences.as_ref(), entry);
            let numbers = numbers.to_slice().expect("stride 1");
            expect_pages(all, entry, numbers, keys, cache)?;
        }
        if let Some(custom) = &self.custom {
            // SAFETY: as above.
            unsafe { custom.expect_mask(p)? }
        }
        Ok(HostOptions {
            raw: *self,
            sequences,
            first_keys: self.first_keys.as_ref().map(slice),
            cache_entries: self.cache_entries.as_ref().map(slice),
            tensors: PhantomData,
        })
    }
}

impl HostOptions<'_> {
    /// The rows of a head of k or v that an entry of the batch reads: a part of the tensor, or a copy of its pages.
    pub(crate) fn rows_of_keys<'t, T: Pod>(
        &self,
        p: &Problem,
        tensor: &ArrayView4<'t, T>,
        [batch, head]: [usize; 2],
    ) -> CowArray<'t, T, Ix2> {
        let of = |entry| (*tensor).slice_move(s![entry, head, .., ..]);
        let Some(pages) = self.pages() else {
            return of(self.entry(batch)).into();
        };
        let (page, dim) = (tensor.shape()[2], tensor.shape()[3]);
        // Room that nothing is copied to takes no memory: of packed queries a table may have many more keys than there are.
        let rows = bytemuck::zeroed_vec(p.seqlen_kv * dim);
        let mut rows = Array2::from_shape_vec((p.seqlen_kv, dim), rows).expect("its size");
        for (number, first, count) in self.read_pages(p, pages, batch, page) {
            let read = of(number).slice_move(s![..count, ..]);
            rows.slice_mut(s![first..first + count, ..]).assign(&read);
        }
        rows.into()
    }

    /// The rows of a head of a cache of e4m3, times their descales.
    pub(crate) fn rows_of_cache(
        &self,
        p: &Problem,
        cache: &RawE4m3Cache,
        [k, v]: [&ArrayView4<F8E4M3>; 2],
        [batch, head]: [usize; 2],
    ) -> [Array2<f32>; 2] {
        [(k, cache.k), (v, cache.v)].map(|(tensor, descales)| {
            let rows = self.rows_of_keys(p, tensor, [batch, head]);
            let mut rows = rows.mapv(|number| number.to_f32());
            let Some(descales) = descales else {
                return rows;
            };
            // SAFETY: the tensors are valid during the call's.
            let descales = unsafe { descales.view::<f32, _>() };
            let mut multiply = |keys: Range<usize>, entry: usize| {
                let descale = descales[[entry, head]];
                rows.slice_mut(s![keys, ..]).mapv_inplace(|x| x * descale);
            };
            match self.pages().filter(|_| cache.of_pages) {
                None => {
                    let (entries, all) = (self.raw.key_entries(), self.raw.keys_of_entry(p));
                    for entry in 0..entries {
                        multiply(entry * all..(entry + 1) * all, batch * entries + entry);
                    }
                }
                Some(pages) => {
                    let page = self.raw.keys_of_entry(p) / pages.ncols().max(1);
                    for (number, first, count) in self.read_pages(p, pages, batch, page) {
                        multiply(first..first + count, number);
                    }
                }
            }
            rows
        })
    }

    /// [`rows_of_keys`](Self::rows_of_keys) of a row-major tensor of rows of `dim` elements.
    pub(crate) fn keys_of<'t, T: Element>(
        &self,
        p: &Problem,
        tensor: &'t [T],
        dim: usize,
        [batch, head]: [usize; 2],
    ) -> Cow<'t, [T]> {
        let of = |entry: usize, keys: usize| {
            &tensor[(entry * p.kv_heads + head) * keys * dim..][..keys * dim]
        };
        let Some(pages) = self.pages() else {
            return of(self.entry(batch), p.seqlen_kv).into();
        };
        let page = self.raw.keys_of_entry(p) / pages.ncols().max(1);
        let mut rows = bytemuck::zeroed_vec(p.seqlen_kv * dim);
        for (number, first, count) in self.read_pages(p, pages, batch, page) {
            let read = &of(number, page)[..count * dim];
            rows[first * dim..][..count * dim].copy_from_slice(read);
        }
        rows.into()
    }

    /// How many keys queries of each entry of the batch see.
    pub(crate) fn seen_counts(&self, p: &Problem) -> Vec<usize> {
        match self.raw.has_ranges() {
            false => vec![p.seqlen_kv; p.batch],
            true => (0..p.batch)
                .map(|batch| self.seen_of_entry(p, batch).map(|keys| keys.len()).sum())
                .collect(),
        }
    }

    /// The keys that queries of an entry of the batch see, of each query those that none before it sees: from query to query, both ends only
    /// rise.
    fn seen_of_entry<'p>(
        &'p self,
        p: &'p Problem,
        batch: usize,
    ) -> impl Iterator<Item = Range<usize>> + 'p {
        let options = self.head(p, [batch, 0]);
        (0..p.seqlen_q).scan(0, move |end, query| {
            let keys = options.range(query);
            let keys = keys.start.max(*end)..keys.end.max(*end);
            *end = keys.end;
            Some(keys)
        })
    }

    /// Keys or values, with `hidden` in place of those that no query sees, where the batch consists of sequences. NaN there counts for
    /// no scale and no mean.
    pub(crate) fn seen_keys<'t, T: Pod>(
        &self,
        p: &Problem,
        tensor: ArrayView4<'t, T>,
        hidden: T,
    ) -> CowArray<'t, T, Ix4> {
        if !self.raw.has_ranges() {
            return tensor.into();
        }
        let mut seen = Array4::from_elem(tensor.dim(), hidden);
        for batch in 0..p.batch {
            for keys in self.seen_of_entry(p, batch) {
                let keys = s![batch, .., keys, ..];
                seen.slice_mut(keys).assign(&tensor.slice(keys));
            }
        }
        seen.into()
    }

    /// How inputs are rounded to e4m3, if they are.
    pub(crate) fn fp8(&self) -> Option<Fp8> {
        self.raw.fp8
    }

    /// The table of pages, `[batch, most]`.
    fn pages(&self) -> Option<ArrayView2<'_, i32>> {
        // SAFETY: the tensors are valid during `'a`.
        self.raw.pages.map(|pages| unsafe { pages.view() })
    }

    /// The pages that an entry of the batch reads: number, first key and keys. Those of packed queries follow one another, all pages of
    /// each sequence.
    fn read_pages(
        &self,
        p: &Problem,
        pages: ArrayView2<'_, i32>,
        batch: usize,
        page: usize,
    ) -> impl Iterator<Item = (usize, usize, usize)> {
        let (entries, all) = (self.raw.key_entries(), self.raw.keys_of_entry(p));
        let read = (0..entries).flat_map(move |entry| {
            let row = batch * entries + entry;
            let keys = read_keys(all, self.sequences.as_ref(), row);
            let firsts = (0..keys).step_by(page.max(1));
            let read = firsts.zip(pages.row(row).to_vec());
            read.map(move |(first, number)| {
                let count = page.min(keys - first);
                (number as usize, entry * all + first, count)
            })
        });
        read.collect::<Vec<_>>().into_iter()
    }

    /// The entry of k and v that serves an entry of the batch.
    fn entry(&self, batch: usize) -> usize {
        self.cache_entries
            .map_or(batch, |entries| entries[batch] as usize)
    }

    /// The options of one query head.
    pub(crate) fn head<'p>(&self, p: &'p Problem, [batch, head]: [usize; 2]) -> Head<'p>
    where
        Self: 'p,
    {
        // SAFETY: the tensors are valid during `'a`.
        let alibi = self
            .raw
            .alibi
            .map(|alibi| unsafe { alibi.view::<f32, _>() });
        // SAFETY: as above.
        let sinks = self
            .raw
            .sinks
            .map(|sinks| unsafe { sinks.view::<f32, _>() });
        // SAFETY: as above.
        let bias = self
            .raw
            .bias
            .map(|bias| unsafe { HeadBias::new(&bias, [batch, head]) });
        // SAFETY: as above.
        let mask = self
            .raw
            .mask
            .map(|mask| unsafe { HeadMask::new(&mask, [batch, head]) });
        // SAFETY: as above.
        let custom = self
            .raw
            .custom
            .map(|custom| unsafe { custom.head(p, [batch, head]) });
        let first = self.first_keys.map_or(0, |first| first[batch] as usize);
        // Of packed sequences, which are one entry, slopes are of the entry or of each sequence.
        let of_head = |alibi: ArrayView2<'p, f32>| match self.raw.has_slopes_of_sequences() {
            true => alibi.slice_move(s![.., head]),
            false => alibi.slice_move(s![batch..=batch, head]),
        };
        Head {
            p,
            custom,
            bias,
            mask,
            slopes: alibi.map(of_head),
            sink: sinks.map(|sinks| sinks[head]),
            sequences: HeadSequences::new(
                p,
                self.sequences,
                first,
                batch,
                self.raw.keys_of_entry(p),
            ),
            invariant: self.raw.batch_invariant,
        }
    }
}
