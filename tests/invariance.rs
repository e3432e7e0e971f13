//! Results that are the same bits beside any neighbours, and however a sequence is cut into chunks of queries.

mod call;

use call::{Bits, Call, LENGTH, PLAIN, Setting, TOKENS, Tokens, expect_same, padded};
use ferroattn::{Device, Element, Result, Tensor, bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array4, ArrayView4, Axis, concatenate, s};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
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
        Test::new("heads", each(heads)),
        Test::new("head_dims", head_dims),
        Test::new("neighbours", each(neighbours)),
        Test::new("packed", each(packed)),
        Test::new("prefix", prefix),
        Test::new("pages", each(pages)),
        Test::new("packed_queries", each(packed_queries)),
        Test::backward("gradients", each(gradients)),
        Test::backward("packed_gradients", each(packed_gradients)),
    ];
    Test::and_on_hopper(tests)
}

/// Ends of chunks: of one query, of few, and of more than a tile.
const CUTS: [usize; 8] = [0, 1, 2, 67, 130, 131, 134, TOKENS];

/// Chunks whose heads share tiles, at least where blocks fill the device: the last one on Hopper alone.
const SHORT: [Range<usize>; 4] = [130..131, 131..134, 100..130, 67..130];

/// Shapes with and without options, of several main loops.
const SETTINGS: &[Setting] = &[
    PLAIN,
    Setting {
        heads: [8, 2],
        window: Some(75),
        sinks: true,
        ..PLAIN
    },
    Setting {
        heads: [4, 1],
        dim: 128,
        sinks: true,
        split_keys: 100,
        ..PLAIN
    },
    Setting {
        heads: [2, 1],
        dim: 128,
        window: Some(75),
        split_keys: 100,
        alibi: true,
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
        heads: [2, 1],
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
        // The text of a mutant has no switch for heads that share tiles.
        let setting = Setting {
            heads: [1, 1],
            dim: 96,
            ..PLAIN
        };
        let call = Call::new(device, &setting)?;
        let call = Call {
            kernel: Some(kernel),
            ..call
        };
        chunks_of::<bf16>(call).map(drop)
    })]
}

/// Chunks of few queries by a kernel of bf16, whose heads share tiles, for its mutants: heads alone are groups of one.
pub fn runs_of_groups(kernel: &'static str, dim: usize) -> Vec<Run> {
    let chunks = match kernel.starts_with("hopper") {
        true => &SHORT[..],
        false => &SHORT[..3],
    };
    vec![Box::new(move |device| {
        let setting = Setting {
            heads: [16, 4],
            dim,
            sinks: true,
            ..PLAIN
        };
        let call = Call::new(device, &setting)?;
        let call = Call {
            kernel: Some(kernel),
            ..call
        };
        heads_of(call, chunks).map(drop)
    })]
}

/// Packed sequences, for the mutants of kernels that spread and gather them.
pub fn runs_of_packed() -> Vec<Run> {
    vec![Box::new(|device| {
        packed_gradients(device, &PLAIN).map(drop)
    })]
}

/// Chunks of a prompt, each with the keys up to its last query, have the bits of the whole prompt.
fn chunks(device: &Device, setting: &Setting) -> Outcome {
    chunks_of::<f16>(Call::new(device, setting)?)?;
    chunks_of::<bf16>(Call::new(device, setting)?)
}

fn chunks_of<T: Element>(call: Call) -> Outcome {
    let tokens = Tokens::<T>::new(call.setting, 1);
    let whole = call.whole(&tokens)?;
    for cut in CUTS.windows(2) {
        let queries = cut[0]..cut[1];
        let found = call.alone(&tokens, queries.clone())?;
        call.expect_part(&found, &whole, queries.clone())?;
    }
    PASSED
}

/// Chunks of all heads have the bits that each head has in a call of its own, where it shares no tile.
fn heads(device: &Device, setting: &Setting) -> Outcome {
    heads_of(Call::new(device, setting)?, &SHORT)
}

/// [`heads`] of every head dim that has a kernel.
fn head_dims(device: &Device) -> Outcome {
    for dim in [24, 96, 192, 256, 384] {
        let setting = Setting {
            dim,
            sinks: true,
            ..PLAIN
        };
        heads(device, &setting)?;
    }
    PASSED
}

