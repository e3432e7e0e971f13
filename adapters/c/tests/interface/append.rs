//! Keys and values that a cache of pages gets, and attention to them: on the CPU and an emulated GPU.

use crate::arrays::{Memory, on_devices};
use crate::{Cpu, last_error};
use ferroattn::f16;
use ferroattn_c::append::{FerroattnAppend, ferroattn_append, ferroattn_plan_append};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward};
use ferroattn_c::memory::ferroattn_upload;
use ferroattn_c::options::{FerroattnOptions, FerroattnSequences};
use ferroattn_c::plan::{ferroattn_plan_free, ferroattn_plan_kernel};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use std::ffi::CStr;
use std::mem::offset_of;
use std::ptr::{null, null_mut};

const OK: FerroattnStatus = FerroattnStatus::Ok;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

const BATCH: usize = 2;
const PAGES: usize = 3;
/// Keys of a page.
const PAGE: usize = 8;
const ROWS: usize = 3;
const DIM: usize = 16;
/// Keys that each entry has before.
const BEFORE: [i32; BATCH] = [7, 0];
/// The second entry needs no second page.
const TABLE: [i32; 4] = [2, 0, 1, -7];
/// What each new row of v is full of.
const VALUES: [f32; BATCH * ROWS] = [10.0, 20.0, 30.0, 3.0, 6.0, 12.0];

impl Memory {
    /// The first element of each row, which are all alike.
    fn rows(self, tensor: &FerroattnTensor, rows: usize) -> Vec<f32> {
        let data = self.numbers::<f16>(tensor, rows * DIM);
        let row = |row: &[f16]| {
            assert!(row.iter().all(|x| *x == row[0]), "{row:?}");
            row[0].to_f32()
        };
        data.chunks(DIM).map(row).collect()
    }

    fn call(self) -> Call {
        let halves = |numbers: &[f32]| numbers.iter().map(|&x| f16::from_f32(x)).collect();
        let counted: Vec<f32> = (1..=DIM).map(|i| i as f32).collect();
        let [keys, queries]: [Vec<f16>; 2] =
            [BATCH * ROWS, BATCH].map(|rows| halves(&counted.repeat(rows)));
        let values: Vec<f16> = VALUES.iter().flat_map(|&x| halves(&[x; DIM])).collect();
        let zeros = vec![f16::ZERO; PAGES * PAGE * DIM];
        // A quarter turn at each position.
        let angles = |of: f32| self.array(&[of; 2 * PAGE], [2 * PAGE, 1]);
        let of_cache = [PAGES, 1, PAGE, DIM];
        Call {
            k: self.array(&keys, [BATCH, 1, ROWS, DIM]),
            v: self.array(&values, [BATCH, 1, ROWS, DIM]),
            caches: [self.array(&zeros, of_cache), self.array(&zeros, of_cache)],
            q: self.array(&queries, [BATCH, 1, 1, DIM]),
            table: self.array(&TABLE, [BATCH, 2]),
            lengths: self.array(&BEFORE, [BATCH]),
            new_lengths: self.array(&[9_i32; BATCH], [BATCH]),
            turns: [angles(0.0), angles(1.0)],
        }
    }

    fn append(self, args: &FerroattnAppend) -> FerroattnStatus {
        // SAFETY: the device is open, the struct lives, and the tensors are the device's memory, of this call alone.
        unsafe { ferroattn_append(self.0, args, null_mut()) }
    }
}

/// Tensors of a call.
struct Call {
    k: FerroattnTensor,
    v: FerroattnTensor,
    caches: [FerroattnTensor; 2],
    q: FerroattnTensor,
    table: FerroattnTensor,
    lengths: FerroattnTensor,
    new_lengths: FerroattnTensor,
    /// Cosines and sines.
    turns: [FerroattnTensor; 2],
}

impl Call {
    /// Rows to any place of the cache.
    fn bare(&self) -> FerroattnAppend {
        FerroattnAppend {
            struct_size: size_of::<FerroattnAppend>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            k: self.k,
            v: self.v,
            k_cache: self.caches[0],
            v_cache: self.caches[1],
            q: null(),
            rotated: null(),
            pages: null(),
            cache_entries: null(),
            lengths: null(),
            new_lengths: null(),
            slots: null(),
            positions: null(),
            cos: null(),
            sin: null(),
            rotary_dtype: 0,
            interleaved: 0,
            q_at_first: 0,
            check_lengths: 1,
            k_descale: null(),
            v_descale: null(),
            e4m3_cache: 0,
            page_descales: 0,
        }
    }

