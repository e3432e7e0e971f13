//! Results that are the same bits beside any neighbours, and however a sequence is cut into chunks of queries.

use ferroattn::{Attention, Device, Element, Result, Tensor, bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array4, ArrayView4, Axis, concatenate, s};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::ops::Range;
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let each = |f: fn(&Device, &Setting) -> Outcome| {
        move |device: &Device| {
            for setting in SETTINGS {
                f(device, setting)?;
            }
            PASSED
        }
    };
    let tests = vec![
        Test::new("chunks", each(chunks)),
        Test::new("neighbours", each(neighbours)),
        Test::new("packed", each(packed)),
        Test::new("pages", each(pages)),
        Test::backward("gradients", each(gradients)),
        Test::backward("packed_gradients", each(packed_gradients)),
    ];
    Test::and_on_hopper(tests)
}

/// Tokens of the sequence.
const TOKENS: usize = 290;

/// Ends of chunks: of one query, of few, and of more than a tile.
const CUTS: [usize; 7] = [0, 1, 2, 67, 130, 131, TOKENS];

/// The shape and the options of a call.
struct Setting {
    heads: [usize; 2],
    dim: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
    split_keys: u32,
}

const PLAIN: Setting = Setting {
    heads: [2, 1],
    dim: 64,
    window: None,
    softcap: None,
    sinks: false,
    split_keys: 0,
};

const SETTINGS: &[Setting] = &[
    PLAIN,
    Setting {
        heads: [1, 1],
        dim: 128,
        window: Some(75),
        split_keys: 100,
        ..PLAIN
    },
    Setting {
        heads: [3, 1],
        dim: 40,
        softcap: Some(2.0),
        sinks: true,
        split_keys: 64,
        ..PLAIN
    },
    Setting {
        heads: [1, 1],
        dim: 256,
        ..PLAIN
    },
    Setting {
        heads: [1, 1],
        dim: 320,
        window: Some(200),
        ..PLAIN
    },
];

/// A run for the mutants of a kernel.
type Run = Box<dyn Fn(&Device) -> Result<(), Failed>>;

/// Chunks by a kernel of bf16 for D = 96, for its mutants.
pub fn runs_of_chunks(kernel: &'static str) -> Vec<Run> {
    vec![Box::new(move |device| {
        let setting = Setting { dim: 96, ..PLAIN };
        let call = Call::new(device, &setting)?;
        let call = Call {
            kernel: Some(kernel),
            ..call
        };
        chunks_of::<bf16>(call).map(drop)
    })]
}

/// Packed sequences, for the mutants of kernels that spread and gather them.
pub fn runs_of_packed() -> Vec<Run> {
    vec![Box::new(|device| {
        packed_gradients(device, &PLAIN).map(drop)
    })]
}

/// The tokens of a sequence.
struct Tokens<T> {
    /// `[1, heads, TOKENS, dim]`.
    q: Array4<T>,
    k: Array4<T>,
    v: Array4<T>,
    d_o: Array4<T>,
}

impl<T: Element> Tokens<T> {
    /// Random numbers. Some queries have large scores, and early keys, which blocks reach last, larger ones: neighbours of these
    /// queries would raise their maxima when they do.
    fn new(setting: &Setting, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let [heads, kv_heads] = setting.heads;
        let mut random = |heads, factor: fn(usize) -> f32| {
            Array4::from_shape_fn([1, heads, TOKENS, setting.dim], |(_, _, token, _)| {
                T::from_f32(factor(token) * rng.sample::<f32, _>(StandardNormal))
            })
        };
        Tokens {
            q: random(heads, |token| if token % 5 == 3 { 8.0 } else { 1.0 }),
            k: random(kv_heads, |token| if token < TOKENS / 3 { 3.0 } else { 1.0 }),
            v: random(kv_heads, |_| 1.0),
            d_o: random(heads, |_| 1.0),
        }
    }

