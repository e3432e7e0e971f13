//! Inputs that hold e4m3, and caches of it: on the CPU. The emulated GPU is no Hopper, and refuses them.

use crate::arrays::{Memory, on_devices};
use crate::{Cpu, last_error};
use bytemuck::Pod;
use ferroattn::{F8E4M3, f16};
use ferroattn_c::append::{FerroattnAppend, ferroattn_append};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward};
use ferroattn_c::fp8::{FerroattnE4m3, FerroattnFp8};
use ferroattn_c::options::{FerroattnOptions, FerroattnSequences};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

const OK: FerroattnStatus = FerroattnStatus::Ok;
const BATCH: usize = 2;
const KEYS: usize = 2;
const DIM: usize = 16;

/// A row of e4m3 with such a first element; the others are 0.
fn row(first: f32) -> [F8E4M3; DIM] {
    let mut row = [F8E4M3::from_f32(0.0); DIM];
    row[0] = F8E4M3::from_f32(first);
    row
}

/// Tensors of a call whose keys have the products 0 and 1 with the queries, and the values 0 and 4.
struct Call {
    options: FerroattnOptions,
    dtype: FerroattnDtype,
    q: FerroattnTensor,
    k: FerroattnTensor,
    v: FerroattnTensor,
    o: FerroattnTensor,
    lse: FerroattnTensor,
}

impl Call {
    /// q, k and v of e4m3, o of f16.
    fn of_inputs(memory: Memory) -> Self {
        let shape = [BATCH, 1, KEYS, DIM];
        let keys = |second| memory.array(&[row(0.0), row(second)].concat().repeat(BATCH), shape);
        let of_queries = [BATCH, 1, 1, DIM];
        Call {
            options: FerroattnOptions {
                e4m3: FerroattnE4m3::Inputs as u32,
                // Weights of 1 and 3.
                scale: 3_f32.ln(),
                ..FerroattnOptions::default()
            },
            dtype: FerroattnDtype::F16,
            q: memory.array(&row(1.0).repeat(BATCH), of_queries),
            k: keys(1.0),
            v: keys(4.0),
            o: memory.array(&[f16::NAN; BATCH * DIM], of_queries),
            lse: memory.array(&[f32::NAN; BATCH], [BATCH, 1, 1]),
        }
    }

    /// Queries of f16 beside a cache.
    fn of_cache(memory: Memory) -> Self {
        let mut call = Self::of_inputs(memory);
        call.options.e4m3 = FerroattnE4m3::Cache as u32;
        let queries: Vec<f16> = row(1.0).iter().map(|x| f16::from_f32(x.to_f32())).collect();
        call.q = memory.array(&queries.repeat(BATCH), [BATCH, 1, 1, DIM]);
        call
    }

    fn args(&self) -> FerroattnForward {
        FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: self.dtype as u32,
            options: &self.options,
            q: self.q,
            k: self.k,
            v: self.v,
            o: self.o,
            lse: self.lse,
        }
    }

    fn run(&self, memory: Memory) -> FerroattnStatus {
        // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of this call alone.
        unsafe { ferroattn_forward(memory.0, &self.args(), 0, 0, null_mut()) }
    }

    /// Runs it, and gives the first element of each row of o, of type `T`; of a GPU without kernels nothing.
    fn results<T: Pod + Into<f32>>(&self, memory: Memory) -> Option<Vec<f32>> {
        match self.run(memory) {
            FerroattnStatus::Unsupported => return None,
            status => assert_eq!(status, OK, "{}", last_error()),
        }
        let o = memory.numbers::<T>(&self.o, BATCH * DIM);
        Some(o.chunks(DIM).map(|row| row[0].into()).collect())
    }
}

/// Descales `[BATCH, 1]` with numbers between them that nobody reads.
fn descales(memory: Memory, [first, second]: [f32; BATCH]) -> FerroattnTensor {
    let mut tensor = memory.array(&[first, f32::NAN, second], [BATCH, 1]);
    tensor.strides = [2, -9, 0, 0];
    tensor
}

#[track_caller]
fn expect_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 0.002 * b.abs(), "{found:?}, {expected:?}");
    }
}

