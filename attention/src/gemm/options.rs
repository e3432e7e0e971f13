//! The options of a matrix product, and the call.

use super::plan::plan;
use super::{Accumulation, GemmProblem, cpu};
use crate::device::{Device, Facts, Stream};
use crate::error::{Error, Result};
use crate::plan::{CPU, Plan};
use crate::tensor::{
    Dtype, Element, Layout, Storage, StorageMut, Strided, StridedMut, Tensor, TensorBase,
    expect_device, expect_shape,
};
use half::{bf16, f16};
use kernels::abi::{MatrixRef, TensorRef};

/// Options of a matrix product `C = A B^T`: A is `[m, k]`, B `[n, k]`, C `[m, n]`.
///
/// Any sizes will do, 0 included, and any strides as long as that along the rows is 1. With k = 0, C is
/// zeros. A GPU works in place on inputs whose rows all start at multiples of 16 bytes and are
/// multiples of 8 elements long; of each other input it first makes a copy that does, which takes memory
/// until the work is done.
///
/// ```
/// # fn main() -> attention::Result<()> {
/// use attention::{Device, Gemm, Tensor, f16};
///
/// let device = Device::cpu();
/// let a = Tensor::new(&device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(f16::from_f32))?;
/// let b = Tensor::new(&device, [1, 3], &[1.0, 0.0, 2.0].map(f16::from_f32))?;
///
/// let c = Gemm::new().forward(&a, &b)?;
///
/// assert_eq!(c.shape(), [2, 1]);
/// assert_eq!(c.to_vec()?, [7.0, 16.0].map(f16::from_f32));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gemm {
    pub(super) kernel: Option<String>,
    pub(super) accumulation: Accumulation,
    pub(super) stages: Option<u32>,
}

/// Matrices of a product by address, for [`Gemm::forward_raw`].
///
/// Strides count elements; that along the rows is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawGemm {
    /// `[m, k]`.
    pub a: MatrixRef,
    /// `[n, k]`.
    pub b: MatrixRef,
    /// `[m, n]`.
    pub c: MatrixRef,
    /// Sizes.
    pub problem: GemmProblem,
}

impl RawGemm {
    /// Row-major matrices at address 0: enough to [plan](Gemm::plan) a product whose matrices do not exist yet.
    #[must_use]
    pub fn row_major(problem: GemmProblem) -> Self {
        let matrix = |[_, columns]: [usize; 2]| MatrixRef {
            address: 0,
            // Rows without elements have places of their own too.
            row_stride: columns.max(1) as i64,
        };
        RawGemm {
            a: matrix(problem.a_shape()),
            b: matrix(problem.b_shape()),
            c: matrix(problem.c_shape()),
            problem,
        }
    }
}

impl Default for Gemm {
    fn default() -> Self {
        Gemm {
            kernel: None,
            accumulation: Accumulation::Single,
            stages: None,
        }
    }
}

impl Gemm {
    /// Accumulation in f32, the best kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The kernel to use: [`SIMPLE`](super::SIMPLE), [`MULTISTAGE`](super::MULTISTAGE), or a name from [`suitable`](Self::suitable).
    /// Default: the pipelined kernel whose tile suits the problem.
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// In what the products are added up; f16 for f16 inputs only. The CPU always takes f32.
    #[must_use]
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// Tiles of A and B that a pipelined kernel holds in shared memory. Default: the best number. The CPU
    /// has none.
    #[must_use]
    pub fn stages(mut self, stages: u32) -> Self {
        self.stages = Some(stages);
        self
    }

    /// Computes C `[m, n]` from A `[m, k]` and B `[n, k]`, on their device.
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks. A failure while a GPU computes shows
    /// when the result is read.
    pub fn forward<T: Element>(
        &self,
        a: &TensorBase<impl Storage<Item = T>, 2>,
        b: &TensorBase<impl Storage<Item = T>, 2>,
    ) -> Result<Tensor<T, 2>> {
        let problem = GemmProblem::new(a.shape(), b.shape())?;
        let mut c = Tensor::zeros(&a.device(), problem.c_shape())?;
        self.forward_into(a, b, &mut c)?;
        Ok(c)
    }

