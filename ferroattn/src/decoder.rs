//! Steps of decoding, for a CUDA graph to hold.

use crate::append::{RawAppend, RawRotary, append_plan, append_raw};
use crate::attention::Attention;
use crate::device::{Device, Stream};
use crate::error::Result;
use crate::forward::RawForward;
use crate::options::{RawOptions, RawSequences};
use crate::plan::Plan;
use crate::tensor::{
    Dtype, Element, RawTensor, Storage, StorageMut, Tensor, TensorBase, expect_device, expect_shape,
};
use crate::workspace::RawWorkspace;
use std::ptr::null_mut;

/// The shapes of a [decoder's](Decoder) tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderShape {
    /// Queries, `[batch, heads, tokens, dim]`: a step has this many new tokens of each sequence.
    pub q: [usize; 4],
    /// Keys of a layer's cache, `[batch, kv_heads, keys, dim]`; in pages `[pages, kv_heads, page, dim]`.
    pub k_cache: [usize; 4],
    /// Values of a layer's cache, of the keys' shape but for `dim_v`.
    pub v_cache: [usize; 4],
    /// The most pages of a sequence; `None` where each sequence has an entry of the cache.
    pub pages: Option<usize>,
}

/// Steps of decoding of one model: in each layer new keys and values are appended to its cache, with their rotation, and the new
/// queries attend to all keys.
///
/// Its [lengths](Self::lengths) and [pages](Self::pages) lie on the device, and so does all memory that a step works in: a step
/// allocates nothing, waits for nothing, and launches what the shapes say. So a CUDA graph of one step, captured once, serves all
/// steps.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, Decoder, DecoderShape, Device, Tensor};
///
/// let device = Device::cpu();
/// let cache = [1, 1, 4, 8];
/// let shape = DecoderShape { q: [1, 2, 1, 8], k_cache: cache, v_cache: cache, pages: None };
/// let attention = Attention::new();
/// let mut decoder = Decoder::<f32>::new(&device, shape, &[&attention])?;
/// let (mut keys, mut values) = (Tensor::zeros(&device, cache)?, Tensor::zeros(&device, cache)?);
/// let mut o = Tensor::zeros(&device, shape.q)?;
/// for token in 0..3 {
///     let q = Tensor::zeros(&device, shape.q)?;
///     let new = Tensor::new(&device, [1, 1, 1, 8], &[token as f32; 8])?;
///     decoder.layer(&attention, &q, [&new, &new], (&mut keys, &mut values), &mut o)?;
///     decoder.advance(None)?;
/// }
/// // The mean of 0, 1 and 2.
/// assert_eq!(o.to_vec()?, [1.0; 16]);
/// assert_eq!(decoder.lengths().to_vec()?, [3]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Decoder<T> {
    shape: DecoderShape,
    /// Keys before the step, and behind it.
    lengths: Tensor<i32, 1>,
    new_lengths: Tensor<i32, 1>,
    pages: Option<Tensor<i32, 2>>,
    rotary: Option<Rotary<T>>,
    lse: Tensor<f32, 3>,
    workspace: Tensor<u8, 1>,
}

/// A rotary embedding, and where rotated queries go.
#[derive(Debug)]
struct Rotary<T> {
    cos: Tensor<f32, 2>,
    sin: Tensor<f32, 2>,
    interleaved: bool,
    rotated: Tensor<T>,
}

