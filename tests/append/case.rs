//! Appends of random rows, each beside copies of rows on the host.

use ferroattn::{Append, Device, Dtype, Element, Result, Tensor, bf16, f16};
use libtest_mimic::Failed;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::{Outcome, PASSED};

/// Where new rows go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// Behind those of an entry.
    Own,
    /// Behind those of an entry that a list names.
    Entries,
    /// Behind those of pages.
    Pages,
    /// At slots.
    Slots,
}

/// A rotary embedding.
#[derive(Clone, Copy, Debug)]
struct Rotary {
    /// Pairs of a row of this many.
    part: f64,
    interleaved: bool,
    wide: bool,
    at_first: bool,
}

/// A random call.
#[derive(Clone, Debug)]
pub struct AppendCase {
    dtype: Dtype,
    batch: usize,
    kv_heads: usize,
    group: usize,
    rows: usize,
    dim: usize,
    dim_v: usize,
    page_log2: u32,
    place: Place,
    rotary: Option<Rotary>,
    has_queries: bool,
    has_lengths: bool,
    has_positions: bool,
    /// Whether heads lie inside of rows.
    inside: bool,
    seed: u64,
}

/// Calls of every place and embedding.
pub fn cases() -> impl Strategy<Value = AppendCase> {
    let place = select(&[Place::Own, Place::Entries, Place::Pages, Place::Slots][..]);
    let rotary = (0.0..=1.0_f64, any::<[bool; 3]>());
    let rotary = rotary.prop_map(|(part, [interleaved, wide, at_first])| Rotary {
        part: (1.5 * part).min(1.0),
        interleaved,
        wide,
        at_first,
    });
    let dim = || prop_oneof![3 => (1..=16_usize).prop_map(|n| 8 * n), 1 => 1..=140_usize];
    let sizes = (
        1..=3_usize,
        1..=3_usize,
        1..=3_usize,
        1..=9_usize,
        dim(),
        dim(),
    );
    let dtype = select(&[Dtype::F16, Dtype::Bf16][..]);
    let more = (
        0..=4_u32,
        place,
        option::of(rotary),
        any::<[bool; 4]>(),
        any::<u64>(),
    );
    (dtype, sizes, more).prop_map(|(dtype, sizes, more)| {
        let (batch, kv_heads, group, rows, dim, dim_v) = sizes;
        let (page_log2, place, rotary, flags, seed) = more;
        let [has_queries, has_lengths, has_positions, inside] = flags;
        AppendCase {
            dtype,
            batch,
            kv_heads,
            group,
            rows,
            dim,
            dim_v,
            page_log2,
            place,
            rotary,
            has_queries,
            has_lengths,
            has_positions,
            inside,
            seed,
        }
    })
}

/// A case to run on a device.
type Run = Box<dyn Fn(&Device) -> Result<(), Failed>>;

/// Runs that show faults of the kernel: each place, and each embedding.
pub fn runs() -> Vec<Run> {
    let places = [Place::Own, Place::Entries, Place::Pages, Place::Slots];
    let cases = places.into_iter().enumerate().map(|(n, place)| AppendCase {
        dtype: Dtype::F16,
        batch: 2,
        kv_heads: 2,
        group: 2,
        rows: 5,
        dim: 72,
        dim_v: 40,
        page_log2: 1,
        place,
        rotary: (n > 0).then_some(Rotary {
            part: 0.5,
            interleaved: n == 2,
            wide: n != 3,
            at_first: n == 3,
        }),
        has_queries: n > 1,
        has_lengths: place != Place::Slots,
        has_positions: n > 2,
        inside: n == 1,
        seed: n as u64,
    });
    let run = |case: AppendCase| -> Run { Box::new(move |device| case.check(device).map(drop)) };
    cases.map(run).collect()
}

/// A row-major tensor of numbers.
struct Numbers {
    shape: [usize; 4],
    of: Vec<f32>,
}

impl Numbers {
    fn random<T: Element>(rng: &mut StdRng, shape: [usize; 4]) -> Self {
        let mut number = || T::from_f32(rng.sample::<f32, _>(StandardNormal)).to_f32();
        let of = (0..shape.iter().product()).map(|_| number()).collect();
        Numbers { shape, of }
    }

    /// The tensor on a device, with the second and third axis in memory as they are, or the other way round.
    fn on<T: Element>(&self, device: &Device, inside: bool) -> Result<Tensor<T>> {
        let [a, b, c, d] = self.shape;
        let shape = if inside { [a, c, b, d] } else { self.shape };
        let tensor = Tensor::zeros(device, shape)?;
        let mut tensor = if inside {
            tensor.transpose(1, 2)?
        } else {
            tensor
        };
        let numbers: Vec<_> = self.of.iter().map(|&x| T::from_f32(x)).collect();
        tensor.copy_from_slice(&numbers)?;
        Ok(tensor)
    }

    fn row(&mut self, place: [usize; 3]) -> &mut [f32] {
        let [_, b, c, d] = self.shape;
        let first = ((place[0] * b + place[1]) * c + place[2]) * d;
        &mut self.of[first..first + d]
    }
}

