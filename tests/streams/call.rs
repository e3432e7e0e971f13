//! A call of both passes with its tensors.

use ferroattn::device::RawStream;
use ferroattn::{
    Attention, Device, Dtype, Plan, RawBackward, RawForward, RawOptions, RawWorkspace, Result,
    Tensor, f16,
};
use std::ptr::null_mut;

/// The trait of a call that others lack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Plain,
    /// Few queries, whose keys are split.
    Splits,
    Packed,
    Mask,
    /// Keys before those of the call, in the forward pass.
    Prefix,
    /// Rows that no vector loads: inputs are copied first.
    Unaligned,
    /// Wide heads, whose gradients are computed in another way.
    Wide,
}

pub const KINDS: [Kind; 7] = [
    Kind::Plain,
    Kind::Splits,
    Kind::Packed,
    Kind::Mask,
    Kind::Prefix,
    Kind::Unaligned,
    Kind::Wide,
];

/// An output before a call.
const POISON: f16 = f16::from_f32_const(-77.0);

/// Tensors of both passes.
pub struct Call {
    kind: Kind,
    /// q, k, v and d_o; with a column more where they are not aligned.
    inputs: [Tensor<f16>; 4],
    /// o of the forward pass of its own, which gradients read.
    saved: (Tensor<f16>, Tensor<f32, 3>),
    o: Tensor<f16>,
    lse: Tensor<f32, 3>,
    gradients: [Tensor<f16>; 3],
    mask: Tensor<u8>,
    offsets: [Tensor<i32, 1>; 2],
    prefix: [Tensor<f16>; 2],
    /// These tensors by address.
    forward: RawForward,
    backward: RawBackward,
}

/// A number of each element that differs from its neighbours.
fn numbers(len: usize, seed: usize) -> Vec<f16> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0;
    (0..len).map(|i| f16::from_f32(number(i))).collect()
}

impl Call {
    pub fn new(device: &Device, kind: Kind, seed: usize) -> Result<Self> {
        let [seqlen_q, seqlen_kv, dim] = match kind {
            Kind::Splits => [3, 700, 64],
            Kind::Wide => [150, 140, 128],
            _ => [150, 140, 64],
        };
        let columns = dim + usize::from(kind == Kind::Unaligned);
        let [q, kv] = [[1, 4, seqlen_q, dim], [1, 2, seqlen_kv, dim]];
        let zeros = |shape| Tensor::zeros(device, shape);
        let input = |[batch, heads, rows, _]: [usize; 4], number: usize| {
            let data = numbers(batch * heads * rows * columns, 4 * seed + number);
            Tensor::new(device, [batch, heads, rows, columns], &data)
        };
        let mask: Vec<u8> = (0..seqlen_q * seqlen_kv)
            .map(|i| u8::from(i % 7 != 2))
            .collect();
        let offsets = |end: usize| Tensor::new(device, [3], &[0, end as i32 / 3, end as i32]);
        let shared = [1, 2, 600, dim];
        let prefix = |number: usize| {
            let data = numbers(shared.iter().product(), number);
            Tensor::new(device, shared, &data)
        };
        let mut inputs = [input(q, 0)?, input(kv, 1)?, input(kv, 2)?, input(q, 3)?];
        let rows = || Tensor::zeros(device, [1, 4, seqlen_q]);
        let (mut o, mut lse, mut saved) = (zeros(q)?, rows()?, (zeros(q)?, rows()?));
        let mut gradients = [zeros(q)?, zeros(kv)?, zeros(kv)?];
        let [raw_q, raw_k, raw_v, d_o] = inputs.each_mut().map(|input| {
            let mut raw = input.as_raw_mut();
            raw.shape[3] = dim;
            raw
        });
        let [dq, dk, dv] = gradients.each_mut().map(Tensor::as_raw_mut);
        let forward = RawForward {
            q: raw_q,
            k: raw_k,
            v: raw_v,
            o: o.as_raw_mut(),
            lse: lse.as_raw_mut(),
            options: RawOptions::default(),
        };
        let of_saved = RawForward {
            o: saved.0.as_raw_mut(),
            lse: saved.1.as_raw_mut(),
            ..forward
        };
        let backward = RawBackward::new(&of_saved, d_o, [dq, dk, dv]);
        let mut call = Call {
            kind,
            inputs,
            saved,
            o,
            lse,
            gradients,
            mask: Tensor::new(device, [1, 1, seqlen_q, seqlen_kv], &mask)?,
            offsets: [offsets(seqlen_q)?, offsets(seqlen_kv)?],
            prefix: [prefix(5)?, prefix(6)?],
            forward,
            backward,
        };
        call.save(device)?;
        Ok(call)
    }

