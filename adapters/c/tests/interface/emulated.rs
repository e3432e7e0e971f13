//! Plans, workspaces, and options that the CPU does without, on an emulated GPU.

use crate::last_error;
use attention_c::backward::{AttentionBackward, attention_backward, attention_plan_backward};
use attention_c::device::{
    AttentionDevice, attention_close, attention_device_name, attention_open_emulator,
};
use attention_c::forward::{AttentionForward, attention_forward, attention_plan_forward};
use attention_c::memory::{attention_alloc, attention_download, attention_upload};
use attention_c::merge::{
    AttentionMerge, AttentionMergeBackward, attention_merge, attention_merge_backward,
    attention_plan_merge, attention_plan_merge_backward,
};
use attention_c::options::{AttentionOptions, AttentionSequences};
use attention_c::plan::{
    AttentionPlan, attention_plan_free, attention_plan_kernel, attention_plan_splits,
    attention_plan_workspace_bytes, attention_prepare,
};
use attention_c::status::AttentionStatus;
use attention_c::tensor::{AttentionDtype, AttentionTensor};
use std::ffi::CStr;
use std::ptr::null_mut;

const OK: AttentionStatus = AttentionStatus::Ok;
const ARGUMENT: AttentionStatus = AttentionStatus::Argument;

const SHAPE: [i64; 4] = [1, 2, 200, 64];

