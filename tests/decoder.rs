//! Steps of decoding, each beside attention of all tokens at once.

use ferroattn::{
    Append, Attention, Decoder, DecoderShape, Device, Result, Stream, Tensor, TensorView, f16,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use tests::{Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("steps", |device| {
            // On the CPU a step takes longer the more keys there are.
            let steps = match (device.is_emulator(), device.is_cpu()) {
                (true, _) => 40,
                (_, true) => 300,
                _ => 1000,
            };
            decode(device, Sizes::paged(1, steps))
        }),
        Test::new("steps_of_tokens", |device| {
            decode(
                device,
                Sizes::paged(3, if device.is_emulator() { 8 } else { 60 }),
            )
        }),
        Test::new("steps_without_pages", |device| {
            let sizes = Sizes::paged(1, if device.is_emulator() { 8 } else { 60 });
            decode(
                device,
                Sizes {
                    page: None,
                    ..sizes
                },
            )
        }),
        Test::new("refused", refused),
    ];
    Test::and_on_hopper(tests)
}

const BATCH: usize = 3;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
/// Pairs that are rotated.
const PAIRS: usize = 16;
/// Tokens that each sequence has before the first step.
const PROMPTS: [usize; BATCH] = [0, 1, 37];

/// How much is decoded, and where keys lie.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Tokens of a step.
    tokens: usize,
    pub steps: usize,
    /// Keys of a page.
    page: Option<usize>,
}

impl Sizes {
    pub fn paged(tokens: usize, steps: usize) -> Self {
        Sizes {
            tokens,
            steps,
            page: Some(16),
        }
    }

    /// Keys of the longest sequence behind the last step.
    fn longest(&self) -> usize {
        PROMPTS[BATCH - 1] + self.tokens * self.steps
    }

    fn shape(&self) -> DecoderShape {
        let most = self.page.map(|page| self.longest().div_ceil(page));
        let cache = match (self.page, most) {
            (Some(page), Some(most)) => [BATCH * most + 2, KV_HEADS, page, DIM],
            _ => [BATCH, KV_HEADS, self.longest(), DIM],
        };
        DecoderShape {
            q: [BATCH, HEADS, self.tokens, DIM],
            k_cache: cache,
            v_cache: cache,
            pages: most,
        }
    }
}

/// A cache of NaN.
fn cache(device: &Device, shape: [usize; 4]) -> Result<Tensor<f16>> {
    Tensor::new(device, shape, &vec![f16::NAN; shape.iter().product()])
}

/// One layer: all its queries, keys and values by token, and its cache.
struct Layer {
    attention: Attention<'static>,
    /// `[BATCH, heads, longest, DIM]` each.
    q: Tensor<f16>,
    k: Tensor<f16>,
    v: Tensor<f16>,
    k_cache: Tensor<f16>,
    v_cache: Tensor<f16>,
    /// What a step reads and writes.
    step: [Tensor<f16>; 4],
    /// `[BATCH, HEADS, tokens of all steps, DIM]`.
    decoded: Tensor<f16>,
}

/// A model's layers in the middle of decoding.
pub struct Run {
    sizes: Sizes,
    decoder: Decoder<f16>,
    cos: Tensor<f32, 2>,
    sin: Tensor<f32, 2>,
    layers: Vec<Layer>,
}

