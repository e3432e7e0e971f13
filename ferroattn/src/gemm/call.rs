//! The call of a matrix product.

use super::plan::plan;
use super::{Gemm, GemmProblem, RawGemm, cpu};
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::plan::{CPU, Plan, Steps};
use crate::tensor::{
    Dtype, Element, Storage, StorageMut, Tensor, TensorBase, expect_device, expect_shape,
};
use crate::tensor_map::has_map;

impl Gemm {
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
    /// The conditions of [`forward`](Self::forward).
    pub fn forward_into<T: Element>(
        &self,
        a: &TensorBase<impl Storage<Item = T>, 2>,
        b: &TensorBase<impl Storage<Item = T>, 2>,
        c: &mut TensorBase<impl StorageMut<Item = T>, 2>,
    ) -> Result<()> {
        let device = a.device();
        expect_device(&device, [("b", b.device()), ("c", c.device())])?;
        let args = RawGemm {
            a: a.as_raw(),
            b: b.as_raw(),
            c: c.as_raw_mut(),
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
        stream: RawStream,
    ) -> Result<()> {
        let plan = self.plan(device.facts(), dtype, args)?;
        if !device.is_cpu() {
            // SAFETY: the caller's word; the plan has each kernel's own parameters and grid.
            return unsafe { plan.run(device, stream) };
        }
        // SAFETY: the caller's word.
        unsafe { cpu::gemm_raw(dtype, args) }
    }

    /// The launches of a call on a device with these facts; none on the CPU, which is `None`, or if C has no
    /// elements.
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn plan(&self, facts: Option<&Facts>, dtype: Dtype, args: &RawGemm) -> Result<Plan> {
        facts.map_or(Ok(()), Facts::validate)?;
        let RawGemm { a, b, c } = args;
        let problem = GemmProblem::new(a.shape, b.shape)?;
        expect_shape("c", &problem.c_shape(), &c.shape)?;
        for (argument, matrix, axis) in [("a", a, "k"), ("b", b, "k"), ("c", c, "n")] {
            matrix.expect_rows(argument, axis)?;
        }
        c.layout().expect_injective("c")?;
        let has_maps = problem.k > 0 && [*a, *b].iter().all(|&input| has_map(&input.into()));
        match self.resolve(dtype, &problem, facts, has_maps)?.zip(facts) {
            None => Ok(Steps::default().finish(CPU, 1)),
            Some((kernel, facts)) => plan(kernel, &problem, args, facts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Gemm;
    use crate::device::Device;
    use crate::error::Error;
    use crate::gemm::Accumulation;
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
        assert!(error.contains("b has stride 4 in k"), "{error}");
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
