//! Merges of partial results and their gradients, against their definition in `f64`.

use ferroattn::{
    Attention, Class, Device, Dtype, Element, Tensor, bf16, f16, merge, merge_backward,
    merge_backward_into, merge_into,
};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::strategy::check_each;
use tests::{Guarded, Layout, Outcome, PASSED, Test, counting};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("dims", dims),
        Test::new("rows", rows),
        Test::new("layouts", layouts),
        Test::new("random", random),
        Test::new("infinities_and_nan", infinities_and_nan),
        Test::new("halves_of_keys", halves_of_keys),
        Test::new("nothing_to_do", nothing_to_do),
        Test::emulator("whole_sectors", |_| whole_sectors()),
    ]
}

const INF: f32 = f32::INFINITY;

/// The lse of both parts, in turns of rows: ordinary, equal and far apart, and of parts without keys.
const LSE: [[f32; 2]; 10] = [
    [0.25, -1.5],
    [-INF, 2.0],
    [3.0, 3.0],
    [-7.0, 2.0],
    [2.0, -INF],
    [1e30, -1e30],
    [-INF, -INF],
    [-1e30, 1e30],
    [-80.0, 0.5],
    [5.0, -20.0],
];

/// Sizes and memory layouts of a merge and of its gradient.
#[derive(Clone, Debug)]
struct MergeCase {
    dtype: Dtype,
    /// Of o: each extent at least 1.
    shape: [usize; 4],
    /// Layouts of o of both parts, and of d_o.
    inputs: [Layout; 3],
    /// Layouts of the merged o, and of the gradients of o of both parts.
    outputs: [Layout; 3],
    has_d_lse: bool,
    /// Which of [`LSE`] is the first row's.
    first: usize,
    seed: u64,
}

impl Default for MergeCase {
    /// Ragged blocks of rows, all aligned, in `f16`.
    fn default() -> Self {
        MergeCase {
            dtype: Dtype::F16,
            shape: [2, 3, 11, 64],
            inputs: [Layout::Bhnd; 3],
            outputs: [Layout::Bhnd; 3],
            has_d_lse: true,
            first: 0,
            seed: 0,
        }
    }
}

/// A row of a case by the definition: what is expected, and what each may be off.
struct Expected {
    o: Vec<[f64; 2]>,
    lse: [f64; 2],
    d_o: [Vec<[f64; 2]>; 2],
    d_lse: [[f64; 2]; 2],
}

impl Expected {
    /// Of a row's o and lse of both parts and the gradients of the merged ones. Elements are rounded by `unit` of themselves,
    /// and by `least` where they are subnormal.
    fn new(o: [&[f64]; 2], lse: [f64; 2], d_o: &[f64], d_lse: f64, dtype: Dtype) -> Self {
        let (unit, least) = match dtype {
            Dtype::F16 => (2_f64.powi(-11), 2_f64.powi(-25)),
            Dtype::Bf16 => (2_f64.powi(-8), 2_f64.powi(-120)),
            Dtype::F32 => (2_f64.powi(-24), 2_f64.powi(-120)),
            other => unreachable!("no case is {}", other.name()),
        };
        let max = lse[0].max(lse[1]);
        let exponentials = lse.map(|lse| (lse - max).exp());
        let sum = exponentials[0] + exponentials[1];
        let counts = lse.map(|lse| lse != f64::NEG_INFINITY);
        // A part of its weight is lost that grows with its distance.
        let near = 1.0 + (lse[0] - lse[1]).abs().min(100.0);
        let lost = |part: usize| 2_f64.powi(-20) * if counts[part] { near } else { 0.0 };
        let weight = |part: usize| match counts[part] {
            true => exponentials[part] / sum,
            false => 0.0,
        };
        let weighted = |part: usize, x: f64| if counts[part] { weight(part) * x } else { 0.0 };
        let element = |i: usize| {
            let [a, b] = [0, 1].map(|part| weighted(part, o[part][i]));
            let tolerance = unit * (a + b).abs() + a.abs() * lost(0) + b.abs() * lost(1);
            [a + b, tolerance + least]
        };
        let merged: Vec<_> = (0..d_o.len()).map(element).collect();
        let gradient = |part: usize| {
            let of = |x: &f64| {
                let exact = weighted(part, *x);
                [exact, exact.abs() * (unit + lost(part)) + least]
            };
            d_o.iter().map(of).collect()
        };
        let of_lse = |part: usize| {
            if !counts[part] {
                return [0.0; 2];
            }
            let (mut exact, mut size) = (d_lse, d_lse.abs());
            for (i, d) in d_o.iter().enumerate() {
                exact += d * (o[part][i] - merged[i][0]);
                let other = if counts[1 - part] {
                    o[1 - part][i]
                } else {
                    0.0
                };
                size += d.abs() * (o[part][i].abs() + other.abs());
            }
            let tolerance = weight(part) * size * (2_f64.powi(-17) + lost(part));
            [weight(part) * exact, tolerance + 2_f64.powi(-100)]
        };
        let lse = match max {
            f64::NEG_INFINITY => max,
            _ => max + sum.ln(),
        };
        let d_lse = [of_lse(0), of_lse(1)];
        Expected {
            o: merged,
            lse: [lse, 2_f64.powi(-20) * (1.0 + lse.abs())],
            d_o: [gradient(0), gradient(1)],
            d_lse,
        }
    }
}