impl Run {
    /// Random numbers, pages in any order, and the prompts in the caches.
    pub fn new(device: &Device, sizes: Sizes) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(5);
        let longest = sizes.longest();
        let shape = sizes.shape();
        // Two kinds of layers, as models have that attend near and far in turns.
        let far = Attention::new().causal(true);
        let near = far.clone().window(24, 0).softcap(3.0);
        let angles = |of: fn(f32) -> f32| {
            let angle = |n: usize| (n / PAIRS) as f32 / 3_f32.powi((n % PAIRS) as i32);
            let all: Vec<_> = (0..longest * PAIRS).map(|n| of(angle(n))).collect();
            Tensor::new(device, [longest, PAIRS], &all)
        };
        let (cos, sin) = (angles(f32::cos)?, angles(f32::sin)?);
        let mut decoder = Decoder::new(device, shape, &[&far, &near])?.rotary(
            cos.try_clone()?,
            sin.try_clone()?,
            false,
        )?;
        if let Some(most) = shape.pages {
            let mut pages: Vec<i32> = (0..shape.k_cache[0] as i32).collect();
            pages.shuffle(&mut rng);
            let table = decoder.pages_mut().expect("pages");
            table.copy_from_slice(&pages[..BATCH * most])?;
        }
        let mut random = |shape: [usize; 4]| {
            let all = (0..shape.iter().product::<usize>())
                .map(|_| f16::from_f32(rng.sample(StandardNormal)));
            Tensor::new(device, shape, &all.collect::<Vec<_>>())
        };
        let by_head = |heads| [BATCH, heads, longest, DIM];
        let of_step = |heads| Tensor::zeros(device, [BATCH, heads, sizes.tokens, DIM]);
        let mut layers = Vec::new();
        for attention in [far, near] {
            layers.push(Layer {
                attention,
                q: random(by_head(HEADS))?,
                k: random(by_head(KV_HEADS))?,
                v: random(by_head(KV_HEADS))?,
                k_cache: cache(device, shape.k_cache)?,
                v_cache: cache(device, shape.v_cache)?,
                step: [
                    of_step(HEADS)?,
                    of_step(KV_HEADS)?,
                    of_step(KV_HEADS)?,
                    of_step(HEADS)?,
                ],
                decoded: Tensor::zeros(device, [BATCH, HEADS, sizes.tokens * sizes.steps, DIM])?,
            });
        }
        let mut run = Run {
            sizes,
            decoder,
            cos,
            sin,
            layers,
        };
        run.prefill()?;
        Ok(run)
    }

    /// Appends the prompts, sequence by sequence.
    fn prefill(&mut self) -> Result<()> {
        for (sequence, length) in PROMPTS.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            for layer in &mut self.layers {
                let prompt = |all: &Tensor<f16>| {
                    let sequence = all.view().narrow(0, sequence, 1)?;
                    sequence.narrow(2, 0, length)?.try_clone()
                };
                let (k, v) = (prompt(&layer.k)?, prompt(&layer.v)?);
                let append = Append::new().rotary(&self.cos, &self.sin);
                let caches = (&mut layer.k_cache, &mut layer.v_cache);
                match self.decoder.pages() {
                    Some(table) => {
                        let pages = table.view().narrow(0, sequence, 1)?;
                        append.pages(&pages).run(&k, &v, caches.0, caches.1)?;
                    }
                    None => {
                        let [mut k_cache, mut v_cache] = [
                            caches.0.view_mut().narrow(0, sequence, 1)?,
                            caches.1.view_mut().narrow(0, sequence, 1)?,
                        ];
                        append.run(&k, &v, &mut k_cache, &mut v_cache)?;
                    }
                }
            }
        }
        let lengths = PROMPTS.map(|length| length as i32);
        self.decoder.lengths_mut().copy_from_slice(&lengths)
    }

    /// Copies the tokens of a step to where it reads them.
    pub fn load(&mut self, step: usize) -> Result<()> {
        let tokens = self.sizes.tokens;
        for layer in &mut self.layers {
            let all = [&layer.q, &layer.k, &layer.v];
            for (all, of_step) in all.into_iter().zip(&mut layer.step) {
                for (sequence, prompt) in PROMPTS.into_iter().enumerate() {
                    let from = all.view().narrow(0, sequence, 1)?;
                    let from = from.narrow(2, prompt + step * tokens, tokens)?;
                    let mut to = of_step.view_mut().narrow(0, sequence, 1)?;
                    to.copy_from(&from)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the default stream.
    pub fn wait(&self) -> Result<()> {
        self.decoder.lengths().to_vec().map(drop)
    }

    /// Queues the step.
    pub fn step(&mut self, on: Option<&Stream>) -> Result<()> {
        for layer in &mut self.layers {
            let [q, k, v, o] = &mut layer.step;
            let attention = on.map_or(layer.attention.clone(), |stream| layer.attention.on(stream));
            let caches = (&mut layer.k_cache, &mut layer.v_cache);
            self.decoder.layer(&attention, q, [k, v], caches, o)?;
        }
        self.decoder.advance(on)
    }

    /// Keeps the outputs of the step.
    pub fn keep(&mut self, step: usize) -> Result<()> {
        let tokens = self.sizes.tokens;
        for layer in &mut self.layers {
            let mut place = layer.decoded.view_mut().narrow(2, step * tokens, tokens)?;
            place.copy_from(&layer.step[3])?;
        }
        Ok(())
    }

    /// Compares all outputs with attention to all tokens at once.
    pub fn check(&self) -> Outcome {
        let count = self.sizes.tokens * self.sizes.steps;
        let lengths = self.decoder.lengths().to_vec()?;
        let expected = PROMPTS.map(|prompt| (prompt + count) as i32);
        assert_eq!(lengths, expected);
        let device = self.cos.device();
        for layer in &self.layers {
            let mut keys = cache(&device, layer.k.shape())?;
            let mut values = cache(&device, layer.v.shape())?;
            let mut queries = Tensor::zeros(&device, layer.q.shape())?;
            Append::new().rotary(&self.cos, &self.sin).run_with(
                (&layer.q, &mut queries),
                [&layer.k, &layer.v],
                &mut keys,
                &mut values,
            )?;
            for (sequence, prompt) in PROMPTS.into_iter().enumerate() {
                let part = |all: &Tensor<f16>, first, count| -> Result<Tensor<f16>> {
                    let sequence = all.view().narrow(0, sequence, 1)?;
                    sequence.narrow(2, first, count)?.try_clone()
                };
                let all = prompt + count;
                let (q, k) = (part(&queries, prompt, count)?, part(&keys, 0, all)?);
                let (o, _) = layer.attention.forward(&q, &k, &part(&values, 0, all)?)?;
                let decoded = part(&layer.decoded, 0, count)?;
                expect_near(&decoded.view(), &o)?;
            }
        }
        PASSED
    }
}

/// Both are results in f16 of the same numbers, whose sums have other orders.
fn expect_near(found: &TensorView<f16>, expected: &Tensor<f16>) -> Result<()> {
    let both = found.to_vec()?.into_iter().zip(expected.to_vec()?);
    for (place, (found, expected)) in both.enumerate() {
        let difference = (found.to_f32() - expected.to_f32()).abs();
        assert!(
            difference <= 4e-3 * expected.to_f32().abs().max(1.0),
            "element {place}: {found}, {expected}"
        );
    }
    Ok(())
}

fn decode(device: &Device, sizes: Sizes) -> Outcome {
    let mut run = Run::new(device, sizes)?;
    for step in 0..sizes.steps {
        run.load(step)?;
        run.step(None)?;
        run.keep(step)?;
    }
    run.check()
}

/// Shapes that are not the decoder's, and memory of another device.
fn refused(device: &Device) -> Outcome {
    let shape = Sizes::paged(1, 1).shape();
    let attention = Attention::new();
    let message = |shape| {
        let refused = Decoder::<f16>::new(device, shape, &[&attention]);
        refused.expect_err("a wrong shape").to_string()
    };
    let [pages, kv_heads, _, dim] = shape.k_cache;
    let odd = [pages, kv_heads, 12, dim];
    let wrong = message(DecoderShape {
        k_cache: odd,
        v_cache: odd,
        ..shape
    });
    assert!(wrong.contains("12"), "{wrong}");
    let wrong = message(DecoderShape {
        q: [BATCH, 3, 1, dim],
        ..shape
    });
    assert!(wrong.contains("heads"), "{wrong}");

    let mut decoder = Decoder::<f16>::new(device, shape, &[&attention])?;
    let pages: Vec<i32> = (0..pages as i32 - 2).collect();
    let table = decoder.pages_mut().expect("pages");
    table.copy_from_slice(&pages)?;
    let zeros = |shape| Tensor::<f16>::zeros(device, shape);
    let (mut keys, mut values) = (zeros(shape.k_cache)?, zeros(shape.v_cache)?);
    let (mut o, new) = (zeros(shape.q)?, zeros([BATCH, KV_HEADS, 1, DIM])?);
    let mut layer = |q: [usize; 4], keys: &mut Tensor<f16>| {
        let q = zeros(q)?;
        let caches = (keys, &mut values);
        decoder.layer(&attention, &q, [&new, &new], caches, &mut o)
    };
    layer(shape.q, &mut keys)?;
    for (q, keys, part) in [
        ([BATCH, HEADS, 2, DIM], &mut keys, "q"),
        (
            shape.q,
            &mut zeros([pages.len() + 2, kv_heads, 32, dim])?,
            "k_cache",
        ),
    ] {
        let wrong = layer(q, keys).expect_err("a wrong shape").to_string();
        assert!(wrong.starts_with(part), "{wrong}");
    }
    PASSED
}
