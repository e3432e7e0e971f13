//! Options of a [case](crate::Case) beyond plain and causal attention, and their tensors.

use ferroattn::{
    Attention, Device, Dtype, Element, Fp8, Problem, RawBias, RawE4m3Cache, RawMask, RawOptions,
    RawTensor, Result, Sequences, Tensor, Window,
};
use ferroattn::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Options beyond plain and causal attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Modifiers {
    /// The sliding window.
    pub window: Window,
    /// The bound of scores.
    pub softcap: Option<f32>,
    /// Whether there are slopes of ALiBi.
    pub alibi: bool,
    /// Whether packed sequences have slopes of their own.
    pub own_slopes: bool,
    /// Whether there are sinks.
    pub sinks: bool,
    /// The additive bias, of one of [`BIAS_DTYPES`](Self::BIAS_DTYPES).
    pub bias: Option<Pairs>,
    /// The boolean mask: of bytes or, of type 1, of bits.
    pub mask: Option<Pairs>,
    /// Offsets or lengths.
    pub sequences: Option<Sequences<Vec<i32>>>,
    /// The first key of each entry of the batch.
    pub first_keys: Option<Vec<i32>>,
    /// The cache that k and v are.
    pub cache: Option<Cache>,
    /// The pages that k and v are.
    pub pages: Option<Pages>,
    /// Elements of a row of v and o, if not of q and k.
    pub dim_v: Option<usize>,
    /// Whether inputs are rounded to e4m3.
    pub fp8: bool,
    /// Whether q and k are rotated before.
    pub hadamard: bool,
    /// Descales of keys and values of e4m3, if they are.
    pub e4m3: Option<Descales>,
}

/// Descales of keys and values of e4m3, powers of two: rounded numbers times them are numbers of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Descales {
    /// One for each head.
    Heads,
    /// One for each head and page.
    Pages,
}

impl Descales {
    /// That of an entry of k and v and a head: of k, which is tensor 0, or of v.
    #[must_use]
    pub fn of(self, modifiers: &Modifiers, tensor: usize, [entry, head]: [usize; 2]) -> f32 {
        // Entries of a cache, and pages without their own, serve any entry of the batch.
        let shared = modifiers.cache.is_some() || modifiers.pages.is_some();
        let entry = match self {
            Descales::Heads if shared => 0,
            _ => entry,
        };
        f32::powi(2.0, ((7 * entry + 3 * head + 5 * tensor) % 6) as i32 - 3)
    }

    fn tensors(
        self,
        modifiers: &Modifiers,
        device: &Device,
        problem: &Problem,
    ) -> Result<[Tensor<f32, 2>; 2]> {
        let entries = match (self, &modifiers.pages) {
            (Descales::Pages, Some(pages)) => pages.count,
            (Descales::Heads, Some(pages)) => pages.table(problem, modifiers.sequences.as_ref())[0],
            _ => problem.batch,
        };
        let of = |tensor| {
            let places = (0..entries).flat_map(|e| (0..problem.kv_heads).map(move |h| [e, h]));
            let descales: Vec<f32> = places.map(|at| self.of(modifiers, tensor, at)).collect();
            Tensor::new(device, [entries, problem.kv_heads], &descales)
        };
        Ok([of(0)?, of(1)?])
    }
}

/// A cache of keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// How many entries it has.
    pub entries: usize,
    /// The entry for each entry of the batch.
    pub of: Vec<i32>,
}

impl Cache {
    /// The entries that a call reads: any number stands for the nearest one.
    pub fn read(&self) -> impl Iterator<Item = i32> {
        let last = self.entries as i32 - 1;
        self.of.iter().map(move |&entry| entry.clamp(0, last))
    }
}

/// Pages of keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// How many there are.
    pub count: usize,
    /// Keys of each.
    pub keys: usize,
    /// The numbers of each entry of the batch, one after another.
    pub of: Vec<i32>,
}