/// Checks numbers that each lie beside what is expected of them.
fn compare(name: &str, row: usize, found: &[f64], expected: &[[f64; 2]]) -> Result<(), Failed> {
    for (column, (&found, &[exact, tolerance])) in found.iter().zip(expected).enumerate() {
        let is_right = match exact.is_nan() {
            true => found.is_nan(),
            false => found == exact || (found - exact).abs() <= tolerance,
        };
        if !is_right {
            return Err(format!(
                "{name} is {found} for {exact}, tolerance {tolerance:e}, at row {row}, column {column}"
            )
            .into());
        }
    }
    Ok(())
}

fn wide<T: Element>(elements: impl Iterator<Item = T>) -> Vec<f64> {
    elements.map(|x| f64::from(x.to_f32())).collect()
}

impl MergeCase {
    /// Runs the case with poisoned outputs and guard margins around all memory. Checks that results are as defined, that
    /// nothing else was written, and that inputs are unchanged.
    fn check(&self, device: &Device) -> Outcome {
        let done = match self.dtype {
            Dtype::F16 => self.check_in::<f16>(device),
            Dtype::Bf16 => self.check_in::<bf16>(device),
            Dtype::F32 => self.check_in::<f32>(device),
            other => unreachable!("no case is {}", other.name()),
        };
        done.map_err(|failed| {
            let reason = failed.message().unwrap_or_default();
            format!("{reason}\n{self:?}")
        })?;
        PASSED
    }

    fn place<T: bytemuck::Pod>(&self, layout: Layout) -> Guarded<T, 4> {
        Guarded::poisoned(self.shape, layout.strides(self.shape), layout.shift())
    }

    fn rows<T: bytemuck::Pod>(&self) -> Guarded<T, 3> {
        let [batch, heads, seqlen, _] = self.shape;
        let strides = [heads * seqlen, seqlen, 1].map(|stride| stride as isize);
        Guarded::poisoned([batch, heads, seqlen], strides, 0)
    }

    /// The lse of a row.
    fn lse(&self, row: usize) -> [f32; 2] {
        LSE[(self.first + row) % LSE.len()]
    }

    fn check_in<T: Element>(&self, device: &Device) -> Result<(), Failed> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let [.., dim] = self.shape;
        let count = self.shape[..3].iter().product::<usize>();
        let inputs = [0, 1, 2].map(|input| {
            let layout = self.inputs[input];
            let mut tensor = self.place::<T>(layout);
            let repeats = Layout::BROADCASTS.contains(&layout);
            let elements: Vec<_> = (0..count * dim)
                .map(|i| {
                    let is_dead = input < 2 && self.lse(i / dim)[input] == -INF;
                    let x = rng.sample(StandardNormal);
                    T::from_f32(if is_dead && !repeats { f32::NAN } else { x })
                })
                .collect();
            tensor.fill(elements.into_iter());
            tensor
        });
        let lses = [0, 1].map(|part| {
            let mut lse = self.rows::<f32>();
            lse.fill((0..count).map(|row| self.lse(row)[part]));
            lse
        });
        let mut d_lse = self.rows::<f32>();
        d_lse.fill((0..count).map(|row| row as f32 / 4.0 - 1.0));

