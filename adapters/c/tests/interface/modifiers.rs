//! Options of a random call, and their tensors.

use crate::c_tensor;
use ferroattn::{
    Attention, Device, Dtype, Element, Problem, Result, Sequences, Tensor, Window, bf16, f16,
    random,
};
use ferroattn_c::options::{FerroattnMask, FerroattnOptions, FerroattnSequences};
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use std::ptr::{from_ref, null};

/// Which of the first axes of a bias or mask, batch, heads and queries, have extent 1.
pub type Repeats = [bool; 3];

/// Options beyond shapes.
#[derive(Clone, Debug)]
pub struct Modifiers {
    pub causal: bool,
    pub window: Window,
    pub scale: Option<f32>,
    pub softcap: Option<f32>,
    pub alibi: bool,
    pub sinks: bool,
    pub bias: Option<(Repeats, Dtype)>,
    /// Whether it is of bits.
    pub mask: Option<(Repeats, bool)>,
    pub sequences: Option<Sequences<Vec<i32>>>,
    /// Whether packed sequences have slopes of their own.
    pub own_slopes: bool,
    pub first_keys: Option<Vec<i32>>,
    pub deterministic: bool,
}

/// Their tensors on the CPU.
pub struct ModifierTensors<'m> {
    modifiers: &'m Modifiers,
    alibi: Option<Tensor<f32, 2>>,
    sinks: Option<Tensor<f32, 1>>,
    f16_bias: Option<Tensor<f16>>,
    bf16_bias: Option<Tensor<bf16>>,
    f32_bias: Option<Tensor<f32>>,
    bytes: Option<Tensor<u8>>,
    bits: Option<Tensor<u32>>,
    sequences: Option<Sequences<Tensor<i32, 1>>>,
    first_keys: Option<Tensor<i32, 1>>,
}

/// Tensors of options as C has them, in the order of [`FerroattnOptions`].
pub type COptionTensors = [Option<FerroattnTensor>; 7];

/// The shape of a bias or mask.
fn shape_of(problem: &Problem, repeats: Repeats) -> [usize; 4] {
    let [batch, heads, queries] = [problem.batch, problem.heads, problem.seqlen_q];
    let extent = |axis: usize, all| if repeats[axis] { 1 } else { all };
    [
        extent(0, batch),
        extent(1, heads),
        extent(2, queries),
        problem.seqlen_kv,
    ]
}

impl Modifiers {
    /// The shape of the gradient of the bias.
    pub fn d_bias_shape(&self, problem: &Problem) -> Option<[usize; 4]> {
        self.bias.map(|(repeats, _)| shape_of(problem, repeats))
    }

    /// Random tensors of a seed.
    pub fn tensors(&self, problem: &Problem, seed: u64) -> Result<ModifierTensors<'_>> {
        fn bias<T: Element>(
            modifiers: &Modifiers,
            problem: &Problem,
            seed: u64,
        ) -> Result<Option<Tensor<T>>> {
            let shape = match modifiers.bias {
                Some((repeats, dtype)) if dtype == T::DTYPE => shape_of(problem, repeats),
                _ => return Ok(None),
            };
            let tensor = Tensor::new(&Device::cpu(), shape, &random::bias::<T>(shape, seed));
            tensor.map(Some)
        }
        let cpu = &Device::cpu();
        let slopes_of = match &self.sequences {
            Some(Sequences::Packed { q, .. }) if self.own_slopes => q.len() - 1,
            _ => problem.batch,
        };
        let slopes: Vec<f32> = (0..slopes_of * problem.heads)
            .map(|i| 0.07 * i as f32)
            .collect();
        let alibi = || Tensor::new(cpu, [slopes_of, problem.heads], &slopes);
        let sinks = || Tensor::new(cpu, [problem.heads], &random::sinks(problem, seed));
        let mask = |wanted| {
            let (repeats, bits) = self.mask?;
            let shape = shape_of(problem, repeats);
            (bits == wanted).then(|| (shape, random::mask(shape, seed)))
        };
        let bytes = mask(false).map(|(shape, bytes)| Tensor::new(cpu, shape, &bytes));
        let bits = mask(true).map(|([batch, heads, queries, keys], bytes)| {
            let word = |keys: &[u8]| {
                let keys = keys.iter().enumerate();
                keys.fold(0, |word, (key, &sees)| word | u32::from(sees != 0) << key)
            };
            let rows = bytes.chunks(keys);
            let words: Vec<u32> = rows.flat_map(|row| row.chunks(32).map(word)).collect();
            Tensor::new(cpu, [batch, heads, queries, keys.div_ceil(32)], &words)
        });
        let numbers = |numbers: &Vec<i32>| Tensor::new(cpu, [numbers.len()], numbers);
        let sequences = self.sequences.as_ref();
        Ok(ModifierTensors {
            modifiers: self,
            alibi: self.alibi.then(alibi).transpose()?,
            sinks: self.sinks.then(sinks).transpose()?,
            f16_bias: bias(self, problem, seed)?,
            bf16_bias: bias(self, problem, seed)?,
            f32_bias: bias(self, problem, seed)?,
            bytes: bytes.transpose()?,
            bits: bits.transpose()?,
            sequences: sequences
                .map(|sequences| sequences.try_map(numbers))
                .transpose()?,
            first_keys: self.first_keys.as_ref().map(numbers).transpose()?,
        })
    }
}

