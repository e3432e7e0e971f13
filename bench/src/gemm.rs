//! Matrix products: their sizes, and the project's kernels on one size's inputs.

use crate::choice::Choice;
use crate::names::exists;
use crate::plan::Plan;
use crate::shape::Dtype;
use crate::subject::{Contenders, Subject};
use anyhow::{Context, Result, bail, ensure};
use ferroattn::gemm::check::{Product, check, sample};
use ferroattn::{
    Accumulation, Device, Element, Gemm, GemmProblem, RawGemm, Tensor, bf16, f16, random,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// Checked rows and columns of each kernel's result: the elements where they cross.
const CHECKED: usize = 64;

/// `C = A B^T`, with A `[m, k]` and B `[n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GemmShape {
    #[serde(flatten)]
    pub problem: GemmProblem,
    pub dtype: Dtype,
    /// The type that products are summed in.
    #[serde(with = "by_name")]
    pub acc: Accumulation,
}

/// An [`Accumulation`] by its name.
mod by_name {
    use ferroattn::Accumulation;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(sums: &Accumulation, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(sums.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Accumulation, D::Error> {
        let name = String::deserialize(from)?;
        let known = Accumulation::ALL.map(Accumulation::name).join(" and ");
        Accumulation::named(&name)
            .ok_or_else(|| D::Error::custom(format!("no sums in {name:?}; there are {known}")))
    }
}

/// Squares, long thin projections, few rows, and one size with unaligned rows.
const SIZES: [(usize, usize, usize); 8] = [
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (81_920, 256, 256),
    (4096, 14_336, 4096),
    (128, 8192, 8192),
    (4095, 4093, 4097),
];

/// The shapes of `--grid gemm`: all sizes in f16, the largest also in the other types.
pub fn shapes() -> Vec<GemmShape> {
    let shape = |(m, n, k), dtype, acc| GemmShape {
        problem: GemmProblem { m, n, k },
        dtype,
        acc,
    };
    let sizes = SIZES.iter();
    let mut shapes: Vec<_> = sizes
        .map(|&size| shape(size, Dtype::F16, Accumulation::Single))
        .collect();
    shapes.push(shape(SIZES[0], Dtype::Bf16, Accumulation::Single));
    shapes.push(shape(SIZES[0], Dtype::F16, Accumulation::Half));
    shapes
}

impl GemmShape {
    fn any_kernel(&self) -> Gemm {
        Gemm::new().accumulation(self.acc)
    }
}

impl fmt::Display for GemmShape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let sums = self.acc.name();
        let (GemmProblem { m, n, k }, dtype) = (self.problem, self.dtype);
        write!(f, "M {m} N {n} K {k} {dtype} in {sums}")
    }
}

impl Subject for GemmShape {
    const BASELINE: &str = "cuBLAS";
    const RATIO: &str = "ratio to cuBLAS";
    const COLUMNS: &[&str] = &["M", "N", "K", "dtype", "sums"];
    const NUMBERS: usize = 3;

    fn peers(_: &[Self]) -> &'static str {
        "gemm"
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.problem.m.to_string(),
            self.problem.n.to_string(),
            self.problem.k.to_string(),
            self.dtype.to_string(),
            self.acc.name().to_owned(),
        ]
    }

    fn bytes(&self) -> f64 {
        let GemmProblem { m, n, k } = self.problem;
        let elements = m * k + n * k + m * n;
        (size_of::<u16>() * elements) as f64
    }

    fn flops(&self) -> Result<f64> {
        Ok(self.problem.flops())
    }

    fn setup(&self) -> Result<Value> {
        Ok(json!(self))
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let (problem, dtype) = (self.problem, self.dtype.into());
        let named = self.any_kernel().kernel(name);
        exists(named.plan(None, dtype, &RawGemm::row_major(problem)))
    }

    fn kernels(&self, choice: &Choice, device: &Device) -> Result<Vec<String>> {
        let (problem, dtype) = (self.problem, self.dtype.into());
        let (any, facts) = (self.any_kernel(), device.facts());
        let names = match choice {
            _ if facts.is_none() => any.suitable(facts, dtype)?,
            Choice::Auto => any.families(facts, dtype)?,
            Choice::All => any.suitable(facts, dtype)?,
            Choice::Ladder => bail!("the ladder has no matrix products"),
            Choice::Named(names) => names.iter().map(String::as_str).collect(),
        };
        ensure!(!names.is_empty(), "no kernel serves {self}");
        let name = |name: &str| {
            let (named, args) = (any.clone().kernel(name), RawGemm::row_major(problem));
            Ok(named.plan(facts, dtype, &args)?.kernel)
        };
        names
            .into_iter()
            .map(|of| name(of).map(str::to_owned))
            .collect()
    }

    fn contenders(&self, device: &Device, plan: &Plan) -> Result<Box<dyn Contenders>> {
        Ok(match self.dtype {
            Dtype::F16 => Box::new(Products::<f16>::new(self, device, plan)?),
            Dtype::Bf16 => Box::new(Products::<bf16>::new(self, device, plan)?),
        })
    }
}

