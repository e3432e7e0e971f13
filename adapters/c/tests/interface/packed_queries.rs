//! Packed queries on keys in pages: on the CPU and an emulated GPU.

use crate::arrays::{Memory, on_devices};
use crate::last_error;
use ferroattn::f16;
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward};
use ferroattn_c::options::{FerroattnOptions, FerroattnSequences};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use std::ptr::{null, null_mut};

/// Two queries of a sequence with three keys, and one of a sequence with one. Keys are 0, so that rows of o are means of values.
struct Call {
    offsets: FerroattnTensor,
    lengths: FerroattnTensor,
    table: FerroattnTensor,
    tensors: [FerroattnTensor; 5],
}

impl Call {
    fn new(memory: Memory, lengths: [i32; 2]) -> Self {
        let rows = |numbers: &[f32]| -> Vec<f16> {
            let numbers = numbers.iter().map(|&x| f16::from_f32(x));
            numbers.flat_map(|x| [x; 8]).collect()
        };
        // Pages of two keys; nothing reads a NaN.
        let nan = f32::NAN;
        let (k, v) = (rows(&[0.0; 6]), rows(&[5.0, nan, 7.0, nan, 1.0, 3.0]));
        let poison = vec![f16::NAN; 2 * 3 * 8];
        Call {
            offsets: memory.array(&[0, 2, 3], [3]),
            lengths: memory.array(&lengths, [2]),
            table: memory.array(&[2, 0, 1, -1], [2, 2]),
            tensors: [
                memory.array(&rows(&[0.0; 6]), [1, 2, 3, 8]),
                memory.array(&k, [3, 1, 2, 8]),
                memory.array(&v, [3, 1, 2, 8]),
                memory.array(&poison, [1, 2, 3, 8]),
                memory.array(&[f32::NAN; 6], [1, 2, 3]),
            ],
        }
    }

    fn run(&self, memory: Memory, set: impl Fn(&mut FerroattnOptions)) -> FerroattnStatus {
        let mut options = FerroattnOptions {
            causal: 1,
            check_lengths: 1,
            sequences: FerroattnSequences::PackedQueries as u32,
            sequences_q: &self.offsets,
            sequences_kv: &self.lengths,
            pages: &self.table,
            ..FerroattnOptions::default()
        };
        set(&mut options);
        let [q, k, v, o, lse] = self.tensors;
        let args = FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            options: &options,
            q,
            k,
            v,
            o,
            lse,
        };
        // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of this call alone.
        unsafe { ferroattn_forward(memory.0, &args, 0, 0, null_mut()) }
    }
}

#[test]
fn sequences_see_their_own_pages() {
    on_devices(|memory| {
        let call = Call::new(memory, [3, 1]);
        let status = call.run(memory, |_| ());
        assert_eq!(status, FerroattnStatus::Ok, "{}", last_error());
        let o = memory.numbers::<f16>(&call.tensors[3], 2 * 3 * 8);
        let expected = [2.0, 3.0, 7.0].map(f16::from_f32);
        let expected: Vec<f16> = expected.into_iter().flat_map(|x| [x; 8]).collect();
        assert_eq!(o, [&expected[..], &expected].concat());
    });
}

#[test]
fn wrong_arguments_are_named() {
    on_devices(|memory| {
        let refused = |lengths, set: fn(&mut FerroattnOptions)| {
            let status = Call::new(memory, lengths).run(memory, set);
            assert_eq!(status, FerroattnStatus::Argument);
            last_error()
        };
        assert_eq!(
            refused([5, 1], |_| ()),
            "lengths_kv[0] is 5; it must be from 0 to 4"
        );
        // Without pages k and v have an entry.
        assert_eq!(
            refused([3, 1], |options| options.pages = null()),
            "k has shape [3, 1, 2, 8]; it must be [1, 1, 2, 8] to match the other tensors"
        );
        assert_eq!(
            refused([3, 1], |options| options.sequences_kv = null()),
            "sequences_q or sequences_kv is NULL; sequences have both, or padded ones lengths of keys alone"
        );
    });
}