impl ModifierTensors<'_> {
    /// A call of the library with these options, for the reference.
    pub fn of<'a>(&'a self, call: Attention<'a>) -> Attention<'a> {
        let mut call = self.scores(call);
        if let Some(alibi) = &self.alibi {
            call = call.alibi(alibi);
        }
        if let Some(sinks) = &self.sinks {
            call = call.sinks(sinks);
        }
        if let Some(bias) = &self.f16_bias {
            call = call.bias(bias);
        }
        if let Some(bias) = &self.bf16_bias {
            call = call.bias(bias);
        }
        if let Some(bias) = &self.f32_bias {
            call = call.bias(bias);
        }
        if let Some(mask) = &self.bytes {
            call = call.mask(mask);
        }
        if let Some(mask) = &self.bits {
            call = call.mask(mask);
        }
        if let Some(first_keys) = &self.first_keys {
            call = call.first_keys(first_keys);
        }
        match &self.sequences {
            Some(Sequences::Packed { q, kv }) => call.packed(q, kv),
            Some(Sequences::Padded { q, kv }) => call.padded(q, kv),
            Some(Sequences::PackedQueries { q, kv }) => call.packed_queries(q, kv),
            None => call,
        }
    }

    fn scores<'a>(&self, call: Attention<'a>) -> Attention<'a> {
        let Modifiers {
            causal,
            window,
            scale,
            softcap,
            ..
        } = self.modifiers;
        let mut call = call.causal(*causal).window(window.left, window.right);
        if let &Some(scale) = scale {
            call = call.scale(scale);
        }
        if let &Some(softcap) = softcap {
            call = call.softcap(softcap);
        }
        call
    }

    /// The tensors as C has them.
    pub fn c_tensors(&self, problem: &Problem) -> Result<COptionTensors> {
        fn full<T: bytemuck::Pod>(
            tensor: &Option<Tensor<T>>,
            problem: &Problem,
        ) -> Result<Option<FerroattnTensor>> {
            let Some(tensor) = tensor else {
                return Ok(None);
            };
            let [.., row] = tensor.shape();
            let shape = [problem.batch, problem.heads, problem.seqlen_q, row];
            Ok(Some(c_tensor(tensor.view().broadcast(shape)?.as_raw())))
        }
        let bias = full(&self.f16_bias, problem)?
            .or(full(&self.bf16_bias, problem)?)
            .or(full(&self.f32_bias, problem)?);
        let mask = full(&self.bytes, problem)?.or(full(&self.bits, problem)?);
        let sequences = self.sequences.as_ref();
        let [q, kv] = sequences.map_or([None; 2], |sequences| {
            let (Sequences::Packed { q, kv }
            | Sequences::Padded { q, kv }
            | Sequences::PackedQueries { q, kv }) = sequences;
            [q, kv].map(|numbers| Some(c_tensor(numbers.as_raw())))
        });
        let alibi = self.alibi.as_ref().map(|alibi| c_tensor(alibi.as_raw()));
        let sinks = self.sinks.as_ref().map(|sinks| c_tensor(sinks.as_raw()));
        let first = self.first_keys.as_ref();
        let first = first.map(|first| c_tensor(first.as_raw()));
        Ok([alibi, sinks, bias, mask, q, kv, first])
    }

    /// The options as C has them.
    pub fn c_options(&self, tensors: &COptionTensors) -> FerroattnOptions {
        let [alibi, sinks, bias, mask, others @ ..] = tensors.each_ref().map(pointer);
        let [sequences_q, sequences_kv, first_keys] = others;
        let modifiers = self.modifiers;
        let bound = |keys: Option<usize>| keys.map_or(-1, |keys| keys as i64);
        let sequences = match &self.sequences {
            None => FerroattnSequences::None,
            Some(Sequences::Packed { .. }) => FerroattnSequences::Packed,
            Some(Sequences::Padded { .. }) => FerroattnSequences::Padded,
            Some(Sequences::PackedQueries { .. }) => FerroattnSequences::PackedQueries,
        };
        let mask_type = match self.bits {
            None => FerroattnMask::Bytes,
            Some(_) => FerroattnMask::Bits,
        };
        FerroattnOptions {
            causal: modifiers.causal.into(),
            window_left: bound(modifiers.window.left),
            window_right: bound(modifiers.window.right),
            scale: modifiers.scale.unwrap_or(f32::NAN),
            softcap: modifiers.softcap.unwrap_or(0.0),
            deterministic: modifiers.deterministic.into(),
            check_lengths: 1,
            sequences: sequences as u32,
            bias_dtype: modifiers.bias.map_or(0, |(_, dtype)| c_dtype(dtype)),
            mask_type: mask_type as u32,
            alibi,
            sinks,
            bias,
            mask,
            sequences_q,
            sequences_kv,
            first_keys,
            ..FerroattnOptions::default()
        }
    }
}

/// Null for none.
pub fn pointer(tensor: &Option<FerroattnTensor>) -> *const FerroattnTensor {
    tensor.as_ref().map_or(null(), from_ref)
}

/// The number of an element type.
pub fn c_dtype(dtype: Dtype) -> u32 {
    let dtype = match dtype {
        Dtype::F16 => FerroattnDtype::F16,
        Dtype::Bf16 => FerroattnDtype::Bf16,
        Dtype::F32 => FerroattnDtype::F32,
        other => unreachable!("no case is {}", other.name()),
    };
    dtype as u32
}
