//! Wrong arguments: each is refused with a status and a reason, and nothing is written.

use crate::{Cpu, last_error};
use ferroattn_c::backward::{FerroattnBackward, ferroattn_backward, ferroattn_plan_backward};
use ferroattn_c::device::{
    ferroattn_close, ferroattn_device_name, ferroattn_open_cpu, ferroattn_open_cuda,
    ferroattn_synchronize,
};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward, ferroattn_plan_forward};
use ferroattn_c::memory::{ferroattn_alloc, ferroattn_download, ferroattn_free, ferroattn_upload};
use ferroattn_c::options::{FerroattnOptions, ferroattn_options_init};
use ferroattn_c::plan::{
    FerroattnPlan, ferroattn_plan_free, ferroattn_plan_kernel, ferroattn_plan_splits,
    ferroattn_plan_workspace_bytes, ferroattn_prepare,
};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use ferroattn_c::{FERROATTN_VERSION, ferroattn_version};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const OK: FerroattnStatus = FerroattnStatus::Ok;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

/// Row-major, of this shape.
fn tensor(data: &[f32], shape: [i64; 4]) -> FerroattnTensor {
    let [_, heads, rows, dim] = shape;
    FerroattnTensor {
        address: data.as_ptr().expose_provenance() as u64,
        shape,
        strides: [heads * rows * dim, rows * dim, dim, 1],
    }
}

/// Memory for a small call.
struct Small {
    input: Vec<f32>,
    o: Vec<f32>,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

const SHAPE: [i64; 4] = [1, 2, 3, 8];

impl Small {
    fn new() -> Self {
        let zeros = || vec![0.0; 48];
        Small {
            input: zeros(),
            o: vec![7.0; 48],
            lse: vec![0.0; 6],
            gradients: [zeros(), zeros(), zeros()],
        }
    }

    fn lse(&self) -> FerroattnTensor {
        FerroattnTensor {
            shape: [1, 2, 3, -1],
            strides: [6, 3, 1, -1],
            ..tensor(&self.lse, SHAPE)
        }
    }

    fn forward(&self, options: *const FerroattnOptions) -> FerroattnForward {
        let input = tensor(&self.input, SHAPE);
        FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: FerroattnDtype::F32 as u32,
            options,
            q: input,
            k: input,
            v: input,
            o: tensor(&self.o, SHAPE),
            lse: self.lse(),
        }
    }

    fn backward(&self) -> FerroattnBackward {
        let input = tensor(&self.input, SHAPE);
        let [dq, dk, dv] = self.gradients.each_ref().map(|d| tensor(d, SHAPE));
        FerroattnBackward {
            struct_size: size_of::<FerroattnBackward>() as u32,
            dtype: FerroattnDtype::F32 as u32,
            options: null(),
            q: input,
            k: input,
            v: input,
            o: input,
            lse: self.lse(),
            d_o: input,
            dq,
            dk,
            dv,
            d_lse: null(),
            d_sinks: null(),
            d_bias: null(),
        }
    }
}

/// Checks that a call whose arguments or options `spoil` changed is refused with such a reason.
#[track_caller]
fn refused(reason: &str, spoil: impl FnOnce(&mut FerroattnForward, &mut FerroattnOptions)) {
    let (cpu, small) = (Cpu::open(), Small::new());
    let mut options = FerroattnOptions::default();
    let mut args = small.forward(null());
    spoil(&mut args, &mut options);
    args.options = &options;
    // SAFETY: the call is refused before it uses any memory but that of the structs.
    let status = unsafe { ferroattn_forward(cpu.0, &args, 0, 0, null_mut()) };
    assert_eq!(status, ARGUMENT, "{reason}");
    let error = last_error();
    assert!(error.contains(reason), "{error}");
    assert!(!error.contains('\n'), "{error}");
    assert_eq!(small.o, [7.0; 48]);
}

#[test]
fn versions_agree() {
    assert_eq!(ferroattn_version(), FERROATTN_VERSION);
}

#[test]
fn right_arguments_pass() {
    let (cpu, small) = (Cpu::open(), Small::new());
    // SAFETY: the tensors are the vectors', which live on.
    unsafe {
        let name = CStr::from_ptr(ferroattn_device_name(cpu.0));
        assert_eq!(name, c"CPU");
        let forward = ferroattn_forward(cpu.0, &small.forward(null()), 0, 0, null_mut());
        assert_eq!(forward, OK, "{}", last_error());
        let backward = ferroattn_backward(cpu.0, &small.backward(), 256, 256, null_mut());
        assert_eq!(backward, OK, "{}", last_error());
    }
}

