//! Merges and their gradients: random ones against the definition in f64, and wrong arguments.

use crate::case::{Layout, check_plan, ended};
use crate::modifiers::{c_dtype, pointer};
use crate::random::layouts;
use crate::{Cpu, c_tensor, last_error};
use ferroattn::{Device, Dtype, Element, Problem, Result, Tensor, bf16, f16, random};
use ferroattn_c::merge::{
    FerroattnMerge, FerroattnMergeBackward, ferroattn_merge, ferroattn_merge_backward,
    ferroattn_plan_merge, ferroattn_plan_merge_backward,
};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::ptr::{null, null_mut};

const NONE: f32 = f32::NEG_INFINITY;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

/// A random merge.
#[derive(Clone, Debug)]
struct Case {
    dtype: Dtype,
    shape: [usize; 4],
    /// Both parts' lse of each row.
    lse: Vec<[f32; 2]>,
    /// Layouts of o1, o2, o, d_o, d_o1 and d_o2.
    layouts: [Layout; 6],
    /// Whether the merged lse has a gradient.
    d_lse: bool,
    seed: u64,
}

/// An o and its lse, or their gradients, row-major.
struct Part<T> {
    o: Vec<T>,
    lse: Vec<f32>,
}

/// One row of all inputs: o1 and o2, their lse, d_o and d_lse.
struct Row<'a> {
    o: [&'a [f32]; 2],
    lse: [f32; 2],
    d_o: &'a [f32],
    d_lse: f32,
}

impl Row<'_> {
    /// The merged o and lse, and the gradients of both parts, each o before its lse.
    fn defined(&self) -> [(Vec<f64>, f64); 3] {
        let wide = |row: &[f32]| -> Vec<f64> { row.iter().map(|&x| x.into()).collect() };
        let lse = self.lse.map(f64::from);
        let most = lse[0].max(lse[1]);
        if most == f64::NEG_INFINITY {
            let zeros = || vec![0.0; self.d_o.len()];
            return [(zeros(), most), (zeros(), 0.0), (zeros(), 0.0)];
        }
        let sum = lse.map(|lse| (lse - most).exp()).iter().sum::<f64>();
        let merged = most + sum.ln();
        let weights = lse.map(|lse| (lse - merged).exp());
        let weighed = |part: usize, x: f64| match weights[part] {
            0.0 => 0.0,
            weight => weight * x,
        };
        let parts = self.o.map(wide);
        let columns = parts[0].iter().zip(&parts[1]);
        let o: Vec<f64> = columns
            .map(|(&a, &b)| weighed(0, a) + weighed(1, b))
            .collect();
        let d_o = wide(self.d_o);
        let gradient = |part: usize| {
            let columns = parts[part].iter().zip(&o).zip(&d_o);
            let moved: f64 = columns.map(|((part, o), d_o)| d_o * (part - o)).sum();
            let d_lse = weighed(part, f64::from(self.d_lse) + moved);
            (d_o.iter().map(|&d| weighed(part, d)).collect(), d_lse)
        };
        let [first, second] = [gradient(0), gradient(1)];
        [(o, merged), first, second]
    }
}

impl Case {
    fn check(&self) -> std::result::Result<(), String> {
        let checked = match self.dtype {
            Dtype::F16 => self.run::<f16>(1e-3),
            Dtype::Bf16 => self.run::<bf16>(8e-3),
            Dtype::F32 => self.run::<f32>(2e-6),
            other => unreachable!("no case is {}", other.name()),
        };
        checked.map_err(|error| error.to_string())?
    }

