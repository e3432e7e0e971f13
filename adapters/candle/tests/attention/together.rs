//! Options together, in cases that a seed draws.

use crate::compare::{compare, random};
use crate::plain::Plain;
use candle_core::{Result, Tensor};
use ferroattn_candle::Attention;

const CASES: u64 = 24;

/// Choices from a seed.
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        // A linear congruential generator: its high bits are good.
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % count
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn either(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A problem, the tensors that get gradients, and what else the call has.
struct Case {
    inputs: Vec<Tensor>,
    plain: Plain,
    mask: Option<Tensor>,
    has_bias: bool,
    has_sinks: bool,
}

fn case(seed: u64) -> Result<Case> {
    let mut choices = Choices(seed);
    let (batch, kv_heads) = (1 + choices.below(3), 1 + choices.below(2));
    let heads = kv_heads * (1 + choices.below(3));
    let (seqlen_q, seqlen_kv) = (1 + choices.below(40), 1 + choices.below(80));
    let (dim, dim_v) = (choices.of(&[8, 12, 32]), choices.of(&[8, 32, 40]));
    let bound = |choices: &mut Choices| choices.either().then(|| choices.below(30));
    let slopes =
        |choices: &mut Choices| (0..heads).map(|_| choices.below(9) as f32 / 16.0).collect();
    let lengths = |choices: &mut Choices| {
        let each = (0..batch).map(|_| [choices.below(seqlen_q + 1), choices.below(seqlen_kv + 1)]);
        each.collect()
    };
    let plain = Plain {
        scale: choices.of(&[0.1, 0.25, -0.3]),
        causal: choices.either(),
        left: bound(&mut choices),
        right: bound(&mut choices),
        softcap: choices.either().then_some(1.5),
        slopes: choices.either().then(|| slopes(&mut choices)),
        lengths: choices.either().then(|| lengths(&mut choices)),
        ..Plain::default()
    };
    let mut pairs = || {
        let axes = [batch, heads, seqlen_q].map(|extent| if choices.either() { extent } else { 1 });
        [axes[0], axes[1], axes[2], seqlen_kv]
    };
    let (of_bias, of_mask) = (pairs(), pairs());
    let mask = random(&of_mask, seed + 100).gt(-0.5_f32)?;
    let [has_bias, has_sinks, has_mask] = [(); 3].map(|()| choices.either());
    let mut inputs = vec![
        random(&[batch, heads, seqlen_q, dim], seed + 1),
        random(&[batch, seqlen_kv, kv_heads, dim], seed + 2),
        random(&[batch, seqlen_kv, kv_heads, dim_v], seed + 3),
    ];
    inputs.extend(has_bias.then(|| random(&of_bias, seed + 4)));
    inputs.extend(has_sinks.then(|| random(&[heads], seed + 5)));
    Ok(Case {
        inputs,
        plain,
        mask: has_mask.then_some(mask),
        has_bias,
        has_sinks,
    })
}

impl Case {
    /// Bias and sinks behind q, k and v.
    fn options(&self, t: &[Tensor]) -> [Option<Tensor>; 2] {
        let mut options = t[3..].iter().cloned();
        let bias = self.has_bias.then(|| options.next()).flatten();
        [bias, self.has_sinks.then(|| options.next()).flatten()]
    }

    fn actual(&self, t: &[Tensor]) -> Result<Tensor> {
        let (plain, device) = (&self.plain, t[0].device());
        let mut attention = Attention::new()
            .scale(plain.scale)
            .causal(plain.causal)
            .window(plain.left, plain.right);
        if let Some(softcap) = plain.softcap {
            attention = attention.softcap(softcap);
        }
        if let Some(slopes) = &plain.slopes {
            attention = attention.alibi(&Tensor::new(&slopes[..], device)?);
        }
        if let Some(lengths) = &plain.lengths {
            let [q, kv] = [0, 1].map(|part| {
                let numbers: Vec<u32> = lengths.iter().map(|entry| entry[part] as u32).collect();
                Tensor::new(numbers, device)
            });
            attention = attention.padded(&q?, &kv?);
        }
        if let Some(mask) = &self.mask {
            attention = attention.mask(&mask.to_device(device)?);
        }
        let [bias, sinks] = self.options(t);
        if let Some(bias) = &bias {
            attention = attention.bias(bias);
        }
        if let Some(sinks) = &sinks {
            attention = attention.sinks(sinks);
        }
        attention.forward(&t[0].transpose(1, 2)?, &t[1], &t[2])
    }

    fn expected(&self, t: &[Tensor]) -> Result<Tensor> {
        let [bias, sinks] = self.options(t);
        let mask = self.mask.clone();
        let plain = Plain {
            bias,
            sinks,
            mask,
            ..self.plain.clone()
        };
        plain.forward(&t[0].transpose(1, 2)?, &t[1], &t[2])
    }
}

#[test]
fn random_cases() -> Result<()> {
    for seed in 0..CASES {
        let case = case(seed)?;
        compare(&case.inputs, |t| case.actual(t), |t| case.expected(t))?;
    }
    Ok(())
}

/// A seed that draws an option always, or never, is a poor one.
#[test]
fn drawn_cases_have_every_option() -> Result<()> {
    let cases: Result<Vec<_>> = (0..CASES).map(case).collect();
    let cases = cases?;
    let has = |option: fn(&Case) -> bool| cases.iter().any(option) && !cases.iter().all(option);
    assert!(has(|case| case.plain.causal));
    assert!(has(|case| case.plain.left.is_some()));
    assert!(has(|case| case.plain.right.is_some()));
    assert!(has(|case| case.plain.softcap.is_some()));
    assert!(has(|case| case.plain.slopes.is_some()));
    assert!(has(|case| case.plain.lengths.is_some()));
    assert!(has(|case| case.mask.is_some()));
    assert!(has(|case| case.has_bias));
    assert!(has(|case| case.has_sinks));
    Ok(())
}
