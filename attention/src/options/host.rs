//! Tensors of options in host memory.

use super::bias::HeadBias;
use super::mask::HeadMask;
use super::sequences::HeadSequences;
use super::{Head, RawOptions, Sequences};
use crate::attention::Attention;
use crate::device::Device;
use crate::error::Result;
use crate::forward::Problem;
use std::marker::PhantomData;

/// Tensors of a call's options in host memory, for [`check`](crate::check) and
/// [`backward::check`](crate::backward::check). Default: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions<'a> {
    /// Valid to read during `'a`.
    raw: RawOptions,
    /// Numbers that are allowed.
    sequences: Option<Sequences<&'a [i32]>>,
    tensors: PhantomData<&'a [f32]>,
}

impl<'a> Attention<'a> {
    /// The tensors of the call's options, which are on the CPU, for a check of the problem.
    ///
    /// ```
    /// # fn main() -> attention::Result<()> {
    /// use attention::check::{self, Forward};
    /// use attention::{Accumulation, Attention, Device, Tensor};
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
        unsafe { raw.host(problem) }
    }
}

impl RawOptions {
    /// The tensors, which are valid for the problem and in host memory, if lengths and offsets are allowed.
    ///
    /// # Safety
    /// Every element lies in readable memory, aligned, and nothing writes it during `'a`.
    pub(crate) unsafe fn host<'a>(&self, p: &Problem) -> Result<HostOptions<'a>> {
        let pairs = [
            ("bias", self.bias.map(|bias| bias.tensor)),
            ("mask", self.mask.map(|mask| mask.tensor)),
        ];
        for (argument, tensor) in pairs {
            tensor.map_or(Ok(()), |tensor| tensor.expect_countable(argument))?;
        }
        let sequences = self.sequences;
        // SAFETY: the caller's word.
        let sequences = sequences.map(|sequences| unsafe { sequences.on_host(p) });
        if let Some(custom) = &self.custom {
            // SAFETY: as above.
            unsafe { custom.expect_mask(p)? }
        }
        Ok(HostOptions {
            raw: *self,
            sequences: sequences.transpose()?,
            tensors: PhantomData,
        })
    }
}

impl HostOptions<'_> {
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
        Head {
            p,
            custom,
            bias,
            mask,
            slope: alibi.map(|alibi| alibi[[batch, head]]),
            sink: sinks.map(|sinks| sinks[head]),
            sequences: HeadSequences::new(p, self.sequences, batch),
        }
    }
}
