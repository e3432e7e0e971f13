//! One call through the interface, forward and backward, and what must hold of it.

use crate::modifiers::{Modifiers, c_dtype, pointer};
use crate::{Cpu, c_tensor, last_error};
use ferroattn::backward::check::{self as gradients, Backward};
use ferroattn::check::{self, Forward};
use ferroattn::{
    Accumulation, Attention, Device, Dtype, Element, Problem, Result, Tensor, bf16, f16, random,
};
use ferroattn_c::backward::{FerroattnBackward, ferroattn_backward, ferroattn_plan_backward};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward, ferroattn_plan_forward};
use ferroattn_c::options::FerroattnOptions;
use ferroattn_c::plan::{
    FerroattnPlan, ferroattn_plan_free, ferroattn_plan_kernel, ferroattn_plan_splits,
    ferroattn_plan_workspace_bytes, ferroattn_prepare,
};
use ferroattn_c::status::FerroattnStatus;
use std::ffi::CStr;
use std::ptr::null_mut;

/// How a tensor of four axes lies in memory.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The first three axes, the outermost first.
    pub order: [usize; 3],
    /// Elements between rows.
    pub gap: usize,
    /// Which of the first three axes run backwards.
    pub backwards: [bool; 3],
}

impl Layout {
    /// A tensor that lies so, filled with row-major data.
    pub fn place<T: Element>(&self, shape: [usize; 4], data: &[T]) -> Result<Tensor<T>> {
        let mut strides = [1; 4];
        let (mut offset, mut step) = (0, shape[3] + self.gap);
        for &axis in self.order.iter().rev() {
            strides[axis] = step as isize;
            if self.backwards[axis] {
                strides[axis] = -strides[axis];
                offset += (shape[axis] - 1) * step;
            }
            step *= shape[axis];
        }
        let cpu = Device::cpu();
        let buffer = Tensor::<T, 1>::zeros(&cpu, [step])?.into_buffer();
        let mut tensor = Tensor::from_buffer(buffer, offset, shape, strides)?;
        tensor.copy_from(&Tensor::new(&cpu, shape, data)?)?;
        Ok(tensor)
    }

    /// A tensor that lies so, filled with NaN.
    pub fn poisoned<T: Element>(&self, shape: [usize; 4]) -> Result<Tensor<T>> {
        let count = shape.iter().product();
        self.place(shape, &vec![T::from_f32(f32::NAN); count])
    }
}

/// A random call.
#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: Dtype,
    pub batch: usize,
    pub kv_heads: usize,
    /// Query heads that share a key/value head.
    pub group: usize,
    pub seqlen_q: usize,
    pub seqlen_kv: usize,
    pub dim: usize,
    pub dim_v: usize,
    pub modifiers: Modifiers,
    /// Layouts of q, k, v, o, d_o, dq, dk and dv.
    pub layouts: [Layout; 8],
    /// Whether lse has a gradient.
    pub d_lse: bool,
    pub seed: u64,
}

impl Case {
    /// Runs the call on the CPU and checks its results.
    pub fn check(&self) -> std::result::Result<(), String> {
        match self.dtype {
            Dtype::F16 => self.check_in::<f16>(),
            Dtype::Bf16 => self.check_in::<bf16>(),
            Dtype::F32 => self.check_in::<f32>(),
            other => unreachable!("no case is {}", other.name()),
        }
    }

    fn check_in<T: Element>(&self) -> std::result::Result<(), String> {
        self.run::<T>().map_err(|error| error.to_string())?
    }