    /// Rows to pages, and all that such a call has.
    fn paged(&self) -> FerroattnAppend {
        FerroattnAppend {
            q: &self.q,
            rotated: &self.q,
            pages: &self.table,
            lengths: &self.lengths,
            new_lengths: &self.new_lengths,
            cos: &self.turns[0],
            sin: &self.turns[1],
            rotary_dtype: FerroattnDtype::F32 as u32,
            ..self.bare()
        }
    }
}

#[test]
fn pages_get_keys_that_attention_reads() {
    on_devices(|memory| {
        let call = memory.call();
        assert_eq!(memory.append(&call.paged()), OK, "{}", last_error());
        let turned: Vec<f16> = [-2.0, 1.0]
            .into_iter()
            .chain((3..=DIM).map(|i| i as f32))
            .map(f16::from_f32)
            .collect();
        let keys = memory.numbers::<f16>(&call.caches[0], PAGES * PAGE * DIM);
        let keys: Vec<_> = keys.chunks(DIM).collect();
        // Key 7 of the first entry is the last row of page 2, keys 8 and 9 begin page 0, and the second entry has page 1.
        for row in [23, 0, 1, 8, 9, 10] {
            assert_eq!(keys[row], turned, "row {row}");
        }
        let queries = memory.numbers::<f16>(&call.q, BATCH * DIM);
        assert_eq!(queries, turned.repeat(BATCH));
        let lengths = memory.numbers::<i32>(&call.new_lengths, BATCH);
        assert_eq!(lengths, [10, 3]);

        let shape = [BATCH, 1, 1, DIM];
        let zeros = [f16::ZERO; BATCH * DIM];
        let one_each = memory.array(&[1_i32; BATCH], [BATCH]);
        let options = FerroattnOptions {
            check_lengths: 1,
            sequences: FerroattnSequences::Padded as u32,
            sequences_q: &one_each,
            sequences_kv: &call.new_lengths,
            pages: &call.table,
            ..FerroattnOptions::default()
        };
        let args = FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            options: &options,
            // All scores are 0, and o is the mean of the values.
            q: memory.array(&zeros, shape),
            k: call.caches[0],
            v: call.caches[1],
            o: memory.array(&zeros, shape),
            lse: memory.array(&[0_f32; BATCH], [BATCH, 1, 1]),
        };
        // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of this call alone.
        let status = unsafe { ferroattn_forward(memory.0, &args, 0, 0, null_mut()) };
        assert_eq!(status, OK, "{}", last_error());
        assert_eq!(memory.rows(&args.o, BATCH), [6.0, 7.0]);

        memory.expect_no_gradients(&args, &options, "pages");
    });
}

/// A program of the interface's first version has no such field.
#[test]
fn options_of_the_first_version_have_no_pages() {
    on_devices(|memory| {
        let call = memory.call();
        let wrong = FerroattnTensor::default();
        let options = FerroattnOptions {
            struct_size: offset_of!(FerroattnOptions, pages) as u32,
            pages: &wrong,
            ..FerroattnOptions::default()
        };
        let args = FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            options: &options,
            q: call.k,
            k: call.k,
            v: call.v,
            o: memory.array(&[f16::ONE; BATCH * ROWS * DIM], [BATCH, 1, ROWS, DIM]),
            lse: memory.array(&[0_f32; BATCH * ROWS], [BATCH, 1, ROWS]),
        };
        // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of this call alone.
        let status = unsafe { ferroattn_forward(memory.0, &args, 0, 0, null_mut()) };
        assert_eq!(status, OK, "{}", last_error());
    });
}

#[test]
fn slots_say_where_rows_go() {
    on_devices(|memory| {
        let call = memory.call();
        let slots = memory.array(&[4_i64, -1, 23, 8, 0, -9], [BATCH, ROWS]);
        let args = FerroattnAppend {
            slots: &slots,
            ..call.bare()
        };
        assert_eq!(memory.append(&args), OK, "{}", last_error());
        let mut expected = [0.0; PAGES * PAGE];
        for (slot, row) in [(4, 0), (23, 2), (8, 3), (0, 4)] {
            expected[slot] = VALUES[row];
        }
        assert_eq!(memory.rows(&call.caches[1], PAGES * PAGE), expected);
    });
}

#[test]
fn plans_name_their_kernels() {
    on_devices(|memory| {
        let (call, mut plan) = (memory.call(), null_mut());
        let mut args = call.paged();
        args.k.address = 0;
        // SAFETY: a plan uses no memory of tensors, and is freed last.
        unsafe {
            let made = ferroattn_plan_append(memory.0, &args, &mut plan);
            assert_eq!(made, OK, "{}", last_error());
            let kernel = CStr::from_ptr(ferroattn_plan_kernel(plan));
            assert!([c"cpu", c"append_f16"].contains(&kernel), "{kernel:?}");
            ferroattn_plan_free(plan);
        }
    });
}

