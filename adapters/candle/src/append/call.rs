//! A call that appends, on any device.

use super::Append;
use super::shapes::{are_apart, expect_apart, expect_shapes};
use crate::call::{heads_first, one_entry};
use crate::memory::{self, Addresses, Locked, Memory, Placed, in_place, part, share_storage};
use crate::tensors::{NUMBERS, dtype, expect_device, expect_dtype, in_rows};
use candle_core::{DType, Device, Error, Result, Tensor};
use ferroattn::{RawAppend, RawE4m3Cache, RawRotary, RawTensor, append_raw};

/// Names of the tensors that a call reads.
const NAMES: [&str; 12] = [
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
    "k_descale",
    "v_descale",
];

/// A call whose tensors are checked: the library checks numbers, and the strides of caches.
pub(super) struct Call<'a> {
    /// Tensors of these names, with stride 1 in their last axes.
    read: [Option<Tensor>; NAMES.len()],
    /// Keys and values.
    caches: [&'a Tensor; 2],
    /// Whether these are parts of one storage, which has one lock.
    is_shared: bool,
    /// Type of rows.
    dtype: DType,
    /// Whether each page has descales of its own.
    page_descales: bool,
    interleaved: bool,
    q_at_first: bool,
}

impl<'a> Call<'a> {
    pub fn new(
        options: &Append,
        [k, v]: [&Tensor; 2],
        caches: [&'a Tensor; 2],
        q: Option<&Tensor>,
    ) -> Result<Self> {
        let [cos, sin] = match &options.rotary {
            Some([cos, sin]) => [Some(cos), Some(sin)],
            None => [None, None],
        };
        let descales = options.descales.as_ref();
        if descales.is_some() && caches[0].dtype() != DType::F8E4M3 {
            candle_core::bail!("descales need caches of F8E4M3")
        }
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
            descales.map(|descales| &descales.k),
            descales.map(|descales| &descales.v),
        ];
        let named = || NAMES.into_iter().zip(read);
        let named = || named().filter_map(|(name, tensor)| Some((name, tensor?)));
        let written = [("k_cache", caches[0]), ("v_cache", caches[1])];
        let of_rotary = cos.map_or(DType::F32, Tensor::dtype);
        dtype(k.dtype())?;
        for (name, tensor) in named().chain(written) {
            expect_device(name, tensor, ("k", k.device()))?;
            let allowed: &[DType] = match name {
                "k" | "v" | "q" => &[k.dtype()],
                "k_cache" => &[k.dtype(), DType::F8E4M3],
                "v_cache" => &[caches[0].dtype()],
                "k_descale" | "v_descale" => &[DType::F32],
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
            page_descales: descales.is_some_and(|descales| descales.of_pages),
            interleaved: options.interleaved,
            q_at_first: options.q_at_first,
        })
    }

    /// The rotated queries, if there are some, and the lengths.
    pub fn run(&self) -> Result<(Option<Tensor>, Tensor)> {
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
            part(storages[cache], layout, self.caches[cache].dtype()).map(heads_first)
        });
        let [
            k,
            v,
            q,
            lengths,
            pages,
            entries,
            slots,
            positions,
            cos,
            sin,
            k_descale,
            v_descale,
        ] = placed;
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
        let [.., of_rotary, _, _, _] = &self.read;
        if let (Some(cos), Some(sin), Some(of_rotary)) = (cos, sin, of_rotary) {
            args.rotary = Some(RawRotary {
                dtype: dtype(of_rotary.dtype())?,
                cos,
                sin,
                interleaved: self.interleaved,
                q_at_first: self.q_at_first,
            });
        }
        let cache = RawE4m3Cache {
            k: numbers(addresses, k_descale)?,
            v: numbers(addresses, v_descale)?,
            of_pages: self.page_descales,
        };
        let is_e4m3 = self.caches[0].dtype() == DType::F8E4M3;
        args.e4m3_cache = is_e4m3.then_some(cache);
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
