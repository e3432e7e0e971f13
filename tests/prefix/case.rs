//! Calls on random prefixes and keys, each beside attention to these keys one behind the other.

use ferroattn::check::{self, Forward};
use ferroattn::{
    Accumulation, Attention, Device, Dtype, Element, Problem, Result, Tensor, bf16, f16,
};
use libtest_mimic::Failed;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::{Guarded, Layout, Outcome, PASSED};

/// A call with a prefix.
#[derive(Clone, Debug)]
pub struct PrefixCase {
    pub dtype: Dtype,
    pub kv_heads: usize,
    pub group: usize,
    pub seqlen_q: usize,
    pub dim: usize,
    pub dim_v: usize,
    /// Keys of the prefix.
    pub prefix: usize,
    /// Keys of each entry's own.
    pub lengths: Vec<usize>,
    /// Keys of an entry that its tensor or table has room for beyond the longest.
    pub beyond: usize,
    /// Whether lengths are given; else all entries have the most keys.
    pub has_lengths: bool,
    /// Keys of a page, as the exponent of a power of 2, where own keys lie in pages.
    pub page_log2: Option<u32>,
    /// Whether the prefix lies in pages, too.
    pub prefix_pages: bool,
    pub causal: bool,
    pub sinks: bool,
    pub softcap: Option<f32>,
    pub splits: u32,
    pub q: Layout,
    pub o: Layout,
    pub seed: u64,
}

impl Default for PrefixCase {
    /// Five entries that decode, with heads inside of rows.
    fn default() -> Self {
        PrefixCase {
            dtype: Dtype::F16,
            kv_heads: 2,
            group: 2,
            seqlen_q: 1,
            dim: 64,
            dim_v: 64,
            prefix: 150,
            lengths: vec![40, 0, 1, 33, 70],
            beyond: 3,
            has_lengths: true,
            page_log2: None,
            prefix_pages: false,
            causal: true,
            sinks: false,
            softcap: None,
            splits: 0,
            q: Layout::Bnhd,
            o: Layout::Bnhd,
            seed: 0,
        }
    }
}

/// Calls of every kind.
pub fn cases() -> impl Strategy<Value = PrefixCase> {
    let lengths = proptest::collection::vec(prop_oneof![1 => 0..3_usize, 3 => 0..90_usize], 1..6);
    let dim = || prop_oneof![5 => select(vec![8, 64, 96, 128]), 1 => 1..70_usize];
    let dims = (
        dim(),
        prop_oneof![4 => Just(None), 1 => dim().prop_map(Some)],
    );
    let seqlen_q = prop_oneof![3 => Just(1), 2 => 2..6_usize, 1 => 20..40_usize];
    let prefix = prop_oneof![1 => 0..3_usize, 4 => 0..300_usize];
    let sizes = (1..3_usize, 1..4_usize, seqlen_q, dims, prefix, lengths);
    let paged = (option::of(0..6_u32), any::<[bool; 5]>(), 0..40_usize);
    let layouts = [(); 2].map(|()| select(Layout::OUTPUTS));
    let softcap = option::weighted(0.2, 1.0..30.0_f32);
    let dtype = select(&[Dtype::F16, Dtype::Bf16][..]);
    let more = (dtype, softcap, 0..4_u32, layouts, any::<u64>());
    (sizes, paged, more).prop_map(|(sizes, paged, more)| {
        let (kv_heads, group, seqlen_q, (dim, dim_v), prefix, mut lengths) = sizes;
        let (page_log2, flags, beyond) = paged;
        let [has_lengths, prefix_pages, causal, sinks, even_splits] = flags;
        let (dtype, softcap, splits, [q, o], seed) = more;
        if causal {
            // Each query sees all of the prefix.
            for length in &mut lengths {
                *length = (*length).max(seqlen_q - 1);
            }
        }
        let prefix_pages = prefix_pages && page_log2.is_some();
        PrefixCase {
            dtype,
            kv_heads,
            group,
            seqlen_q,
            dim,
            dim_v: dim_v.unwrap_or(dim),
            prefix,
            lengths,
            beyond,
            has_lengths,
            page_log2,
            prefix_pages,
            causal,
            sinks,
            softcap,
            splits: if even_splits { 0 } else { splits },
            q,
            o,
            seed,
        }
    })
}

/// Keys or values of each key/value head: `[heads][keys * dim]`, by entry.
struct Keys {
    prefix: Vec<Vec<f32>>,
    own: Vec<Vec<Vec<f32>>>,
}