impl<T: Element> Decoder<T> {
    /// A decoder of sequences without keys, whose pages are all the first one. Its memory suffices for steps with each of the
    /// `attentions`, of tensors whose rows start at multiples of 16 bytes, and their kernels are [loaded](Device::warm_up).
    ///
    /// # Errors
    /// Says which shape or option is wrong, or what the device lacks.
    pub fn new(device: &Device, shape: DecoderShape, attentions: &[&Attention]) -> Result<Self> {
        let [batch, heads, tokens, _] = shape.q;
        let zeros = |len| Tensor::zeros(device, [len]);
        let mut decoder = Decoder {
            shape,
            lengths: Tensor::zeros(device, [batch])?,
            new_lengths: Tensor::zeros(device, [batch])?,
            pages: match shape.pages {
                Some(most) => Some(Tensor::zeros(device, [batch, most])?),
                None => None,
            },
            rotary: None,
            lse: Tensor::zeros(device, [batch, heads, tokens])?,
            workspace: zeros(0)?,
        };
        let append = decoder.append_args(RawTensor::row_major);
        let mut plans = vec![append_plan(device.facts(), T::DTYPE, &append)?];
        for attention in attentions {
            let [q, k, v] = [shape.q, shape.k_cache, shape.v_cache].map(RawTensor::row_major);
            let args = decoder.forward_args([q, k, v], RawTensor::row_major(decoder.o_shape()));
            plans.push(attention.plan(device.facts(), T::DTYPE, &args)?);
        }
        device.warm_up(&plans)?;
        let bytes = |plan: &Plan| plan.workspace_bytes;
        decoder.workspace = zeros(plans.iter().map(bytes).max().unwrap_or(0))?;
        Ok(decoder)
    }

    /// The decoder with a [rotary embedding](crate::Append::rotary) of queries and new keys, `[positions, rotary_dim / 2]`, at the positions
    /// that follow from the lengths.
    ///
    /// # Errors
    /// If cos or sin is on another device, or the device lacks memory for rotated queries.
    pub fn rotary(
        mut self,
        cos: Tensor<f32, 2>,
        sin: Tensor<f32, 2>,
        interleaved: bool,
    ) -> Result<Self> {
        let device = self.lengths.device();
        expect_device(&device, [("cos", cos.device()), ("sin", sin.device())])?;
        self.rotary = Some(Rotary {
            cos,
            sin,
            interleaved,
            rotated: Tensor::zeros(&device, self.shape.q)?,
        });
        Ok(self)
    }

    /// Keys that each sequence has before the step, `[batch]`.
    pub fn lengths(&self) -> &Tensor<i32, 1> {
        &self.lengths
    }

    /// The lengths, to set: those of prompts, or 0 where another sequence begins.
    pub fn lengths_mut(&mut self) -> &mut Tensor<i32, 1> {
        &mut self.lengths
    }

    /// The pages of each sequence, `[batch, most]`, if the cache has pages.
    pub fn pages(&self) -> Option<&Tensor<i32, 2>> {
        self.pages.as_ref()
    }

    /// The pages, to set.
    pub fn pages_mut(&mut self) -> Option<&mut Tensor<i32, 2>> {
        self.pages.as_mut()
    }

    /// A layer's part of the step, on the stream of `attention`: appends new keys `[batch, kv_heads, tokens, dim]` and values to the
    /// cache, and writes the attention of q to all keys of each sequence to `o`, `[batch, heads, tokens, dim_v]`. Layers may have different
    /// options; queries count from the last key, so several tokens want [`causal`](Attention::causal).
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks.
    pub fn layer(
        &mut self,
        attention: &Attention,
        q: &TensorBase<impl Storage<Item = T>>,
        [k, v]: [&TensorBase<impl Storage<Item = T>>; 2],
        (k_cache, v_cache): (
            &mut TensorBase<impl StorageMut<Item = T>>,
            &mut TensorBase<impl StorageMut<Item = T>>,
        ),
        o: &mut TensorBase<impl StorageMut<Item = T>>,
    ) -> Result<()> {
        let device = self.lengths.device();
        let of_step = [("q", q.device()), ("k", k.device()), ("v", v.device())];
        expect_device(&device, of_step)?;
        let written = [("k_cache", k_cache.device()), ("v_cache", v_cache.device())];
        expect_device(&device, written)?;
        expect_device(&device, [("o", o.device())])?;
        let stream = attention.stream_of(&device)?;
        for (argument, expected, found) in [
            ("q", self.shape.q, q.shape()),
            ("k_cache", self.shape.k_cache, k_cache.shape()),
            ("v_cache", self.shape.v_cache, v_cache.shape()),
        ] {
            expect_shape(argument, &expected, &found)?;
        }
        let caches = [k_cache.as_raw_mut(), v_cache.as_raw_mut()];
        let mut append = RawAppend {
            check_lengths: attention.tensors.check_lengths,
            new_lengths: Some(self.new_lengths.as_raw_mut()),
            ..self.with_places(RawAppend::new([k.as_raw(), v.as_raw()], caches))
        };
        let mut queries = q.as_raw();
        if let Some(rotary) = &mut self.rotary {
            let rotated = rotary.rotated.as_raw_mut();
            append.q = Some([queries, rotated]);
            append.rotary = Some(RawRotary {
                dtype: Dtype::F32,
                cos: rotary.cos.as_raw(),
                sin: rotary.sin.as_raw(),
                interleaved: rotary.interleaved,
                q_at_first: false,
            });
            queries = rotated;
        }
        let [k, v] = caches;
        let forward = self.forward_args([queries, k, v], o.as_raw_mut());
        let workspace = RawWorkspace {
            address: self.workspace.as_raw_mut().address,
            bytes: self.workspace.shape()[0],
        };
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes are compared. No argument borrows the buffers
        // that the calls write, which the decoder owns or borrows alone; attention reads the caches behind the append, in the
        // order of the stream, which is borrowed. A buffer that is dropped early is freed by the driver after the work.
        unsafe {
            append_raw(&device, T::DTYPE, &append, stream)?;
            attention.forward_raw_in(&device, T::DTYPE, &forward, workspace, stream)
        }
    }

