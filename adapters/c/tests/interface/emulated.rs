//! Plans, workspaces, and options that the CPU does without, on an emulated GPU.

use crate::last_error;
use ferroattn_c::backward::{FerroattnBackward, ferroattn_backward, ferroattn_plan_backward};
use ferroattn_c::device::{
    FerroattnDevice, ferroattn_close, ferroattn_device_name, ferroattn_open_emulator,
};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward, ferroattn_plan_forward};
use ferroattn_c::memory::{ferroattn_alloc, ferroattn_download, ferroattn_upload};
use ferroattn_c::merge::{
    FerroattnMerge, FerroattnMergeBackward, ferroattn_merge, ferroattn_merge_backward,
    ferroattn_plan_merge, ferroattn_plan_merge_backward,
};
use ferroattn_c::options::{FerroattnOptions, FerroattnSequences};
use ferroattn_c::plan::{
    FerroattnPlan, ferroattn_plan_free, ferroattn_plan_kernel, ferroattn_plan_splits,
    ferroattn_plan_workspace_bytes, ferroattn_prepare,
};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use std::ffi::CStr;
use std::mem::offset_of;
use std::ptr::null_mut;

const OK: FerroattnStatus = FerroattnStatus::Ok;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

const SHAPE: [i64; 4] = [1, 2, 200, 64];

/// An emulated GPU, open as long as this lives.
struct Emulator(*mut FerroattnDevice);

/// The answers of a plan.
#[derive(Debug, PartialEq)]
struct Planned {
    kernel: String,
    splits: u32,
    workspace_bytes: usize,
}

impl Emulator {
    /// None where this build has no kernels.
    fn open() -> Option<Self> {
        let mut device = null_mut();
        // SAFETY: the handle may be written.
        match unsafe { ferroattn_open_emulator(&mut device) } {
            FerroattnStatus::Unsupported => return None,
            status => assert_eq!(status, OK),
        }
        // SAFETY: the device is open.
        let name = unsafe { CStr::from_ptr(ferroattn_device_name(device)) };
        assert_eq!(name, c"emulator");
        Some(Emulator(device))
    }

    fn alloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the device is open, and the address may be written.
        let status = unsafe { ferroattn_alloc(self.0, bytes, &mut address) };
        assert_eq!(status, OK, "{}", last_error());
        address
    }

    /// Zeros of 16 bits.
    fn zeros(&self) -> FerroattnTensor {
        let [_, heads, rows, dim] = SHAPE;
        FerroattnTensor {
            address: self.alloc(2 * (heads * rows * dim) as usize),
            shape: SHAPE,
            strides: [heads * rows * dim, rows * dim, dim, 1],
        }
    }

    /// Zeros of 32 bits, one a row.
    fn lse(&self) -> FerroattnTensor {
        let [batch, heads, rows, _] = SHAPE;
        FerroattnTensor {
            address: self.alloc(4 * (heads * rows) as usize),
            shape: [batch, heads, rows, 0],
            strides: [heads * rows, rows, 1, 0],
        }
    }

    /// The numbers of an lse.
    fn numbers(&self, lse: &FerroattnTensor) -> Vec<f32> {
        let [_, heads, rows, _] = SHAPE;
        let mut found = vec![0.0_f32; (heads * rows) as usize];
        let (to, bytes) = (found.as_mut_ptr().cast(), 4 * found.len());
        // SAFETY: the device is open, and so many bytes may be written.
        let status = unsafe { ferroattn_download(self.0, to, lse.address, bytes) };
        assert_eq!(status, OK, "{}", last_error());
        found
    }

    fn forward(&self, options: &FerroattnOptions) -> FerroattnForward {
        FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            options,
            q: self.zeros(),
            k: self.zeros(),
            v: self.zeros(),
            o: self.zeros(),
            lse: self.lse(),
        }
    }

    fn backward(&self, forward: &FerroattnForward) -> FerroattnBackward {
        FerroattnBackward {
            struct_size: size_of::<FerroattnBackward>() as u32,
            dtype: forward.dtype,
            options: forward.options,
            q: forward.q,
            k: forward.k,
            v: forward.v,
            o: forward.o,
            lse: forward.lse,
            d_o: self.zeros(),
            dq: self.zeros(),
            dk: self.zeros(),
            dv: self.zeros(),
            d_lse: null_mut(),
            d_sinks: null_mut(),
            d_bias: null_mut(),
        }
    }

    /// The answers of the plan that `make` makes, once its kernels are loaded.
    fn planned(&self, make: impl FnOnce(*mut *mut FerroattnPlan) -> FerroattnStatus) -> Planned {
        let mut plan = null_mut();
        assert_eq!(make(&mut plan), OK, "{}", last_error());
        // SAFETY: the plan was made, and is freed last.
        unsafe {
            let prepared = ferroattn_prepare(self.0, &plan.cast_const(), 1);
            assert_eq!(prepared, OK, "{}", last_error());
            let kernel = CStr::from_ptr(ferroattn_plan_kernel(plan));
            let planned = Planned {
                kernel: kernel.to_str().expect("UTF-8").to_owned(),
                splits: ferroattn_plan_splits(plan),
                workspace_bytes: ferroattn_plan_workspace_bytes(plan),
            };
            ferroattn_plan_free(plan);
            planned
        }
    }

    fn forward_plan(&self, args: &FerroattnForward) -> Planned {
        // SAFETY: the device is open, and the structs live.
        self.planned(|plan| unsafe { ferroattn_plan_forward(self.0, args, plan) })
    }

    fn backward_plan(&self, args: &FerroattnBackward) -> Planned {
        // SAFETY: the device is open, and the structs live.
        self.planned(|plan| unsafe { ferroattn_plan_backward(self.0, args, plan) })
    }

    /// Runs a forward pass on memory that is allocated as long as the device is open.
    fn run(&self, args: &FerroattnForward, workspace: u64, bytes: usize) -> FerroattnStatus {
        // SAFETY: the tensors are the device's memory, of the call alone.
        unsafe { ferroattn_forward(self.0, args, workspace, bytes, null_mut()) }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and is closed once.
        unsafe { ferroattn_close(self.0) };
    }
}

