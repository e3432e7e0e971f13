//! One matrix product, and what must hold of it.

use crate::{Guarded, Outcome, PASSED, harness};
use ferroattn::gemm::check::{Product, check};
use ferroattn::{Accumulation, Device, Dtype, Element, Gemm, GemmProblem, bf16, f16};
use libtest_mimic::Failed;
use ndarray::Array2;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// How the rows of a matrix lie in memory; the elements of a row are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Without gaps.
    Packed,
    /// At multiples of 16 bytes, with a gap.
    Aligned,
    /// Without gaps, one element away from 16-byte alignment.
    Shifted,
    /// With a stride that is no multiple of 8.
    Odd,
    /// At multiples of 16 bytes, from the last to the first.
    Reversed,
    /// From the last to the first, with a stride that is no multiple of 8.
    OddReversed,
    /// One row serves all. For inputs only.
    One,
    /// So far apart that 129 of them reach beyond 2^31 elements.
    Far,
    /// Rows as far apart, with a stride that is no multiple of 8.
    OddFar,
}

impl Rows {
    /// Layouts of outputs, without the [far](Rows::Far) ones.
    pub const OUTPUTS: &[Rows] = &[
        Rows::Packed,
        Rows::Aligned,
        Rows::Shifted,
        Rows::Odd,
        Rows::Reversed,
        Rows::OddReversed,
    ];

    fn stride(self, columns: usize) -> isize {
        let aligned = columns as isize / 8 * 8 + 16;
        match self {
            Rows::Packed | Rows::Shifted => columns as isize,
            Rows::Aligned => aligned,
            Rows::Odd => aligned + 3,
            Rows::Reversed => -aligned,
            Rows::OddReversed => -aligned - 5,
            Rows::One => 0,
            Rows::Far => (1 << 24) + 8,
            Rows::OddFar => (1 << 24) + 9,
        }
    }

    fn place<T: bytemuck::Pod>(self, [rows, columns]: [usize; 2]) -> Guarded<T, 2> {
        let shift = usize::from(self == Rows::Shifted);
        Guarded::poisoned([rows, columns], [self.stride(columns), 1], shift)
    }
}

/// Sizes, options and memory layouts of a matrix product; m and n are at least 1.
#[derive(Clone, Debug)]
pub struct GemmCase {
    /// Element type of A, B and C.
    pub dtype: Dtype,
    /// Type of the sums.
    pub accumulation: Accumulation,
    /// Sizes.
    pub problem: GemmProblem,
    /// The kernel; `None` is the default.
    pub kernel: Option<&'static str>,
    /// Memory layout of A.
    pub a: Rows,
    /// Memory layout of B.
    pub b: Rows,
    /// Memory layout of C.
    pub c: Rows,
    /// Seed of the random inputs.
    pub seed: u64,
}

impl Default for GemmCase {
    /// Ragged tiles of the default options in `f16`, row-major.
    fn default() -> Self {
        GemmCase {
            dtype: Dtype::F16,
            accumulation: Accumulation::Single,
            problem: GemmProblem {
                m: 150,
                n: 140,
                k: 72,
            },
            kernel: None,
            a: Rows::Packed,
            b: Rows::Packed,
            c: Rows::Packed,
            seed: 0,
        }
    }
}

impl GemmCase {
    /// Runs the case on normally distributed inputs and checks all that [`run`](GemmCase::run) checks.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check(&self, device: &Device) -> Outcome {
        let [a, b] = self.inputs();
        self.run(device, &a, &b).map_err(|failed| {
            let reason = failed.message().unwrap_or_default();
            format!("{reason}\n{self:?}")
        })?;
        PASSED
    }

    /// A `[m, k]` and B `[n, k]` of the case's seed.
    #[must_use]
    pub fn inputs(&self) -> [Array2<f32>; 2] {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let GemmProblem { m, n, k } = self.problem;
        [m, n].map(|rows| Array2::from_shape_simple_fn((rows, k), || rng.sample(StandardNormal)))
    }

    /// Runs the case on a device with a poisoned C and guard margins around all memory. Checks that C agrees
    /// with the product in `f64`, that nothing else was written, and that A and B are unchanged. Gives C, row-major.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn run(
        &self,
        device: &Device,
        a: &Array2<f32>,
        b: &Array2<f32>,
    ) -> Result<Vec<f32>, Failed> {
        match self.dtype {
            Dtype::F16 => self.run_in::<f16>(device, a, b),
            Dtype::Bf16 => self.run_in::<bf16>(device, a, b),
            Dtype::F32 => self.run_in::<f32>(device, a, b),
            other => unreachable!("no case is {}", other.name()),
        }
    }

    fn run_in<T: Element>(
        &self,
        device: &Device,
        a: &Array2<f32>,
        b: &Array2<f32>,
    ) -> Result<Vec<f32>, Failed> {
        let problem @ GemmProblem { m, n, k } = self.problem;
        let place_input = |rows: Rows, values: &Array2<f32>| {
            // With k = 0 there are rows but no memory.
            let (rows_count, columns) = values.dim();
            let mut matrix = rows.place::<T>([rows_count, columns.max(1)]);
            if columns > 0 {
                matrix.fill(values.iter().map(|&value| T::from_f32(value)));
            }
            matrix
        };
        let (a, b) = (place_input(self.a, a), place_input(self.b, b));
        let mut c = self.c.place::<T>([m, n]);
        let on_device = [
            a.upload(device)?.narrow(1, 0, k)?,
            b.upload(device)?.narrow(1, 0, k)?,
        ];
        let mut device_c = c.upload(device)?;
        self.options(device)
            .forward_into(&on_device[0], &on_device[1], &mut device_c)?;
        c.download(device_c)?;
        harness::count_run(device);

        for ((name, before), after) in [("a", &a), ("b", &b)].into_iter().zip(on_device) {
            if !before.is_unchanged(after)? {
                return Err(format!("{name} was overwritten").into());
            }
        }
        if let Some(element) = c.overrun() {
            return Err(format!("written outside c, {element} from its first").into());
        }
        let c = elements(&c, n);
        let product = Product {
            problem,
            accumulation: self.accumulation,
            a: &elements(&a, k),
            b: &elements(&b, k),
            c: &c,
        };
        let all = |extent| (0..extent).collect::<Vec<_>>();
        let worst = check(&product, &all(m), &all(n)).expect("elements");
        if !worst.passed() {
            return Err(worst.to_string().into());
        }
        Ok(c.into_iter().map(Element::to_f32).collect())
    }

    /// The options of the case on a device.
    pub fn options(&self, device: &Device) -> Gemm {
        let options = Gemm::new().accumulation(self.accumulation);
        match self.kernel.filter(|_| !device.is_cpu()) {
            Some(kernel) => options.kernel(kernel),
            None => options,
        }
    }
}

/// The first columns of a matrix, row-major.
fn elements<T: bytemuck::Pod>(matrix: &Guarded<T, 2>, columns: usize) -> Vec<T> {
    match columns {
        0 => Vec::new(),
        _ => matrix.elements().collect(),
    }
}