impl PrefixCase {
    fn batch(&self) -> usize {
        self.lengths.len()
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Keys that the tensor or table has room for in an entry.
    fn most(&self) -> usize {
        let longest = self.lengths.iter().max().expect("an entry") + self.beyond;
        match self.page_log2 {
            Some(log2) => longest.div_ceil(1 << log2) << log2,
            None => longest,
        }
    }

    /// Keys that an entry has.
    fn keys_of(&self, entry: usize) -> usize {
        match self.has_lengths {
            true => self.lengths[entry],
            false => self.most(),
        }
    }

    /// Runs the case with poisoned outputs and guard margins. Checks o and lse, that nothing else was written, and that q is as before.
    pub fn check(&self, device: &Device) -> Outcome {
        let done = match self.dtype {
            Dtype::F16 => self.check_in::<f16>(device),
            Dtype::Bf16 => self.check_in::<bf16>(device),
            Dtype::F32 => self.check_in::<f32>(device),
            other => unreachable!("no case is {}", other.name()),
        };
        done.map_err(|failed| format!("{}\n{self:?}", failed.message().unwrap_or_default()))?;
        PASSED
    }

    /// Random keys, or values, of rows of so many elements.
    fn keys<T: Element>(&self, rng: &mut StdRng, dim: usize) -> Keys {
        let mut head = |keys: usize| -> Vec<f32> {
            let numbers = (0..keys * dim).map(|_| rng.sample::<f32, _>(StandardNormal));
            numbers.map(|x| T::from_f32(x).to_f32()).collect()
        };
        let mut heads = |keys: usize| (0..self.kv_heads).map(|_| head(keys)).collect();
        Keys {
            prefix: heads(self.prefix),
            own: (0..self.batch())
                .map(|entry| heads(self.keys_of(entry)))
                .collect(),
        }
    }

    /// A tensor `[entries, kv_heads, keys, dim]` of NaN, but for rows of heads at entries and keys.
    fn tensor<'a, T: Element>(
        &self,
        device: &Device,
        shape: [usize; 4],
        rows: impl Iterator<Item = ([usize; 2], usize, &'a Vec<Vec<f32>>)>,
    ) -> Result<Tensor<T>> {
        let [_, heads, keys, dim] = shape;
        let mut data = vec![T::from_f32(f32::NAN); shape.iter().product()];
        for ([entry, key], row, from) in rows {
            for (head, from) in from.iter().enumerate() {
                let start = ((entry * heads + head) * keys + key) * dim;
                for (to, x) in data[start..start + dim]
                    .iter_mut()
                    .zip(&from[row * dim..(row + 1) * dim])
                {
                    *to = T::from_f32(*x);
                }
            }
        }
        Tensor::new(device, shape, &data)
    }

    fn check_in<T: Element>(&self, device: &Device) -> Result<(), Failed> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let (batch, heads, most) = (self.batch(), self.heads(), self.most());
        let (k, v) = (
            self.keys::<T>(&mut rng, self.dim),
            self.keys::<T>(&mut rng, self.dim_v),
        );
        let q_shape = [batch, heads, self.seqlen_q, self.dim];
        let o_shape = [batch, heads, self.seqlen_q, self.dim_v];
        let place = |layout: Layout, shape| {
            Guarded::<T, 4>::poisoned(shape, layout.strides(shape), layout.shift())
        };
        let mut q = place(self.q, q_shape);
        let numbers =
            (0..q_shape.iter().product()).map(|_| T::from_f32(rng.sample(StandardNormal)));
        q.fill(numbers.collect::<Vec<_>>().into_iter());
        let mut o = place(self.o, o_shape);
        let lse_strides = [heads * self.seqlen_q, self.seqlen_q, 1].map(|n| n as isize);
        let mut lse = Guarded::<f32, 3>::poisoned([batch, heads, self.seqlen_q], lse_strides, 0);

        // Where keys lie: pages of any order, or an entry of a tensor each.
        let page = self.page_log2.map(|log2| 1_usize << log2);
        let rows = page.unwrap_or(most);
        let (of_own, of_prefix) = match page {
            Some(page) => (
                batch * (most / page),
                self.prefix.div_ceil(page) * usize::from(self.prefix_pages),
            ),
            None => (batch, 0),
        };
        let mut pages: Vec<i32> = (0..(of_own + of_prefix) as i32 + 2).collect();
        if page.is_some() {
            pages.shuffle(&mut rng);
        }
        let (table, shared) = (&pages[..of_own], &pages[of_own..of_own + of_prefix]);
        let place_of = |entry: usize, key: usize| match page {
            Some(page) => [
                table[entry * (most / page) + key / page] as usize,
                key % page,
            ],
            None => [entry, key],
        };
        let tensors = |keys: &Keys, dim: usize| -> Result<[Tensor<T>; 2]> {
            let entries = if page.is_some() { pages.len() } else { batch };
            let own =
                (0..batch).flat_map(|entry| (0..self.keys_of(entry)).map(move |key| (entry, key)));
            let own = own.map(|(entry, key)| (place_of(entry, key), key, &keys.own[entry]));
            let in_pages = (0..self.prefix).filter(|_| self.prefix_pages);
            let in_pages =
                in_pages.map(|key| ([shared[key / rows] as usize, key % rows], key, &keys.prefix));
            let cache = [entries, self.kv_heads, rows, dim];
            let apart = if self.prefix_pages { 0 } else { self.prefix };
            let prefix = (0..apart).map(|key| ([0, key], key, &keys.prefix));
            Ok([
                self.tensor(device, cache, own.chain(in_pages))?,
                self.tensor(device, [1, self.kv_heads, apart, dim], prefix)?,
            ])
        };
        let [cache_k, prefix_k] = tensors(&k, self.dim)?;
        let [cache_v, prefix_v] = tensors(&v, self.dim_v)?;
        let table = Tensor::new(device, [batch, of_own / batch], table)?;
        let shared = Tensor::new(device, [shared.len()], shared)?;
        let sinks: Vec<f32> = (0..heads).map(|h| h as f32 - 1.0).collect();
        let device_sinks = Tensor::new(device, [heads], &sinks)?;
        let queries = Tensor::new(device, [batch], &vec![self.seqlen_q as i32; batch])?;
        let lengths: Vec<i32> = self.lengths.iter().map(|&n| n as i32).collect();
        let lengths = Tensor::new(device, [batch], &lengths)?;

        let mut call = self.options(&device_sinks).splits(self.splits);
        if page.is_some() {
            call = call.pages(&table);
        }
        if self.has_lengths {
            call = call.padded(&queries, &lengths);
        }
        let call = match self.prefix_pages {
            true => call.prefix_pages(&shared, self.prefix),
            false => call.prefix(&prefix_k, &prefix_v),
        };
        let call = call.check_lengths(self.seed % 2 == 1);
        let device_q = q.upload(device)?;
        let (mut to, mut to_lse) = (o.upload(device)?, lse.upload(device)?);
        call.forward_into(&device_q, &cache_k, &cache_v, &mut to, &mut to_lse)?;
        o.download(to)?;
        lse.download(to_lse)?;
        let found: (Vec<T>, Vec<f32>) = (o.elements().collect(), lse.elements().collect());
        if let Some(element) = o.overrun().or(lse.overrun()) {
            return Err(format!("written outside an output, {element} from its first").into());
        }
        if !q.is_unchanged(device_q)? {
            return Err("q was overwritten".into());
        }
        self.compare(&q.elements().collect::<Vec<_>>(), &k, &v, &found, &sinks)
    }