impl Pages {
    /// The pages with numbers that are allowed: any number stands for the nearest page.
    fn allowed(&self) -> Self {
        let last = self.count as i32 - 1;
        let of = self.of.iter().map(|&number| number.clamp(0, last));
        Pages {
            of: of.collect(),
            ..*self
        }
    }

    /// The shape of the table: packed queries have a row for each sequence.
    fn table(&self, p: &Problem, sequences: Option<&Sequences<Vec<i32>>>) -> [usize; 2] {
        let rows = match sequences {
            Some(Sequences::PackedQueries { kv, .. }) => kv.len(),
            _ => p.batch,
        };
        [rows, p.batch * p.seqlen_kv / self.keys / rows.max(1)]
    }

    /// The pages and the rows of them that a call reads.
    fn read(&self, p: &Problem, sequences: Option<&Sequences<Vec<i32>>>) -> HashSet<[usize; 2]> {
        let entries = self.allowed().of;
        let [count, most] = self.table(p, sequences);
        let all = most * self.keys;
        let keys = |entry: usize| match sequences {
            None => all,
            Some(Sequences::Padded { kv, .. } | Sequences::PackedQueries { kv, .. }) => {
                (kv[entry].max(0) as usize).min(all)
            }
            Some(Sequences::Packed { kv, .. }) => kv[kv.len() - 1].max(0) as usize,
        };
        let rows = (0..count).flat_map(|entry| (0..keys(entry)).map(move |key| [entry, key]));
        let rows = rows.map(|[entry, key]| {
            let page = entries[entry * most + key / self.keys];
            [page as usize, key % self.keys]
        });
        rows.collect()
    }
}

/// A tensor with an element for each pair of query and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairs {
    /// Which of the first axes, batch, heads and queries, have extent 1.
    pub repeats: [bool; 3],
    /// Number of the element type.
    pub of: usize,
}

impl Pairs {
    /// Elements of a row of a mask: bytes, or words of 32 keys.
    fn row(&self, keys: usize) -> usize {
        match self.of {
            0 => keys,
            _ => keys.div_ceil(32),
        }
    }

    /// The tensor's shape, with so many elements for the keys of a query.
    fn shape(&self, p: &Problem, row: usize) -> [usize; 4] {
        let [batch, heads, seqlen_q] = self
            .repeats
            .map(|repeats| if repeats { 1 } else { usize::MAX });
        [
            p.batch.min(batch),
            p.heads.min(heads),
            p.seqlen_q.min(seqlen_q),
            row,
        ]
    }
}

/// A bias of any type.
enum Bias {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

/// A mask of either type.
enum Mask {
    Bytes(Tensor<u8>),
    Bits(Tensor<u32>),
}

/// Tensors of [`Modifiers`] on a device.
pub struct ModifierTensors {
    softcap: Option<f32>,
    window: Window,
    fp8: Option<Fp8>,
    alibi: Option<Tensor<f32, 2>>,
    sinks: Option<Tensor<f32, 1>>,
    bias: Option<Bias>,
    mask: Option<Mask>,
    sequences: Option<Sequences<Tensor<i32, 1>>>,
    /// Whether all queries of padded sequences count: then the call gives lengths of keys alone.
    all_queries: bool,
    first_keys: Option<Tensor<i32, 1>>,
    cache_entries: Option<Tensor<i32, 1>>,
    pages: Option<Tensor<i32, 2>>,
    descales: Option<(Descales, [Tensor<f32, 2>; 2])>,
}

impl Modifiers {
    /// Types of a bias, by number.
    pub const BIAS_DTYPES: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

    /// Shape of the gradient of the bias.
    #[must_use]
    pub fn d_bias_shape(&self, problem: &Problem) -> Option<[usize; 4]> {
        let bias = self.bias?;
        Some(bias.shape(problem, problem.seqlen_kv))
    }

