//! The shapes of a run.

use crate::shape::{Dtype, Pass, Shape};
use anyhow::{Context, Result, bail, ensure};
use ferroattn::Window;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

/// A list of shapes by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grid {
    /// One length, every head dim, dtype and mask once.
    Quick,
    /// Every length, head dim, dtype and mask of the project's goal.
    Full,
    /// The backward passes of the full grid.
    Backward,
    /// Few queries on many keys.
    Decode,
    /// Steps of an engine that serves: one query for each sequence, on contiguous keys and on pages, of one length and of many.
    Serving,
    /// Softcap, ALiBi, sinks, windows and sequences beside causal attention, a bias and a mask beside full attention, and
    /// their gradients; values of another head dim.
    Options,
    /// The shapes on which the lesson compares the ladder's kernels.
    Ladder,
    /// Matrix products instead of attention.
    Gemm,
    /// First calls, for which the driver compiles kernels.
    FirstUse,
    /// Times of calls on the host.
    Host,
    /// A JSON list of objects with the fields of [`Shape`].
    File(PathBuf),
}

impl FromStr for Grid {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(match name {
            "quick" => Grid::Quick,
            "full" => Grid::Full,
            "backward" => Grid::Backward,
            "decode" => Grid::Decode,
            "serving" => Grid::Serving,
            "options" => Grid::Options,
            "ladder" => Grid::Ladder,
            "gemm" => Grid::Gemm,
            "first-use" => Grid::FirstUse,
            "host" => Grid::Host,
            path => Grid::File(path.into()),
        })
    }
}

impl Grid {
    /// The shapes of attention: at least one, all valid.
    ///
    /// # Errors
    /// If a file cannot be read, or one of its shapes is not allowed.
    pub fn shapes(&self) -> Result<Vec<Shape>> {
        let path = match self {
            Grid::Quick => return Ok(quick()),
            Grid::Full => return Ok(full()),
            Grid::Backward => return Ok(backward()),
            Grid::Decode => return Ok(decode()),
            Grid::Serving => return Ok(serving()),
            Grid::Options => return Ok(options()),
            Grid::Ladder => return Ok(ladder()),
            Grid::Gemm | Grid::FirstUse | Grid::Host => {
                bail!("--grid: gemm, first-use and host have shapes of their own")
            }
            Grid::File(path) => path,
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("--grid: cannot read {}", path.display()))?;
        let shapes: Vec<Shape> = serde_json::from_str(&text)
            .with_context(|| format!("--grid: {} is not a list of shapes", path.display()))?;
        ensure!(!shapes.is_empty(), "--grid: {} is empty", path.display());
        for shape in &shapes {
            shape
                .problem()
                .with_context(|| format!("--grid: {shape}"))?;
        }
        Ok(shapes)
    }

    /// The end of the name of this grid's file of results; the full grid has none.
    pub fn suffix(&self) -> Option<String> {
        match self {
            Grid::Quick => Some("quick".to_owned()),
            Grid::Full => None,
            Grid::Backward => Some("backward".to_owned()),
            Grid::Decode => Some("decode".to_owned()),
            Grid::Serving => Some("serving".to_owned()),
            Grid::Options => Some("options".to_owned()),
            Grid::Ladder => Some("ladder".to_owned()),
            Grid::Gemm => Some("gemm".to_owned()),
            Grid::FirstUse => Some("first-use".to_owned()),
            Grid::Host => Some("host".to_owned()),
            Grid::File(path) => path.file_stem().map(|stem| stem.to_string_lossy().into()),
        }
    }
}

/// Batches, heads and lengths with 2^18 queries in all: every length fills the GPU.
const SIZES: [(usize, usize, usize); 6] = [
    (32, 16, 512),
    (16, 16, 1024),
    (8, 16, 2048),
    (4, 16, 4096),
    (2, 16, 8192),
    (1, 16, 16384),
];

/// Batches, heads and lengths with too few queries to fill the GPU, at head dim 64.
const SHORT_GRIDS: [(usize, usize, usize); 2] = [(1, 8, 8192), (1, 1, 8192)];

const DIMS: [usize; 3] = [64, 128, 256];

/// The head dims of most models, and two larger ones that only tiled kernels serve.
fn ladder() -> Vec<Shape> {
    let sizes = [
        ((1, 8, 8192), 64),
        ((4, 16, 4096), 128),
        ((4, 16, 4096), 256),
        ((1, 8, 8192), 512),
        ((1, 8, 8192), 1024),
    ];
    let shapes = sizes.map(|(size, dim)| shape(size, dim, Dtype::F16, false));
    shapes.to_vec()
}