    /// Tokens of the chunk of queries, and all keys up to its last one.
    fn chunk(&self, queries: Range<usize>) -> [ArrayView4<'_, T>; 3] {
        let keys = s![.., .., ..queries.end, ..];
        [
            self.q.slice(s![.., .., queries, ..]),
            self.k.slice(keys),
            self.v.slice(keys),
        ]
    }
}

/// A call that is batch invariant, on a device.
struct Call<'a> {
    device: &'a Device,
    setting: &'a Setting,
    sinks: Tensor<f32, 1>,
    /// The kernel, if not the best one.
    kernel: Option<&'static str>,
}

/// o and lse as bits, in the order of heads, queries and columns.
type Bits = Vec<u32>;

impl<'a> Call<'a> {
    fn new(device: &'a Device, setting: &'a Setting) -> Result<Self> {
        let sinks: Vec<_> = (0..setting.heads[0])
            .map(|head| head as f32 - 0.5)
            .collect();
        Ok(Call {
            device,
            setting,
            sinks: Tensor::new(device, [sinks.len()], &sinks)?,
            kernel: None,
        })
    }

    fn attention(&self) -> Attention<'_> {
        let Setting {
            window,
            softcap,
            split_keys,
            ..
        } = *self.setting;
        let attention = Attention::new().causal(true).batch_invariant(true);
        let attention = attention.split_keys(split_keys).window(window, None);
        let attention = self
            .kernel
            .map_or(attention.clone(), |kernel| attention.kernel(kernel));
        let attention = softcap.map_or(attention.clone(), |softcap| attention.softcap(softcap));
        match self.setting.sinks {
            true => attention.sinks(&self.sinks),
            false => attention,
        }
    }

    fn tensor<T: Element>(&self, array: ArrayView4<T>) -> Result<Tensor<T>> {
        let (b, h, n, d) = array.dim();
        let elements: Vec<_> = array.iter().copied().collect();
        Tensor::new(self.device, [b, h, n, d], &elements)
    }

    fn numbers(&self, numbers: &[usize]) -> Result<Tensor<i32, 1>> {
        let numbers: Vec<_> = numbers.iter().map(|&n| n as i32).collect();
        Tensor::new(self.device, [numbers.len()], &numbers)
    }

    /// The bits of the first `queries` queries of an entry.
    fn forward<T: Element>(
        &self,
        attention: &Attention,
        [q, k, v]: [ArrayView4<T>; 3],
        (entry, queries): (usize, Range<usize>),
    ) -> Result<Bits> {
        let [q, k, v] = [self.tensor(q)?, self.tensor(k)?, self.tensor(v)?];
        let (o, lse) = attention.forward(&q, &k, &v)?;
        let lse = Tensor::from_vec(lse.shape(), lse.to_vec()?)?.reshape([
            q.shape()[0],
            q.shape()[1],
            q.shape()[2],
            1,
        ])?;
        let mut bits = bits(&o, entry, queries.clone())?;
        bits.extend(self::bits(&lse, entry, queries)?);
        Ok(bits)
    }

    /// The bits of the gradients of q, k and v, of [`LENGTH`] rows of an entry from `first` on.
    fn backward(
        &self,
        attention: &Attention,
        tensors: [ArrayView4<f16>; 4],
        (entry, first): (usize, usize),
    ) -> Result<[Bits; 3]> {
        let [q, k, v, d_o] = tensors.map(|tensor| self.tensor(tensor));
        let [q, k, v, d_o] = [q?, k?, v?, d_o?];
        let (o, lse) = attention.forward(&q, &k, &v)?;
        let (dq, dk, dv) = attention.backward(&q, &k, &v, &o, &lse, &d_o)?;
        let rows = first..first + LENGTH;
        let [dq, dk, dv] = [dq, dk, dv].map(|gradient| bits(&gradient, entry, rows.clone()));
        Ok([dq?, dk?, dv?])
    }

    /// The bits of a chunk, in a call of its own.
    fn alone<T: Element>(&self, tokens: &Tokens<T>, queries: Range<usize>) -> Result<Bits> {
        let count = queries.len();
        self.forward(&self.attention(), tokens.chunk(queries), (0, 0..count))
    }

    /// The bits of the whole sequence.
    fn whole<T: Element>(&self, tokens: &Tokens<T>) -> Result<Bits> {
        self.alone(tokens, 0..TOKENS)
    }

    /// The bits of a chunk among those of the whole sequence.
    fn part(&self, whole: &[u32], queries: Range<usize>) -> Bits {
        let (heads, dim) = (self.setting.heads[0], self.setting.dim);
        let (o, lse) = whole.split_at(heads * TOKENS * dim);
        let rows = |numbers: &[u32], columns: usize| -> Bits {
            let heads = numbers.chunks(TOKENS * columns);
            heads
                .flat_map(|head| head[queries.start * columns..queries.end * columns].to_vec())
                .collect()
        };
        [rows(o, dim), rows(lse, 1)].concat()
    }
}

