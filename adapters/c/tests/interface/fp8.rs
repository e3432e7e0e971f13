//! Calls that round their inputs to e4m3.

use crate::arrays::{Memory, on_devices};
use crate::{Cpu, last_error};
use ferroattn::{Attention, Fp8, Tensor, f16};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward};
use ferroattn_c::fp8::FerroattnFp8;
use ferroattn_c::options::FerroattnOptions;
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::FerroattnDtype;
use std::mem::offset_of;
use std::ptr::null_mut;

/// Rows of q and k, which have one head of 16.
const ROWS: usize = 3;
const DIM: usize = 16;

/// Queries of zeros, so that o is the mean of all values.
fn call(memory: Memory, options: &FerroattnOptions) -> FerroattnForward {
    let filled = |row: fn(usize) -> f32| {
        let elements: Vec<f16> = (0..ROWS * DIM)
            .map(|i| f16::from_f32(row(i / DIM)))
            .collect();
        memory.array(&elements, [1, 1, ROWS, DIM])
    };
    FerroattnForward {
        struct_size: size_of::<FerroattnForward>() as u32,
        dtype: FerroattnDtype::F16 as u32,
        options,
        q: filled(|_| 0.0),
        k: filled(|row| row as f32),
        // In e4m3 the first one would be 320: values lose their mean first.
        v: filled(|row| 300.0 + row as f32),
        o: filled(|_| f32::NAN),
        lse: memory.array(&[f32::NAN; ROWS], [1, 1, ROWS]),
    }
}

fn run(memory: Memory, args: &FerroattnForward) -> FerroattnStatus {
    // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of this call alone.
    unsafe { ferroattn_forward(memory.0, args, 0, 0, null_mut()) }
}

#[test]
fn calls_are_rounded() {
    on_devices(|memory| {
        for fp8 in [FerroattnFp8::Rounded, FerroattnFp8::Hadamard] {
            let options = FerroattnOptions {
                fp8: fp8 as u32,
                ..FerroattnOptions::default()
            };
            let args = call(memory, &options);
            match run(memory, &args) {
                FerroattnStatus::Ok => {
                    let o: Vec<f16> = memory.numbers(&args.o, ROWS * DIM);
                    assert!(o.iter().all(|&o| o == f16::from_f32(301.0)), "{o:?}");
                }
                // The emulated GPU is no Hopper.
                status => {
                    assert_eq!(status, FerroattnStatus::Unsupported);
                    assert!(last_error().contains("fp8"), "{}", last_error());
                }
            }
            memory.expect_no_gradients(&args, &options, "fp8");
        }
    });
}

/// The numbers mean the library's roundings, bit for bit.
#[test]
fn roundings_are_the_librarys() {
    let cpu = Cpu::open();
    let memory = Memory(cpu.0);
    let q: Vec<f16> = (0..ROWS * DIM)
        .map(|i| f16::from_f32((i as f32).sin()))
        .collect();
    let tensor = Tensor::from_vec([1, 1, ROWS, DIM], q.clone()).expect("a tensor");
    let (none, rounded) = (Attention::new(), Attention::new().fp8(Fp8::new()));
    let rotated = Attention::new().fp8(Fp8::new().hadamard(true));
    let all = [
        (FerroattnFp8::None, none),
        (FerroattnFp8::Rounded, rounded),
        (FerroattnFp8::Hadamard, rotated),
    ];
    let results = all.map(|(fp8, attention)| {
        let options = FerroattnOptions {
            fp8: fp8 as u32,
            ..FerroattnOptions::default()
        };
        let mut args = call(memory, &options);
        args.q = memory.array(&q, [1, 1, ROWS, DIM]);
        (args.k, args.v) = (args.q, args.q);
        assert_eq!(run(memory, &args), FerroattnStatus::Ok, "{}", last_error());
        let lse: Vec<f32> = memory.numbers(&args.lse, ROWS);
        let (_, expected) = attention
            .forward(&tensor, &tensor, &tensor)
            .expect("served");
        assert_eq!(lse, expected.to_vec().expect("numbers"));
        lse
    });
    assert!(results[0] != results[1] && results[1] != results[2]);
}

/// Rounded to 16 bits, o in f32 has the bits of an o of 16 bits.
#[test]
fn o_in_f32_has_more_digits() {
    on_devices(|memory| {
        let numbers: Vec<f16> = (0..ROWS * DIM)
            .map(|i| f16::from_f32((i as f32).sin()))
            .collect();
        let narrow = FerroattnOptions {
            fp8: 1,
            ..FerroattnOptions::default()
        };
        let wide = FerroattnOptions { f32_o: 1, ..narrow };
        let [mut narrow, mut wide] = [call(memory, &narrow), call(memory, &wide)];
        wide.o = memory.array(&[f32::NAN; ROWS * DIM], [1, 1, ROWS, DIM]);
        for args in [&mut narrow, &mut wide] {
            args.q = memory.array(&numbers, [1, 1, ROWS, DIM]);
            (args.k, args.v) = (args.q, args.q);
            match run(memory, args) {
                FerroattnStatus::Ok => {}
                // The emulated GPU is no Hopper.
                status => return assert_eq!(status, FerroattnStatus::Unsupported),
            }
        }
        let narrow: Vec<f16> = memory.numbers(&narrow.o, ROWS * DIM);
        let wide: Vec<f32> = memory.numbers(&wide.o, ROWS * DIM);
        let rounded: Vec<f16> = wide.iter().map(|&o| f16::from_f32(o)).collect();
        assert_eq!(rounded, narrow);
        let has_digits = |(wide, narrow): (&f32, f16)| *wide != narrow.to_f32();
        assert!(wide.iter().zip(narrow).any(has_digits));
    });
}

#[test]
fn wrong_calls_are_refused() {
    on_devices(|memory| {
        let slopes = memory.array(&[0.5_f32], [1, 1]);
        let fp8 = FerroattnOptions {
            fp8: 1,
            ..FerroattnOptions::default()
        };
        for (options, reason) in [
            (
                FerroattnOptions { fp8: 3, ..fp8 },
                "fp8 is 3, which is no FerroattnFp8",
            ),
            (FerroattnOptions { f32_o: 2, ..fp8 }, "f32_o is 2"),
            (
                FerroattnOptions {
                    f32_o: 1,
                    fp8: 0,
                    ..fp8
                },
                "o in f32 needs fp8",
            ),
            (FerroattnOptions { splits: 2, ..fp8 }, "splits"),
            (
                FerroattnOptions {
                    split_keys: 64,
                    ..fp8
                },
                "split_keys",
            ),
            (
                FerroattnOptions {
                    alibi: &slopes,
                    ..fp8
                },
                "alibi",
            ),
        ] {
            let status = run(memory, &call(memory, &options));
            assert_ne!(status, FerroattnStatus::Ok, "{reason}");
            assert!(last_error().contains(reason), "{reason}: {}", last_error());
        }
    });
}

/// A program of the fourth version has no such field.
#[test]
fn options_of_the_fourth_version_have_no_fp8() {
    on_devices(|memory| {
        let options = FerroattnOptions {
            struct_size: offset_of!(FerroattnOptions, fp8) as u32,
            fp8: 7,
            f32_o: 7,
            ..FerroattnOptions::default()
        };
        let status = run(memory, &call(memory, &options));
        assert_eq!(status, FerroattnStatus::Ok, "{}", last_error());
    });
}
