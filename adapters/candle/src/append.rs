//! New keys and values, written into a cache in place.

use crate::call::{heads_first, one_entry};
use crate::memory::{self, Addresses, Locked, Memory, Placed, in_place, part, share_storage};
use crate::tensors::{NUMBERS, dtype, expect_device, expect_dtype, in_rows};
use candle_core::{DType, Device, Error, Layout, Result, Tensor};
use ferroattn::{RawAppend, RawRotary, RawTensor, append_raw};

/// New keys and values, written into a cache behind those that it has, by one launch. New keys are rotated on the way, and queries
/// beside them, if there is a [rotary embedding](Self::rotary).
///
/// New keys are `[batch, rows, kv_heads, dim]` and values `[batch, rows, kv_heads, dim_v]`, or of three axes, `[rows, kv_heads, dim]`,
/// which is a batch of one entry. The cache is `[entries or pages, keys, kv_heads, dim]` and `[…, dim_v]`, an entry for each entry
/// of the batch unless the call says otherwise. Its last axes have stride 1; else any views will do, also two of one tensor.
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

/// Names of the tensors that a call reads.
const NAMES: [&str; 10] = [
    "k",
    "v",
    "q",
    "lengths",
    "pages",
    "cache_entries",
    "slots",
    "positions",
    "cos",
    "sin",
];

/// A call whose tensors are checked: the library checks numbers, and the strides of caches.
struct Call<'a> {
    /// Tensors of these names, with stride 1 in their last axes.
    read: [Option<Tensor>; NAMES.len()],
    /// Keys and values.
    caches: [&'a Tensor; 2],
    /// Whether these are parts of one storage, which has one lock.
    is_shared: bool,
    /// Type of rows.
    dtype: DType,
    interleaved: bool,
    q_at_first: bool,
}