    /// These options with the offsets and lengths that kernels make of any numbers; allowed ones stay.
    #[must_use]
    pub fn allowed(&self, problem: &Problem) -> Self {
        let [q, kv] = [problem.seqlen_q, problem.seqlen_kv].map(|rows| rows as i32);
        let lengths = |lengths: &[i32], rows| {
            lengths
                .iter()
                .map(|&length| length.clamp(0, rows))
                .collect()
        };
        let offsets = |offsets: &[i32], rows| {
            let mut rising = offsets.to_vec();
            rise(&mut rising, 0, rows);
            rising
        };
        let sequences = self.sequences.as_ref().map(|sequences| match sequences {
            Sequences::Padded { q: of_q, kv: of_kv } => Sequences::Padded {
                q: lengths(of_q, q),
                kv: lengths(of_kv, kv),
            },
            Sequences::Packed { q: of_q, kv: of_kv } => Sequences::Packed {
                q: offsets(of_q, q),
                kv: offsets(of_kv, kv),
            },
            Sequences::PackedQueries { q: of_q, kv: of_kv } => Sequences::PackedQueries {
                q: offsets(of_q, q),
                kv: lengths(of_kv, kv / of_kv.len() as i32),
            },
        });
        let first_keys = self.first_keys.as_ref();
        let cache = self.cache.as_ref().map(|cache| Cache {
            of: cache.read().collect(),
            ..*cache
        });
        Modifiers {
            sequences,
            first_keys: first_keys.map(|first| lengths(first, kv)),
            cache,
            pages: self.pages.as_ref().map(Pages::allowed),
            ..self.clone()
        }
    }

    /// The entries and rows of k and v that a call reads of a cache or of pages; none of other tensors, which it reads whole.
    #[must_use]
    pub fn read(&self, problem: &Problem) -> Option<HashSet<[usize; 2]>> {
        if let Some(pages) = &self.pages {
            return Some(pages.read(problem, self.sequences.as_ref()));
        }
        let entries = self.cache.as_ref()?.read();
        let rows =
            entries.flat_map(|entry| (0..problem.seqlen_kv).map(move |row| [entry as usize, row]));
        Some(rows.collect())
    }

    /// Whether all are off.
    #[must_use]
    pub fn are_off(&self) -> bool {
        *self == Modifiers::default()
    }

    /// Tensors at address 0: enough to ask which kernels serve a problem.
    #[must_use]
    pub fn raw(&self, problem: &Problem) -> RawOptions {
        let [batch, heads] = [problem.batch, problem.heads];
        let pairs = |row| RawTensor::row_major([batch, heads, problem.seqlen_q, row]);
        let keys = problem.seqlen_kv;
        let sequences = self.sequences.as_ref();
        let numbers = |numbers: &Vec<i32>| RawTensor::row_major([numbers.len()]);
        let slopes = self.slopes(batch);
        let mut raw = RawOptions::default();
        raw.alibi = self.alibi.then(|| RawTensor::row_major([slopes, heads]));
        raw.sinks = self.sinks.then(|| RawTensor::row_major([heads]));
        raw.bias = self.bias.map(|bias| RawBias {
            dtype: Self::BIAS_DTYPES[bias.of],
            tensor: pairs(keys),
        });
        raw.mask = self.mask.map(|mask| RawMask {
            bits: mask.of == 1,
            tensor: pairs(mask.row(keys)),
        });
        raw.sequences = sequences.map(|sequences| sequences.map(numbers));
        raw.first_keys = self.first_keys.as_ref().map(numbers);
        raw.cache_entries = self.cache.as_ref().map(|cache| numbers(&cache.of));
        raw.pages = self
            .pages
            .as_ref()
            .map(|pages| RawTensor::row_major(pages.table(problem, sequences)));
        raw.e4m3_cache = self.e4m3.map(|_| RawE4m3Cache::default());
        raw
    }

    /// For how many entries or sequences there are slopes, of a batch of so many.
    fn slopes(&self, batch: usize) -> usize {
        match &self.sequences {
            Some(Sequences::Packed { q, .. } | Sequences::PackedQueries { q, .. })
                if self.own_slopes =>
            {
                q.len() - 1
            }
            _ => batch,
        }
    }