    fn options<'a>(&self, sinks: &'a Tensor<f32, 1>) -> Attention<'a> {
        let mut attention = Attention::new().causal(self.causal);
        if let Some(softcap) = self.softcap {
            attention = attention.softcap(softcap);
        }
        match self.sinks {
            true => attention.sinks(sinks),
            false => attention,
        }
    }

    /// Compares each entry with attention to the prefix's keys and its own behind them.
    fn compare<T: Element>(
        &self,
        q: &[T],
        k: &Keys,
        v: &Keys,
        (o, lse): &(Vec<T>, Vec<f32>),
        sinks: &[f32],
    ) -> Result<(), Failed> {
        let (heads, rows) = (self.heads(), self.heads() * self.seqlen_q);
        let sinks = Tensor::new(&Device::cpu(), [heads], sinks)?;
        for entry in 0..self.batch() {
            let keys = self.prefix + self.keys_of(entry);
            let joined = |keys: &Keys| -> Vec<T> {
                let heads = keys.prefix.iter().zip(&keys.own[entry]);
                let numbers = heads.flat_map(|(prefix, own)| prefix.iter().chain(own));
                numbers.map(|x| T::from_f32(*x)).collect()
            };
            let of = |dim: usize| entry * rows * dim..(entry + 1) * rows * dim;
            let (o, lse) = (&o[of(self.dim_v)], &lse[of(1)]);
            if keys == 0 {
                let sink = |row: usize| match self.sinks {
                    true => (row / self.seqlen_q) as f32 - 1.0,
                    false => f32::NEG_INFINITY,
                };
                let is_right = lse.iter().enumerate().all(|(row, lse)| *lse == sink(row));
                if !is_right || o.iter().any(|x| x.to_f32() != 0.0) {
                    return Err(format!("entry {entry} without keys has {lse:?}").into());
                }
                continue;
            }
            let kv = |dim| [1, self.kv_heads, keys, dim];
            let q_shape = [1, heads, self.seqlen_q, self.dim];
            let mut problem =
                Problem::new(q_shape, kv(self.dim), kv(self.dim_v), self.causal, None)?;
            problem.softcap = self.softcap;
            let options = self.options(&sinks);
            let forward = Forward {
                problem: &problem,
                options: options.host_options(&problem)?,
                q: &q[of(self.dim)],
                k: &joined(k),
                v: &joined(v),
                o,
                lse,
                acc: Accumulation::Single,
            };
            let report = check::check(&forward, &check::all_rows(&problem));
            if !report.passed() {
                return Err(format!("entry {entry}: {report}").into());
            }
        }
        Ok(())
    }
}
