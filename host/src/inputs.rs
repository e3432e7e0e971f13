//! q, k and v: random, or from a file.

use crate::args::Args;
use crate::safetensors::SafeTensors;
use anyhow::{Context, Result, anyhow, ensure};
use attention::{Dtype, Element, Problem, bf16, f16, random};
use safetensors::tensor::{Dtype as FileDtype, TensorInfo};
use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// Names of the tensors.
const NAMES: [&str; 3] = ["q", "k", "v"];

/// Where q, k and v come from; their shapes are known.
pub struct Source {
    pub problem: Problem,
    pub dtype: Dtype,
    /// Seed of random tensors.
    seed: u64,
    file: Option<InputFile>,
}

/// A file with q, k and v.
struct InputFile {
    path: PathBuf,
    file: SafeTensors,
    tensors: [TensorInfo; 3],
}

impl Source {
    /// Reads the header of the input file, if there is one.
    pub fn open(args: &Args) -> Result<Self> {
        if let Some(path) = &args.input {
            return Self::open_file(path, args).with_context(|| unusable(path));
        }
        let kv_heads = args.kv_heads.unwrap_or(args.heads);
        let seqlen_kv = args.seqlen_kv.unwrap_or(args.seqlen);
        let q = [args.batch, args.heads, args.seqlen, args.dim];
        let kv = [args.batch, kv_heads, seqlen_kv, args.dim];
        Ok(Source {
            problem: Problem::new(q, kv, kv, args.causal, args.scale)?,
            dtype: args.dtype.unwrap_or(Dtype::F16),
            seed: args.run.seed,
            file: None,
        })
    }

    fn open_file(path: &Path, args: &Args) -> Result<Self> {
        let file = SafeTensors::open(path)?;
        let [q, k, v] = NAMES.map(|name| file.info(name).cloned());
        let tensors = [q?, k?, v?];
        for (name, info) in NAMES.iter().zip(&tensors) {
            let (found, expected) = (info.dtype, tensors[0].dtype);
            let allowed = matches!(found, FileDtype::F16 | FileDtype::BF16 | FileDtype::F32);
            ensure!(allowed, "{name} is {found}; it must be F16, BF16 or F32");
            let alike = found == expected;
            ensure!(alike, "{name} is {found}; it must be {expected}, like q");
        }
        let shape = |i: usize| {
            let (name, shape) = (NAMES[i], &tensors[i].shape);
            <[usize; 4]>::try_from(&shape[..]).map_err(|_| {
                anyhow!("{name} has shape {shape:?}; it must be [batch, heads, seqlen, dim]")
            })
        };
        let problem = Problem::new(shape(0)?, shape(1)?, shape(2)?, args.causal, args.scale)?;
        let dtype = match tensors[0].dtype {
            FileDtype::BF16 => Dtype::Bf16,
            _ => Dtype::F16,
        };
        Ok(Source {
            problem,
            dtype: args.dtype.unwrap_or(dtype),
            seed: args.run.seed,
            file: Some(InputFile {
                path: path.to_owned(),
                file,
                tensors,
            }),
        })
    }

    /// Identifies the input file.
    pub fn file(&self) -> Option<&Metadata> {
        self.file.as_ref().map(|input| &input.file.metadata)
    }

    /// Row-major q, k and v: draws the numbers, or reads them from the file.
    pub fn load<T: Element>(self) -> Result<[Vec<T>; 3]> {
        match self.file {
            None => Ok(random::inputs(&self.problem, self.seed)),
            Some(mut input) => input.read().with_context(|| unusable(&input.path)),
        }
    }
}

impl InputFile {
    /// q, k and v, rounded to `T`.
    fn read<T: Element>(&mut self) -> Result<[Vec<T>; 3]> {
        let InputFile { file, tensors, .. } = self;
        let mut numbers = [const { Vec::new() }; 3];
        let mut order = [0, 1, 2];
        order.sort_by_key(|&i| tensors[i].data_offsets);
        for i in order {
            let info = &tensors[i];
            let read = match info.dtype {
                FileDtype::F16 => file.read(info, |number: f16| T::from_f32(number.to_f32())),
                FileDtype::BF16 => file.read(info, |number: bf16| T::from_f32(number.to_f32())),
                _ => file.read(info, T::from_f32),
            };
            numbers[i] = read.with_context(|| format!("cannot read {}", NAMES[i]))?;
        }
        Ok(numbers)
    }
}

/// Rows of `dim` elements that hold NaN or infinity.
pub fn rows_not_finite<T: Element>(tensor: &[T], dim: usize) -> usize {
    let is_finite = |number: &T| number.to_f32().is_finite();
    let rows = tensor.chunks(dim);
    rows.filter(|row| !row.iter().all(is_finite)).count()
}

fn unusable(path: &Path) -> String {
    format!("--input: {}", path.display())
}