    /// Keeps what the forward pass gives for the gradients.
    fn save(&mut self, device: &Device) -> Result<()> {
        // SAFETY: the tensors live until their elements are copied; null is the default stream.
        unsafe {
            let attention = self.attention(0);
            attention.forward_raw(device, Dtype::F16, &self.forward, null_mut())?;
        }
        self.saved.0.copy_from(&self.o)?;
        self.saved.1.copy_from(&self.lse)
    }

    /// Other numbers in the tensors of the call.
    pub fn change(&mut self, device: &Device, seed: usize) -> Result<()> {
        for (number, input) in self.inputs.iter_mut().enumerate() {
            let data = numbers(input.len(), 4 * seed + number);
            input.copy_from(&Tensor::new(device, input.shape(), &data)?)?;
        }
        self.save(device)
    }

    /// Overwrites all outputs.
    pub fn poison(&mut self, device: &Device) -> Result<()> {
        for output in self.gradients.iter_mut().chain([&mut self.o]) {
            let poison = vec![POISON; output.len()];
            output.copy_from(&Tensor::new(device, output.shape(), &poison)?)?;
        }
        let poison = vec![POISON.to_f32(); self.lse.len()];
        let shape = self.lse.shape();
        self.lse.copy_from(&Tensor::new(device, shape, &poison)?)
    }

    /// Whether no output was written.
    pub fn is_poisoned(&self) -> Result<bool> {
        let mut are_poisoned = self.lse.to_vec()?.iter().all(|&lse| lse == POISON.to_f32());
        for output in self.gradients.iter().chain([&self.o]) {
            are_poisoned &= output.to_vec()?.iter().all(|&x| x == POISON);
        }
        Ok(are_poisoned)
    }

    /// The options of the forward pass, 0, or of the backward one, which has no prefix.
    fn attention(&self, pass: usize) -> Attention<'_> {
        let attention = Attention::new().causal(self.kind == Kind::Plain);
        match self.kind {
            Kind::Splits => attention.splits(4),
            Kind::Packed => attention.packed(&self.offsets[0], &self.offsets[1]),
            Kind::Mask => attention.mask(&self.mask),
            Kind::Prefix if pass == 0 => attention.prefix(&self.prefix[0], &self.prefix[1]),
            _ => attention,
        }
    }

    /// The plans of both passes.
    pub fn plans(&self, device: &Device) -> Result<[Plan; 2]> {
        let ([forward, backward], facts) =
            ([0, 1].map(|pass| self.attention(pass)), device.facts());
        Ok([
            forward.plan(facts, Dtype::F16, &self.forward)?,
            backward.backward_plan(facts, Dtype::F16, &self.backward)?,
        ])
    }

    /// Queues both passes.
    ///
    /// # Safety
    /// The tensors live until the work is done, and the stream is valid.
    pub unsafe fn queue(&self, device: &Device, stream: RawStream) -> Result<()> {
        let [forward, backward] = [0, 1].map(|pass| self.attention(pass));
        // SAFETY: the caller's word; each tensor has memory of its own.
        unsafe {
            forward.forward_raw(device, Dtype::F16, &self.forward, stream)?;
            backward.backward_raw(device, Dtype::F16, &self.backward, stream)
        }
    }

    /// Queues both passes, one after the other, in a workspace.
    ///
    /// # Safety
    /// Tensors and workspace live until the work is done, and the stream is valid.
    pub unsafe fn queue_in(
        &self,
        device: &Device,
        workspace: RawWorkspace,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        (0..2).try_for_each(|pass| unsafe { self.queue_pass(device, pass, workspace, stream) })
    }

    /// Queues the forward pass, 0, or the backward one.
    ///
    /// # Safety
    /// The conditions of [`queue_in`](Self::queue_in).
    pub unsafe fn queue_pass(
        &self,
        device: &Device,
        pass: usize,
        workspace: RawWorkspace,
        stream: RawStream,
    ) -> Result<()> {
        let (attention, dtype) = (self.attention(pass), Dtype::F16);
        // SAFETY: the caller's word; each tensor has memory of its own.
        unsafe {
            match pass {
                0 => attention.forward_raw_in(device, dtype, &self.forward, workspace, stream),
                _ => attention.backward_raw_in(device, dtype, &self.backward, workspace, stream),
            }
        }
    }

    /// The bits of a plain call.
    pub fn expected(&self, device: &Device) -> Result<Vec<u32>> {
        // SAFETY: the tensors live until their bits are read; null is the default stream.
        unsafe { self.queue(device, null_mut())? };
        self.bits()
    }

    /// The bits of all outputs.
    pub fn bits(&self) -> Result<Vec<u32>> {
        let mut bits: Vec<u32> = self.lse.to_vec()?.into_iter().map(f32::to_bits).collect();
        for tensor in self.gradients.iter().chain([&self.o]) {
            bits.extend(tensor.to_vec()?.into_iter().map(|x| u32::from(x.to_bits())));
        }
        Ok(bits)
    }
}