    /// Tensors for a problem, of a seed, on a device. One slope is 0, and one sink is -inf, where there are several.
    ///
    /// # Errors
    /// If the device has no memory.
    pub fn tensors(
        &self,
        device: &Device,
        problem: &Problem,
        seed: u64,
    ) -> Result<ModifierTensors> {
        let [batch, heads] = [self.slopes(problem.batch), problem.heads];
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
        let slopes: Vec<f32> = (0..batch * heads)
            .map(|i| {
                if i == 1 {
                    0.0
                } else {
                    rng.random_range(0.01..0.5)
                }
            })
            .collect();
        let sinks: Vec<f32> = (0..heads)
            .map(|i| match i {
                2 => f32::NEG_INFINITY,
                _ => 2.0 * rng.sample::<f32, _>(StandardNormal),
            })
            .collect();
        let alibi = self
            .alibi
            .then(|| Tensor::new(device, [batch, heads], &slopes));
        let sinks = self.sinks.then(|| Tensor::new(device, [heads], &sinks));
        let bias = self
            .bias
            .map(|bias| Bias::random(bias, device, problem, &mut rng));
        let mask = self
            .mask
            .map(|mask| Mask::random(mask, device, problem, &mut rng));
        let numbers = |numbers: &Vec<i32>| Tensor::new(device, [numbers.len()], numbers);
        let sequences = self.sequences.as_ref();
        let sequences = sequences.map(|sequences| sequences.try_map(numbers));
        let first_keys = self.first_keys.as_ref().map(numbers);
        let cache_entries = self.cache.as_ref().map(|cache| numbers(&cache.of));
        let table = |pages: &Pages| {
            let shape = pages.table(problem, self.sequences.as_ref());
            Tensor::new(device, shape, &pages.of)
        };
        let pages = self.pages.as_ref().map(table);
        let descales = self
            .e4m3
            .map(|of| Ok((of, of.tensors(self, device, problem)?)));
        Ok(ModifierTensors {
            bias: bias.transpose()?,
            mask: mask.transpose()?,
            softcap: self.softcap,
            window: self.window,
            fp8: self.fp8.then(|| Fp8::new().hadamard(self.hadamard)),
            alibi: alibi.transpose()?,
            sinks: sinks.transpose()?,
            sequences: sequences.transpose()?,
            all_queries: matches!(
                &self.sequences,
                Some(Sequences::Padded { q, .. }) if q.iter().all(|&q| q == problem.seqlen_q as i32)
            ),
            first_keys: first_keys.transpose()?,
            cache_entries: cache_entries.transpose()?,
            pages: pages.transpose()?,
            descales: descales.transpose()?,
        })
    }
}

/// Makes offsets rise from `least` to `most`, as kernels read them: each lies between those that halving finds before it.
fn rise(offsets: &mut [i32], least: i32, most: i32) {
    let (before, rest) = offsets.split_at_mut(offsets.len() / 2);
    if let [middle, behind @ ..] = rest {
        *middle = (*middle).clamp(least, most);
        rise(before, least, *middle);
        rise(behind, *middle, most);
    }
}

impl Bias {
    fn random(pairs: Pairs, device: &Device, problem: &Problem, rng: &mut StdRng) -> Result<Self> {
        let shape = pairs.shape(problem, problem.seqlen_kv);
        let numbers: Vec<f32> = (0..shape.iter().product())
            .map(|_| rng.sample(StandardNormal))
            .collect();
        fn of<T: Element>(
            device: &Device,
            shape: [usize; 4],
            numbers: &[f32],
        ) -> Result<Tensor<T>> {
            let numbers: Vec<T> = numbers.iter().map(|&x| T::from_f32(x)).collect();
            Tensor::new(device, shape, &numbers)
        }
        Ok(match Modifiers::BIAS_DTYPES[pairs.of] {
            Dtype::F16 => Bias::F16(of(device, shape, &numbers)?),
            Dtype::Bf16 => Bias::Bf16(of(device, shape, &numbers)?),
            Dtype::F32 => Bias::F32(of(device, shape, &numbers)?),
            other => unreachable!("no bias is {}", other.name()),
        })
    }
}

impl Mask {
    /// A mask that hides all keys from some queries, and hides and shows whole blocks, to all warpgroups of a tile or to one.
    fn random(pairs: Pairs, device: &Device, problem: &Problem, rng: &mut StdRng) -> Result<Self> {
        // Rows and keys that are seen alike: more than a tile's rows, or fewer than two warpgroups'.
        let area = [[130, 70][rng.random_range(0..2)], 150];
        let keys = problem.seqlen_kv;
        let shape = pairs.shape(problem, pairs.row(keys));
        let rows: usize = shape[..3].iter().product();
        let (mut densities, mut blind) = (Vec::new(), 0.0);
        let sees: Vec<bool> = (0..rows)
            .flat_map(|row| {
                if row % area[0] == 0 {
                    let density = |_| [0.0, 0.0, 0.02, 0.5, 0.9, 1.0][rng.random_range(0..6)];
                    densities = (0..keys.div_ceil(area[1]).max(1)).map(density).collect();
                    if row == 0 {
                        // Some pair is seen in any case.
                        densities[0] = 0.5;
                    }
                    blind = [0.0, 0.1][rng.random_range(0..2)];
                }
                let hides_all = rng.random_bool(blind);
                let key = |key| !hides_all && rng.random_bool(densities[key / area[1]]);
                (0..keys).map(key).collect::<Vec<_>>()
            })
            .collect();
        Ok(match pairs.of {
            0 => {
                let byte = |&sees: &bool| if sees { rng.random_range(1..=255) } else { 0 };
                let bytes: Vec<u8> = sees.iter().map(byte).collect();
                Mask::Bytes(Tensor::new(device, shape, &bytes)?)
            }
            _ => {
                let word = |keys: &[bool]| {
                    let bits = keys.iter().enumerate();
                    bits.fold(0, |word, (i, &sees)| word | u32::from(sees) << i)
                };
                let rows = sees.chunks(keys);
                let words: Vec<u32> = rows.flat_map(|row| row.chunks(32).map(word)).collect();
                Mask::Bits(Tensor::new(device, shape, &words)?)
            }
        })
    }
}

impl ModifierTensors {
    /// A call with these options.
    pub fn of<'a>(&'a self, call: Attention<'a>) -> Attention<'a> {
        let mut call = call.window(self.window.left, self.window.right);
        call = call.fp8(self.fp8);
        if let Some(softcap) = self.softcap {
            call = call.softcap(softcap);
        }
        if let Some(alibi) = &self.alibi {
            call = call.alibi(alibi);
        }
        if let Some(sinks) = &self.sinks {
            call = call.sinks(sinks);
        }
        call = match &self.bias {
            Some(Bias::F16(bias)) => call.bias(bias),
            Some(Bias::Bf16(bias)) => call.bias(bias),
            Some(Bias::F32(bias)) => call.bias(bias),
            None => call,
        };
        call = match &self.mask {
            Some(Mask::Bytes(mask)) => call.mask(mask),
            Some(Mask::Bits(mask)) => call.mask(mask),
            None => call,
        };
        call = match &self.sequences {
            Some(Sequences::Packed { q, kv }) => call.packed(q, kv),
            Some(Sequences::Padded { kv, .. }) if self.all_queries => call.padded_keys(kv),
            Some(Sequences::Padded { q, kv }) => call.padded(q, kv),
            Some(Sequences::PackedQueries { q, kv }) => call.packed_queries(q, kv),
            None => call,
        };
        if let Some(first_keys) = &self.first_keys {
            call = call.first_keys(first_keys);
        }
        if let Some(entries) = &self.cache_entries {
            call = call.cache_entries(entries);
        }
        if let Some(table) = &self.pages {
            call = call.pages(table);
        }
        match &self.descales {
            Some((Descales::Heads, [k, v])) => call.cache_descales(k, v),
            Some((Descales::Pages, [k, v])) => call.page_descales(k, v),
            None => call,
        }
    }
}