impl AppendCase {
    pub fn check(&self, device: &Device) -> Outcome {
        match self.dtype {
            Dtype::Bf16 => self.run::<bf16>(device),
            _ => self.run::<f16>(device),
        }
    }

    fn run<T: Element>(&self, device: &Device) -> Outcome {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let places = Places::random(self, &mut rng);
        let [entries, keys, rows] = [places.entries, places.keys, places.rows];
        let mut of = |shape| Numbers::random::<T>(&mut rng, shape);
        let mut k = of([self.batch, self.kv_heads, rows, self.dim]);
        let mut v = of([self.batch, self.kv_heads, rows, self.dim_v]);
        let mut q = of([self.batch, self.kv_heads * self.group, rows, self.dim]);
        let mut k_cache = of([entries, self.kv_heads, keys, self.dim]);
        let mut v_cache = of([entries, self.kv_heads, keys, self.dim_v]);
        let angles = Angles::new::<T>(self);

        let on = |numbers: &Numbers, inside| numbers.on::<T>(device, inside);
        let (device_k, device_v) = (on(&k, self.inside)?, on(&v, self.inside)?);
        let device_q = on(&q, self.inside)?;
        let mut device_k_cache = on(&k_cache, !self.inside)?;
        let mut device_v_cache = on(&v_cache, self.inside)?;
        let mut rotated = Tensor::<T>::zeros(device, q.shape)?;
        let lists = Lists::new(device, self, &places)?;
        let (narrow, wide) = (angles.on::<T>(device)?, angles.on::<f32>(device)?);
        let mut call = lists.of(Append::new());
        if let Some(rotary) = self.rotary {
            call = match rotary.wide {
                true => call.rotary(&wide[0], &wide[1]),
                false => call.rotary(&narrow[0], &narrow[1]),
            };
            call = call
                .interleaved(rotary.interleaved)
                .q_at_first(rotary.at_first);
        }
        let caches = (&mut device_k_cache, &mut device_v_cache);
        match self.has_queries {
            true => {
                let queries = (&device_q, &mut rotated);
                call.run_with(queries, [&device_k, &device_v], caches.0, caches.1)?;
            }
            false => call.run(&device_k, &device_v, caches.0, caches.1)?,
        }

        let at_first = self.rotary.is_some_and(|rotary| rotary.at_first);
        for (b, i) in (0..self.batch).flat_map(|b| (0..rows).map(move |i| (b, i))) {
            let of_q = places.positions[b * rows + if at_first { 0 } else { i }];
            for h in 0..self.kv_heads * self.group {
                angles.rotate(q.row([b, h, i]), of_q);
            }
            let Some([entry, key]) = places.of(self, b, i) else {
                continue;
            };
            for h in 0..self.kv_heads {
                let row = k.row([b, h, i]);
                angles.rotate(row, places.positions[b * rows + i]);
                k_cache.row([entry, h, key]).copy_from_slice(row);
                let row = v.row([b, h, i]);
                v_cache.row([entry, h, key]).copy_from_slice(row);
            }
        }
        expect_near::<T>("k", &device_k_cache, &k_cache.of)?;
        expect_near::<T>("v", &device_v_cache, &v_cache.of)?;
        if self.has_queries {
            expect_near::<T>("q", &rotated, &q.of)?;
        }
        PASSED
    }
}

/// Pages of an entry of the batch.
const MOST: usize = 4;

/// Where the rows of a case go.
struct Places {
    entries: usize,
    keys: usize,
    rows: usize,
    lengths: Vec<usize>,
    /// All entries or pages, in any order.
    order: Vec<usize>,
    /// All slots, in any order.
    slots: Vec<usize>,
    positions: Vec<usize>,
}

impl Places {
    fn random(case: &AppendCase, rng: &mut StdRng) -> Self {
        let (keys, capacity) = match case.place {
            Place::Pages => (1 << case.page_log2, MOST << case.page_log2),
            _ => (40, 40),
        };
        let rows = case.rows.min(capacity);
        let entries = match case.place {
            Place::Own => case.batch,
            Place::Pages => case.batch * MOST + 3,
            _ => case.batch + 2,
        };
        let mut order: Vec<usize> = (0..entries).collect();
        order.shuffle(rng);
        let most = if case.has_lengths { capacity - rows } else { 0 };
        let lengths: Vec<usize> = (0..case.batch)
            .map(|_| rng.random_range(0..=most))
            .collect();
        let mut slots: Vec<usize> = (0..entries * keys).collect();
        slots.shuffle(rng);
        let position = |n: usize| match case.has_positions {
            true => rng.random_range(0..90),
            false => lengths[n / rows] + n % rows,
        };
        let positions = (0..case.batch * rows).map(position).collect();
        Places {
            entries,
            keys,
            rows,
            lengths,
            order,
            slots,
            positions,
        }
    }