/// Checks that bits are those that they must be.
fn expect_same(found: &[u32], expected: &[u32], what: String) -> Result<(), Failed> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: other bits").into()),
    }
}

/// The bits of some rows of an entry's heads.
fn bits<T: Element>(tensor: &Tensor<T>, entry: usize, rows: Range<usize>) -> Result<Bits> {
    let [b, h, n, d] = tensor.shape();
    let array = Array4::from_shape_vec([b, h, n, d], tensor.to_vec()?).expect("its shape");
    let rows = array.slice(s![entry, .., rows, ..]);
    Ok(rows
        .iter()
        .map(|element| element.to_f32().to_bits())
        .collect())
}

/// Entries side by side, each padded with NaN to the longest.
fn padded<T: Element>(entries: &[ArrayView4<T>]) -> Array4<T> {
    let longest = entries.iter().map(|entry| entry.dim().2).max();
    let (_, heads, _, dim) = entries[0].dim();
    let shape = [entries.len(), heads, longest.unwrap_or(0), dim];
    let mut all = Array4::from_elem(shape, T::from_f32(f32::NAN));
    for (i, entry) in entries.iter().enumerate() {
        let mut to = all.slice_mut(s![i..=i, .., ..entry.dim().2, ..]);
        to.assign(entry);
    }
    all
}

/// Chunks of a prompt, each with the keys up to its last query, have the bits of the whole prompt.
fn chunks(device: &Device, setting: &Setting) -> Outcome {
    chunks_of::<f16>(Call::new(device, setting)?)?;
    chunks_of::<bf16>(Call::new(device, setting)?)
}

fn chunks_of<T: Element>(call: Call) -> Outcome {
    let (setting, tokens) = (call.setting, Tokens::<T>::new(call.setting, 1));
    let whole = call.whole(&tokens)?;
    for cut in CUTS.windows(2) {
        let queries = cut[0]..cut[1];
        let found = call.alone(&tokens, queries.clone())?;
        expect_same(
            &found,
            &call.part(&whole, queries.clone()),
            format!("{queries:?} of D = {}", setting.dim),
        )?;
    }
    PASSED
}

