//! The call that appends to a cache.

use super::plan::append_raw;
use super::raw::{RawAppend, RawRotary};
use crate::device::{Device, RawStream, Stream};
use crate::error::{Error, Result};
use crate::options::{Borrowed, BorrowedDescales, E4M3_CACHE, RawE4m3Cache};
use crate::tensor::{Dtype, Element, Storage, StorageMut, TensorBase, expect_device};
use float8::F8E4M3;
use std::ptr::null_mut;

/// Keys and values of new tokens, copied to where a cache has them: behind those that each entry of the batch has, or at slots.
/// Keys are rotated on the way, and queries beside them, if the call has a [rotary embedding](Self::rotary).
///
/// New keys are `[batch, kv_heads, rows, dim]`, new values `[batch, kv_heads, rows, dim_v]`; the cache has
/// `[entries, kv_heads, keys, dim]` and `[entries, kv_heads, keys, dim_v]`, an entry for each entry of the batch unless
/// the call says otherwise. Any strides will do as long as dim has stride 1.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Append, Attention, Device, Tensor};
///
/// let device = Device::cpu();
/// let mut cache = [(); 2].map(|()| Tensor::<f32>::zeros(&device, [1, 1, 4, 8]).unwrap());
/// let [k_cache, v_cache] = &mut cache;
/// let mut lengths = Tensor::new(&device, [1], &[0])?;
/// for step in 0..3 {
///     let token = Tensor::new(&device, [1, 1, 1, 8], &[step as f32; 8])?;
///     Append::new().lengths(&lengths).run(&token, &token, k_cache, v_cache)?;
///     lengths.copy_from_slice(&[step + 1])?;
/// }
/// assert_eq!(v_cache.to_vec()?, [[0.0; 8], [1.0; 8], [2.0; 8], [0.0; 8]].concat());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Append<'a> {
    pages: Option<Borrowed<'a, 2>>,
    cache_entries: Option<Borrowed<'a, 1>>,
    lengths: Option<Borrowed<'a, 1>>,
    slots: Option<Borrowed<'a, 2>>,
    positions: Option<Borrowed<'a, 2>>,
    rotary: Option<(Dtype, [Borrowed<'a, 2>; 2])>,
    interleaved: bool,
    q_at_first: bool,
    descales: Option<BorrowedDescales<'a>>,
    check: bool,
    stream: Option<&'a Stream>,
}

/// Defines options that borrow a tensor of these numbers.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $axes:literal of $item:ty;)*) => {$(
        $(#[$doc])*
        pub fn $name<'b>(
            &self,
            $name: &'b TensorBase<impl Storage<Item = $item>, $axes>,
        ) -> Append<'b>
        where
            'a: 'b,
        {
            let mut call: Append<'b> = self.clone();
            call.$name = Some($name.into());
            call
        }
    )*};
}

impl<'a> Append<'a> {
    /// Rows behind none, in an entry of the cache for each entry of the batch, without rotation.
    pub fn new() -> Self {
        Self::default()
    }

    options! {
        /// The pages of each entry of the batch, `[batch, most]` with stride 1 in the last axis, as for
        /// [`Attention::pages`](crate::Attention::pages): the cache is `[pages, kv_heads, page, dim]`.
        pages: 2 of i32;

        /// The entry of the cache for each entry of the batch, `[batch]` with stride 1, as for
        /// [`Attention::cache_entries`](crate::Attention::cache_entries).
        cache_entries: 1 of i32;

        /// How many keys each entry of the batch has before, `[batch]` with stride 1: new row `i` becomes key `lengths[b] + i`, at
        /// that position. Default: none has any.
        lengths: 1 of i32;

        /// Where each new row goes, `[batch, rows]` with stride 1 in the last axis: row `slot % keys` of entry or page
        /// `slot / keys` of the cache. A negative slot is of no row of the cache. It takes the place of pages and entries;
        /// lengths, if there are some, then say positions alone.
        slots: 2 of i64;

        /// The position of each new row, and of the query beside it, `[batch, rows]` with stride 1 in the last axis. Default: it
        /// follows from the lengths.
        positions: 2 of i32;
    }