        let [o1, o2, d_o] = inputs.each_ref().map(|input| input.upload(device));
        let (o1, o2, d_o) = (o1?, o2?, d_o?);
        let [lse1, lse2] = lses.each_ref().map(|lse| lse.upload(device));
        let (lse1, lse2, device_d_lse) = (lse1?, lse2?, d_lse.upload(device)?);
        let mut outputs = self.outputs.map(|layout| self.place::<T>(layout));
        let mut rows = [(); 3].map(|()| self.rows::<f32>());
        let [o, d_o1, d_o2] = outputs.each_ref().map(|output| output.upload(device));
        let (mut o, mut d_o1, mut d_o2) = (o?, d_o1?, d_o2?);
        let [lse, d_lse1, d_lse2] = rows.each_ref().map(|row| row.upload(device));
        let (mut lse, mut d_lse1, mut d_lse2) = (lse?, d_lse1?, d_lse2?);
        let (first, second) = ((&o1, &lse1), (&o2, &lse2));
        merge_into(first, second, (&mut o, &mut lse))?;
        let given = self.has_d_lse.then(|| device_d_lse.view());
        let (d_first, d_second) = ((&mut d_o1, &mut d_lse1), (&mut d_o2, &mut d_lse2));
        merge_backward_into(first, second, &d_o, given, d_first, d_second)?;

        for (input, after) in inputs.iter().zip([o1, o2, d_o]) {
            if !input.is_unchanged(after)? {
                return Err("an input was overwritten".into());
            }
        }
        for (input, after) in lses.iter().chain([&d_lse]).zip([lse1, lse2, device_d_lse]) {
            if !input.is_unchanged(after)? {
                return Err("an lse was overwritten".into());
            }
        }
        for (output, after) in outputs.iter_mut().zip([o, d_o1, d_o2]) {
            output.download(after)?;
        }
        for (output, after) in rows.iter_mut().zip([lse, d_lse1, d_lse2]) {
            output.download(after)?;
        }
        let mut overruns = outputs.iter().map(Guarded::overrun);
        let mut of_rows = rows.iter().map(Guarded::overrun);
        if let Some(place) = overruns.find_map(|o| o).or(of_rows.find_map(|lse| lse)) {
            return Err(format!("written outside an output, {place} from its first").into());
        }
        let inputs = inputs.each_ref().map(|input| wide(input.elements()));
        let outputs = outputs.each_ref().map(|output| wide(output.elements()));
        let rows = rows.each_ref().map(|row| wide(row.elements()));
        self.compare(inputs, outputs, rows)
    }

    /// Compares each row of o and its gradients, and of lse and its gradients, with what is defined for o of both parts and
    /// d_o.
    fn compare(
        &self,
        [a, b, d]: [Vec<f64>; 3],
        [o, d_o1, d_o2]: [Vec<f64>; 3],
        [lse, d_lse1, d_lse2]: [Vec<f64>; 3],
    ) -> Result<(), Failed> {
        let [.., dim] = self.shape;
        for row in 0..lse.len() {
            let columns = row * dim..(row + 1) * dim;
            let parts = [&a[columns.clone()], &b[columns.clone()]];
            let d_lse = match self.has_d_lse {
                true => row as f64 / 4.0 - 1.0,
                false => 0.0,
            };
            let pair = self.lse(row).map(f64::from);
            let expected = Expected::new(parts, pair, &d[columns.clone()], d_lse, self.dtype);
            compare("o", row, &o[columns.clone()], &expected.o)?;
            compare("lse", row, &lse[row..=row], &[expected.lse])?;
            compare("d_o1", row, &d_o1[columns.clone()], &expected.d_o[0])?;
            compare("d_o2", row, &d_o2[columns], &expected.d_o[1])?;
            compare("d_lse1", row, &d_lse1[row..=row], &expected.d_lse[..1])?;
            compare("d_lse2", row, &d_lse2[row..=row], &expected.d_lse[1..])?;
        }
        Ok(())
    }
}

/// The types that a device merges.
fn dtypes(device: &Device) -> &'static [Dtype] {
    match device.is_cpu() {
        true => &[Dtype::F16, Dtype::Bf16, Dtype::F32],
        false => &[Dtype::F16, Dtype::Bf16],
    }
}

