//! q, k and v: random, or from a file.

use crate::args::Args;
use anyhow::{Context, Result, anyhow, bail, ensure};
use attention::{Dtype, Element, Problem, bf16, f16, random};
use bytemuck::pod_collect_to_vec;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as FileDtype, TensorView};
use std::path::{Path, PathBuf};

/// Row-major q, k and v.
pub struct Inputs<T> {
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
}

/// Where q, k and v come from; their shapes are known.
pub struct Source {
    problem: Problem,
    dtype: Dtype,
    origin: Origin,
}

enum Origin {
    Random { seed: u64 },
    File { path: PathBuf, bytes: Vec<u8> },
}

impl Source {
    /// Reads the input file, if there is one.
    pub fn open(args: &Args) -> Result<Self> {
        let (shapes, dtype, origin) = match &args.input {
            Some(path) => open_file(path)?,
            None => {
                let kv_heads = args.kv_heads.unwrap_or(args.heads);
                let seqlen_kv = args.seqlen_kv.unwrap_or(args.seqlen);
                let q = [args.batch, args.heads, args.seqlen, args.dim];
                let kv = [args.batch, kv_heads, seqlen_kv, args.dim];
                ([q, kv, kv], Dtype::F16, Origin::Random { seed: args.seed })
            }
        };
        let [q, k, v] = shapes;
        Ok(Source {
            problem: Problem::new(q, k, v, args.causal, args.scale)?,
            dtype: args.dtype.map_or(dtype, Dtype::from),
            origin,
        })
    }

    pub fn problem(&self) -> Problem {
        self.problem
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Draws the numbers, or converts those of the file.
    pub fn load<T: Element>(&self) -> Result<Inputs<T>> {
        let [q, k, v] = match &self.origin {
            Origin::Random { seed } => random::inputs(&self.problem, *seed),
            Origin::File { path, bytes } => {
                let [q, k, v] = views(&parse(path, bytes)?, path)?;
                [convert(&q), convert(&k), convert(&v)]
            }
        };
        Ok(Inputs { q, k, v })
    }
}

fn open_file(path: &Path) -> Result<([[usize; 4]; 3], Dtype, Origin)> {
    let bytes =
        std::fs::read(path).with_context(|| format!("--input: cannot read {}", path.display()))?;
    let [q, k, v] = views(&parse(path, &bytes)?, path)?;
    let shapes = [
        shape("q", &q, path)?,
        shape("k", &k, path)?,
        shape("v", &v, path)?,
    ];
    let dtype = match q.dtype() {
        FileDtype::BF16 => Dtype::Bf16,
        _ => Dtype::F16,
    };
    let path = path.to_owned();
    Ok((shapes, dtype, Origin::File { path, bytes }))
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
    SafeTensors::deserialize(bytes).map_err(|error| {
        anyhow!(
            "--input: {} is not a whole safetensors file: {error}",
            path.display()
        )
    })
}

/// q, k and v, of one dtype that is allowed.
fn views<'a>(file: &SafeTensors<'a>, path: &Path) -> Result<[TensorView<'a>; 3]> {
    let view = |name: &str| {
        file.tensor(name).map_err(|_| {
            let names = file.names().join(", ");
            anyhow!(
                "--input: {} has no tensor {name}; it has {names}",
                path.display()
            )
        })
    };
    let views = [view("q")?, view("k")?, view("v")?];
    let dtype = views[0].dtype();
    for (name, view) in ["q", "k", "v"].into_iter().zip(&views) {
        let (found, path) = (view.dtype(), path.display());
        let allowed = matches!(found, FileDtype::F16 | FileDtype::BF16 | FileDtype::F32);
        ensure!(
            allowed,
            "--input: {name} is {found:?} in {path}; it must be F16, BF16 or F32"
        );
        ensure!(
            found == dtype,
            "--input: {name} is {found:?} in {path}; it must be {dtype:?}, like q"
        );
    }
    Ok(views)
}

fn shape(name: &str, view: &TensorView, path: &Path) -> Result<[usize; 4]> {
    let Ok(shape) = view.shape().try_into() else {
        let (found, path) = (view.shape(), path.display());
        bail!(
            "--input: {name} has shape {found:?} in {path}; it must be [batch, heads, seqlen, dim]"
        );
    };
    Ok(shape)
}

/// The numbers of a view of an allowed dtype, rounded to `T`.
fn convert<T: Element>(view: &TensorView) -> Vec<T> {
    fn rounded<S, T: Element>(data: Vec<S>, widen: impl Fn(S) -> f32) -> Vec<T> {
        data.into_iter()
            .map(|number| T::from_f32(widen(number)))
            .collect()
    }
    // Tensors in a file lie at any byte offset, so the data has to be copied into place.
    match (view.dtype(), T::DTYPE) {
        (FileDtype::F16, Dtype::F16) | (FileDtype::BF16, Dtype::Bf16) => {
            pod_collect_to_vec(view.data())
        }
        (FileDtype::F16, _) => rounded(pod_collect_to_vec(view.data()), f16::to_f32),
        (FileDtype::BF16, _) => rounded(pod_collect_to_vec(view.data()), bf16::to_f32),
        _ => rounded(pod_collect_to_vec(view.data()), |number: f32| number),
    }
}