    /// A rotary embedding (arXiv 2104.09864): cosines and sines, `[positions, rotary_dim / 2]` with stride 1 in the last axis, of f32
    /// or of the rows' type. Pair `i` of a key `(x, y)` at position `p` becomes
    /// `(x cos[p, i] - y sin[p, i], x sin[p, i] + y cos[p, i])`; elements behind the first `rotary_dim` stay.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Append, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// // A quarter turn at position 1.
    /// let cos = Tensor::new(&device, [2, 1], &[1.0_f32, 0.0])?;
    /// let sin = Tensor::new(&device, [2, 1], &[0.0_f32, 1.0])?;
    /// let k = Tensor::new(&device, [1, 1, 2, 4], &[1.0_f32, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0])?;
    /// let [mut k_cache, mut v_cache] = [(); 2].map(|()| Tensor::zeros(&device, [1, 1, 2, 4]).unwrap());
    /// Append::new().rotary(&cos, &sin).run(&k, &k, &mut k_cache, &mut v_cache)?;
    /// assert_eq!(k_cache.to_vec()?, [1.0, 2.0, 3.0, 4.0, -2.0, 1.0, 3.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rotary<'b, T: Element>(
        &self,
        cos: &'b TensorBase<impl Storage<Item = T>, 2>,
        sin: &'b TensorBase<impl Storage<Item = T>, 2>,
    ) -> Append<'b>
    where
        'a: 'b,
    {
        let mut call: Append<'b> = self.clone();
        call.rotary = Some((T::DTYPE, [cos.into(), sin.into()]));
        call
    }

    /// Descales of a cache of e4m3, `[batch, kv_heads]` of any strides, as for
    /// [`Attention::cache_descales`](crate::Attention::cache_descales): a number times the descale is near the row's element. They are finite and
    /// not 0; elements beyond 448 times the descale become that. Default: all are 1.
    pub fn descales<'b>(
        &self,
        k: &'b TensorBase<impl Storage<Item = f32>, 2>,
        v: &'b TensorBase<impl Storage<Item = f32>, 2>,
    ) -> Append<'b>
    where
        'a: 'b,
    {
        self.with_descales([k.into(), v.into()], false)
    }

    /// [`descales`](Self::descales) of each page, `[pages, kv_heads]`; of [slots](Self::slots), of each entry or page of the cache.
    pub fn page_descales<'b>(
        &self,
        k: &'b TensorBase<impl Storage<Item = f32>, 2>,
        v: &'b TensorBase<impl Storage<Item = f32>, 2>,
    ) -> Append<'b>
    where
        'a: 'b,
    {
        self.with_descales([k.into(), v.into()], true)
    }

    fn with_descales<'b>(&self, of: [Borrowed<'b, 2>; 2], of_pages: bool) -> Append<'b>
    where
        'a: 'b,
    {
        let mut call: Append<'b> = self.clone();
        call.descales = Some(BorrowedDescales { of, of_pages });
        call
    }

    /// Whether neighbours, elements `2i` and `2i + 1`, are a pair (GPT-J). Default: false; elements `i` and `i + rotary_dim / 2` are
    /// (GPT-NeoX, Llama).
    pub fn interleaved(mut self, interleaved: bool) -> Self {
        self.interleaved = interleaved;
        self
    }

    /// Whether all queries of an entry have the position of the first one. Default: false; row `i` is `i` positions behind.
    pub fn q_at_first(mut self, at_first: bool) -> Self {
        self.q_at_first = at_first;
        self
    }

    /// Whether a GPU, whose memory the host cannot see, checks lengths, slots, pages and positions before it writes, and the call waits
    /// for that. Default: false; rows that have no place in the cache are then not written, and positions are moved to what is
    /// allowed. The CPU always checks.
    pub fn check_lengths(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// The stream on which the call is queued. Default: the device's default stream.
    pub fn on<'b>(&self, stream: &'b Stream) -> Append<'b>
    where
        'a: 'b,
    {
        let mut call: Append<'b> = self.clone();
        call.stream = Some(stream);
        call
    }

    /// Appends new keys and values to a cache, on their device.
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks.
    pub fn run<T: Element>(
        &self,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        k_cache: &mut TensorBase<impl StorageMut<Item = T>>,
        v_cache: &mut TensorBase<impl StorageMut<Item = T>>,
    ) -> Result<()> {
        let device = k.device();
        expect_device(&device, [("v", v.device())])?;
        expect_device(&device, [("k_cache", k_cache.device())])?;
        expect_device(&device, [("v_cache", v_cache.device())])?;
        let stream = self.expect_tensors(&device)?;
        let args = self.raw(RawAppend::new(
            [k.as_raw(), v.as_raw()],
            [k_cache.as_raw_mut(), v_cache.as_raw_mut()],
        ))?;
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes are compared. No other argument borrows the
        // buffers of the caches, so they overlap nothing. A buffer that is dropped early is freed by the driver after
        // the work. The stream is borrowed.
        unsafe { append_raw(&device, T::DTYPE, &args, stream) }
    }

    /// Like [`run`](Self::run), to a cache of e4m3, which [`Attention::forward_e4m3_cache`](crate::Attention::forward_e4m3_cache)
    /// reads: rows, rotated if they are, are divided by [descales](Self::descales) and rounded to the nearest number. A GPU needs
    /// compute capability 9.0.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Append, Device, F8E4M3, Tensor};
    ///
    /// let device = Device::cpu();
    /// let token = Tensor::new(&device, [1, 1, 1, 16], &[3.0_f32; 16])?;
    /// let [mut k, mut v] = [(); 2].map(|()| Tensor::<F8E4M3>::zeros(&device, [1, 1, 4, 16]).unwrap());
    /// let descales = Tensor::new(&device, [1, 1], &[0.5_f32])?;
    /// let append = Append::new().descales(&descales, &descales);
    /// append.run_e4m3(&token, &token, &mut k, &mut v)?;
    /// assert_eq!(v.to_vec()?[0].to_f32(), 6.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`run`](Self::run).
    pub fn run_e4m3<T: Element>(
        &self,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        k_cache: &mut TensorBase<impl StorageMut<Item = F8E4M3>>,
        v_cache: &mut TensorBase<impl StorageMut<Item = F8E4M3>>,
    ) -> Result<()> {
        let mut args = RawAppend::new(
            [k.as_raw(), v.as_raw()],
            [k_cache.as_raw_mut(), v_cache.as_raw_mut()],
        );
        args.e4m3_cache = Some(RawE4m3Cache::default());
        let device = k.device();
        expect_device(&device, [("v", v.device())])?;
        expect_device(&device, [("k_cache", k_cache.device())])?;
        expect_device(&device, [("v_cache", v_cache.device())])?;
        let stream = self.expect_tensors(&device)?;
        // SAFETY: the conditions of `run`.
        unsafe { append_raw(&device, T::DTYPE, &self.raw(args)?, stream) }
    }

    /// Like [`run`](Self::run), and rotates queries `[batch, heads, rows, dim]` into `rotated`, of their shape.
    ///
    /// # Errors
    /// The conditions of [`run`](Self::run).
    pub fn run_with<T: Element>(
        &self,
        (q, rotated): (
            &TensorBase<impl Storage<Item = T>>,
            &mut TensorBase<impl StorageMut<Item = T>>,
        ),
        [k, v]: [&TensorBase<impl Storage<Item = T>>; 2],
        k_cache: &mut TensorBase<impl StorageMut<Item = T>>,
        v_cache: &mut TensorBase<impl StorageMut<Item = T>>,
    ) -> Result<()> {
        let device = k.device();
        expect_device(&device, [("v", v.device()), ("q", q.device())])?;
        expect_device(&device, [("rotated", rotated.device())])?;
        expect_device(&device, [("k_cache", k_cache.device())])?;
        expect_device(&device, [("v_cache", v_cache.device())])?;
        let stream = self.expect_tensors(&device)?;
        let mut args = RawAppend::new(
            [k.as_raw(), v.as_raw()],
            [k_cache.as_raw_mut(), v_cache.as_raw_mut()],
        );
        args.q = Some([q.as_raw(), rotated.as_raw_mut()]);
        // SAFETY: the conditions of `run`, of `q` and `rotated`, too.
        unsafe { append_raw(&device, T::DTYPE, &self.raw(args)?, stream) }
    }

    /// Checks that all tensors of the call are on a device, and gives its stream.
    fn expect_tensors(&self, device: &Device) -> Result<RawStream> {
        let two = [
            ("pages", &self.pages),
            ("slots", &self.slots),
            ("positions", &self.positions),
        ];
        let two = two.map(|(name, tensor)| (name, tensor.as_ref().map(Borrowed::device)));
        let one = [
            ("cache_entries", &self.cache_entries),
            ("lengths", &self.lengths),
        ];
        let one = one.map(|(name, tensor)| (name, tensor.as_ref().map(Borrowed::device)));
        let rotary = self.rotary.iter().flat_map(|(_, tensors)| tensors);
        let rotary = ["cos", "sin"]
            .into_iter()
            .zip(rotary.map(|tensor| Some(tensor.device())));
        let descales = self.descales.iter().flat_map(|descales| &descales.of);
        let descales = ["k_descales", "v_descales"]
            .into_iter()
            .zip(descales.map(|tensor| Some(tensor.device())));
        let given = two.into_iter().chain(one).chain(rotary).chain(descales);
        expect_device(
            device,
            given.filter_map(|(name, found)| Some((name, found?.clone()))),
        )?;
        let Some(stream) = self.stream else {
            return Ok(null_mut());
        };
        expect_device(device, [("stream", stream.device().clone())])?;
        Ok(stream.raw())
    }

    /// The arguments with the call's options.
    fn raw(&self, args: RawAppend) -> Result<RawAppend> {
        let descales = self.descales.as_ref().map(BorrowedDescales::raw);
        if descales.is_some() && args.e4m3_cache.is_none() {
            return Err(Error::Needs("descales", E4M3_CACHE));
        }
        Ok(RawAppend {
            pages: self.pages.as_ref().map(Borrowed::raw),
            cache_entries: self.cache_entries.as_ref().map(Borrowed::raw),
            lengths: self.lengths.as_ref().map(Borrowed::raw),
            slots: self.slots.as_ref().map(Borrowed::raw),
            positions: self.positions.as_ref().map(Borrowed::raw),
            rotary: self.rotary.as_ref().map(|(dtype, [cos, sin])| RawRotary {
                dtype: *dtype,
                cos: cos.raw(),
                sin: sin.raw(),
                interleaved: self.interleaved,
                q_at_first: self.q_at_first,
            }),
            e4m3_cache: args.e4m3_cache.map(|cache| cache.or(descales)),
            check_lengths: self.check,
            ..args
        })
    }
}