    /// Errors of the library are of the test's own tensors.
    fn run<T: Element>(&self, tolerance: f64) -> Result<std::result::Result<(), String>> {
        let (cpu, shape) = (Device::cpu(), self.shape);
        let [batch, heads, seqlen, dim] = shape;
        let rows = [batch, heads, seqlen];
        let problem = Problem::new(shape, shape, shape, false, None)?;
        let [mut o1, mut o2, d_o] = random::inputs::<T>(&problem, self.seed);
        for (part, o) in [&mut o1, &mut o2].into_iter().enumerate() {
            for (row, lse) in o.chunks_mut(dim).zip(&self.lse) {
                if lse[part] == NONE {
                    row.fill(T::from_f32(f32::NAN));
                }
            }
        }
        let lse_of = |part: usize| self.lse.iter().map(|lse| lse[part]).collect::<Vec<_>>();
        let d_lse: Vec<f32> = (0..self.lse.len()).map(|row| (row as f32).sin()).collect();
        let poisoned = || Tensor::new(&cpu, rows, &vec![f32::NAN; self.lse.len()]);
        let [on_o1, on_o2, on_o, on_d_o, on_d_o1, on_d_o2] = &self.layouts;

        let inputs = [on_o1.place(shape, &o1)?, on_o2.place(shape, &o2)?];
        let [lse1, lse2] = [lse_of(0), lse_of(1)].map(|lse| Tensor::new(&cpu, rows, &lse));
        let (lse1, lse2) = (lse1?, lse2?);
        let (mut o, mut lse) = (on_o.poisoned::<T>(shape)?, poisoned()?);
        let args = FerroattnMerge {
            struct_size: size_of::<FerroattnMerge>() as u32,
            dtype: c_dtype(T::DTYPE),
            o1: c_tensor(inputs[0].as_raw()),
            lse1: c_tensor(lse1.as_raw()),
            o2: c_tensor(inputs[1].as_raw()),
            lse2: c_tensor(lse2.as_raw()),
            o: c_tensor(o.as_raw_mut()),
            lse: c_tensor(lse.as_raw_mut()),
        };
        let device = Cpu::open();
        // SAFETY: the tensors live on, hold these types, and o and lse have memory of their own.
        let merged = unsafe {
            check_plan(&device, |plan| ferroattn_plan_merge(device.0, &args, plan));
            ferroattn_merge(device.0, &args, null_mut())
        };

        let placed_d_o = on_d_o.place(shape, &d_o)?;
        let d_merged = Tensor::new(&cpu, rows, &d_lse)?;
        let c_d_lse = self.d_lse.then(|| c_tensor(d_merged.as_raw()));
        let mut d_first = (on_d_o1.poisoned::<T>(shape)?, poisoned()?);
        let mut d_second = (on_d_o2.poisoned::<T>(shape)?, poisoned()?);
        let args = FerroattnMergeBackward {
            struct_size: size_of::<FerroattnMergeBackward>() as u32,
            dtype: args.dtype,
            o1: args.o1,
            lse1: args.lse1,
            o2: args.o2,
            lse2: args.lse2,
            d_o: c_tensor(placed_d_o.as_raw()),
            d_o1: c_tensor(d_first.0.as_raw_mut()),
            d_lse1: c_tensor(d_first.1.as_raw_mut()),
            d_o2: c_tensor(d_second.0.as_raw_mut()),
            d_lse2: c_tensor(d_second.1.as_raw_mut()),
            d_lse: pointer(&c_d_lse),
        };
        // SAFETY: the tensors live on, hold these types, and the gradients of the parts have memory of their own.
        let backward = unsafe {
            check_plan(&device, |plan| {
                ferroattn_plan_merge_backward(device.0, &args, plan)
            });
            ferroattn_merge_backward(device.0, &args, null_mut())
        };
        if let Err(refused) = ended(merged).and(ended(backward)) {
            return Ok(Err(refused));
        }

        let part = |o: &Tensor<T>, lse: &Tensor<f32, 3>| -> Result<Part<T>> {
            let (o, lse) = (o.to_vec()?, lse.to_vec()?);
            Ok(Part { o, lse })
        };
        let found = [
            part(&o, &lse)?,
            part(&d_first.0, &d_first.1)?,
            part(&d_second.0, &d_second.1)?,
        ];
        let narrow = |data: &[T]| data.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
        let (o1, o2, d_o) = (narrow(&o1), narrow(&o2), narrow(&d_o));
        for (i, &lse) in self.lse.iter().enumerate() {
            let row = dim * i..dim * (i + 1);
            let defined = Row {
                o: [&o1[row.clone()], &o2[row.clone()]],
                lse,
                d_o: &d_o[row.clone()],
                d_lse: if self.d_lse { d_lse[i] } else { 0.0 },
            };
            let results = ["merged", "d_first", "d_second"].into_iter().zip(&found);
            for ((name, found), (o, of_lse)) in results.zip(defined.defined()) {
                let near = |found: f32, expected: f64, tolerance: f64| {
                    let found = f64::from(found);
                    let bound = tolerance * (1.0 + expected.abs());
                    found == expected || (found - expected).abs() <= bound
                };
                let is_near = near(found.lse[i], of_lse, 1e-6 * dim as f64)
                    && (found.o[row.clone()].iter().zip(&o))
                        .all(|(found, &o)| near(found.to_f32(), o, tolerance));
                if !is_near {
                    return Ok(Err(format!("{name} of row {i}, of lse {lse:?}")));
                }
            }
        }
        Ok(Ok(()))
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let lse = || prop_oneof![1 => Just(NONE), 4 => -9.0..9.0_f32];
    let shape = (1..=2_usize, 1..=3_usize, 1..=9_usize, 1..=20_usize);
    let kinds = (select(&Dtype::ALL[..]), any::<bool>(), any::<u64>());
    let layouts = [(); 6].map(|()| layouts());
    let lse = vec([lse(), lse()], 2 * 3 * 9);
    (shape, kinds, layouts, lse).prop_map(
        |((batch, heads, seqlen, slices), (dtype, d_lse, seed), layouts, mut lse)| {
            lse.truncate(batch * heads * seqlen);
            Case {
                dtype,
                shape: [batch, heads, seqlen, 8 * slices],
                lse,
                layouts,
                d_lse,
                seed,
            }
        },
    )
}

proptest! {
    // Failing cases are printed whole: no file of seeds is needed.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merges_are_as_defined(case in cases()) {
        case.check().map_err(TestCaseError::fail)?;
    }
}