/// Inputs and output of one shape on the device, and the calls.
struct Products<T> {
    a: Tensor<T, 2>,
    b: Tensor<T, 2>,
    c: Tensor<T, 2>,
    calls: Vec<(String, Gemm)>,
}

impl<T: Element> Products<T> {
    fn new(shape: &GemmShape, device: &Device, plan: &Plan) -> Result<Self> {
        let problem = shape.problem;
        let [a, b] = random::matrices::<T>(&problem, plan.seed);
        let names = shape.kernels(&plan.kernel, device)?;
        let call = |name: String| (name.clone(), shape.any_kernel().kernel(name));
        let mut products = Products {
            a: Tensor::new(device, problem.a_shape(), &a)?,
            b: Tensor::new(device, problem.b_shape(), &b)?,
            c: Tensor::zeros(device, problem.c_shape())?,
            calls: names.into_iter().map(call).collect(),
        };
        let rows = sample(problem.m, CHECKED, plan.seed);
        let columns = sample(problem.n, CHECKED, plan.seed + 1);
        for i in 0..products.calls.len() {
            products.launch(i)?;
            let c = products.c.to_vec()?;
            let product = Product {
                problem,
                accumulation: shape.acc,
                a: &a,
                b: &b,
                c: &c,
            };
            let worst = check(&product, &rows, &columns).context("no elements to check")?;
            let name = &products.calls[i].0;
            ensure!(worst.passed(), "{name}: the result is wrong: {worst}");
        }
        Ok(products)
    }
}

impl<T: Element> Contenders for Products<T> {
    fn names(&self) -> Vec<(String, Option<u32>)> {
        let names = self.calls.iter().map(|(name, _)| name.clone());
        names.map(|name| (name, None)).collect()
    }

    fn launch(&mut self, contender: usize) -> Result<()> {
        let Products { a, b, c, calls } = self;
        Ok(calls[contender].1.forward_into(a, b, c)?)
    }
}

#[cfg(test)]
mod tests {
    use super::{GemmShape, shapes};
    use crate::choice::Choice;
    use crate::shape::Dtype;
    use crate::subject::Subject;
    use ferroattn::{Accumulation, Device, GemmProblem};

    #[test]
    fn shapes_are_distinct_and_valid() {
        let shapes = shapes();
        for (i, shape) in shapes.iter().enumerate() {
            assert!(!shapes[..i].contains(shape), "{shape} comes twice");
            assert!(shape.flops().is_ok() && shape.bytes() > 0.0);
            assert_eq!(shape.cells().len(), GemmShape::COLUMNS.len());
        }
    }

    #[test]
    fn sums_go_by_name() {
        for shape in shapes() {
            let line = serde_json::to_string(&shape).expect("a line");
            assert!(line.contains(&format!("\"acc\":\"{}\"", shape.acc.name())));
            let read: GemmShape = serde_json::from_str(&line).expect("a shape");
            assert_eq!(read, shape);
            let wrong = line.replace(
                &format!("\"acc\":\"{}\"", shape.acc.name()),
                "\"acc\":\"bf16\"",
            );
            let error = serde_json::from_str::<GemmShape>(&wrong).expect_err("no such sums");
            assert!(error.to_string().contains("f16 and f32"), "{error}");
        }
    }

    #[test]
    fn the_cpu_multiplies_too() {
        let shape = GemmShape {
            problem: GemmProblem { m: 3, n: 2, k: 5 },
            dtype: Dtype::Bf16,
            acc: Accumulation::Single,
        };
        assert_eq!(shape.to_string(), "M 3 N 2 K 5 bf16 in f32");
        let names = shape.kernels(&Choice::Auto, &Device::cpu()).expect("one");
        assert_eq!(names, ["cpu"]);
    }

    #[test]
    fn names_are_known_without_a_gpu() {
        let shape = shapes()[0];
        for name in ["gemm-simple", "gemm_bf16_f32_256x128x32x4"] {
            assert!(shape.check_name(name).is_ok(), "{name}");
        }
        let error = shape.check_name("gemm-simpel").expect_err("unknown");
        assert!(error.to_string().contains("gemm-simple"), "{error}");
    }
}
