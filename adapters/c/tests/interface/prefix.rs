//! Keys that all entries share, each call beside one that has them before those of each entry.

use crate::arrays::{Memory, on_devices};
use crate::last_error;
use ferroattn::{Problem, f16, random};
use ferroattn_c::forward::{FerroattnForward, ferroattn_forward};
use ferroattn_c::options::{FerroattnOptions, FerroattnSequences};
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::{FerroattnDtype, FerroattnTensor};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

const OK: FerroattnStatus = FerroattnStatus::Ok;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

const BATCH: usize = 3;
const KV_HEADS: usize = 2;
const ROWS: usize = 2;
const DIM: usize = 16;
/// Keys of a page.
const PAGE: usize = 8;
/// Keys of each entry's own, and the most of them.
const OWN: [usize; BATCH] = [5, 1, 12];
const MOST: usize = 16;
/// Elements of o, and of lse.
const COUNTS: [usize; 2] = [BATCH * 4 * ROWS * DIM, BATCH * 4 * ROWS];

/// Queries, and keys and values `[BATCH, KV_HEADS, prefix + MOST, DIM]`, of which all entries have the first ones in common.
struct Case {
    memory: Memory,
    prefix: usize,
    q: FerroattnTensor,
    /// Keys and values.
    data: [Vec<f16>; 2],
    /// Both in the device's memory.
    joined: [FerroattnTensor; 2],
    queries: FerroattnTensor,
    own: FerroattnTensor,
}

impl Case {
    fn new(memory: Memory, prefix: usize, seed: u64) -> Self {
        let shapes = [(4, ROWS), (KV_HEADS, prefix + MOST)];
        let [q_shape, kv_shape] = shapes.map(|(heads, rows)| [BATCH, heads, rows, DIM]);
        let problem = Problem::new(q_shape, kv_shape, kv_shape, true, None).expect("valid");
        let [q, k, v] = random::inputs::<f16>(&problem, seed);
        let of_entry = KV_HEADS * (prefix + MOST) * DIM;
        let data = [k, v].map(|mut data| {
            let (first, others) = data.split_at_mut(of_entry);
            for other in others.chunks_mut(of_entry) {
                let heads = other.chunks_mut(of_entry / KV_HEADS);
                for (head, of_first) in heads.zip(first.chunks(of_entry / KV_HEADS)) {
                    head[..prefix * DIM].copy_from_slice(&of_first[..prefix * DIM]);
                }
            }
            data
        });
        Case {
            memory,
            prefix,
            q: memory.array(&q, q_shape),
            joined: [0, 1].map(|side| memory.array(&data[side], kv_shape)),
            data,
            queries: memory.array(&[ROWS as i32; BATCH], [BATCH]),
            own: memory.array(&OWN.map(|keys| keys as i32), [BATCH]),
        }
    }

    /// The first keys of entry 0, or those behind of all entries, where they lie.
    fn parts(&self) -> [[FerroattnTensor; 2]; 2] {
        let first = self.joined.map(|mut tensor| {
            (tensor.shape[0], tensor.shape[2]) = (1, self.prefix as i64);
            tensor
        });
        let own = self.joined.map(|mut tensor| {
            tensor.address += (self.prefix * DIM * size_of::<f16>()) as u64;
            tensor.shape[2] = MOST as i64;
            tensor
        });
        [first, own]
    }