fn heads_of(call: Call, chunks: &[Range<usize>]) -> Outcome {
    let (device, setting) = (call.device, call.setting);
    let tokens = Tokens::<bf16>::new(setting, 1);
    let alone = Setting {
        heads: [1, 1],
        ..*setting
    };
    for queries in chunks {
        let [mut o, mut lse] = [Bits::new(), Bits::new()];
        for head in 0..setting.heads[0] {
            let of_head = Call {
                kernel: call.kernel,
                ..Call::of_heads(device, &alone, head..head + 1)?
            };
            let bits = of_head.alone(&tokens.of_head(head), queries.clone())?;
            let (of_o, of_lse) = bits.split_at(queries.len() * setting.dim);
            o.extend(of_o);
            lse.extend(of_lse);
        }
        let found = call.alone(&tokens, queries.clone())?;
        let what = format!(
            "{queries:?} of {:?} heads, D = {}",
            setting.heads, setting.dim
        );
        expect_same(&found, &[o, lse].concat(), what)?;
    }
    PASSED
}

/// Chunks beside longer and shorter sequences of huge numbers, which come before and behind.
fn neighbours(device: &Device, setting: &Setting) -> Outcome {
    let call = Call::new(device, setting)?;
    let tokens = Tokens::<f16>::new(setting, 1);
    let others = Tokens::times(setting, 2, 1000.0);
    let whole = call.whole(&tokens)?;
    for (queries, [before, behind]) in [
        (130..131, [TOKENS, 1]),
        (130..131, [1, 2]),
        (131..134, [2, 3]),
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
        call.expect_part(&found, &whole, queries.clone())?;
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
        call.expect_part(&found, &whole, queries.clone())?;
    }
    PASSED
}

/// Queries that share a prefix, alone and beside others, in one call each.
fn prefix(device: &Device) -> Outcome {
    const SHARED: usize = 70;
    let call = Call::new(device, &PLAIN)?;
    let [tokens, others] = [1, 2].map(|seed| Tokens::<bf16>::new(&PLAIN, seed));
    let shared = [&tokens.k, &tokens.v].map(|all| call.tensor(all.slice(s![.., .., ..SHARED, ..])));
    let [k, v] = shared;
    let (k, v) = (k?, v?);
    let own = |of: &Tokens<bf16>, queries: usize, keys: usize| {
        let end = SHARED + keys;
        let keys = s![.., .., SHARED..end, ..];
        let q = of.q.slice(s![.., .., end - queries..end, ..]).to_owned();
        [q, of.k.slice(keys).to_owned(), of.v.slice(keys).to_owned()]
    };
    let found = |entries: &[[Array4<bf16>; 3]], entry: usize| {
        let attention = call.attention();
        let lengths = |i: usize| {
            let lengths = entries.iter().map(|of| of[i].dim().2);
            call.numbers(&lengths.collect::<Vec<_>>())
        };
        let (of_q, of_k) = (lengths(0)?, lengths(1)?);
        let attention = attention.padded(&of_q, &of_k);
        let attention = attention.prefix(&k, &v);
        let all = [0, 1, 2].map(|i| {
            let parts = entries.iter().map(|of| of[i].view());
            padded(&parts.collect::<Vec<_>>())
        });
        let rows = (entry, 0..entries[entry][0].dim().2);
        call.forward(&attention, all.each_ref().map(|all| all.view()), rows)
    };
    for (queries, keys) in [(1, 90), (40, 130)] {
        let alone = found(&[own(&tokens, queries, keys)], 0)?;
        let entries = [
            own(&others, 3, 200),
            own(&tokens, queries, keys),
            own(&others, 1, 1),
        ];
        let beside = found(&entries, 1)?;
        expect_same(&beside, &alone, format!("{queries} queries on {keys} keys"))?;
    }
    PASSED
}

/// Chunks whose keys lie in pages of any order.
fn pages(device: &Device, setting: &Setting) -> Outcome {
    in_pages(device, setting, |paged, _, queries| paged.bits(queries))
}

