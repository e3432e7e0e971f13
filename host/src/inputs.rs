//! q, k, v and d_o: random, or from a file.

use crate::args::{Args, Pass};
use crate::safetensors::SafeTensors;
use anyhow::{Context, Result, anyhow, ensure};
use attention::{Dtype, Element, Error, Problem, bf16, f16, random};
use safetensors::tensor::{Dtype as FileDtype, TensorInfo};
use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// Names of the tensors that a file must have.
const NAMES: [&str; 3] = ["q", "k", "v"];
/// The name of the gradient of o, which it may have.
const D_O: &str = "d_o";

/// Where q, k, v and d_o come from; their shapes are known.
pub struct Source {
    pub problem: Problem,
    pub dtype: Dtype,
    /// Seed of random tensors.
    seed: u64,
    /// Whether d_o is needed.
    with_d_o: bool,
    file: Option<InputFile>,
}

/// Row-major inputs.
pub struct Inputs<T> {
    /// q, k and v.
    pub qkv: [Vec<T>; 3],
    /// The gradient of o, if it is needed.
    pub d_o: Option<Vec<T>>,
}

/// A file with q, k and v, and perhaps d_o.
struct InputFile {
    path: PathBuf,
    file: SafeTensors,
    tensors: Vec<(&'static str, TensorInfo)>,
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
            with_d_o: args.pass != Pass::Forward,
            file: None,
        })
    }

    fn open_file(path: &Path, args: &Args) -> Result<Self> {
        let file = SafeTensors::open(path)?;
        let with_d_o = args.pass != Pass::Forward;
        let d_o = (with_d_o && file.has(D_O)).then_some(D_O);
        let names = NAMES.into_iter().chain(d_o);
        let tensors = names.map(|name| Ok((name, file.info(name)?.clone())));
        let tensors: Vec<_> = tensors.collect::<Result<_>>()?;
        let mut shapes = Vec::new();
        for (name, info) in &tensors {
            let (found, expected, shape) = (info.dtype, tensors[0].1.dtype, &info.shape);
            let allowed = matches!(found, FileDtype::F16 | FileDtype::BF16 | FileDtype::F32);
            ensure!(allowed, "{name} is {found}; it must be F16, BF16 or F32");
            let alike = found == expected;
            ensure!(alike, "{name} is {found}; it must be {expected}, like q");
            shapes.push(<[usize; 4]>::try_from(&shape[..]).map_err(|_| {
                anyhow!("{name} has shape {shape:?}; it must be [batch, heads, seqlen, dim]")
            })?);
        }
        let problem = Problem::new(shapes[0], shapes[1], shapes[2], args.causal, args.scale)?;
        if let Some(found) = shapes.get(3).filter(|found| **found != shapes[0]) {
            let error = Error::Shape {
                argument: D_O,
                expected: shapes[0].to_vec(),
                found: found.to_vec(),
            };
            return Err(error.into());
        }
        let dtype = match tensors[0].1.dtype {
            FileDtype::BF16 => Dtype::Bf16,
            _ => Dtype::F16,
        };
        Ok(Source {
            problem,
            dtype: args.dtype.unwrap_or(dtype),
            seed: args.run.seed,
            with_d_o,
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

    /// Draws the numbers, or reads them from the file; a file without d_o gets a random one.
    pub fn load<T: Element>(self) -> Result<Inputs<T>> {
        let (qkv, d_o) = match self.file {
            None => (random::inputs(&self.problem, self.seed), None),
            Some(mut input) => {
                let mut tensors = input.read().with_context(|| unusable(&input.path))?;
                let d_o = tensors.split_off(NAMES.len()).pop();
                (tensors.try_into().expect("q, k and v"), d_o)
            }
        };
        let drawn = || random::output_gradient(&self.problem, self.seed);
        let d_o = self.with_d_o.then(|| d_o.unwrap_or_else(drawn));
        Ok(Inputs { qkv, d_o })
    }
}

impl InputFile {
    /// The tensors, rounded to `T`.
    fn read<T: Element>(&mut self) -> Result<Vec<Vec<T>>> {
        let InputFile { file, tensors, .. } = self;
        let mut numbers: Vec<_> = tensors.iter().map(|_| Vec::new()).collect();
        let mut order: Vec<_> = (0..tensors.len()).collect();
        order.sort_by_key(|&i| tensors[i].1.data_offsets);
        for i in order {
            let (name, info) = &tensors[i];
            let read = match info.dtype {
                FileDtype::F16 => file.read(info, |number: f16| T::from_f32(number.to_f32())),
                FileDtype::BF16 => file.read(info, |number: bf16| T::from_f32(number.to_f32())),
                _ => file.read(info, T::from_f32),
            };
            numbers[i] = read.with_context(|| format!("cannot read {name}"))?;
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