#[test]
fn inputs_are_multiplied_by_their_descales() {
    on_devices(|memory| {
        let mut call = Call::of_inputs(memory);
        let Some(o) = call.results::<f16>(memory) else {
            return assert!(last_error().contains("fp8"), "{}", last_error());
        };
        expect_near(&o, &[3.0, 3.0]);
        // Products of 1 and 0, so weights of 1 and 3, or 1 and 1.
        let of_q = descales(memory, [2.0, 0.0]);
        let of_k = descales(memory, [0.5, 7.0]);
        let of_v = descales(memory, [10.0, 100.0]);
        (call.options.q_descale, call.options.k_descale) = (&of_q, &of_k);
        call.options.v_descale = &of_v;
        let expected = [30.0, 200.0];
        expect_near(&call.results::<f16>(memory).expect("served"), &expected);
        call.options.fp8 = FerroattnFp8::Hadamard as u32;
        expect_near(&call.results::<f16>(memory).expect("served"), &expected);
        call.dtype = FerroattnDtype::F32;
        call.o = memory.array(&[f32::NAN; BATCH * DIM], [BATCH, 1, 1, DIM]);
        expect_near(&call.results::<f32>(memory).expect("served"), &expected);
        call.options.fp8 = 0;
        memory.expect_no_gradients(&call.args(), &call.options, "e4m3");
    });
}

/// Elements of one byte lie anywhere.
#[test]
fn addresses_of_inputs_may_be_odd() {
    let cpu = Cpu::open();
    let memory = Memory(cpu.0);
    let mut call = Call::of_inputs(memory);
    let bytes = [&[F8E4M3::from_f32(9.0)][..], &row(1.0).repeat(BATCH)].concat();
    call.q.address = memory.array(&bytes, [bytes.len()]).address + 1;
    expect_near(&call.results::<f16>(memory).expect("served"), &[3.0, 3.0]);
}

#[test]
fn caches_are_multiplied_by_their_descales() {
    on_devices(|memory| {
        let mut call = Call::of_cache(memory);
        let Some(o) = call.results::<f16>(memory) else {
            return assert!(last_error().contains("e4m3_cache"), "{}", last_error());
        };
        expect_near(&o, &[3.0, 3.0]);
        let (of_k, of_v) = (
            descales(memory, [0.0, 1.0]),
            descales(memory, [10.0, 100.0]),
        );
        (call.options.k_descale, call.options.v_descale) = (&of_k, &of_v);
        let expected = [20.0, 300.0];
        expect_near(&call.results::<f16>(memory).expect("served"), &expected);
        memory.expect_no_gradients(&call.args(), &call.options, "e4m3_cache");
    });
}

/// Tensors without elements need no memory.
#[test]
fn caches_without_keys_are_read() {
    let cpu = Cpu::open();
    let memory = Memory(cpu.0);
    for mut call in [Call::of_inputs(memory), Call::of_cache(memory)] {
        for keys in [&mut call.k, &mut call.v] {
            (keys.address, keys.shape[2]) = (0, 0);
        }
        assert_eq!(call.results::<f16>(memory), Some(vec![0.0; BATCH]));
    }
}

const PAGES: usize = 3;
/// Keys of a page.
const PAGE: usize = 16;

/// Two rows for each entry: the last one of page 1 and the first one of page 0, and those of page 2.
struct Appended {
    rows: [FerroattnTensor; 2],
    caches: [FerroattnTensor; 2],
    descales: [FerroattnTensor; 2],
    table: FerroattnTensor,
    lengths: FerroattnTensor,
    new_lengths: FerroattnTensor,
}

impl Appended {
    fn new(memory: Memory) -> Self {
        let rows = |numbers: [f32; 4]| {
            let elements = numbers.iter().flat_map(|&x| [f16::from_f32(x); DIM]);
            memory.array(&elements.collect::<Vec<_>>(), [BATCH, 1, 2, DIM])
        };
        let bytes = [F8E4M3::from_f32(0.0); PAGES * PAGE * DIM];
        let cache = || memory.array(&bytes, [PAGES, 1, PAGE, DIM]);
        let before = [PAGE as i32 - 1, 0];
        Appended {
            rows: [rows([1.0; 4]), rows([8.0, 16.0, 3.0, 5.0])],
            caches: [cache(), cache()],
            descales: [[0.5_f32, 2.0, 1.0], [4.0, 2.0, 1.0]]
                .map(|numbers| memory.array(&numbers, [PAGES, 1])),
            table: memory.array(&[1, 0, 2, -7], [BATCH, 2]),
            lengths: memory.array(&before, [BATCH]),
            new_lengths: memory.array(&[9_i32; BATCH], [BATCH]),
        }
    }