fn full() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for dim in DIMS {
            for causal in [false, true] {
                let short_grids = SHORT_GRIDS.iter().filter(|_| dim == 64);
                let sizes = SIZES.iter().chain(short_grids);
                shapes.extend(sizes.map(|&size| shape(size, dim, dtype, causal)));
            }
        }
    }
    shapes
}

fn backward() -> Vec<Shape> {
    let mut shapes = full();
    for shape in &mut shapes {
        shape.pass = Pass::Backward;
    }
    shapes
}

fn quick() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (dtype, dim) in [
        (Dtype::F16, 64),
        (Dtype::F16, 128),
        (Dtype::F16, 256),
        (Dtype::Bf16, 128),
    ] {
        shapes.extend([false, true].map(|causal| shape((4, 16, 4096), dim, dtype, causal)));
    }
    shapes.push(shape((1, 1, 8192), 64, Dtype::F16, false));
    shapes
}

/// Batches and keys of decode shapes, more than a cache holds.
const CONTEXTS: [(usize, usize); 4] = [(64, 4096), (16, 16_384), (4, 65_536), (1, 131_072)];

/// Query and key/value heads of decode shapes.
const DECODE_HEADS: [(usize, usize); 3] = [(32, 8), (16, 16), (64, 8)];

fn decode() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for dim in [64, 128] {
        for (heads, kv_heads) in DECODE_HEADS {
            for seqlen in [1, 4, 16] {
                shapes.extend(CONTEXTS.map(|(batch, seqlen_kv)| Shape {
                    kv_heads: Some(kv_heads),
                    seqlen_kv: Some(seqlen_kv),
                    ..shape((batch, heads, seqlen), dim, Dtype::F16, false)
                }));
            }
        }
    }
    shapes
}

/// Batch, heads on key/value heads, and keys of steps of decoding, and their head dim.
type Step = ((usize, usize, usize, usize), usize);

/// From what fills a GPU to the shortest.
const STEPS: [Step; 6] = [
    ((8, 32, 8, 32_768), 128),
    ((32, 32, 8, 8192), 128),
    ((128, 16, 2, 8192), 64),
    ((32, 16, 2, 8192), 256),
    ((1, 32, 8, 131_072), 128),
    ((1, 32, 8, 1024), 128),
];

/// Each step on keys in one piece and on pages, of even and of uneven lengths; with four queries; a chunk of a prompt; latents,
/// which hold their values; and a shared prefix.
fn serving() -> Vec<Shape> {
    let of = |((batch, heads, kv_heads, keys), dim): Step, seqlen, causal| Shape {
        kv_heads: Some(kv_heads),
        seqlen_kv: Some(keys),
        ..shape((batch, heads, seqlen), dim, Dtype::Bf16, causal)
    };
    let paged = |shape: Shape, keys: &'static [usize]| {
        let pages = keys.iter().map(move |&keys| Shape {
            page: NonZeroUsize::new(keys),
            ..shape
        });
        [shape].into_iter().chain(pages)
    };
    let mut shapes: Vec<_> = STEPS
        .into_iter()
        .flat_map(|step| paged(of(step, 1, false), &[16, 64, 256]))
        .collect();
    for step in &STEPS[..3] {
        let mut uneven = of(*step, 1, false);
        uneven.uneven = true;
        shapes.extend(paged(uneven, &[16]));
    }
    shapes.extend(paged(of(STEPS[1], 4, true), &[16]));
    let chunk = ((4, 32, 8, 16_384), 128);
    shapes.extend(paged(of(chunk, 2048, true), &[16, 64, 256]));
    // Latents: by few heads and by many, with one query and with several.
    for (heads, queries) in [(16, 1), (16, 4), (128, 1)] {
        let latent = Shape {
            dim_v: Some(512),
            values_in_keys: true,
            ..of(((32, heads, 1, 8192), 576), queries, queries > 1)
        };
        let pages: &[usize] = if queries == 1 { &[64] } else { &[] };
        shapes.extend(paged(latent, pages));
    }
    // Sequences that share most keys: each reads all, and all read these once.
    let apart = of(((64, 32, 8, 8192 + 256), 128), 1, false);
    let shared = Shape {
        prefix: NonZeroUsize::new(8192),
        ..apart
    };
    shapes.extend([apart, shared]);
    shapes
}