#[test]
fn workspaces_are_the_callers() {
    let Some(gpu) = Emulator::open() else { return };
    let options = FerroattnOptions {
        splits: 2,
        ..FerroattnOptions::default()
    };
    let args = gpu.forward(&options);
    let plan = gpu.forward_plan(&args);
    assert_eq!(plan.splits, 2, "{plan:?}");
    let bytes = plan.workspace_bytes;
    assert!(bytes > 0, "{plan:?}");
    let workspace = gpu.alloc(bytes + 256);
    assert_eq!(gpu.run(&args, workspace, bytes), OK, "{}", last_error());
    assert_eq!(gpu.run(&args, 0, 0), OK, "{}", last_error());
    assert_eq!(gpu.run(&args, workspace, bytes - 1), ARGUMENT);
    assert_eq!(gpu.run(&args, workspace + 8, bytes), ARGUMENT);

    let args = gpu.backward(&args);
    let bytes = gpu.backward_plan(&args).workspace_bytes;
    let workspace = gpu.alloc(bytes);
    // SAFETY: the tensors are the device's memory, of the call alone.
    unsafe {
        let run = ferroattn_backward(gpu.0, &args, workspace, bytes, null_mut());
        assert_eq!(run, OK, "{}", last_error());
        let short = ferroattn_backward(gpu.0, &args, workspace, bytes - 1, null_mut());
        assert_eq!(short, ARGUMENT);
    }
}

#[test]
fn batch_invariant_calls_have_splits_of_so_many_keys() {
    let Some(gpu) = Emulator::open() else { return };
    let mut options = FerroattnOptions {
        batch_invariant: 1,
        ..FerroattnOptions::default()
    };
    let splits = |options: &FerroattnOptions| {
        let args = gpu.forward(options);
        assert_eq!(gpu.run(&args, 0, 0), OK, "{}", last_error());
        // All scores are 0.
        let sum = |lse: f32| lse.exp().round();
        assert!(
            gpu.numbers(&args.lse)
                .into_iter()
                .all(|lse| sum(lse) == 200.0)
        );
        gpu.forward_plan(&args).splits
    };
    assert_eq!(splits(&options), 1);
    options.split_keys = 64;
    assert_eq!(splits(&options), 4);

    options.splits = 2;
    assert_eq!(gpu.run(&gpu.forward(&options), 0, 0), ARGUMENT);
    assert_eq!(
        last_error(),
        "splits cannot be combined with batch_invariant"
    );
    // A program of the second version has neither field.
    options.struct_size = offset_of!(FerroattnOptions, batch_invariant) as u32;
    assert_eq!(splits(&options), 2);
}

#[test]
fn kernels_are_those_that_options_name() {
    let Some(gpu) = Emulator::open() else { return };
    let mut options = FerroattnOptions {
        kernel: c"forward_f16_d128".as_ptr(),
        ..FerroattnOptions::default()
    };
    let mut args = gpu.forward(&options);
    assert_eq!(gpu.forward_plan(&args).kernel, "forward_f16_d128");
    options.kernel = null_mut();
    args.options = &options;
    assert_ne!(gpu.forward_plan(&args).kernel, "forward_f16_d128");

    let mut args = gpu.backward(&args);
    // Gradients of few keys have one order anyway.
    for tensor in [&mut args.k, &mut args.v, &mut args.dk, &mut args.dv] {
        tensor.shape[2] = 2000;
        tensor.strides[1] = 2000 * tensor.strides[2];
    }
    let ordered = gpu.backward_plan(&args);
    options.deterministic = 0;
    args.options = &options;
    assert_ne!(gpu.backward_plan(&args), ordered);
}

#[test]
fn types_without_kernels_are_unsupported() {
    let Some(gpu) = Emulator::open() else { return };
    let options = FerroattnOptions::default();
    let args = FerroattnForward {
        dtype: FerroattnDtype::F32 as u32,
        ..gpu.forward(&options)
    };
    assert_eq!(gpu.run(&args, 0, 0), FerroattnStatus::Unsupported);
    assert_eq!(
        last_error(),
        "no kernel computes f32, only f16 and bf16; use the CPU"
    );
}