const SHAPE: [i64; 4] = [1, 2, 3, 8];

/// Memory of a small merge and its gradient.
struct Small {
    input: Vec<f32>,
    outputs: [Vec<f32>; 4],
}

impl Small {
    fn new() -> Self {
        let input = vec![0.0; 48];
        let outputs = [(); 4].map(|()| vec![7.0; 48]);
        Small { input, outputs }
    }

    fn tensors(data: &[f32]) -> [FerroattnTensor; 2] {
        let address = data.as_ptr().expose_provenance() as u64;
        let tensor = |shape, strides| FerroattnTensor {
            address,
            shape,
            strides,
        };
        [
            tensor(SHAPE, [48, 24, 8, 1]),
            tensor([1, 2, 3, -1], [6, 3, 1, -1]),
        ]
    }

    fn merge(&self) -> FerroattnMerge {
        let [input, input_lse] = Self::tensors(&self.input);
        let [[o, _], [_, lse], ..] = self.outputs.each_ref().map(|data| Self::tensors(data));
        FerroattnMerge {
            struct_size: size_of::<FerroattnMerge>() as u32,
            dtype: FerroattnDtype::F32 as u32,
            o1: input,
            lse1: input_lse,
            o2: input,
            lse2: input_lse,
            o,
            lse,
        }
    }

    fn backward(&self) -> FerroattnMergeBackward {
        let [input, input_lse] = Self::tensors(&self.input);
        let [[d_o1, _], [_, d_lse1], [d_o2, _], [_, d_lse2]] =
            self.outputs.each_ref().map(|data| Self::tensors(data));
        FerroattnMergeBackward {
            struct_size: size_of::<FerroattnMergeBackward>() as u32,
            dtype: FerroattnDtype::F32 as u32,
            o1: input,
            lse1: input_lse,
            o2: input,
            lse2: input_lse,
            d_o: input,
            d_o1,
            d_lse1,
            d_o2,
            d_lse2,
            d_lse: null(),
        }
    }

    /// Checks that a call was refused with such a reason, and wrote nothing.
    #[track_caller]
    fn expect_refused(&self, status: FerroattnStatus, reason: &str) {
        assert_eq!(status, ARGUMENT, "{reason}");
        assert!(last_error().contains(reason), "{}", last_error());
        assert!(self.outputs.iter().flatten().all(|&x| x == 7.0), "{reason}");
    }
}