/// Chunks beside longer and shorter sequences, which come before and behind.
fn neighbours(device: &Device, setting: &Setting) -> Outcome {
    let call = Call::new(device, setting)?;
    let [tokens, others] = [1, 2].map(|seed| Tokens::<f16>::new(setting, seed));
    let whole = call.whole(&tokens)?;
    for (queries, [before, behind]) in [
        (130..131, [TOKENS, 1]),
        (67..130, [3, TOKENS]),
        (131..TOKENS, [1, 40]),
    ] {
        let entries = [TOKENS - before..TOKENS, queries.clone(), 0..behind];
        let all = [&others, &tokens, &others];
        let chunks: Vec<_> = all
            .iter()
            .zip(entries)
            .map(|(tokens, of)| tokens.chunk(of))
            .collect();
        let of = |i: usize| padded(&chunks.iter().map(|chunk| chunk[i]).collect::<Vec<_>>());
        let lengths = |i: usize| {
            chunks
                .iter()
                .map(|chunk| chunk[i].dim().2)
                .collect::<Vec<_>>()
        };
        let [q, k, v] = [0, 1, 2].map(of);
        let [of_q, of_k] = [call.numbers(&lengths(0))?, call.numbers(&lengths(1))?];
        let attention = call.attention();
        let attention = attention.padded(&of_q, &of_k);
        let found = call.forward(
            &attention,
            [q.view(), k.view(), v.view()],
            (1, 0..queries.len()),
        )?;
        expect_same(
            &found,
            &call.part(&whole, queries.clone()),
            format!("{queries:?} of D = {}", setting.dim),
        )?;
    }
    PASSED
}

/// Chunks in packed sequences, which begin anywhere among the keys.
fn packed(device: &Device, setting: &Setting) -> Outcome {
    // Splits divide all keys, wherever sequences begin.
    let setting = &Setting {
        split_keys: 0,
        ..*setting
    };
    let call = Call::new(device, setting)?;
    let [tokens, others] = [1, 2].map(|seed| Tokens::<bf16>::new(setting, seed));
    let whole = call.whole(&tokens)?;
    for (queries, [before, behind]) in [
        (0..TOKENS, [1, 0]),
        (130..131, [TOKENS, 40]),
        (67..130, [3, 1]),
        (2..67, [129, 130]),
    ] {
        let sequences = [
            (&others, before),
            (&others, 0),
            (&tokens, 0),
            (&others, behind),
        ];
        let chunks = sequences.map(|(of, length)| match std::ptr::eq(of, &tokens) {
            true => tokens.chunk(queries.clone()),
            false => of.chunk(0..length),
        });
        let joined = |i: usize| {
            let parts = chunks.map(|chunk| chunk[i]);
            concatenate(Axis(2), &parts).expect("of one shape")
        };
        let offsets = |i: usize| {
            let mut end = 0;
            let ends = chunks.map(|chunk| {
                end += chunk[i].dim().2;
                end
            });
            call.numbers(&[&[0], &ends[..]].concat())
        };
        let [q, k, v] = [0, 1, 2].map(joined);
        let [of_q, of_k] = [offsets(0)?, offsets(1)?];
        let attention = call.attention();
        let attention = attention.packed(&of_q, &of_k);
        let rows = before..before + queries.len();
        let found = call.forward(&attention, [q.view(), k.view(), v.view()], (0, rows))?;
        expect_same(
            &found,
            &call.part(&whole, queries.clone()),
            format!("{queries:?} of D = {}", setting.dim),
        )?;
    }
    PASSED
}

/// Chunks whose keys lie in pages of any order.
fn pages(device: &Device, setting: &Setting) -> Outcome {
    const PAGE: usize = 16;
    let call = Call::new(device, setting)?;
    let tokens = Tokens::<bf16>::new(setting, 1);
    let whole = call.whole(&tokens)?;
    let most = TOKENS.div_ceil(PAGE);
    let mut table: Vec<_> = (0..most).collect();
    table.shuffle(&mut StdRng::seed_from_u64(3));
    let in_pages = |tokens: &Array4<bf16>| {
        let (_, heads, _, dim) = tokens.dim();
        let mut all = Array4::from_elem([most, heads, PAGE, dim], bf16::NAN);
        for token in 0..TOKENS {
            let mut to = all.slice_mut(s![table[token / PAGE], .., token % PAGE, ..]);
            to.assign(&tokens.slice(s![0, .., token, ..]));
        }
        all
    };
    let [k, v] = [in_pages(&tokens.k), in_pages(&tokens.v)];
    let table = call.numbers(&table)?.reshape([1, most])?;
    for queries in [67..130, 130..131, 131..TOKENS] {
        let q = tokens.q.slice(s![.., .., queries.clone(), ..]);
        let [of_q, of_k] = [
            call.numbers(&[queries.len()])?,
            call.numbers(&[queries.end])?,
        ];
        let attention = call.attention();
        let attention = attention.padded(&of_q, &of_k);
        let attention = attention.pages(&table);
        let found = call.forward(&attention, [q, k.view(), v.view()], (0, 0..queries.len()))?;
        expect_same(
            &found,
            &call.part(&whole, queries.clone()),
            format!("{queries:?} of D = {}", setting.dim),
        )?;
    }
    PASSED
}

