//! Tensors of options: random, or from a file.

use crate::memory::bytes;
use crate::safetensors::SafeTensors;
use anyhow::{bail, ensure};
use bytemuck::Pod;
use ferroattn::{
    Attention, Device, Dtype, Problem, RawBias, RawMask, RawTensor, Result, Sequences, Tensor,
    bf16, f16, random,
};
use safetensors::tensor::{Dtype as FileDtype, TensorInfo};

/// The name of slopes in a file.
pub const ALIBI: &str = "alibi";
/// The name of sinks in a file.
pub const SINKS: &str = "sinks";
/// The name of a bias in a file.
pub const BIAS: &str = "bias";
/// The name of a boolean mask in a file.
pub const MASK: &str = "mask";

/// Types and shapes of the tensors with an element for each pair, before there are any elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pairs {
    pub bias: Option<(Dtype, [usize; 4])>,
    /// Whether elements are words of bits, and not bytes.
    pub mask: Option<(bool, [usize; 4])>,
}

impl Pairs {
    /// A random bias of the inputs' type, for each head, and a random mask of bytes, for each entry of the batch.
    pub fn random(bias: bool, mask: bool, p: &Problem, dtype: Dtype) -> Self {
        Pairs {
            bias: bias.then_some((dtype, [1, p.heads, p.seqlen_q, p.seqlen_kv])),
            mask: mask.then_some((false, [p.batch, 1, p.seqlen_q, p.seqlen_kv])),
        }
    }

    /// The bias at address 0, as if no axis repeated.
    pub fn planned_bias(&self, p: &Problem) -> Option<RawBias> {
        let (dtype, _) = self.bias?;
        let tensor = RawTensor::row_major(full(p, p.seqlen_kv));
        Some(RawBias { dtype, tensor })
    }

    /// The mask at address 0, likewise.
    pub fn planned_mask(&self, p: &Problem) -> Option<RawMask> {
        let (bits, [.., last]) = self.mask?;
        let tensor = RawTensor::row_major(full(p, last));
        Some(RawMask { bits, tensor })
    }

    /// Bytes of both.
    pub fn bytes(&self) -> u128 {
        let bias = self.bias.map(|(dtype, shape)| bytes(shape, dtype.bytes()));
        let element = |bits| if bits { size_of::<u32>() } else { 1 };
        let mask = self.mask.map(|(bits, shape)| bytes(shape, element(bits)));
        bias.unwrap_or(0) + mask.unwrap_or(0)
    }

    /// The name of the mask's elements.
    pub fn mask_name(&self) -> Option<&'static str> {
        let (bits, _) = self.mask?;
        Some(if bits { "bits" } else { "bytes" })
    }

    /// Takes the type and the shape of a tensor of a file, if it is a bias or a mask.
    pub fn take(&mut self, name: &str, info: &TensorInfo) {
        let shape = || <[usize; 4]>::try_from(&info.shape[..]).expect("its axes were counted");
        match name {
            BIAS => self.bias = Some((of_file(info.dtype), shape())),
            MASK => self.mask = Some((info.dtype == FileDtype::U32, shape())),
            _ => {}
        }
    }
}

/// The type of floating-point numbers of a file.
pub fn of_file(dtype: FileDtype) -> Dtype {
    match dtype {
        FileDtype::F16 => Dtype::F16,
        FileDtype::BF16 => Dtype::Bf16,
        _ => Dtype::F32,
    }
}

fn full(p: &Problem, last: usize) -> [usize; 4] {
    [p.batch, p.heads, p.seqlen_q, last]
}

/// Checks type and shape of a tensor of a file.
///
/// # Errors
/// Says what they are, and what is allowed.
pub fn expect(name: &str, info: &TensorInfo, p: &Problem) -> anyhow::Result<()> {
    let (found, shape, heads) = (info.dtype, &info.shape, p.heads);
    let (types, types_named, keys): (&[_], _, _) = match name {
        BIAS => (
            &[FileDtype::F16, FileDtype::BF16, FileDtype::F32],
            "F16, BF16 or F32",
            1,
        ),
        MASK if found == FileDtype::U32 => (&[FileDtype::U32], "U32", 32),
        MASK => (
            &[FileDtype::BOOL, FileDtype::U8],
            "BOOL, U8 or, for bits, U32",
            1,
        ),
        _ => {
            ensure!(
                found == FileDtype::F32 && *shape == [heads],
                "{name} is {found} {shape:?}; it must be F32 [heads], which is [{heads}]"
            );
            return Ok(());
        }
    };
    let full = full(p, p.seqlen_kv.div_ceil(keys));
    let mut extents = shape.iter().zip(full);
    let fits = shape.len() == full.len()
        && extents.all(|(found, full)| *found == full || *found == 1)
        && shape.last() == full.last();
    let last = match keys {
        1 => "seqlen_kv",
        _ => "ceil(seqlen_kv / 32)",
    };
    ensure!(
        types.contains(&found) && fits,
        "{name} is {found} {shape:?}; it must be {types_named} [batch or 1, heads or 1, seqlen or 1, {last}], \
         with the sizes of {full:?}"
    );
    Ok(())
}

/// Tensors of options on a device, where they are on.
#[derive(Default)]
pub struct Tensors {
    /// `[heads]`.
    pub alibi: Option<Tensor<f32, 1>>,
    /// `[heads]`.
    pub sinks: Option<Tensor<f32, 1>>,
    pub bias: Option<Bias>,
    pub mask: Option<Mask>,
    pub sequences: Option<Sequences<Tensor<i32, 1>>>,
}