#[test]
fn lengths_are_checked_where_options_say_so() {
    let Some(gpu) = Emulator::open() else { return };
    let lengths = FerroattnTensor {
        address: gpu.alloc(4),
        shape: [1, 0, 0, 0],
        strides: [1, 0, 0, 0],
    };
    let wrong = 201_i32.to_ne_bytes();
    // SAFETY: the device is open, and both sides have four bytes.
    let uploaded = unsafe { ferroattn_upload(gpu.0, lengths.address, wrong.as_ptr().cast(), 4) };
    assert_eq!(uploaded, OK);
    let mut options = FerroattnOptions {
        sequences: FerroattnSequences::Padded as u32,
        sequences_q: &lengths,
        sequences_kv: &lengths,
        ..FerroattnOptions::default()
    };
    let mut args = gpu.forward(&options);
    assert_eq!(gpu.run(&args, 0, 0), OK, "{}", last_error());
    options.check_lengths = 1;
    args.options = &options;
    assert_eq!(gpu.run(&args, 0, 0), ARGUMENT);
    assert_eq!(
        last_error(),
        "lengths_q[0] is 201; it must be from 0 to 200"
    );
}

#[test]
fn entries_of_a_cache_are_read_and_have_no_gradients() {
    let Some(gpu) = Emulator::open() else { return };
    let entries = FerroattnTensor {
        address: gpu.alloc(4),
        shape: [1, 0, 0, 0],
        strides: [1, 0, 0, 0],
    };
    let options = FerroattnOptions {
        cache_entries: &entries,
        check_lengths: 1,
        ..FerroattnOptions::default()
    };
    let mut args = gpu.forward(&options);
    // Two entries, of which the second is the first one's.
    for tensor in [&mut args.k, &mut args.v] {
        (tensor.shape[0], tensor.strides[0]) = (2, 0);
    }
    for (entry, expected) in [(1_i32, OK), (2, ARGUMENT)] {
        let bytes = entry.to_ne_bytes();
        // SAFETY: the device is open, and both sides have four bytes.
        let uploaded =
            unsafe { ferroattn_upload(gpu.0, entries.address, bytes.as_ptr().cast(), 4) };
        assert_eq!(uploaded, OK);
        assert_eq!(gpu.run(&args, 0, 0), expected, "{}", last_error());
    }
    assert_eq!(
        last_error(),
        "cache_entries[0] is 2; it must be from 0 to 1"
    );
    let backward = gpu.backward(&gpu.forward(&options));
    let mut plan = null_mut();
    // SAFETY: the device is open, and the structs live.
    let status = unsafe { ferroattn_plan_backward(gpu.0, &backward, &mut plan) };
    assert_eq!(status, FerroattnStatus::Unsupported);
}

#[test]
fn merges_need_no_workspace() {
    let Some(gpu) = Emulator::open() else { return };
    let merge = FerroattnMerge {
        struct_size: size_of::<FerroattnMerge>() as u32,
        dtype: FerroattnDtype::F16 as u32,
        o1: gpu.zeros(),
        lse1: gpu.lse(),
        o2: gpu.zeros(),
        lse2: gpu.lse(),
        o: gpu.zeros(),
        lse: gpu.lse(),
    };
    let backward = FerroattnMergeBackward {
        struct_size: size_of::<FerroattnMergeBackward>() as u32,
        dtype: merge.dtype,
        o1: merge.o1,
        lse1: merge.lse1,
        o2: merge.o2,
        lse2: merge.lse2,
        d_o: gpu.zeros(),
        d_o1: gpu.zeros(),
        d_lse1: gpu.lse(),
        d_o2: gpu.zeros(),
        d_lse2: gpu.lse(),
        // The merged lse is a number other than 0 for each row.
        d_lse: &merge.lse,
    };
    // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of these calls alone.
    let plans = unsafe {
        let plans = [
            gpu.planned(|plan| ferroattn_plan_merge(gpu.0, &merge, plan)),
            gpu.planned(|plan| ferroattn_plan_merge_backward(gpu.0, &backward, plan)),
        ];
        let merged = ferroattn_merge(gpu.0, &merge, null_mut());
        assert_eq!(merged, OK, "{}", last_error());
        let done = ferroattn_merge_backward(gpu.0, &backward, null_mut());
        assert_eq!(done, OK, "{}", last_error());
        plans
    };
    let expected = ["merge_f16", "merge_backward_f16"].map(|kernel| Planned {
        kernel: kernel.to_owned(),
        splits: 1,
        workspace_bytes: 0,
    });
    assert_eq!(plans, expected);
    let ln_2 = std::f32::consts::LN_2;
    for (lse, expected) in [(&merge.lse, ln_2), (&backward.d_lse2, ln_2 / 2.0)] {
        let found = gpu.numbers(lse);
        assert!(
            found.iter().all(|x| (x - expected).abs() < 1e-6),
            "{found:?}"
        );
    }
}