#[track_caller]
fn refused(reason: &str, spoil: impl FnOnce(&mut FerroattnMerge)) {
    let (cpu, small) = (Cpu::open(), Small::new());
    let mut args = small.merge();
    spoil(&mut args);
    // SAFETY: the call is refused before it uses any memory but that of the struct.
    let status = unsafe { ferroattn_merge(cpu.0, &args, null_mut()) };
    small.expect_refused(status, reason);
}

#[track_caller]
fn backward_refused(reason: &str, spoil: impl FnOnce(&mut FerroattnMergeBackward)) {
    let (cpu, small) = (Cpu::open(), Small::new());
    let mut args = small.backward();
    spoil(&mut args);
    // SAFETY: the call is refused before it uses any memory but that of the struct.
    let status = unsafe { ferroattn_merge_backward(cpu.0, &args, null_mut()) };
    small.expect_refused(status, reason);
}

#[test]
fn wrong_merges_are_refused() {
    refused("struct_size of args is 8; FerroattnMerge", |args| {
        args.struct_size = 8
    });
    refused("dtype is 4", |args| args.dtype = 4);
    refused("the address of lse1 is 0", |args| args.lse1.address = 0);
    refused("it must be a multiple of 4", |args| args.o.address += 2);
    refused("extent 2 of lse is -1", |args| args.lse.shape[2] = -1);
    refused("o2 has shape [1, 2, 4, 8]", |args| args.o2.shape[2] = 4);
    refused("lse2 has shape [1, 2, 2]", |args| args.lse2.shape[2] = 2);
    refused("o has overlapping strides", |args| args.o.strides[1] = 0);
    refused("o1 has stride 2 in dim", |args| args.o1.strides[3] = 2);
    refused("lse is not contiguous", |args| args.lse.strides[1] = 4);
}

#[test]
fn wrong_gradients_are_refused() {
    let [_, lse] = Small::tensors(&[]);
    let none = FerroattnTensor { address: 0, ..lse };
    backward_refused("struct_size of args is 0", |args| args.struct_size = 0);
    backward_refused("dtype is 0", |args| args.dtype = 0);
    backward_refused("the address of d_o is 0", |args| args.d_o.address = 0);
    backward_refused("the address of d_lse is 0", |args| args.d_lse = &none);
    backward_refused("d_lse is not aligned", |args| {
        args.d_lse = (&raw const none).wrapping_byte_add(1);
    });
    backward_refused("d_o1 has overlapping strides", |args| {
        args.d_o1.strides[2] = 7
    });
    backward_refused("d_lse2 has shape [1, 2, 4]", |args| {
        args.d_lse2.shape[2] = 4
    });
    backward_refused("d_o2 has stride 3 in dim", |args| args.d_o2.strides[3] = 3);
}

#[test]
fn null_is_refused() {
    let (cpu, small) = (Cpu::open(), Small::new());
    let (merge, backward, stream) = (small.merge(), small.backward(), null_mut());
    let (none, mut handle) = (null(), null_mut());
    let plan = &raw mut handle;
    // SAFETY: each call is refused for a pointer that is null.
    let all = unsafe {
        [
            (
                "device",
                ferroattn_merge(none, &merge, stream),
                last_error(),
            ),
            ("args", ferroattn_merge(cpu.0, null(), stream), last_error()),
            (
                "device",
                ferroattn_merge_backward(none, &backward, stream),
                last_error(),
            ),
            (
                "args",
                ferroattn_merge_backward(cpu.0, null(), stream),
                last_error(),
            ),
            (
                "device",
                ferroattn_plan_merge(none, &merge, plan),
                last_error(),
            ),
            (
                "args",
                ferroattn_plan_merge(cpu.0, null(), plan),
                last_error(),
            ),
            (
                "plan",
                ferroattn_plan_merge(cpu.0, &merge, null_mut()),
                last_error(),
            ),
            (
                "device",
                ferroattn_plan_merge_backward(none, &backward, plan),
                last_error(),
            ),
            (
                "args",
                ferroattn_plan_merge_backward(cpu.0, null(), plan),
                last_error(),
            ),
            (
                "plan",
                ferroattn_plan_merge_backward(cpu.0, &backward, null_mut()),
                last_error(),
            ),
        ]
    };
    for (name, status, error) in all {
        assert_eq!((status, error), (ARGUMENT, format!("{name} is NULL")));
    }
}