impl<'a> Call<'a> {
    fn new(
        options: &Append,
        [k, v]: [&Tensor; 2],
        caches: [&'a Tensor; 2],
        q: Option<&Tensor>,
    ) -> Result<Self> {
        let [cos, sin] = match &options.rotary {
            Some([cos, sin]) => [Some(cos), Some(sin)],
            None => [None, None],
        };
        let read = [
            Some(k),
            Some(v),
            q,
            options.lengths.as_ref(),
            options.pages.as_ref(),
            options.cache_entries.as_ref(),
            options.slots.as_ref(),
            options.positions.as_ref(),
            cos,
            sin,
        ];
        let named = || NAMES.into_iter().zip(read);
        let named = || named().filter_map(|(name, tensor)| Some((name, tensor?)));
        let written = [("k_cache", caches[0]), ("v_cache", caches[1])];
        let of_rotary = cos.map_or(DType::F32, Tensor::dtype);
        dtype(k.dtype())?;
        for (name, tensor) in named().chain(written) {
            expect_device(name, tensor, ("k", k.device()))?;
            let allowed: &[DType] = match name {
                "k" | "v" | "q" | "k_cache" | "v_cache" => &[k.dtype()],
                "slots" => &[DType::I64],
                "cos" => &[DType::F32, k.dtype()],
                "sin" => &[of_rotary],
                _ => NUMBERS,
            };
            expect_dtype(name, tensor, allowed)?;
        }
        expect_shapes(named().chain(written), [k, v], caches[0])?;
        for (name, tensor) in named() {
            expect_apart(name, tensor, written)?;
        }
        let [of_keys, of_values] = caches;
        let is_shared = share_storage(caches);
        if is_shared && !are_apart(of_keys.layout(), of_values.layout()) {
            candle_core::bail!("k_cache and v_cache share elements; each must have its own")
        }
        let mut rows = [const { None }; NAMES.len()];
        for (tensor, row) in read.into_iter().zip(&mut rows) {
            *row = tensor.map(in_rows).transpose()?;
        }
        Ok(Call {
            read: rows,
            caches,
            is_shared,
            dtype: k.dtype(),
            interleaved: options.interleaved,
            q_at_first: options.q_at_first,
        })
    }

    /// The rotated queries, if there are some, and the lengths.
    fn run(&self) -> Result<(Option<Tensor>, Tensor)> {
        match self.caches[0].device() {
            Device::Cpu => self.run_in(&memory::Host),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => self.run_in(&memory::Cuda::new(device)),
            device => candle_core::bail!("append does not run on {:?}", device.location()),
        }
    }

    /// Locks the caches, keys before values like a call of attention, and appends.
    fn run_in<M: Memory>(&self, memory: &M) -> Result<(Option<Tensor>, Tensor)> {
        let [keys, values] = self.caches;
        in_place(memory, keys, |k_storage| match self.is_shared {
            true => self.append(memory, [k_storage; 2]),
            false => in_place(memory, values, |v_storage| {
                self.append(memory, [k_storage, v_storage])
            }),
        })
    }

    /// Appends to caches in storages at these addresses.
    fn append<M: Memory>(
        &self,
        memory: &M,
        storages: [u64; 2],
    ) -> Result<(Option<Tensor>, Tensor)> {
        let [k, _, q, lengths, ..] = self.read.each_ref().map(Option::as_ref);
        let batch = k.map_or(1, |k| if k.rank() == 4 { k.dims()[0] } else { 1 });
        let mut new_lengths = memory.alloc(lengths.map_or(DType::U32, Tensor::dtype), batch)?;
        let room = |q: &Tensor| memory.alloc(self.dtype, q.elem_count());
        let mut rotated = q.map(room).transpose()?;

        let locked = self.read.each_ref();
        let locked = locked.map(|tensor| tensor.as_ref().map(Locked::new));
        let placed = locked.each_ref();
        let placed = placed.map(|locked| locked.as_ref().map(Locked::placed).transpose());
        let (device, mut addresses) = (memory.device()?, Addresses::new(memory));
        let mut args = self.raw(&mut addresses, storages, placed)?;
        args.new_lengths = Some(addresses.write(&mut new_lengths, [batch])?);
        if let (Some([_, to]), Some(storage)) = (&mut args.q, &mut rotated) {
            let [batch, heads, rows, dim] = to.shape;
            *to = heads_first(addresses.write(storage, [batch, rows, heads, dim])?);
        }
        let dtype = dtype(self.dtype)?;
        // SAFETY: candle's layouts lie in their storages, which are locked and, on a GPU, freed in the stream's order. Types were
        // compared. The caches lie apart from each other, and in no storage that is read; results are new.
        unsafe { append_raw(&device, dtype, &args, memory.stream()) }.map_err(Error::wrap)?;
        drop(addresses);
        let of_q = q.map(|q| q.shape().clone());
        let rotated = rotated.zip(of_q);
        Ok((
            rotated.map(|(storage, shape)| memory::tensor::<M>(storage, shape)),
            memory::tensor::<M>(new_lengths, batch),
        ))
    }

    /// The tensors by address; rotated queries are yet in the place of q.
    fn raw<'t, M: Memory>(
        &self,
        addresses: &mut Addresses<'t, M>,
        storages: [u64; 2],
        placed: [Result<Option<Placed<'t, M>>>; NAMES.len()],
    ) -> Result<RawAppend> {
        let [k_cache, v_cache] = [0, 1].map(|cache: usize| {
            let layout = self.caches[cache].layout();
            part(storages[cache], layout, self.dtype).map(heads_first)
        });
        let [k, v, q, lengths, pages, entries, slots, positions, cos, sin] = placed;
        let (Some(k), Some(v)) = (rows(addresses, k)?, rows(addresses, v)?) else {
            candle_core::bail!("append needs keys and values")
        };
        let mut args = RawAppend::new([k, v], [k_cache?, v_cache?]);
        args.q = rows(addresses, q)?.map(|q| [q, q]);
        args.lengths = numbers(addresses, lengths)?;
        args.pages = numbers(addresses, pages)?;
        args.cache_entries = numbers(addresses, entries)?;
        args.slots = of_rows(addresses, slots)?;
        args.positions = of_rows(addresses, positions)?;
        let (cos, sin) = (numbers(addresses, cos)?, numbers(addresses, sin)?);
        let [.., of_rotary, _] = &self.read;
        if let (Some(cos), Some(sin), Some(of_rotary)) = (cos, sin, of_rotary) {
            args.rotary = Some(RawRotary {
                dtype: dtype(of_rotary.dtype())?,
                cos,
                sin,
                interleaved: self.interleaved,
                q_at_first: self.q_at_first,
            });
        }
        Ok(args)
    }
}

/// Rows of heads, in the library's order of axes.
fn rows<'t, M: Memory>(
    addresses: &mut Addresses<'t, M>,
    placed: Result<Option<Placed<'t, M>>>,
) -> Result<Option<RawTensor>> {
    let read = |placed: Placed<'t, M>| match placed.layout.dims().len() {
        3 => addresses.read(&placed).map(one_entry),
        _ => addresses.read(&placed).map(heads_first),
    };
    placed?.map(read).transpose()
}

/// A number for each row: of an entry, or of a batch of one.
fn of_rows<'t, M: Memory>(
    addresses: &mut Addresses<'t, M>,
    placed: Result<Option<Placed<'t, M>>>,
) -> Result<Option<RawTensor<2>>> {
    let read = |placed: Placed<'t, M>| match placed.layout.dims().len() {
        1 => addresses.read(&placed).map(|row: RawTensor<1>| RawTensor {
            address: row.address,
            shape: [1, row.shape[0]],
            strides: [0, row.strides[0]],
        }),
        _ => addresses.read(&placed),
    };
    placed?.map(read).transpose()
}