#[test]
fn numbers_of_no_meaning_are_refused() {
    refused("dtype is 0, which is no FerroattnDtype", |args, _| {
        args.dtype = 0
    });
    refused("dtype is 4", |args, _| args.dtype = 4);
    refused("causal is 2; it must be 0 or 1", |_, options| {
        options.causal = 2
    });
    refused("deterministic is 9", |_, options| options.deterministic = 9);
    refused("check_lengths is 7", |_, options| options.check_lengths = 7);
    refused("batch_invariant is 5", |_, options| {
        options.batch_invariant = 5
    });
    refused("mask_type is 2", |_, options| options.mask_type = 2);
    refused("sequences is 4", |_, options| options.sequences = 4);
    refused("window_left is -2", |_, options| options.window_left = -2);
    refused("window_right is -9", |_, options| options.window_right = -9);
    refused("scale is inf", |_, options| options.scale = f32::INFINITY);
    refused("softcap is -1", |_, options| options.softcap = -1.0);
    refused("there is no kernel \"fast\"", |_, options| {
        options.kernel = c"fast".as_ptr()
    });
    refused("kernel is not UTF-8", |_, options| {
        options.kernel = c"\xff".as_ptr()
    });
}

#[test]
fn sizes_of_structs_are_checked() {
    refused("struct_size of args is 0", |args, _| args.struct_size = 0);
    refused("struct_size of args is 4294967295", |args, _| {
        args.struct_size = u32::MAX
    });
    refused("struct_size of options is 8", |_, options| {
        options.struct_size = 8
    });
    let mut options = FerroattnOptions::default();
    // SAFETY: the options may be written.
    unsafe {
        assert_eq!(ferroattn_options_init(&mut options, 3), ARGUMENT);
        assert_eq!(
            ferroattn_options_init(null_mut(), options.struct_size),
            ARGUMENT
        );
        options.causal = 1;
        assert_eq!(
            ferroattn_options_init(&mut options, options.struct_size),
            OK
        );
    }
    assert_eq!((options.causal, options.window_left), (0, -1));
}

#[test]
fn tensors_are_checked() {
    refused("the address of k is 0", |args, _| args.k.address = 0);
    refused("it must be a multiple of 4", |args, _| args.v.address += 2);
    refused("extent 1 of q is -2, out of range", |args, _| {
        args.q.shape[1] = -2
    });
    refused("lse has shape [1, 2, 4]", |args, _| args.lse.shape[2] = 4);
    refused("kv_heads is 0", |args, _| {
        (args.k.shape[1], args.v.shape[1]) = (0, 0);
    });
    refused("o has overlapping strides", |args, _| args.o.strides[1] = 0);
    refused("q has stride 2 in dim", |args, _| args.q.strides[3] = 2);
}

/// Tensors without elements need no memory.
#[test]
fn calls_without_keys_pass() {
    let (cpu, small, options) = (Cpu::open(), Small::new(), FerroattnOptions::default());
    let mut args = small.forward(&options);
    for keys in [&mut args.k, &mut args.v] {
        (keys.address, keys.shape[2]) = (0, 0);
    }
    // SAFETY: the tensors with elements are the vectors', which live on.
    let status = unsafe { ferroattn_forward(cpu.0, &args, 0, 0, null_mut()) };
    assert_eq!(status, OK, "{}", last_error());
    assert_eq!(small.o, [0.0; 48]);
}

#[test]
fn tensors_of_options_are_checked() {
    let data = [1.0; 18];
    let none = FerroattnTensor {
        address: 0,
        ..tensor(&data, [1, 2, 3, 3])
    };
    let given = tensor(&data, [1, 2, 3, 3]);
    refused("the address of alibi is 0", |_, options| {
        options.alibi = &none
    });
    refused("sinks has shape [1]", |_, options| options.sinks = &given);
    refused("bias_dtype is 0", |_, options| options.bias = &given);
    refused("the address of mask is 0", |_, options| {
        options.mask = &none
    });
    refused("sequences must say of which kind", |_, options| {
        (options.sequences_q, options.sequences_kv) = (&given, &given);
    });
    refused("padded ones lengths of keys alone", |_, options| {
        (options.sequences, options.sequences_q) = (2, &given);
    });
    refused("padded ones lengths of keys alone", |_, options| {
        (options.sequences, options.sequences_kv) = (1, &given);
    });
    refused("alibi is not aligned", |_, options| {
        options.alibi = (&raw const given).wrapping_byte_add(1);
    });
}

