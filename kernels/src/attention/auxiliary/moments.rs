//! Moments of the columns of v, part of the keys by part: sums, least and largest numbers.

use super::round_values::values_of;
use super::source::{Source, is_finite, is_seen};
use crate::abi::RoundValuesParams;
use crate::layout::element::CHUNK;
use crate::layout::fp8::row_lanes;
use crate::ptx::{barrier, global, shared, special};
use core::hint::cold_path;

/// Loads of a thread that are on their way at once.
const AT_ONCE: usize = 4;

/// Finds the moments of a part of a head's keys, with `W` warps, and counts it.
///
/// # Safety
/// The conditions of [`round_values`](super::round_values::round_values); all threads of the block make the same call.
#[inline(always)]
pub unsafe fn find_moments<E: Source, const W: u32>(
    params: &RoundValuesParams,
    head: u32,
    part: u32,
) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let lanes = row_lanes(params.dim);
    let (lane, rows) = (thread % lanes, 32 * W / lanes);
    let column = CHUNK * lane;
    let keys = Keys {
        first: part * params.part_keys + thread / lanes,
        end: params.keys.min((part + 1) * params.part_keys),
        step: rows,
    };
    let values = values_of::<E>(params, head, column);
    let mut found = [Moments::NONE; 8];
    if keys.first < keys.end && column < params.dim {
        // SAFETY: elements of the values.
        unsafe {
            let load = |key| values.load::<E>(key);
            let is_seen = |key| is_seen(params.ranges, params.heads, [head, key], params.keys);
            let all = match params.ranges {
                0 => keys.moments::<E>(load),
                _ => None,
            };
            found = all.unwrap_or_else(|| {
                cold_path();
                keys.moments_of_finite::<E>(load, is_seen)
            });
        }
    }
    // Of each moment a row for each group of lanes, and a word for each column.
    let place = |moment: u32, row: u32, column: u32| {
        shared::base() + 4 * ((moment * rows + row) * CHUNK * lanes + column)
    };
    // SAFETY: all threads of the block reach the barrier; one thread alone writes a word.
    unsafe {
        for i in 0..8 {
            let column = CHUNK * lane + i as u32;
            let words = found[i].words();
            for moment in 0..4 {
                let to = place(moment as u32, thread / lanes, column);
                shared::store_u32(to, words[moment]);
            }
        }
        barrier::block();
        if thread < params.dim {
            let mut found = Moments::NONE;
            for row in 0..rows {
                let words = [0, 1, 2, 3].map(|moment| shared::load_u32(place(moment, row, thread)));
                found = found.add(Moments::of_words(words));
            }
            let to = moments_at(params, head, part, thread);
            let words = found.words();
            for moment in 0..4 {
                let to = to + 4 * moment as u64 * u64::from(params.dim);
                global::store_u32(to, words[moment]);
            }
        }
        barrier::block();
        if thread < 32 {
            global::count_once(counter_of(params, head));
        }
    }
}

/// Address of the number of a head's parts that have moments, and 1 more once its columns are there.
#[inline(always)]
pub fn counter_of(params: &RoundValuesParams, head: u32) -> u64 {
    params.counters + 4 * u64::from(1 + head)
}

/// The keys of a thread: every `step`th one from `first` on.
#[derive(Clone, Copy)]
struct Keys {
    first: u32,
    end: u32,
    step: u32,
}

impl Keys {
    /// The moments of eight columns; `None` if a sum is not finite, so that a number may not be. All keys are seen.
    #[inline(always)]
    fn moments<E: Source>(self, load: impl Fn(u32) -> E::Eight) -> Option<[Moments; 8]> {
        let mut sums = [0.0; 8];
        let [mut least, mut most] = [E::pairs(load(self.first)); 2];
        let mut first = self.first;
        while first < self.end {
            let mut loaded = [E::ZEROS; AT_ONCE];
            for i in 0..AT_ONCE {
                let key = first + self.step * i as u32;
                if key < self.end {
                    loaded[i] = load(key);
                }
            }
            for i in 0..AT_ONCE {
                if first + self.step * (i as u32) < self.end {
                    let pairs = E::pairs(loaded[i]);
                    let numbers = E::widen_pairs(pairs);
                    for column in 0..8 {
                        sums[column] += numbers[column];
                    }
                    for pair in 0..4 {
                        least[pair] = E::smaller(least[pair], pairs[pair]);
                        most[pair] = E::larger(most[pair], pairs[pair]);
                    }
                }
            }
            first += self.step * AT_ONCE as u32;
        }
        let [least, most] = [least, most].map(E::widen_pairs);
        let mut found = [Moments::NONE; 8];
        let mut are_finite = true;
        for column in 0..8 {
            are_finite &= is_finite(sums[column]);
            found[column] = Moments {
                sum: sums[column],
                least: least[column],
                most: most[column],
                count: (self.end - self.first).div_ceil(self.step),
            };
        }
        are_finite.then_some(found)
    }

    /// The moments of the finite numbers of keys that queries see.
    #[inline(always)]
    fn moments_of_finite<E: Source>(
        self,
        load: impl Fn(u32) -> E::Eight,
        is_seen: impl Fn(u32) -> bool,
    ) -> [Moments; 8] {
        let mut found = [Moments::NONE; 8];
        let mut key = self.first;
        while key < self.end {
            if is_seen(key) {
                let numbers = E::widen(load(key));
                for column in 0..8 {
                    found[column].take(numbers[column]);
                }
            }
            key += self.step;
        }
        found
    }
}

/// The moments of numbers.
#[derive(Clone, Copy)]
pub struct Moments {
    pub sum: f32,
    pub least: f32,
    pub most: f32,
    /// Keys that queries see, of all columns alike.
    pub count: u32,
}

impl Moments {
    pub const NONE: Self = Moments {
        sum: 0.0,
        least: f32::INFINITY,
        most: f32::NEG_INFINITY,
        count: 0,
    };

    /// Takes in a number of a key that a query sees.
    #[inline(always)]
    fn take(&mut self, x: f32) {
        self.count += 1;
        if is_finite(x) {
            self.sum += x;
            self.least = self.least.min(x);
            self.most = self.most.max(x);
        }
    }

    /// The moments of these numbers and others.
    #[inline(always)]
    pub fn add(self, other: Self) -> Self {
        Moments {
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            count: self.count + other.count,
        }
    }

    #[inline(always)]
    fn words(self) -> [u32; 4] {
        let [sum, least, most] = [self.sum, self.least, self.most].map(f32::to_bits);
        [sum, least, most, self.count]
    }

    #[inline(always)]
    pub fn of_words([sum, least, most, count]: [u32; 4]) -> Self {
        let [sum, least, most] = [sum, least, most].map(f32::from_bits);
        Moments {
            sum,
            least,
            most,
            count,
        }
    }
}

/// Address of the first moment of a part's column.
#[inline(always)]
pub fn moments_at(params: &RoundValuesParams, head: u32, part: u32, column: u32) -> u64 {
    let part = u64::from(head) * u64::from(params.parts) + u64::from(part);
    params.moments + 4 * (4 * part * u64::from(params.dim) + u64::from(column))
}