    fn args(&self) -> FerroattnAppend {
        FerroattnAppend {
            struct_size: size_of::<FerroattnAppend>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            k: self.rows[0],
            v: self.rows[1],
            k_cache: self.caches[0],
            v_cache: self.caches[1],
            q: null(),
            rotated: null(),
            pages: &self.table,
            cache_entries: null(),
            lengths: &self.lengths,
            new_lengths: &self.new_lengths,
            slots: null(),
            positions: null(),
            cos: null(),
            sin: null(),
            rotary_dtype: 0,
            interleaved: 0,
            q_at_first: 0,
            check_lengths: 0,
            k_descale: &self.descales[0],
            v_descale: &self.descales[1],
            e4m3_cache: 1,
            page_descales: 1,
        }
    }

    /// The rows of a cache that are not full of zeros, by their index.
    fn found(&self, memory: Memory, cache: usize) -> Vec<(usize, f32)> {
        let bytes = memory.numbers::<F8E4M3>(&self.caches[cache], PAGES * PAGE * DIM);
        let rows = bytes.chunks(DIM).map(|row| {
            assert!(row.iter().all(|x| *x == row[0]), "{row:?}");
            row[0].to_f32()
        });
        rows.enumerate().filter(|(_, x)| *x != 0.0).collect()
    }
}

fn append(memory: Memory, args: &FerroattnAppend) -> FerroattnStatus {
    // SAFETY: the device is open, the struct lives, and the tensors are the device's memory, of this call alone.
    unsafe { ferroattn_append(memory.0, args, null_mut()) }
}

#[test]
fn pages_get_numbers_that_attention_reads() {
    on_devices(|memory| {
        let appended = Appended::new(memory);
        match append(memory, &appended.args()) {
            FerroattnStatus::Unsupported => {
                return assert!(last_error().contains("e4m3_cache"), "{}", last_error());
            }
            status => assert_eq!(status, OK, "{}", last_error()),
        }
        let of_keys = [(0, 2.0), (31, 0.5), (32, 1.0), (33, 1.0)];
        let of_values = [(0, 4.0), (31, 4.0), (32, 3.0), (33, 5.0)];
        assert_eq!(appended.found(memory, 0), of_keys);
        assert_eq!(appended.found(memory, 1), of_values);

        let mut call = Call::of_cache(memory);
        let one_each = memory.array(&[1_i32; BATCH], [BATCH]);
        call.options = FerroattnOptions {
            sequences: FerroattnSequences::Padded as u32,
            sequences_q: &one_each,
            sequences_kv: &appended.new_lengths,
            // What was there before is left out.
            first_keys: &appended.lengths,
            pages: &appended.table,
            k_descale: &appended.descales[0],
            v_descale: &appended.descales[1],
            page_descales: 1,
            ..call.options
        };
        (call.k, call.v) = (appended.caches[0], appended.caches[1]);
        let expected = [12.0, 4.0];
        expect_near(&call.results::<f16>(memory).expect("served"), &expected);
    });
}