    /// Like [`forward`](Self::forward), into a matrix of the caller, of any row stride that gives every
    /// element its own place.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_into<T: Element>(
        &self,
        a: &TensorBase<impl Storage<Item = T>, 2>,
        b: &TensorBase<impl Storage<Item = T>, 2>,
        c: &mut TensorBase<impl StorageMut<Item = T>, 2>,
    ) -> Result<()> {
        let problem = GemmProblem::new(a.shape(), b.shape())?;
        let device = a.device();
        for (argument, found) in [("b", b.device()), ("c", c.device())] {
            expect_device(argument, &device, &found)?;
        }
        expect_shape("c", &problem.c_shape(), &c.shape())?;
        let c_address = c.address_mut();
        let args = RawGemm {
            a: a.raw("a", a.address())?,
            b: b.raw("b", b.address())?,
            c: c.raw("c", c_address)?,
            problem,
        };
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes were compared.
        // No other argument borrows the buffer of c, so c overlaps nothing. A buffer that is dropped
        // early is freed by the driver after the work on the default stream.
        unsafe { self.forward_raw(&device, T::DTYPE, &args, std::ptr::null_mut()) }
    }

    /// Like [`forward_into`](Self::forward_into), on memory of any owner and on the caller's stream, as
    /// [`Attention::forward_raw`](crate::Attention::forward_raw) is.
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks.
    ///
    /// # Safety
    /// - Every element of a, b and c, by the sizes in `args`, lies in live memory of the device,
    ///   aligned to its type, until the work is done.
    /// - a, b and c hold elements of `dtype`.
    /// - Until then nothing else writes a or b, or touches c. The memory from the first to the last
    ///   element of c holds no element of the others.
    /// - `stream` is null or a live stream of the device's primary context.
    pub unsafe fn forward_raw(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawGemm,
        stream: Stream,
    ) -> Result<()> {
        let plan = self.plan(device.facts(), dtype, args)?;
        match dtype {
            // SAFETY: the caller's word; the plan has each kernel's own parameters and grid.
            _ if !device.is_cpu() => unsafe { plan.run(device, stream)? },
            _ if args.problem.c_shape().contains(&0) => {}
            // SAFETY: the caller's word.
            Dtype::F16 => unsafe { forward_cpu::<f16>(args) },
            // SAFETY: the caller's word.
            Dtype::Bf16 => unsafe { forward_cpu::<bf16>(args) },
            // SAFETY: the caller's word.
            Dtype::F32 => unsafe { forward_cpu::<f32>(args) },
        }
        Ok(())
    }

    /// What a call launches on a device with these facts; nothing on the CPU, which is `None`, or if C has no
    /// elements.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn plan(&self, facts: Option<&Facts>, dtype: Dtype, args: &RawGemm) -> Result<Plan> {
        let problem = args.problem;
        problem.validate()?;
        for (argument, matrix, shape) in [
            ("a", args.a, problem.a_shape()),
            ("b", args.b, problem.b_shape()),
            ("c", args.c, problem.c_shape()),
        ] {
            Layout::of_matrix(matrix, shape)
                .span()
                .ok_or(Error::Overflow { argument })?;
        }
        let c = Layout::of_matrix(args.c, problem.c_shape());
        if !c.is_injective() {
            return Err(Error::Overlap {
                argument: "c",
                strides: c.strides.to_vec(),
            });
        }
        match facts {
            None => {
                self.resolve_cpu(dtype)?;
                Ok(Plan::without_steps(CPU))
            }
            Some(facts) => plan(self.resolve(dtype, &problem, facts)?, args, facts),
        }
    }
}

/// A matrix as the rows of the one head of a tensor, which the rest of the library knows.
pub(super) fn as_tensor(matrix: MatrixRef) -> TensorRef {
    TensorRef {
        address: matrix.address,
        batch_stride: 0,
        head_stride: 0,
        row_stride: matrix.row_stride,
    }
}

/// # Safety
/// As for [`Gemm::forward_raw`] on the CPU, with `T` the element type; m and n are not 0.
unsafe fn forward_cpu<T: Element>(args: &RawGemm) {
    let GemmProblem { m, n, k } = args.problem;
    let input = |matrix, rows| match k {
        // There need be no memory.
        0 => Strided::contiguous(&[], [1, 1, rows, 0]),
        // SAFETY: the caller vouches for the memory, and that nothing writes it.
        _ => unsafe { Strided::<T>::from_raw(as_tensor(matrix), [1, 1, rows, k]) },
    };
    // SAFETY: the caller vouches for the memory, and that nothing else uses it.
    let c = unsafe { StridedMut::<T>::from_raw(as_tensor(args.c), [1, 1, m, n]) };
    cpu::gemm(&args.problem, input(args.a, m), input(args.b, n), c);
}

#[cfg(test)]
mod tests {
    use super::{Accumulation, Gemm};
    use crate::device::Device;
    use crate::error::Error;
    use crate::tensor::Tensor;
    use half::{bf16, f16};

    fn zeros<const R: usize>(shape: [usize; R]) -> Tensor<f16, R> {
        Tensor::zeros(&Device::cpu(), shape).expect("enough memory")
    }

    #[test]
    fn arguments_are_checked() {
        let refused = |b: Tensor<f16, 2>, mut c: Tensor<f16, 2>| {
            let result = Gemm::new().forward_into(&zeros([3, 5]), &b, &mut c);
            result.expect_err("should have been refused").to_string()
        };
        let error = refused(zeros([4, 6]), zeros([3, 4]));
        assert!(error.contains("b has shape [4, 6]"), "{error}");
        let error = refused(zeros([4, 5]), zeros([3, 5]));
        assert!(error.contains("c has shape [3, 5]"), "{error}");
        let error = refused(zeros([5, 4]).transpose(0, 1).expect("axes"), zeros([3, 4]));
        assert!(error.contains("b has stride 4 along its rows"), "{error}");
        let overlapping =
            Tensor::from_buffer(zeros([100]).into_buffer(), 0, [3, 4], [3, 1]).expect("inside");
        let error = refused(zeros([4, 5]), overlapping);
        assert!(error.contains("c has overlapping strides"), "{error}");
    }

    #[test]
    fn options_are_checked() {
        let refused = |gemm: Gemm| {
            let result = gemm.forward(&zeros([3, 5]), &zeros([4, 5]));
            result.expect_err("should have been refused")
        };
        let unknown = refused(Gemm::new().kernel("gemm-simpel"));
        assert!(unknown.to_string().contains("gemm-simple"), "{unknown}");
        let elsewhere = refused(Gemm::new().kernel("gemm-simple"));
        assert!(
            elsewhere.to_string().contains("not on the CPU"),
            "{elsewhere}"
        );
        let b = Tensor::new(&Device::cpu(), [1, 1], &[bf16::ONE]).expect("memory");
        let half = Gemm::new().accumulation(Accumulation::Half).forward(&b, &b);
        assert!(matches!(half, Err(Error::Accumulation)));
    }
}