/// Gradients of a sequence beside others, in a padded batch.
fn gradients(device: &Device, setting: &Setting) -> Outcome {
    same_gradients(device, setting, |call, tensors, lengths| {
        let attention = call.attention();
        let lengths = call.numbers(&lengths)?;
        let attention = attention.padded(&lengths, &lengths);
        let tensors = [0, 1, 2, 3].map(|i| padded(&tensors.map(|of_entry| of_entry[i])));
        call.backward(
            &attention,
            tensors.each_ref().map(|array| array.view()),
            (1, 0),
        )
    })
}

/// Gradients of a sequence among packed ones.
fn packed_gradients(device: &Device, setting: &Setting) -> Outcome {
    let setting = &Setting {
        split_keys: 0,
        ..*setting
    };
    same_gradients(
        device,
        setting,
        |call, tensors, [before, length, behind]| {
            let attention = call.attention();
            // Two sequences of no token, and the last token of none.
            let ends = [before, before + length, before + length + behind];
            let offsets = call.numbers(&[0, ends[0], ends[0], ends[1], ends[1], ends[2] - 1])?;
            let attention = attention.packed(&offsets, &offsets);
            let tensors = [0, 1, 2, 3].map(|i| {
                let parts = tensors.map(|of_entry| of_entry[i]);
                concatenate(Axis(2), &parts).expect("of one shape")
            });
            call.backward(
                &attention,
                tensors.each_ref().map(|array| array.view()),
                (0, before),
            )
        },
    )
}

/// Tokens of a sequence with gradients.
const LENGTH: usize = 150;

/// q, k, v and the gradient of o of a sequence.
type OfSequence<'a> = [ArrayView4<'a, f16>; 4];

/// Checks that the bits that `backward` finds, of the second of three sequences of such lengths, are those of a batch of it alone.
fn same_gradients(
    device: &Device,
    setting: &Setting,
    backward: impl Fn(&Call, [OfSequence; 3], [usize; 3]) -> Result<[Bits; 3]>,
) -> Outcome {
    if setting.dim > 256 {
        return PASSED;
    }
    let call = Call::new(device, setting)?;
    let [tokens, others] = [1, 2].map(|seed| Tokens::<f16>::new(setting, seed));
    let first = |tokens: &'_ Tokens<f16>, length: usize| {
        let first = s![.., .., ..length, ..];
        [&tokens.q, &tokens.k, &tokens.v, &tokens.d_o].map(|of| of.slice(first).to_owned())
    };
    let own = first(&tokens, LENGTH);
    let own = own.each_ref().map(|array| array.view());
    let expected = call.backward(&call.attention(), own, (0, 0))?;
    for [before, behind] in [[1, 1], [TOKENS, 40], [3, 270]] {
        let around = [before, behind].map(|length| first(&others, length));
        let [head, tail] = around
            .each_ref()
            .map(|of| of.each_ref().map(|array| array.view()));
        let found = backward(&call, [head, own, tail], [before, LENGTH, behind])?;
        for (name, (found, expected)) in ["dq", "dk", "dv"]
            .into_iter()
            .zip(found.iter().zip(&expected))
        {
            expect_same(
                found,
                expected,
                format!("{name} beside {before} and {behind}, D = {}", setting.dim),
            )?;
        }
    }
    PASSED
}