/// Chunks whose queries are packed behind those of another sequence.
fn packed_queries(device: &Device, setting: &Setting) -> Outcome {
    in_pages(device, setting, |paged, before, queries| {
        paged.packed_bits(before, queries)
    })
}

/// The bits of chunks, beside other ones, on keys in pages of several sizes.
fn in_pages(
    device: &Device,
    setting: &Setting,
    bits: impl Fn(&Paged, Range<usize>, Range<usize>) -> Result<Bits>,
) -> Outcome {
    let call = Call::new(device, setting)?;
    let tokens = Tokens::<bf16>::new(setting, 1);
    let whole = call.whole(&tokens)?;
    for page in [1, 16, 64] {
        let paged = Paged::new(&call, &tokens, page)?;
        // No tensor map describes so small pages: where kernels load by maps, another one serves all calls with them.
        let whole = match page {
            1 => &paged.bits(0..TOKENS)?,
            _ => &whole,
        };
        for (before, queries) in [
            (0..3, 67..130),
            (140..270, 130..131),
            (5..6, 131..134),
            (0..1, 131..TOKENS),
        ] {
            let found = bits(&paged, before, queries.clone())?;
            call.expect_part(&found, whole, queries)?;
        }
    }
    PASSED
}

/// The tokens of a sequence, whose keys and values lie in pages of any order.
struct Paged<'a> {
    call: &'a Call<'a>,
    q: &'a Array4<bf16>,
    /// `[pages, kv_heads, page, dim]`.
    k: Array4<bf16>,
    v: Array4<bf16>,
    table: Tensor<i32, 2>,
}

impl<'a> Paged<'a> {
    fn new(call: &'a Call, tokens: &'a Tokens<bf16>, page: usize) -> Result<Self> {
        let most = TOKENS.div_ceil(page);
        let mut table: Vec<_> = (0..most).collect();
        table.shuffle(&mut StdRng::seed_from_u64(3));
        let in_pages = |tokens: &Array4<bf16>| {
            let (_, heads, _, dim) = tokens.dim();
            let mut all = Array4::from_elem([most, heads, page, dim], bf16::NAN);
            for token in 0..TOKENS {
                let mut to = all.slice_mut(s![table[token / page], .., token % page, ..]);
                to.assign(&tokens.slice(s![0, .., token, ..]));
            }
            all
        };
        Ok(Paged {
            call,
            q: &tokens.q,
            k: in_pages(&tokens.k),
            v: in_pages(&tokens.v),
            table: call.numbers(&table)?.reshape([1, most])?,
        })
    }

    /// The bits of a chunk.
    fn bits(&self, queries: Range<usize>) -> Result<Bits> {
        let Paged { call, k, v, .. } = self;
        let q = self.q.slice(s![.., .., queries.clone(), ..]);
        let [of_q, of_k] = [
            call.numbers(&[queries.len()])?,
            call.numbers(&[queries.end])?,
        ];
        let attention = call.attention();
        let attention = attention.padded(&of_q, &of_k);
        let attention = attention.pages(&self.table);
        call.forward(&attention, [q, k.view(), v.view()], (0, 0..queries.len()))
    }

    /// The bits of a chunk behind another one, in a call with packed queries.
    fn packed_bits(&self, before: Range<usize>, queries: Range<usize>) -> Result<Bits> {
        let Paged { call, k, v, .. } = self;
        let parts = [&before, &queries].map(|part| self.q.slice(s![.., .., part.clone(), ..]));
        let q = concatenate(Axis(2), &parts).expect("of one shape");
        let rows = before.len()..before.len() + queries.len();
        let offsets = call.numbers(&[0, rows.start, rows.end])?;
        let lengths = call.numbers(&[before.end, queries.end])?;
        let [_, most] = self.table.shape();
        let table = Tensor::new(call.device, [2, most], &self.table.to_vec()?.repeat(2))?;
        let attention = call.attention();
        let attention = attention.packed_queries(&offsets, &lengths);
        let attention = attention.pages(&table);
        call.forward(&attention, [q.view(), k.view(), v.view()], (0, rows))
    }
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