fn options() -> Vec<Shape> {
    let causal = |size, dim| shape(size, dim, Dtype::F16, true);
    let of_scores = [128, 64].into_iter().flat_map(|dim| {
        let plain = causal((4, 16, 4096), dim);
        let [mut softcap, mut alibi, mut sinks] = [plain; 3];
        softcap.softcap = Some(30.0);
        alibi.alibi = true;
        sinks.sinks = true;
        [plain, softcap, alibi, sinks]
    });
    let plain = causal((1, 16, 16384), 128);
    let window = Some(Window {
        left: Some(1024),
        right: Some(0),
    });
    let mut forward: Vec<_> = of_scores.collect();
    forward.extend([plain, Shape { window, ..plain }]);
    for dim in [128, 64] {
        let sequences = Shape {
            sequences: NonZeroUsize::new(64),
            ..causal((1, 16, 64 * 1536), dim)
        };
        forward.extend([causal((64, 16, 1536), dim), sequences]);
    }
    let full = shape((4, 16, 4096), 128, Dtype::F16, false);
    let [mut bias, mut mask] = [full; 2];
    bias.bias = true;
    mask.block_mask = NonZeroUsize::new(4);
    forward.extend([full, bias, mask]);
    let backward = forward.iter().map(|&shape| Shape {
        pass: Pass::Backward,
        ..shape
    });
    let backward: Vec<_> = backward.collect();
    [forward, backward, dims_of_values()].concat()
}

/// Queries and keys that are longer than values: with a part for the place, and in decoding from latents, which all
/// heads share. Forward alone.
fn dims_of_values() -> Vec<Shape> {
    let mut placed = shape((4, 16, 4096), 192, Dtype::F16, true);
    placed.dim_v = Some(128);
    let latent = [1, 4].map(|seqlen| Shape {
        kv_heads: Some(1),
        seqlen_kv: Some(8192),
        dim_v: Some(512),
        ..shape((32, 16, seqlen), 576, Dtype::F16, false)
    });
    [&[placed], &latent[..]].concat()
}

/// A forward pass without options: batch, heads and length, head dim, dtype, mask.
pub fn shape(
    (batch, heads, seqlen): (usize, usize, usize),
    dim: usize,
    dtype: Dtype,
    causal: bool,
) -> Shape {
    Shape {
        batch,
        heads,
        kv_heads: None,
        seqlen,
        seqlen_kv: None,
        dim,
        dim_v: None,
        dtype,
        causal,
        window: None,
        softcap: None,
        alibi: false,
        sinks: false,
        bias: false,
        block_mask: None,
        sequences: None,
        uneven: false,
        page: None,
        prefix: None,
        values_in_keys: false,
        fp8: None,
        invariant: None,
        pass: Pass::Forward,
    }
}

#[cfg(test)]
mod tests {
    use super::{Grid, decode, full, options, serving};
    use crate::shape::{Dtype, Shape};
    use crate::subject::Subject;
    use ferroattn::{Class, Facts};
    use std::io::Write;