/// Every head dim, aligned and not.
fn dims(device: &Device) -> Outcome {
    let odd = [1, 3, 7, 9, 31, 33, 100, 127, 513, 1023];
    for (i, dim) in (8..=1024).step_by(8).chain(odd).enumerate() {
        let layout = [Layout::Bhnd, Layout::Shifted][i % 2];
        let case = MergeCase {
            dtype: dtypes(device)[i / 2 % dtypes(device).len()],
            shape: [1, 1, 3, dim],
            inputs: [layout; 3],
            outputs: [layout; 3],
            has_d_lse: i % 3 > 0,
            first: i,
            seed: i as u64,
        };
        case.check(device)?;
    }
    PASSED
}

/// One row, whole blocks and one row more, and extents that divide no block.
fn rows(device: &Device) -> Outcome {
    for &dtype in dtypes(device) {
        for first in 0..LSE.len() {
            let shape = [1, 1, 1, 40];
            let case = MergeCase {
                dtype,
                shape,
                first,
                ..MergeCase::default()
            };
            case.check(device)?;
        }
        for [batch, heads, seqlen] in [[1, 1, 64], [1, 65, 1], [33, 1, 1], [5, 7, 3], [2, 3, 70]] {
            let shape = [batch, heads, seqlen, 24];
            MergeCase {
                dtype,
                shape,
                ..MergeCase::default()
            }
            .check(device)?;
        }
    }
    PASSED
}

/// Each tensor in each layout, the others aligned.
fn layouts(device: &Device) -> Outcome {
    for &dtype in dtypes(device) {
        for tensor in 0..6 {
            let broadcasts = if tensor < 3 { Layout::BROADCASTS } else { &[] };
            for &layout in Layout::OUTPUTS.iter().chain(broadcasts) {
                let mut case = MergeCase {
                    dtype,
                    shape: [2, 3, 4, 40],
                    ..MergeCase::default()
                };
                match tensor < 3 {
                    true => case.inputs[tensor] = layout,
                    false => case.outputs[tensor - 3] = layout,
                }
                case.check(device)?;
            }
        }
    }
    PASSED
}

fn random(device: &Device) -> Outcome {
    let inputs = || {
        let broadcasts = select(Layout::BROADCASTS);
        prop_oneof![6 => select(Layout::OUTPUTS), 1 => broadcasts]
    };
    let shape = (1..=3_usize, 1..=4_usize, 1..=20_usize, 1..=32_usize);
    let inputs = [inputs(), inputs(), inputs()];
    let outputs = [(); 3].map(|()| select(Layout::OUTPUTS));
    let sizes = (select(dtypes(device)), shape, any::<bool>());
    let cases = (sizes, inputs, outputs, 0..LSE.len(), any::<u64>());
    let cases = cases.prop_map(
        |((dtype, shape, has_d_lse), inputs, outputs, first, seed)| {
            let (batch, heads, seqlen, eighths) = shape;
            MergeCase {
                dtype,
                shape: [batch, heads, seqlen, 8 * eighths],
                inputs,
                outputs,
                has_d_lse,
                first,
                seed,
            }
        },
    );
    check_each(48, cases, |case| case.check(device))
}

/// An lse of inf or NaN changes its row, and no other.
fn infinities_and_nan(device: &Device) -> Outcome {
    const NAN: f32 = f32::NAN;
    let rows: [([f32; 2], [f32; 2]); 7] = [
        ([INF, 1.0], [2.0, INF]),
        ([1.0, 1.0], [3.0, 1.0 + std::f32::consts::LN_2]),
        ([-INF, INF], [4.0, INF]),
        ([INF, INF], [NAN, INF]),
        ([NAN, 0.0], [NAN; 2]),
        ([-INF, NAN], [NAN; 2]),
        ([INF, NAN], [NAN; 2]),
    ];
    let part = |part: usize, x: f32| {
        let lse: Vec<_> = rows.iter().map(|(lse, _)| lse[part]).collect();
        let o = vec![f16::from_f32(x); rows.len() * 8];
        let o = Tensor::new(device, [1, 1, rows.len(), 8], &o)?;
        Ok::<_, ferroattn::Error>((o, Tensor::new(device, [1, 1, rows.len()], &lse)?))
    };
    let ((o1, lse1), (o2, lse2)) = (part(0, 2.0)?, part(1, 4.0)?);
    let (o, lse) = merge((&o1, &lse1), (&o2, &lse2))?;
    let (o, lse) = (o.to_vec()?, lse.to_vec()?);
    for (row, (given, [of_o, of_lse])) in rows.into_iter().enumerate() {
        let is = |found: f32, x: f32| {
            (found - x).abs() < 1e-5 || found == x || x.is_nan() && found.is_nan()
        };
        let elements = &o[8 * row..8 * row + 8];
        assert!(
            elements.iter().all(|x| is(x.to_f32(), of_o)),
            "{given:?}: {elements:?}"
        );
        assert!(is(lse[row], of_lse), "{given:?}: {}", lse[row]);
    }
    PASSED
}