/// Checks that a call which `spoil` changed is refused with such a reason, and that the caches stay.
#[track_caller]
fn refused(reason: &str, spoil: impl Fn(Memory, &mut FerroattnAppend)) {
    on_devices(|memory| {
        let call = memory.call();
        let mut args = call.paged();
        spoil(memory, &mut args);
        assert_eq!(memory.append(&args), ARGUMENT, "{reason}");
        assert!(last_error().contains(reason), "{}", last_error());
        for cache in &call.caches {
            assert_eq!(memory.rows(cache, PAGES * PAGE), [0.0; PAGES * PAGE]);
        }
    });
}

#[test]
fn wrong_calls_are_refused() {
    let none = FerroattnTensor::default();
    let tensor = |shape, strides| FerroattnTensor {
        address: 256,
        shape,
        strides,
    };
    let one = tensor([1, 1, 0, 0], [1, 1, 0, 0]);
    refused("struct_size of args is 8; FerroattnAppend", |_, args| {
        args.struct_size = 8
    });
    refused("dtype is 0, which is no FerroattnDtype", |_, args| {
        args.dtype = 0
    });
    refused("rotary_dtype is 9", |_, args| args.rotary_dtype = 9);
    refused(
        "cos and sin are bf16; they must be f32 or f16",
        |_, args| args.rotary_dtype = FerroattnDtype::Bf16 as u32,
    );
    refused("interleaved is 2; it must be 0 or 1", |_, args| {
        args.interleaved = 2
    });
    refused("q_at_first is 3", |_, args| args.q_at_first = 3);
    refused("check_lengths is 4", |_, args| args.check_lengths = 4);
    refused("the address of v_cache is 0", |_, args| {
        args.v_cache.address = 0
    });
    refused(
        "rotated is NULL; a call has both q and rotated",
        |_, args| args.rotated = null(),
    );
    refused("cos is NULL; a call has both cos and sin", |_, args| {
        args.cos = null()
    });
    refused("slots is not aligned", |_, args| {
        args.slots = (&raw const none).wrapping_byte_add(1);
    });
    refused("extent 1 of slots is -1", |_, args| {
        args.slots = &const {
            FerroattnTensor {
                address: 256,
                shape: [1, -1, 0, 0],
                strides: [1; 4],
            }
        }
    });
    refused("pages cannot be combined with slots", |_, args| {
        args.slots = &one
    });
    refused("v has shape [2, 1, 2, 16]", |_, args| args.v.shape[2] = 2);
    refused("lengths has shape [1]", |_, args| args.lengths = &one);
    refused("a page has 7 keys; it must have a power of 2", |_, args| {
        args.k_cache.shape[2] = 7;
        args.v_cache.shape[2] = 7;
    });
    refused("k_cache has overlapping strides", |_, args| {
        args.k_cache.strides[2] = 0
    });
}

#[test]
fn numbers_are_checked() {
    let upload = |memory: Memory, tensor: *const FerroattnTensor, numbers: &[i32]| {
        // SAFETY: the tensor lives, the device is open, and both sides have so many bytes.
        let status = unsafe {
            let bytes = size_of_val(numbers);
            ferroattn_upload(memory.0, (*tensor).address, numbers.as_ptr().cast(), bytes)
        };
        assert_eq!(status, OK);
    };
    refused(
        "entry 1 has 14 keys and gets 3 more; it has room for 16",
        |memory, args| upload(memory, args.lengths, &[0, 14]),
    );
    refused("pages[0, 1] is 3", |memory, args| {
        upload(memory, args.pages, &[2, 3, 1, 0])
    });
}

#[test]
fn null_is_refused() {
    let cpu = Cpu::open();
    let call = Memory(cpu.0).call();
    let (args, stream, mut plan) = (call.paged(), null_mut(), null_mut());
    // SAFETY: each call is refused for a pointer that is null.
    let all = unsafe {
        [
            (
                "device",
                ferroattn_append(null(), &args, stream),
                last_error(),
            ),
            (
                "args",
                ferroattn_append(cpu.0, null(), stream),
                last_error(),
            ),
            (
                "device",
                ferroattn_plan_append(null(), &args, &mut plan),
                last_error(),
            ),
            (
                "args",
                ferroattn_plan_append(cpu.0, null(), &mut plan),
                last_error(),
            ),
            (
                "plan",
                ferroattn_plan_append(cpu.0, &args, null_mut()),
                last_error(),
            ),
        ]
    };
    for (name, status, error) in all {
        assert_eq!((status, error), (ARGUMENT, format!("{name} is NULL")));
    }
}