    /// A cache of pages with the rows of the prefix and of each entry's own keys, and NaN elsewhere; the pages of both.
    fn pages(&self) -> ([FerroattnTensor; 2], [Vec<i32>; 2]) {
        let of_prefix = self.prefix.div_ceil(PAGE);
        let count = of_prefix + BATCH * MOST / PAGE;
        // Some order.
        let mut numbers = (0..count as i32).rev();
        let own: Vec<i32> = numbers.by_ref().take(BATCH * MOST / PAGE).collect();
        let shared: Vec<i32> = numbers.collect();
        let caches = [0, 1].map(|side| {
            let mut cache = vec![f16::NAN; count * KV_HEADS * PAGE * DIM];
            let mut copy = |page: i32, entry: usize, key: usize, slot: usize| {
                for head in 0..KV_HEADS {
                    let from = (entry * KV_HEADS + head) * (self.prefix + MOST) + key;
                    let to = (page as usize * KV_HEADS + head) * PAGE + slot;
                    cache[to * DIM..][..DIM].copy_from_slice(&self.data[side][from * DIM..][..DIM]);
                }
            };
            for key in 0..self.prefix {
                copy(shared[key / PAGE], 0, key, key % PAGE);
            }
            for (entry, keys) in OWN.into_iter().enumerate() {
                for key in 0..keys {
                    let page = own[entry * MOST / PAGE + key / PAGE];
                    copy(page, entry, self.prefix + key, key % PAGE);
                }
            }
            self.memory.array(&cache, [count, KV_HEADS, PAGE, DIM])
        });
        (caches, [shared, own])
    }

    fn options(&self, lengths: &FerroattnTensor) -> FerroattnOptions {
        FerroattnOptions {
            causal: 1,
            check_lengths: 1,
            sequences: FerroattnSequences::Padded as u32,
            sequences_q: &self.queries,
            sequences_kv: lengths,
            ..FerroattnOptions::default()
        }
    }

    /// A call with poisoned outputs.
    fn args(&self, [k, v]: [FerroattnTensor; 2], options: &FerroattnOptions) -> FerroattnForward {
        let [of_o, of_lse] = COUNTS;
        FerroattnForward {
            struct_size: size_of::<FerroattnForward>() as u32,
            dtype: FerroattnDtype::F16 as u32,
            options,
            q: self.q,
            k,
            v,
            o: self
                .memory
                .array(&vec![f16::NAN; of_o], [BATCH, 4, ROWS, DIM]),
            lse: self.memory.array(&vec![f32::NAN; of_lse], [BATCH, 4, ROWS]),
        }
    }

    fn run(&self, args: &FerroattnForward) -> FerroattnStatus {
        // SAFETY: the device is open, the structs live, and the tensors are the device's memory, of this call alone.
        unsafe { ferroattn_forward(self.memory.0, args, 0, 0, null_mut()) }
    }

    /// o and lse of a call, one after another.
    fn results(&self, keys: [FerroattnTensor; 2], options: &FerroattnOptions) -> Vec<f32> {
        let args = self.args(keys, options);
        assert_eq!(self.run(&args), OK, "{}", last_error());
        let [of_o, of_lse] = COUNTS;
        let o = self.memory.numbers::<f16>(&args.o, of_o).into_iter();
        let lse = self.memory.numbers::<f32>(&args.lse, of_lse);
        o.map(f16::to_f32).chain(lse).collect()
    }

    /// Compares a call with the one on joined keys.
    fn expect(&self, keys: [FerroattnTensor; 2], options: &FerroattnOptions) {
        let all = OWN.map(|own| (self.prefix + own) as i32);
        let all = self.memory.array(&all, [BATCH]);
        let expected = self.results(self.joined, &self.options(&all));
        for (found, expected) in self.results(keys, options).into_iter().zip(expected) {
            let error = (found - expected).abs();
            assert!(
                error < 4e-3,
                "{found} for {expected}, prefix of {}",
                self.prefix
            );
        }
    }
}

#[test]
fn tensors_are_shared() {
    on_devices(|memory| {
        for (prefix, seed) in [(1, 0), (37, 1), (150, 2)] {
            let case = Case::new(memory, prefix, seed);
            let [[k, v], own] = case.parts();
            let options = FerroattnOptions {
                prefix_k: &k,
                prefix_v: &v,
                ..case.options(&case.own)
            };
            case.expect(own, &options);
        }
    });
}

