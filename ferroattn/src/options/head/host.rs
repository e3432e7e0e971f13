//! Tensors of options in host memory.

use super::Head;
use super::bias::HeadBias;
use super::mask::HeadMask;
use super::sequences::HeadSequences;
use crate::attention::Attention;
use crate::device::Device;
use crate::error::Result;
use crate::forward::Problem;
use crate::options::{RawOptions, Sequences};
use crate::tensor::RawTensor;
use ndarray::{ArrayView2, s};
use std::marker::PhantomData;

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
        let slice = |tensor: &RawTensor<1>| view(tensor).to_slice().expect("stride 1");
        for numbers in self.numbers(p, cache)? {
            numbers.expect(slice(&numbers.tensor))?;
        }
        if let Some(custom) = &self.custom {
            // SAFETY: as above.
            unsafe { custom.expect_mask(p)? }
        }
        Ok(HostOptions {
            raw: *self,
            sequences: self.sequences.map(|sequences| sequences.map(slice)),
            first_keys: self.first_keys.as_ref().map(slice),
            cache_entries: self.cache_entries.as_ref().map(slice),
            tensors: PhantomData,
        })
    }
}

impl HostOptions<'_> {
    /// The entry of k and v that serves an entry of the batch.
    pub(crate) fn entry(&self, batch: usize) -> usize {
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
            sequences: HeadSequences::new(p, self.sequences, first, batch),
        }
    }
}