/// A bias of any type.
pub enum Bias {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

/// A boolean mask.
pub enum Mask {
    Bytes(Tensor<u8>),
    Bits(Tensor<u32>),
}

impl Tensors {
    /// Reads one of them, whose type and shape were checked, to the CPU.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(
        &mut self,
        name: &str,
        info: &TensorInfo,
        file: &mut SafeTensors,
    ) -> anyhow::Result<()> {
        match name {
            ALIBI => self.alibi = Some(elements(file, info)?),
            SINKS => self.sinks = Some(elements(file, info)?),
            BIAS => {
                self.bias = Some(match of_file(info.dtype) {
                    Dtype::F16 => Bias::F16(elements(file, info)?),
                    Dtype::Bf16 => Bias::Bf16(elements(file, info)?),
                    Dtype::F32 => Bias::F32(elements(file, info)?),
                    other => bail!("no bias is {}", other.name()),
                });
            }
            _ => {
                self.mask = Some(match info.dtype {
                    FileDtype::U32 => Mask::Bits(elements(file, info)?),
                    _ => Mask::Bytes(elements(file, info)?),
                });
            }
        }
        Ok(())
    }

    /// Copies them to a device.
    pub fn on(&self, device: &Device) -> Result<Tensors> {
        let vector = |tensor: &Option<Tensor<f32, 1>>| {
            let copied = tensor.as_ref().map(|tensor| copy(tensor, device));
            copied.transpose()
        };
        let bias = self.bias.as_ref().map(|bias| bias.on(device));
        let mask = self.mask.as_ref().map(|mask| mask.on(device));
        let sequences = self.sequences.as_ref();
        let sequences = sequences.map(|all| all.try_map(|numbers| copy(numbers, device)));
        Ok(Tensors {
            alibi: vector(&self.alibi)?,
            sinks: vector(&self.sinks)?,
            bias: bias.transpose()?,
            mask: mask.transpose()?,
            sequences: sequences.transpose()?,
        })
    }

    /// A call with the tensors.
    pub fn given_to<'a>(&'a self, call: &Attention<'a>) -> Attention<'a> {
        let mut call = call.clone();
        if let Some(slopes) = &self.alibi {
            call = call.alibi(slopes);
        }
        if let Some(sinks) = &self.sinks {
            call = call.sinks(sinks);
        }
        call = match &self.bias {
            Some(Bias::F16(bias)) => call.bias(bias),
            Some(Bias::Bf16(bias)) => call.bias(bias),
            Some(Bias::F32(bias)) => call.bias(bias),
            None => call,
        };
        call = match &self.mask {
            Some(Mask::Bytes(mask)) => call.mask(mask),
            Some(Mask::Bits(mask)) => call.mask(mask),
            None => call,
        };
        match &self.sequences {
            Some(Sequences::Packed { q, kv }) => call.packed(q, kv),
            Some(Sequences::Padded { q, kv }) => call.padded(q, kv),
            Some(Sequences::PackedQueries { q, kv }) => call.packed_queries(q, kv),
            None => call,
        }
    }
}

impl Bias {
    /// Draws it on the CPU.
    pub fn random((dtype, shape): (Dtype, [usize; 4]), seed: u64) -> Result<Self> {
        let cpu = &Device::cpu();
        Ok(match dtype {
            Dtype::F16 => Bias::F16(Tensor::new(cpu, shape, &random::bias(shape, seed))?),
            Dtype::Bf16 => Bias::Bf16(Tensor::new(cpu, shape, &random::bias(shape, seed))?),
            Dtype::F32 => Bias::F32(Tensor::new(cpu, shape, &random::bias(shape, seed))?),
            other => unreachable!("no bias is {}", other.name()),
        })
    }

    fn on(&self, device: &Device) -> Result<Self> {
        Ok(match self {
            Bias::F16(bias) => Bias::F16(copy(bias, device)?),
            Bias::Bf16(bias) => Bias::Bf16(copy(bias, device)?),
            Bias::F32(bias) => Bias::F32(copy(bias, device)?),
        })
    }
}

impl Mask {
    /// Draws bytes on the CPU.
    pub fn random(shape: [usize; 4], seed: u64) -> Result<Self> {
        let bytes = random::mask(shape, seed);
        Ok(Mask::Bytes(Tensor::new(&Device::cpu(), shape, &bytes)?))
    }

    fn on(&self, device: &Device) -> Result<Self> {
        Ok(match self {
            Mask::Bytes(mask) => Mask::Bytes(copy(mask, device)?),
            Mask::Bits(mask) => Mask::Bits(copy(mask, device)?),
        })
    }
}

/// The tensor of a file, of its own type and as many axes, on the CPU.
fn elements<T: Pod, const R: usize>(
    file: &mut SafeTensors,
    info: &TensorInfo,
) -> anyhow::Result<Tensor<T, R>> {
    let shape = <[usize; R]>::try_from(&info.shape[..]).expect("its axes were counted");
    let elements = file.read(info, |element: T| element)?;
    Ok(Tensor::new(&Device::cpu(), shape, &elements)?)
}

/// A tensor of the CPU on a device.
fn copy<T: Pod, const R: usize>(tensor: &Tensor<T, R>, device: &Device) -> Result<Tensor<T, R>> {
    Tensor::new(device, tensor.shape(), &tensor.to_vec()?)
}