/// Checks that a call which `spoil` changed is refused with such a reason, and that o stays.
#[track_caller]
fn refused(
    new: fn(Memory) -> Call,
    reason: &str,
    spoil: impl Fn(&mut Call, &'static FerroattnTensor),
) {
    /// Descales of one entry too many.
    static WIDE: FerroattnTensor = FerroattnTensor {
        address: 256,
        shape: [BATCH as i64 + 1, 1, 0, 0],
        strides: [0; 4],
    };
    on_devices(|memory| {
        let mut call = new(memory);
        spoil(&mut call, &WIDE);
        assert_ne!(call.run(memory), OK, "{reason}");
        assert!(last_error().contains(reason), "{}", last_error());
        let o = memory.numbers::<f16>(&call.o, BATCH * DIM);
        assert!(o.iter().all(|o| o.is_nan()), "{o:?}");
    });
}

#[test]
fn wrong_calls_are_refused() {
    let [of_inputs, of_cache] = [Call::of_inputs, Call::of_cache];
    refused(
        of_inputs,
        "e4m3 is 3, which is no FerroattnE4m3",
        |call, _| call.options.e4m3 = 3,
    );
    refused(of_cache, "page_descales is 2", |call, _| {
        call.options.page_descales = 2
    });
    refused(of_cache, "o in f32 needs fp8", |call, _| {
        call.options.f32_o = 1
    });
    refused(of_cache, "k has shape", |call, _| call.k.shape[3] = 8);
    refused(of_inputs, "k_descale has shape [3, 1]", |call, wide| {
        call.options.k_descale = wide
    });
    refused(of_cache, "v_descales has shape [3, 1]", |call, wide| {
        call.options.v_descale = wide
    });
    refused(of_inputs, "q_descale is not aligned", |call, wide| {
        call.options.q_descale = (&raw const *wide).wrapping_byte_add(1)
    });
    refused(of_cache, "the address of k_descale is 0", |call, _| {
        call.options.k_descale = &const {
            FerroattnTensor {
                address: 0,
                shape: [BATCH as i64, 1, 0, 0],
                strides: [1; 4],
            }
        }
    });
    refused(
        of_cache,
        "the address of v_descale is 0x2; it must be a multiple of 4",
        |call, _| {
            call.options.v_descale = &const {
                FerroattnTensor {
                    address: 2,
                    shape: [BATCH as i64, 1, 0, 0],
                    strides: [1; 4],
                }
            }
        },
    );
    refused(
        of_cache,
        "rows of v are e4m3; they must be multiples of 16 numbers",
        |call, _| call.v.strides[2] = 8,
    );
}

/// What a call of one kind has is refused beside another kind.
#[test]
fn wrong_combinations_are_refused() {
    let [of_inputs, of_cache] = [Call::of_inputs, Call::of_cache];
    for spoil in [
        |options: &mut FerroattnOptions, wide| options.q_descale = wide,
        |options: &mut FerroattnOptions, wide| options.k_descale = wide,
        |options: &mut FerroattnOptions, wide| options.v_descale = wide,
        |options: &mut FerroattnOptions, _| options.page_descales = 1,
    ] {
        refused(of_cache, "descales need inputs of e4m3", |call, wide| {
            call.options.e4m3 = 0;
            spoil(&mut call.options, wide)
        });
    }
    refused(
        of_inputs,
        "descales of pages need a cache of e4m3",
        |call, _| call.options.page_descales = 1,
    );
    refused(of_cache, "descales of pages needs pages", |call, _| {
        call.options.page_descales = 1
    });
    refused(of_cache, "q_descale needs q of e4m3", |call, wide| {
        call.options.q_descale = wide
    });
    refused(
        of_cache,
        "fp8 cannot be combined with e4m3_cache",
        |call, _| call.options.fp8 = FerroattnFp8::Rounded as u32,
    );
    refused(
        of_inputs,
        "fp8 cannot be combined with batch_invariant",
        |call, _| call.options.batch_invariant = 1,
    );
}

#[test]
fn wrong_appends_are_refused() {
    let refused = |reason: &str, spoil: fn(&mut FerroattnAppend)| {
        on_devices(|memory| {
            let appended = Appended::new(memory);
            let mut args = appended.args();
            spoil(&mut args);
            assert_ne!(append(memory, &args), OK, "{reason}");
            assert!(last_error().contains(reason), "{}", last_error());
            for cache in [0, 1] {
                assert_eq!(appended.found(memory, cache), []);
            }
        });
    };
    refused("e4m3_cache is 2", |args| args.e4m3_cache = 2);
    refused("page_descales is 3", |args| args.page_descales = 3);
    refused("descales need a cache of e4m3", |args| args.e4m3_cache = 0);
    refused("descales need a cache of e4m3", |args| {
        (args.e4m3_cache, args.page_descales) = (0, 0);
        args.v_descale = null();
    });
    refused("k_descales has shape [3, 1]", |args| args.page_descales = 0);
    refused("v_descale is not aligned", |args| {
        args.v_descale = args.v_descale.wrapping_byte_add(1)
    });
}

/// A program of the fifth version has no descales, and appends to no cache of e4m3.
#[test]
fn structs_of_the_fifth_version_have_no_descales() {
    let cpu = Cpu::open();
    let memory = Memory(cpu.0);
    let wrong = FerroattnTensor::default();
    let mut call = Call::of_inputs(memory);
    call.options = FerroattnOptions {
        struct_size: offset_of!(FerroattnOptions, q_descale) as u32,
        q_descale: &wrong,
        k_descale: &wrong,
        v_descale: &wrong,
        page_descales: 7,
        f32_o: 7,
        ..call.options
    };
    expect_near(&call.results::<f16>(memory).expect("served"), &[3.0, 3.0]);

    let appended = Appended::new(memory);
    let zeros = [f16::ZERO; PAGES * PAGE * DIM];
    let cache = memory.array(&zeros, [PAGES, 1, PAGE, DIM]);
    let args = FerroattnAppend {
        struct_size: offset_of!(FerroattnAppend, k_descale) as u32,
        k_cache: cache,
        v_cache: cache,
        ..appended.args()
    };
    assert_eq!(append(memory, &args), OK, "{}", last_error());
    assert_eq!(memory.numbers::<f16>(&cache, 1), [f16::from_f32(16.0)]);
}
