//! q, k, v and d_o: random, or from a file.

use crate::args::{Args, Pass};
use crate::safetensors::SafeTensors;
use crate::tensors::{Pairs, Tensors, expect, of_file};
use anyhow::{Context, Result, anyhow, ensure};
use ferroattn::{Dtype, Element, Error, Problem, bf16, f16, random};
use safetensors::tensor::{Dtype as FileDtype, TensorInfo};
use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

/// Names of the tensors that a file must have.
const NAMES: [&str; 3] = ["q", "k", "v"];
/// The name of the gradient of o, which it may have.
const D_O: &str = "d_o";

/// Where q, k, v and d_o come from; their shapes are known.
pub struct Source<'a> {
    args: &'a Args,
    pub problem: Problem,
    /// Element type of o, and of q, k and v until they are rounded.
    pub dtype: Dtype,
    /// Options' tensors with an element for each pair.
    pub pairs: Pairs,
    file: Option<InputFile>,
}

/// Row-major inputs.
pub struct Inputs<T> {
    /// q, k and v.
    pub qkv: [Vec<T>; 3],
    /// The gradient of o, if it is needed.
    pub d_o: Option<Vec<T>>,
    /// Tensors of options, on the CPU.
    pub options: Tensors,
}

/// A file with q, k and v, and perhaps d_o and tensors of options.
struct InputFile {
    path: PathBuf,
    file: SafeTensors,
    /// The tensors that are read from it.
    tensors: Vec<(&'static str, TensorInfo)>,
}

/// Tensors of a file by name.
struct Read<T> {
    /// q, k, v and d_o.
    tensors: HashMap<&'static str, Vec<T>>,
    options: Tensors,
}

impl<'a> Source<'a> {
    /// Reads the header of the input file, if there is one.
    pub fn open(args: &'a Args) -> Result<Self> {
        if let Some(path) = &args.input {
            return Self::open_file(path, args).with_context(|| unusable(path));
        }
        let kv_heads = args.kv_heads.unwrap_or(args.heads);
        let seqlen_kv = args.seqlen_kv.unwrap_or(args.seqlen);
        let q = [args.batch, args.heads, args.seqlen, args.dim];
        let kv = |dim| [args.batch, kv_heads, seqlen_kv, dim];
        let v = kv(args.dim_v.unwrap_or(args.dim));
        let problem = args.call().problem(q, kv(args.dim), v)?;
        args.modifiers.expect_sequences(&problem)?;
        args.modifiers.expect_prefix(&problem)?;
        args.modifiers.expect_cache(&problem)?;
        let dtype = args.type_of_o(Dtype::F16);
        Ok(Source {
            args,
            problem,
            dtype,
            pairs: args.modifiers.pairs(&problem, dtype),
            file: None,
        })
    }

    fn open_file(path: &Path, args: &'a Args) -> Result<Self> {
        let file = SafeTensors::open(path)?;
        let d_o = (args.pass != Pass::Forward && file.has(D_O)).then_some(D_O);
        let names = NAMES.into_iter().chain(d_o);
        let tensors = names.map(|name| Ok((name, file.info(name)?.clone())));
        let mut tensors: Vec<_> = tensors.collect::<Result<_>>()?;
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
        let problem = args.call().problem(shapes[0], shapes[1], shapes[2])?;
        problem.expect_work()?;
        let o_shape = problem.o_shape();
        if let Some(found) = shapes.get(3).filter(|found| **found != o_shape) {
            let error = Error::Shape {
                argument: D_O,
                expected: o_shape.to_vec(),
                found: found.to_vec(),
            };
            return Err(error.into());
        }
        args.modifiers.expect_sequences(&problem)?;
        args.modifiers.expect_prefix(&problem)?;
        args.modifiers.expect_cache(&problem)?;
        let dtype = args.type_of_o(match of_file(tensors[0].1.dtype) {
            Dtype::Bf16 => Dtype::Bf16,
            _ => Dtype::F16,
        });
        let mut pairs = args.modifiers.pairs(&problem, dtype);
        for name in args.modifiers.names().filter(|name| file.has(name)) {
            let info = file.info(name)?;
            expect(name, info, &problem)?;
            pairs.take(name, info);
            tensors.push((name, info.clone()));
        }
        Ok(Source {
            args,
            problem,
            dtype,
            pairs,
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

    /// Draws the numbers, or reads them from the file; what it lacks of d_o and the options' tensors is drawn.
    pub fn load<T: Element>(self) -> Result<Inputs<T>> {
        let Source {
            args,
            problem,
            pairs,
            ..
        } = self;
        let seed = args.run.seed;
        let (mut qkv, d_o, options) = match self.file {
            None => (random::inputs(&problem, seed), None, Tensors::default()),
            Some(input) => {
                let path = input.path.clone();
                let mut read = input.read().with_context(|| unusable(&path))?;
                let qkv = NAMES.map(|name| read.tensors.remove(name).expect("it was read"));
                (qkv, read.tensors.remove(D_O), read.options)
            }
        };
        if let Some(keys) = args.modifiers.prefix {
            let [_, k, v] = &mut qkv;
            random::share_prefix(k, problem.k_shape(), keys);
            random::share_prefix(v, problem.v_shape(), keys);
        }
        let drawn = || random::output_gradient(&problem, seed);
        let with_d_o = args.pass != Pass::Forward;
        Ok(Inputs {
            qkv,
            d_o: with_d_o.then(|| d_o.unwrap_or_else(drawn)),
            options: args.modifiers.tensors(&problem, &pairs, seed, options)?,
        })
    }
}

impl InputFile {
    /// The tensors, rounded to `T`, in the order of the file.
    fn read<T: Element>(self) -> Result<Read<T>> {
        let InputFile {
            mut file,
            mut tensors,
            ..
        } = self;
        let (mut read, mut options) = (HashMap::new(), Tensors::default());
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        for (name, info) in &tensors {
            let cannot = || format!("cannot read {name}");
            if NAMES.contains(name) || *name == D_O {
                read.insert(*name, numbers(&mut file, info).with_context(cannot)?);
            } else {
                let done = options.read(name, info, &mut file);
                done.with_context(cannot)?;
            }
        }
        Ok(Read {
            tensors: read,
            options,
        })
    }
}

/// The elements of a tensor, rounded to `T`.
fn numbers<T: Element>(file: &mut SafeTensors, info: &TensorInfo) -> io::Result<Vec<T>> {
    match info.dtype {
        FileDtype::F16 => file.read(info, |number: f16| T::from_f32(number.to_f32())),
        FileDtype::BF16 => file.read(info, |number: bf16| T::from_f32(number.to_f32())),
        _ => file.read(info, T::from_f32),
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