/// A last page has any number of keys, and NaN behind them.
#[test]
fn pages_are_shared() {
    on_devices(|memory| {
        for (prefix, seed) in [(1, 0), (8, 1), (37, 2), (153, 3)] {
            let case = Case::new(memory, prefix, seed);
            let (caches, [shared, own]) = case.pages();
            let (shared, table) = (
                memory.array(&shared, [shared.len()]),
                memory.array(&own, [BATCH, MOST / PAGE]),
            );
            let options = FerroattnOptions {
                pages: &table,
                prefix_pages: &shared,
                prefix_keys: prefix as u64,
                ..case.options(&case.own)
            };
            case.expect(caches, &options);
        }
    });
}

/// A program of the third version has no such fields.
#[test]
fn options_of_the_third_version_have_no_prefix() {
    on_devices(|memory| {
        let case = Case::new(memory, 9, 4);
        let wrong = FerroattnTensor::default();
        let all = memory.array(&OWN.map(|own| (9 + own) as i32), [BATCH]);
        let options = FerroattnOptions {
            struct_size: offset_of!(FerroattnOptions, prefix_k) as u32,
            prefix_k: &wrong,
            prefix_keys: 7,
            ..case.options(&all)
        };
        case.expect(case.joined, &options);
    });
}

#[test]
fn wrong_prefixes_are_refused() {
    on_devices(|memory| {
        let case = Case::new(memory, 20, 5);
        let [[k, v], own] = case.parts();
        let (caches, [shared, table]) = case.pages();
        let far: Vec<i32> = shared.iter().map(|_| 99).collect();
        let [shared, far] = [shared, far].map(|numbers| memory.array(&numbers, [numbers.len()]));
        let table = memory.array(&table, [BATCH, MOST / PAGE]);
        let none = case.options(&case.own);
        let in_tensors = FerroattnOptions {
            prefix_k: &k,
            prefix_v: &v,
            ..none
        };
        let in_pages = FerroattnOptions {
            pages: &table,
            prefix_pages: &shared,
            prefix_keys: 20,
            ..none
        };
        let refused = |reason: &str, keys, options: FerroattnOptions| {
            assert_eq!(case.run(&case.args(keys, &options)), ARGUMENT, "{reason}");
            assert_eq!(last_error(), reason);
        };
        let changed = |prefix_keys| FerroattnOptions {
            prefix_keys,
            ..in_pages
        };
        refused(
            "the prefix has 16 keys; with 3 pages of 8 keys it must have from 17 to 24",
            caches,
            changed(16),
        );
        refused(
            "the prefix has 25 keys; with 3 pages of 8 keys it must have from 17 to 24",
            caches,
            changed(25),
        );
        refused(
            "prefix_pages[0] is 99; it must be from 0 to 8",
            caches,
            FerroattnOptions {
                prefix_pages: &far,
                ..in_pages
            },
        );
        refused(
            "prefix_pages needs pages",
            own,
            FerroattnOptions {
                pages: null(),
                ..in_pages
            },
        );
        refused(
            "prefix_keys is 20; without prefix_pages it must be 0",
            caches,
            FerroattnOptions {
                prefix_pages: null(),
                ..in_pages
            },
        );
        refused(
            "prefix_pages is given beside prefix_k and prefix_v; a call has one prefix",
            caches,
            FerroattnOptions {
                prefix_k: &k,
                prefix_v: &v,
                ..in_pages
            },
        );
        refused(
            "prefix_v is NULL; a call has both prefix_k and prefix_v, or neither",
            own,
            FerroattnOptions {
                prefix_v: null(),
                ..in_tensors
            },
        );
        refused(
            "prefix cannot be combined with window",
            own,
            FerroattnOptions {
                window_left: 3,
                ..in_tensors
            },
        );

        let args = case.args(own, &in_tensors);
        memory.expect_no_gradients(&args, &in_tensors, "prefix");
    });
}