fn numbers<'t, M: Memory, const R: usize>(
    addresses: &mut Addresses<'t, M>,
    placed: Result<Option<Placed<'t, M>>>,
) -> Result<Option<RawTensor<R>>> {
    let read = |placed: Placed<'t, M>| addresses.read(&placed);
    placed?.map(read).transpose()
}

/// Checks that a tensor that is read keeps out of the caches' storages, which are locked, and of candle's graph.
fn expect_apart(name: &str, tensor: &Tensor, caches: [(&str, &Tensor); 2]) -> Result<()> {
    if tensor.track_op() {
        candle_core::bail!("{name} has no gradient through a cache; pass {name}.detach()")
    }
    for (cache, written) in caches {
        if share_storage([tensor, written]) {
            candle_core::bail!(
                "{name} lies in the storage of {cache}, which is written; pass a copy"
            )
        }
    }
    Ok(())
}

/// An axis of a shape.
#[derive(Clone, Copy)]
enum Axis {
    Is(usize),
    /// Of any extent, with a name.
    Any(&'static str),
}

/// Checks the axes of all tensors.
fn expect_shapes<'t>(
    tensors: impl Iterator<Item = (&'static str, &'t Tensor)>,
    [k, v]: [&Tensor; 2],
    k_cache: &Tensor,
) -> Result<()> {
    use Axis::{Any, Is};
    let (entry, [rows, kv_heads, dim]) = match *k.dims() {
        [batch, rows, kv_heads, dim] => (Some(batch), [rows, kv_heads, dim]),
        [rows, kv_heads, dim] => (None, [rows, kv_heads, dim]),
        _ => candle_core::bail!(
            "k has shape {:?}; it must be [batch, rows, kv_heads, dim] or [rows, kv_heads, dim]",
            k.dims()
        ),
    };
    let batch = Is(entry.unwrap_or(1));
    let of_entry = |axes: &[Axis]| -> Vec<Axis> {
        let entry = entry.map(Is);
        entry.into_iter().chain(axes.iter().copied()).collect()
    };
    let dim_v = v.dims().last().map_or(Any("dim_v"), |&dim| Is(dim));
    let extent = |axis: usize, name| k_cache.dims().get(axis).map_or(Any(name), |&size| Is(size));
    let (entries, keys) = (extent(0, "entries"), extent(1, "keys"));
    for (name, tensor) in tensors {
        let axes = match name {
            "k" => continue,
            "v" => of_entry(&[Is(rows), Is(kv_heads), Any("dim_v")]),
            "q" => of_entry(&[Any("seqlen_q"), Any("heads"), Is(dim)]),
            "k_cache" => vec![Any("entries"), Any("keys"), Is(kv_heads), Is(dim)],
            "v_cache" => vec![entries, keys, Is(kv_heads), dim_v],
            "pages" => vec![batch, Any("most pages")],
            "slots" | "positions" => of_entry(&[Is(rows)]),
            "cos" | "sin" => vec![Any("positions"), Any("rotary_dim / 2")],
            _ => vec![batch],
        };
        let fits = |(axis, extent): (&Axis, &usize)| match axis {
            Is(expected) => expected == extent,
            Any(_) => true,
        };
        let found = tensor.dims();
        if axes.len() != found.len() || !axes.iter().zip(found).all(fits) {
            let expected = axes.iter().map(|axis| match axis {
                Is(extent) => extent.to_string(),
                Any(name) => (*name).to_owned(),
            });
            let expected = expected.collect::<Vec<_>>().join(", ");
            candle_core::bail!("{name} has shape {found:?}; it must be [{expected}]")
        }
    }
    Ok(())
}

/// Whether parts of one storage have no element in common: one ends before the other, or they lie along an axis of one tensor.
fn are_apart(first: &Layout, second: &Layout) -> bool {
    let mut layouts = [first, second];
    layouts.sort_by_key(|layout| layout.start_offset());
    let [first, second] = layouts;
    if first.dims().contains(&0) || second.dims().contains(&0) {
        return true;
    }
    let distance = second.start_offset() - first.start_offset();
    let last: usize = (first.stride().iter().zip(first.dims()))
        .map(|(stride, extent)| stride * (extent - 1))
        .sum();
    if distance > last {
        return true;
    }
    let extents = (first.dims().iter().zip(second.dims())).map(|(first, second)| first.max(second));
    let strides = first.stride().iter().zip(second.stride());
    let mut axes: Vec<_> = strides
        .zip(extents)
        .filter(|(_, extent)| **extent > 1)
        .collect();
    if axes.iter().any(|((first, second), _)| first != second) {
        return false;
    }
    // The two are one more axis: no step along an axis ends where shorter ones reach.
    axes.push(((&distance, &distance), &2));
    axes.sort_unstable();
    let mut reach = 0;
    axes.iter().all(|((stride, _), extent)| {
        let is_behind = **stride > reach;
        reach += *stride * (*extent - 1);
        is_behind
    })
}