    /// Ends the step, behind its last layer: the new tokens are among the [lengths](Self::lengths). It is queued on `stream`, by
    /// default the device's default stream.
    ///
    /// # Errors
    /// If the stream is of another device, or the driver reports a failure.
    pub fn advance(&mut self, stream: Option<&Stream>) -> Result<()> {
        let device = self.lengths.device();
        let stream = match stream {
            Some(stream) => {
                expect_device(&device, [("stream", stream.device().clone())])?;
                stream.raw()
            }
            None => null_mut(),
        };
        if device.is_cpu() {
            return self.lengths.copy_from(&self.new_lengths);
        }
        // An append of no rows copies lengths.
        let mut append = self.append_args(|mut shape| {
            shape[2] = 0;
            RawTensor::row_major(shape)
        });
        append.lengths = Some(self.new_lengths.as_raw());
        append.new_lengths = Some(self.lengths.as_raw_mut());
        // SAFETY: both lengths are the decoder's own; there are no rows, so no other address is used. The stream is borrowed.
        unsafe { append_raw(&device, T::DTYPE, &append, stream) }
    }

    /// `[batch, heads, tokens, dim_v]`.
    fn o_shape(&self) -> [usize; 4] {
        let [batch, heads, tokens, _] = self.shape.q;
        [batch, heads, tokens, self.shape.v_cache[3]]
    }

    /// An append of new rows without addresses, which `rows` makes of their shapes.
    fn append_args(&self, rows: impl Fn([usize; 4]) -> RawTensor) -> RawAppend {
        let [batch, _, tokens, _] = self.shape.q;
        let caches = [self.shape.k_cache, self.shape.v_cache];
        let new = caches.map(|[_, kv_heads, _, dim]| rows([batch, kv_heads, tokens, dim]));
        self.with_places(RawAppend::new(new, caches.map(RawTensor::row_major)))
    }

    /// An append behind the keys that there are.
    fn with_places(&self, args: RawAppend) -> RawAppend {
        RawAppend {
            pages: self.pages.as_ref().map(TensorBase::as_raw),
            lengths: Some(self.lengths.as_raw()),
            ..args
        }
    }

    /// Attention to the keys behind the append.
    fn forward_args(&mut self, [q, k, v]: [RawTensor; 3], o: RawTensor) -> RawForward {
        RawForward {
            q,
            k,
            v,
            o,
            lse: self.lse.as_raw_mut(),
            options: RawOptions {
                sequences: Some(RawSequences::padded_keys(self.new_lengths.as_raw())),
                pages: self.pages.as_ref().map(TensorBase::as_raw),
                ..RawOptions::default()
            },
        }
    }
}