/// Attention to two parts of the keys, one of which a causal mask hides from most queries, is attention to all.
fn halves_of_keys(device: &Device) -> Outcome {
    let shape = [1, 2, 40, 64];
    let mut rng = StdRng::seed_from_u64(1);
    let [q, k, v] = [(); 3].map(|()| {
        let numbers: Vec<_> = (0..2 * 40 * 64)
            .map(|_| f16::from_f32(rng.sample(StandardNormal)))
            .collect();
        Tensor::new(device, shape, &numbers)
    });
    let (q, k, v) = (q?, k?, v?);
    let causal = Attention::new().causal(true);
    let part = |attention: Attention, start, len| {
        let [k, v] = [&k, &v].map(|tensor| tensor.view().narrow(2, start, len));
        attention.forward(&q, &k?, &v?)
    };
    // A window whose right edge keeps pairs where they are in the whole: query `i` sees the first 30 keys up to `i`.
    let (o1, lse1) = part(Attention::new().window(None, Some(10)), 0, 30)?;
    let (o2, lse2) = part(causal.clone(), 30, 10)?;
    let (o, lse) = merge((&o1, &lse1), (&o2, &lse2))?;
    let (all_o, all_lse) = causal.forward(&q, &k, &v)?;
    for (found, expected) in o.to_vec()?.into_iter().zip(all_o.to_vec()?) {
        let error = (found.to_f32() - expected.to_f32()).abs();
        assert!(error < 4e-3, "{found} for {expected}");
    }
    for (found, expected) in lse.to_vec()?.into_iter().zip(all_lse.to_vec()?) {
        assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
    }
    PASSED
}

fn nothing_to_do(device: &Device) -> Outcome {
    for shape @ [batch, heads, seqlen, _] in [[0, 2, 3, 8], [2, 0, 3, 8], [2, 3, 0, 8]] {
        let o = Tensor::<f16>::zeros(device, shape)?;
        let lse = Tensor::zeros(device, [batch, heads, seqlen])?;
        let (merged, _) = merge((&o, &lse), (&o, &lse))?;
        assert_eq!(merged.shape(), shape);
        merge_backward((&o, &lse), (&o, &lse), &o, None)?;
    }
    PASSED
}

/// Aligned rows move in whole sectors.
fn whole_sectors() -> Outcome {
    let device = Device::emulator_of(Class::Sm90, counting())?;
    let o = Tensor::<f16>::zeros(&device, [2, 3, 50, 64])?;
    let lse = Tensor::zeros(&device, [2, 3, 50])?;
    merge((&o, &lse), (&o, &lse))?;
    let mut launches = device.counters();
    merge_backward((&o, &lse), (&o, &lse), &o, None)?;
    launches.extend(device.counters());
    assert_eq!(launches.len(), 2);
    for (kernel, counters) in launches {
        if let Some(line) = counters
            .uncoalesced()
            .find(|line| line.opcode.contains(".v4"))
        {
            return Err(format!("{kernel}: sectors in part: {line:?}").into());
        }
    }
    PASSED
}

/// Runs that show faults of the kernels, aligned and not.
pub fn runs() -> [impl Fn(&Device) -> Outcome; 2] {
    let odd = MergeCase {
        shape: [2, 3, 4, 40],
        inputs: [Layout::OddRows, Layout::OddBatches, Layout::Bnhd],
        outputs: [Layout::Shifted, Layout::Bnhd, Layout::OddHeads],
        has_d_lse: false,
        ..MergeCase::default()
    };
    [MergeCase::default(), odd].map(|case| move |device: &Device| case.check(device))
}