/// An emulated GPU, open as long as this lives.
struct Emulator(*mut AttentionDevice);

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
        match unsafe { attention_open_emulator(&mut device) } {
            AttentionStatus::Unsupported => return None,
            status => assert_eq!(status, OK),
        }
        // SAFETY: the device is open.
        let name = unsafe { CStr::from_ptr(attention_device_name(device)) };
        assert_eq!(name, c"emulator");
        Some(Emulator(device))
    }

    fn alloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the device is open, and the address may be written.
        let status = unsafe { attention_alloc(self.0, bytes, &mut address) };
        assert_eq!(status, OK, "{}", last_error());
        address
    }

    /// Zeros of 16 bits.
    fn zeros(&self) -> AttentionTensor {
        let [_, heads, rows, dim] = SHAPE;
        AttentionTensor {
            address: self.alloc(2 * (heads * rows * dim) as usize),
            shape: SHAPE,
            strides: [heads * rows * dim, rows * dim, dim, 1],
        }
    }

    /// Zeros of 32 bits, one a row.
    fn lse(&self) -> AttentionTensor {
        let [batch, heads, rows, _] = SHAPE;
        AttentionTensor {
            address: self.alloc(4 * (heads * rows) as usize),
            shape: [batch, heads, rows, 0],
            strides: [heads * rows, rows, 1, 0],
        }
    }

    /// The numbers of an lse.
    fn numbers(&self, lse: &AttentionTensor) -> Vec<f32> {
        let [_, heads, rows, _] = SHAPE;
        let mut found = vec![0.0_f32; (heads * rows) as usize];
        let (to, bytes) = (found.as_mut_ptr().cast(), 4 * found.len());
        // SAFETY: the device is open, and so many bytes may be written.
        let status = unsafe { attention_download(self.0, to, lse.address, bytes) };
        assert_eq!(status, OK, "{}", last_error());
        found
    }

    fn forward(&self, options: &AttentionOptions) -> AttentionForward {
        AttentionForward {
            struct_size: size_of::<AttentionForward>() as u32,
            dtype: AttentionDtype::F16 as u32,
            options,
            q: self.zeros(),
            k: self.zeros(),
            v: self.zeros(),
            o: self.zeros(),
            lse: self.lse(),
        }
    }

    fn backward(&self, forward: &AttentionForward) -> AttentionBackward {
        AttentionBackward {
            struct_size: size_of::<AttentionBackward>() as u32,
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
    fn planned(&self, make: impl FnOnce(*mut *mut AttentionPlan) -> AttentionStatus) -> Planned {
        let mut plan = null_mut();
        assert_eq!(make(&mut plan), OK, "{}", last_error());
        // SAFETY: the plan was made, and is freed last.
        unsafe {
            let prepared = attention_prepare(self.0, &plan.cast_const(), 1);
            assert_eq!(prepared, OK, "{}", last_error());
            let kernel = CStr::from_ptr(attention_plan_kernel(plan));
            let planned = Planned {
                kernel: kernel.to_str().expect("UTF-8").to_owned(),
                splits: attention_plan_splits(plan),
                workspace_bytes: attention_plan_workspace_bytes(plan),
            };
            attention_plan_free(plan);
            planned
        }
    }

    fn forward_plan(&self, args: &AttentionForward) -> Planned {
        // SAFETY: the device is open, and the structs live.
        self.planned(|plan| unsafe { attention_plan_forward(self.0, args, plan) })
    }

    fn backward_plan(&self, args: &AttentionBackward) -> Planned {
        // SAFETY: the device is open, and the structs live.
        self.planned(|plan| unsafe { attention_plan_backward(self.0, args, plan) })
    }

    /// Runs a forward pass on memory that is allocated as long as the device is open.
    fn run(&self, args: &AttentionForward, workspace: u64, bytes: usize) -> AttentionStatus {
        // SAFETY: the tensors are the device's memory, of the call alone.
        unsafe { attention_forward(self.0, args, workspace, bytes, null_mut()) }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and is closed once.
        unsafe { attention_close(self.0) };
    }
}

#[test]
fn workspaces_are_the_callers() {
    let Some(gpu) = Emulator::open() else { return };
    let options = AttentionOptions {
        splits: 2,
        ..AttentionOptions::default()
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
        let run = attention_backward(gpu.0, &args, workspace, bytes, null_mut());
        assert_eq!(run, OK, "{}", last_error());
        let short = attention_backward(gpu.0, &args, workspace, bytes - 1, null_mut());
        assert_eq!(short, ARGUMENT);
    }
}

#[test]
fn kernels_are_those_that_options_name() {
    let Some(gpu) = Emulator::open() else { return };
    let mut options = AttentionOptions {
        kernel: c"forward_f16_d128".as_ptr(),
        ..AttentionOptions::default()
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
    let options = AttentionOptions::default();
    let args = AttentionForward {
        dtype: AttentionDtype::F32 as u32,
        ..gpu.forward(&options)
    };
    assert_eq!(gpu.run(&args, 0, 0), AttentionStatus::Unsupported);
    assert_eq!(
        last_error(),
        "no kernel computes f32, only f16 and bf16; use the CPU"
    );
}

#[test]
fn lengths_are_checked_where_options_say_so() {
    let Some(gpu) = Emulator::open() else { return };
    let lengths = AttentionTensor {
        address: gpu.alloc(4),
        shape: [1, 0, 0, 0],
        strides: [1, 0, 0, 0],
    };
    let wrong = 201_i32.to_ne_bytes();
    // SAFETY: the device is open, and both sides have four bytes.
    let uploaded = unsafe { attention_upload(gpu.0, lengths.address, wrong.as_ptr().cast(), 4) };
    assert_eq!(uploaded, OK);
    let mut options = AttentionOptions {
        sequences: AttentionSequences::Padded as u32,
        sequences_q: &lengths,
        sequences_kv: &lengths,
        ..AttentionOptions::default()
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
    let entries = AttentionTensor {
        address: gpu.alloc(4),
        shape: [1, 0, 0, 0],
        strides: [1, 0, 0, 0],
    };
    let options = AttentionOptions {
        cache_entries: &entries,
        check_lengths: 1,
        ..AttentionOptions::default()
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
            unsafe { attention_upload(gpu.0, entries.address, bytes.as_ptr().cast(), 4) };
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
    let status = unsafe { attention_plan_backward(gpu.0, &backward, &mut plan) };
    assert_eq!(status, AttentionStatus::Unsupported);
}

#[test]
fn merges_need_no_workspace() {
    let Some(gpu) = Emulator::open() else { return };
    let merge = AttentionMerge {
        struct_size: size_of::<AttentionMerge>() as u32,
        dtype: AttentionDtype::F16 as u32,
        o1: gpu.zeros(),
        lse1: gpu.lse(),
        o2: gpu.zeros(),
        lse2: gpu.lse(),
        o: gpu.zeros(),
        lse: gpu.lse(),
    };
    let backward = AttentionMergeBackward {
        struct_size: size_of::<AttentionMergeBackward>() as u32,
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
            gpu.planned(|plan| attention_plan_merge(gpu.0, &merge, plan)),
            gpu.planned(|plan| attention_plan_merge_backward(gpu.0, &backward, plan)),
        ];
        let merged = attention_merge(gpu.0, &merge, null_mut());
        assert_eq!(merged, OK, "{}", last_error());
        let done = attention_merge_backward(gpu.0, &backward, null_mut());
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