    /// Errors of the library are of the test's own tensors.
    fn run<T: Element>(&self) -> Result<std::result::Result<(), String>> {
        let heads = self.kv_heads * self.group;
        let k_shape = [self.batch, self.kv_heads, self.seqlen_kv, self.dim];
        let mut problem = Problem::new(
            [self.batch, heads, self.seqlen_q, self.dim],
            k_shape,
            [self.batch, self.kv_heads, self.seqlen_kv, self.dim_v],
            self.modifiers.causal,
            self.modifiers.scale,
        )?;
        problem.window = self.modifiers.window;
        problem.softcap = self.modifiers.softcap;
        let options = self.modifiers.tensors(&problem, self.seed)?;
        let option_tensors = options.c_tensors(&problem)?;
        let c_options = options.c_options(&option_tensors);
        let [on_q, on_k, on_v, on_o, on_d_o, ..] = &self.layouts;
        let [q, k, v] = random::inputs::<T>(&problem, self.seed);
        let d_o = random::output_gradient::<T>(&problem, self.seed);
        let inputs = Inputs {
            q: on_q.place(problem.q_shape(), &q)?,
            k: on_k.place(problem.k_shape(), &k)?,
            v: on_v.place(problem.v_shape(), &v)?,
            d_o: on_d_o.place(problem.o_shape(), &d_o)?,
        };

        let cpu = Cpu::open();
        let mut o = on_o.poisoned::<T>(problem.o_shape())?;
        let mut lse = Tensor::zeros(&Device::cpu(), problem.lse_shape())?;
        if let Err(refused) = forward(&cpu, &inputs, &c_options, &mut o, &mut lse) {
            return Ok(Err(refused));
        }
        let host_options = options.of(Attention::new()).host_options(&problem)?;
        let report = check::check(
            &Forward {
                problem: &problem,
                options: host_options,
                q: &q,
                k: &k,
                v: &v,
                o: &o.to_vec()?,
                lse: &lse.to_vec()?,
                acc: Accumulation::Single,
            },
            &check::all_rows(&problem),
        );
        if !report.passed() {
            return Ok(Err(report.to_string()));
        }

        let found = match self.backward(&cpu, &problem, &inputs, &c_options, &o, &lse)? {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        let d_bias = found.d_bias.as_ref().map(|d_bias| d_bias.to_vec());
        let d_bias = d_bias.transpose()?;
        let report = gradients::check(
            &Backward {
                problem: &problem,
                options: host_options,
                q: &q,
                k: &k,
                v: &v,
                d_o: &d_o,
                d_lse: self.d_lse.then(|| d_lse(&problem)).as_deref(),
                dq: &found.dq.to_vec()?,
                dk: &found.dk.to_vec()?,
                dv: &found.dv.to_vec()?,
                d_sinks: self.modifiers.sinks.then_some(&found.d_sinks.to_vec()?),
                d_bias: self.modifiers.d_bias_shape(&problem).zip(d_bias.as_deref()),
            },
            &check::all_rows(&problem),
            &gradients::all_keys(&problem),
        );
        Ok(match report.passed() {
            true => Ok(()),
            false => Err(report.to_string()),
        })
    }

    /// The gradients, by the interface.
    fn backward<T: Element>(
        &self,
        cpu: &Cpu,
        problem: &Problem,
        inputs: &Inputs<T>,
        options: &FerroattnOptions,
        o: &Tensor<T>,
        lse: &Tensor<f32, 3>,
    ) -> Result<std::result::Result<Gradients<T>, String>> {
        let device = Device::cpu();
        let [.., on_dq, on_dk, on_dv] = &self.layouts;
        let d_bias_shape = self.modifiers.d_bias_shape(problem);
        let d_bias = d_bias_shape.map(|shape| Tensor::zeros(&device, shape));
        let mut found = Gradients {
            dq: on_dq.poisoned::<T>(problem.q_shape())?,
            dk: on_dk.poisoned::<T>(problem.k_shape())?,
            dv: on_dv.poisoned::<T>(problem.v_shape())?,
            d_sinks: Tensor::zeros(&device, [problem.heads])?,
            d_bias: d_bias.transpose()?,
        };
        let d_lse = Tensor::new(&device, problem.lse_shape(), &d_lse(problem))?;
        let c_d_lse = self.d_lse.then(|| c_tensor(d_lse.as_raw()));
        let d_sinks = &mut found.d_sinks;
        let c_d_sinks = (self.modifiers.sinks).then(|| c_tensor(d_sinks.as_raw_mut()));
        let c_d_bias = found.d_bias.as_mut().map(|d| c_tensor(d.as_raw_mut()));
        let args = FerroattnBackward {
            struct_size: size_of::<FerroattnBackward>() as u32,
            dtype: c_dtype(T::DTYPE),
            options,
            q: c_tensor(inputs.q.as_raw()),
            k: c_tensor(inputs.k.as_raw()),
            v: c_tensor(inputs.v.as_raw()),
            o: c_tensor(o.as_raw()),
            lse: c_tensor(lse.as_raw()),
            d_o: c_tensor(inputs.d_o.as_raw()),
            dq: c_tensor(found.dq.as_raw_mut()),
            dk: c_tensor(found.dk.as_raw_mut()),
            dv: c_tensor(found.dv.as_raw_mut()),
            d_lse: pointer(&c_d_lse),
            d_sinks: pointer(&c_d_sinks),
            d_bias: pointer(&c_d_bias),
        };
        // SAFETY: the tensors live on, hold these types, and gradients have memory of their own.
        let status = unsafe {
            check_plan(cpu, |plan| ferroattn_plan_backward(cpu.0, &args, plan));
            ferroattn_backward(cpu.0, &args, 0, 0, null_mut())
        };
        Ok(ended(status).map(|()| found))
    }
}

struct Inputs<T> {
    q: Tensor<T>,
    k: Tensor<T>,
    v: Tensor<T>,
    d_o: Tensor<T>,
}

struct Gradients<T> {
    dq: Tensor<T>,
    dk: Tensor<T>,
    dv: Tensor<T>,
    d_sinks: Tensor<f32, 1>,
    d_bias: Option<Tensor<f32>>,
}

/// A gradient of lse.
fn d_lse(problem: &Problem) -> Vec<f32> {
    let rows = check::all_rows(problem).into_iter();
    rows.map(|row| (row as f32).sin()).collect()
}

/// The forward pass, by the interface.
fn forward<T: Element>(
    cpu: &Cpu,
    inputs: &Inputs<T>,
    options: &FerroattnOptions,
    o: &mut Tensor<T>,
    lse: &mut Tensor<f32, 3>,
) -> std::result::Result<(), String> {
    let args = FerroattnForward {
        struct_size: size_of::<FerroattnForward>() as u32,
        dtype: c_dtype(T::DTYPE),
        options,
        q: c_tensor(inputs.q.as_raw()),
        k: c_tensor(inputs.k.as_raw()),
        v: c_tensor(inputs.v.as_raw()),
        o: c_tensor(o.as_raw_mut()),
        lse: c_tensor(lse.as_raw_mut()),
    };
    // SAFETY: the tensors live on, hold these types, and o and lse have memory of their own.
    let status = unsafe {
        check_plan(cpu, |plan| ferroattn_plan_forward(cpu.0, &args, plan));
        ferroattn_forward(cpu.0, &args, 0, 0, null_mut())
    };
    ended(status)
}

/// The reason of a call that was refused.
pub fn ended(status: FerroattnStatus) -> std::result::Result<(), String> {
    match status {
        FerroattnStatus::Ok => Ok(()),
        refused => Err(format!("{refused:?}: {}", last_error())),
    }
}

/// Plans a call of the CPU, and frees the plan.
///
/// # Safety
/// `make` writes a plan's handle where it ends well.
pub unsafe fn check_plan(cpu: &Cpu, make: impl FnOnce(*mut *mut FerroattnPlan) -> FerroattnStatus) {
    let mut plan = null_mut();
    assert_eq!(make(&mut plan), FerroattnStatus::Ok, "{}", last_error());
    // SAFETY: the plan was made, and is freed last.
    unsafe {
        let prepared = ferroattn_prepare(cpu.0, &plan.cast_const(), 1);
        assert_eq!(prepared, FerroattnStatus::Ok);
        assert_eq!(CStr::from_ptr(ferroattn_plan_kernel(plan)), c"cpu");
        assert_eq!(ferroattn_plan_workspace_bytes(plan), 0);
        assert_eq!(ferroattn_plan_splits(plan), 1);
        ferroattn_plan_free(plan);
    }
}