    /// The entry and the key of a row; the first slot is of none.
    fn of(&self, case: &AppendCase, b: usize, i: usize) -> Option<[usize; 2]> {
        let key = self.lengths[b] + i;
        match case.place {
            Place::Own => Some([b, key]),
            Place::Entries => Some([self.order[b], key]),
            Place::Pages => Some([self.order[b * MOST + key / self.keys], key % self.keys]),
            Place::Slots if b + i == 0 => None,
            Place::Slots => {
                let slot = self.slots[b * self.rows + i];
                Some([slot / self.keys, slot % self.keys])
            }
        }
    }
}

/// Cosines and sines of 100 positions.
struct Angles {
    tables: [Vec<f32>; 2],
    pairs: usize,
    interleaved: bool,
}

impl Angles {
    fn new<T: Element>(case: &AppendCase) -> Self {
        let part = case.rotary.map_or(0.0, |rotary| rotary.part);
        let pairs = (part * (case.dim / 2) as f64) as usize;
        let wide = case.rotary.is_some_and(|rotary| rotary.wide);
        let round = |x: f32| if wide { x } else { T::from_f32(x).to_f32() };
        let table = |of: fn(f32) -> f32| {
            let angles = (0..100 * pairs).map(|i| i as f32 * 0.37);
            angles.map(|angle| round(of(angle))).collect()
        };
        Angles {
            tables: [table(f32::cos), table(f32::sin)],
            pairs,
            interleaved: case.rotary.is_some_and(|rotary| rotary.interleaved),
        }
    }

    fn on<T: Element>(&self, device: &Device) -> Result<[Tensor<T, 2>; 2]> {
        let table = |numbers: &[f32]| {
            let numbers: Vec<_> = numbers.iter().map(|&x| T::from_f32(x)).collect();
            Tensor::new(device, [100, self.pairs], &numbers)
        };
        let [cos, sin] = &self.tables;
        Ok([table(cos)?, table(sin)?])
    }

    fn rotate(&self, row: &mut [f32], position: usize) {
        for pair in 0..self.pairs {
            let [a, b] = match self.interleaved {
                true => [2 * pair, 2 * pair + 1],
                false => [pair, pair + self.pairs],
            };
            let tables = self.tables.each_ref();
            let [cos, sin] = tables.map(|table| table[position * self.pairs + pair]);
            let [x, y] = [row[a], row[b]];
            (row[a], row[b]) = (x * cos - y * sin, x * sin + y * cos);
        }
    }
}

/// Lists of numbers of a case.
struct Lists {
    pages: Option<Tensor<i32, 2>>,
    entries: Option<Tensor<i32, 1>>,
    lengths: Option<Tensor<i32, 1>>,
    slots: Option<Tensor<i64, 2>>,
    positions: Option<Tensor<i32, 2>>,
}

impl Lists {
    fn new(device: &Device, case: &AppendCase, places: &Places) -> Result<Self> {
        let Places {
            rows,
            lengths,
            order,
            slots,
            positions,
            ..
        } = places;
        let rows = *rows;
        let numbers = |from: &[usize]| from.iter().map(|&n| n as i32).collect::<Vec<_>>();
        let (batch, place) = (case.batch, case.place);
        let pages = || Tensor::new(device, [batch, MOST], &numbers(&order[..MOST * batch]));
        let entries = || Tensor::new(device, [batch], &numbers(&order[..batch]));
        let slots = || {
            let mut slots: Vec<_> = slots[..batch * rows].iter().map(|&n| n as i64).collect();
            slots[0] = -1;
            Tensor::new(device, [batch, rows], &slots)
        };
        let lengths = || Tensor::new(device, [batch], &numbers(lengths));
        let positions = || Tensor::new(device, [batch, rows], &numbers(positions));
        Ok(Lists {
            pages: (place == Place::Pages).then(pages).transpose()?,
            entries: (place == Place::Entries).then(entries).transpose()?,
            slots: (place == Place::Slots).then(slots).transpose()?,
            lengths: case.has_lengths.then(lengths).transpose()?,
            positions: case.has_positions.then(positions).transpose()?,
        })
    }

    fn of<'a>(&'a self, mut call: Append<'a>) -> Append<'a> {
        if let Some(pages) = &self.pages {
            call = call.pages(pages);
        }
        if let Some(entries) = &self.entries {
            call = call.cache_entries(entries);
        }
        if let Some(lengths) = &self.lengths {
            call = call.lengths(lengths);
        }
        if let Some(slots) = &self.slots {
            call = call.slots(slots);
        }
        match &self.positions {
            Some(positions) => call.positions(positions),
            None => call,
        }
    }
}

/// Checks numbers to a rounding of the type, from products of numbers below 6.
fn expect_near<T: Element>(name: &str, found: &Tensor<T>, expected: &[f32]) -> Result<(), Failed> {
    let unit = if T::DTYPE == Dtype::Bf16 {
        1.0 / 256.0
    } else {
        1.0 / 2048.0
    };
    for (n, (found, &expected)) in found.to_vec()?.iter().zip(expected).enumerate() {
        let found = found.to_f32();
        let most = unit * expected.abs() + 1e-5;
        if (found - expected).abs() > most || found.is_nan() {
            return Err(format!("{name}[{n}] is {found}, not {expected}").into());
        }
    }
    Ok(())
}