    #[test]
    fn the_full_grid_has_every_combination_once() {
        let shapes = full();
        assert_eq!(shapes.len(), 2 * 2 * (3 * 6 + 2));
        for (i, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..i].contains(shape), "{shape} comes twice");
            assert!(shape.problem().is_ok(), "{shape}");
        }
        let single = |s: &&crate::shape::Shape| s.batch * s.heads == 1;
        assert_eq!(shapes.iter().filter(single).count(), 4);
    }

    #[test]
    fn steps_of_serving_are_allowed() {
        let shapes = serving();
        for (i, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..i].contains(shape), "{shape} comes twice");
            let problem = shape.problem().expect("allowed");
            let h100 = Facts::emulated(Class::Sm90);
            for shape in [*shape, shape.invariant(2048)] {
                let args = shape.planned(&problem);
                let plan = shape
                    .attention()
                    .plan(Some(&h100), shape.dtype.into(), &args);
                let kernel = plan.expect("a kernel").kernel;
                assert_eq!(
                    kernel.starts_with("latent"),
                    shape.values_in_keys && shape.invariant.is_none(),
                    "{shape}: {kernel}"
                );
            }
        }
        let pages = |shape: &&Shape| shape.page.is_some();
        assert_eq!(
            (shapes.len(), shapes.iter().filter(pages).count()),
            (43, 27)
        );
    }

    #[test]
    fn decode_shapes_are_larger_than_a_cache() {
        let shapes = decode();
        assert_eq!(shapes.len(), 2 * 3 * 3 * 4);
        for (i, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..i].contains(shape), "{shape} comes twice");
            assert!(shape.problem().is_ok(), "{shape}");
            assert!((250e6..2.5e9).contains(&shape.bytes()), "{shape}");
        }
    }

    #[test]
    fn each_option_stands_beside_plain_attention() {
        let shapes = options();
        assert_eq!(shapes.len(), 2 * (2 * 4 + 2 + 2 * 2 + 3) + 3);
        for (i, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..i].contains(shape), "{shape} comes twice");
            assert!(shape.problem().is_ok(), "{shape}");
            let text = serde_json::to_string(shape).expect("plain data");
            assert_eq!(
                serde_json::from_str::<Shape>(&text).expect("a shape"),
                *shape
            );
        }
        let [plain, window] = [25, 26].map(|i| shapes[i]);
        assert_eq!(
            window.to_string(),
            "B 1 H 16 N 16384 D 128 f16 causal window 1024,0 backward"
        );
        // Of the keys that causal attention sees, few are in the window.
        let part = window.flops().expect("valid") / plain.flops().expect("valid");
        assert!((0.1..0.15).contains(&part), "{part}");
        let [full, bias, mask] = [14, 15, 16].map(|i| shapes[i]);
        assert_eq!(
            mask.to_string(),
            "B 4 H 16 N 4096 D 128 f16 full 1/4 of blocks"
        );
        let part = mask.flops().expect("valid") / full.flops().expect("valid");
        let bytes = mask.mask_bytes().expect("it has a mask");
        let shown = bytes.iter().filter(|&&byte| byte == 1).count();
        assert_eq!(part, shown as f64 / bytes.len() as f64);
        assert!((part - 0.25).abs() < 0.01, "{part}");
        assert_eq!(bias.bytes() - full.bytes(), 2.0 * 16.0 * 4096.0 * 4096.0);
        let latent = shapes[shapes.len() - 2];
        assert_eq!(
            latent.to_string(),
            "B 32 H 16/1 N 1 x 8192 D 576/512 f16 full"
        );
    }

    #[test]
    fn a_file_may_leave_out_what_has_a_default() {
        let shapes = file(
            r#"[{"batch": 2, "heads": 8, "seqlen": 1, "dim": 64, "dtype": "bf16"},
                {"batch": 1, "heads": 8, "kv_heads": 2, "seqlen": 16, "seqlen_kv": 4096,
                 "dim": 128, "dtype": "f16", "causal": true}]"#,
        )
        .expect("valid shapes");
        assert_eq!(shapes[0].to_string(), "B 2 H 8 N 1 D 64 bf16 full");
        assert_eq!(shapes[0].dtype, Dtype::Bf16);
        assert_eq!(
            shapes[1].to_string(),
            "B 1 H 8/2 N 16 x 4096 D 128 f16 causal"
        );
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let said = |text: &str| format!("{:#}", file(text).expect_err("a bad file"));
        assert!(said("[]").contains("is empty"));
        assert!(said("{}").contains("is not a list of shapes"));
        let odd = r#"[{"batch": 1, "heads": 1, "seqlen": 1, "dim": 1025, "dtype": "f16"}]"#;
        assert!(said(odd).contains("from 1 to 1024"), "{}", said(odd));
        let with = |field: &str| {
            let rest = r#"{"batch": 1, "heads": 1, "seqlen": 1, "dim": 8, "dtype": "f16""#;
            said(&format!("[{rest}, {field}}}]"))
        };
        let typo = with(r#""mask": 1"#);
        assert!(typo.contains("mask"), "{typo}");
        for option in ["block_mask", "sequences"] {
            let none = with(&format!(r#""{option}": 0"#));
            assert!(none.contains("nonzero"), "{none}");
        }
        let odd = with(r#""dim_v": 0"#);
        assert!(
            odd.contains("dim_v is 0; it must be from 1 to 1024"),
            "{odd}"
        );
        let missing = Grid::File("no/such.json".into()).shapes();
        assert!(format!("{:#}", missing.expect_err("no file")).contains("no/such.json"));
    }

    fn file(text: &str) -> anyhow::Result<Vec<crate::shape::Shape>> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(text.as_bytes())?;
        Grid::File(file.path().into()).shapes()
    }
}