#[test]
fn workspaces_are_checked() {
    let (cpu, small) = (Cpu::open(), Small::new());
    // SAFETY: the call is refused.
    let status = unsafe { ferroattn_forward(cpu.0, &small.forward(null()), 0, 8, null_mut()) };
    assert_eq!(status, ARGUMENT);
    assert_eq!(last_error(), "the workspace has 8 bytes at address 0");
}

#[test]
fn gradients_need_their_options() {
    let (cpu, small) = (Cpu::open(), Small::new());
    let mut args = small.backward();
    let lse = small.lse();
    args.d_sinks = &lse;
    // SAFETY: the call is refused.
    let status = unsafe { ferroattn_backward(cpu.0, &args, 0, 0, null_mut()) };
    assert_eq!(status, ARGUMENT);
    assert!(
        last_error().contains("no gradient of sinks"),
        "{}",
        last_error()
    );
}

#[test]
fn plans_take_tensors_that_do_not_exist() {
    let (cpu, small) = (Cpu::open(), Small::new());
    let mut args = small.forward(null());
    args.q.address = 0;
    let mut plan = null_mut();
    // SAFETY: a plan uses no memory of tensors.
    unsafe {
        assert_eq!(ferroattn_plan_forward(cpu.0, &args, &mut plan), OK);
        ferroattn_plan_free(plan);
    }
}

#[test]
fn cuda_devices_that_are_not_there_are_no_argument() {
    let mut device = null_mut();
    // SAFETY: the handle may be written.
    let status = unsafe { ferroattn_open_cuda(u32::MAX, &mut device) };
    assert_eq!(status, FerroattnStatus::Unsupported);
    assert!(device.is_null());
}

#[test]
fn null_is_refused() {
    let (cpu, small) = (Cpu::open(), Small::new());
    let (forward, backward) = (small.forward(null()), small.backward());
    let (no_device, stream) = (null(), null_mut());
    let (mut plan, mut address): (*mut FerroattnPlan, _) = (null_mut(), 0);
    let mut byte = 0_u8;
    let data = &raw mut byte;
    let no_plan: *const FerroattnPlan = null();
    // SAFETY: each call is refused for a pointer that is null.
    let all = unsafe {
        [
            ("device", ferroattn_open_cpu(null_mut())),
            ("device", ferroattn_open_cuda(0, null_mut())),
            ("device", ferroattn_synchronize(null())),
            (
                "device",
                ferroattn_plan_forward(no_device, &forward, &mut plan),
            ),
            ("args", ferroattn_plan_forward(cpu.0, null(), &mut plan)),
            ("plan", ferroattn_plan_forward(cpu.0, &forward, null_mut())),
            (
                "device",
                ferroattn_plan_backward(no_device, &backward, &mut plan),
            ),
            ("args", ferroattn_plan_backward(cpu.0, null(), &mut plan)),
            (
                "plan",
                ferroattn_plan_backward(cpu.0, &backward, null_mut()),
            ),
            (
                "device",
                ferroattn_forward(no_device, &forward, 0, 0, stream),
            ),
            ("args", ferroattn_forward(cpu.0, null(), 0, 0, stream)),
            (
                "device",
                ferroattn_backward(no_device, &backward, 0, 0, stream),
            ),
            ("args", ferroattn_backward(cpu.0, null(), 0, 0, stream)),
            ("device", ferroattn_alloc(no_device, 1, &mut address)),
            ("address", ferroattn_alloc(cpu.0, 1, null_mut())),
            ("device", ferroattn_upload(no_device, 1, data.cast(), 1)),
            ("data", ferroattn_upload(cpu.0, 1, null(), 1)),
            ("device", ferroattn_download(no_device, data.cast(), 1, 1)),
            ("data", ferroattn_download(cpu.0, null_mut(), 1, 1)),
            ("device", ferroattn_free(no_device, 1)),
            ("device", ferroattn_prepare(no_device, &no_plan, 1)),
            ("plans", ferroattn_prepare(cpu.0, null(), 1)),
            ("a plan", ferroattn_prepare(cpu.0, &no_plan, 1)),
        ]
    };
    for (i, (name, status)) in all.into_iter().enumerate() {
        assert_eq!(status, ARGUMENT, "call {i} without {name}");
    }
    assert_eq!(last_error(), "a plan is NULL");
    // SAFETY: null is what these functions accept.
    unsafe {
        ferroattn_close(null_mut());
        ferroattn_plan_free(null_mut());
        assert!(ferroattn_device_name(null()).is_null());
        assert!(ferroattn_plan_kernel(null()).is_null());
        assert_eq!(ferroattn_plan_splits(null()), 0);
        assert_eq!(ferroattn_plan_workspace_bytes(null()), 0);
    }
}
