//! Gradients through attention, into one packed tensor, and a step down.

use crate::model::{DIM, HEADS, KV_HEADS, Model, PROJECTED, VOCABULARY, WIDTH};
use crate::requests::{offsets, rows};
use ferroattn::{Attention, BackwardInputs, Gemm, GradientsMut, Result, Tensor, f16};

/// Learns to say the token behind each, of texts of any lengths in one call.
pub struct Trainer {
    pub model: Model,
    /// The projection in f32: steps are smaller than f16 tells apart.
    weights: Vec<f32>,
}

impl Trainer {
    pub fn new(model: Model) -> Result<Self> {
        let weights = model.projection.to_vec()?;
        Ok(Trainer {
            model,
            weights: weights.into_iter().map(f16::to_f32).collect(),
        })
    }

    /// Takes a step of this size down the gradient, and gives the mean loss before it, in nats a token.
    pub fn step(&mut self, texts: &[&[u8]], size: f32) -> Result<f32> {
        let model = &self.model;
        let device = &model.device;
        let read: Vec<u8> = texts
            .iter()
            .flat_map(|text| &text[..text.len() - 1])
            .copied()
            .collect();
        let next: Vec<u8> = texts.iter().flat_map(|text| &text[1..]).copied().collect();
        let offsets = offsets(device, texts.iter().map(|text| text.len() - 1))?;
        let attention = Attention::new().causal(true).packed(&offsets, &offsets);

        let states = model.embed(&read)?;
        let packed = model.project(&states)?;
        let (q, k, v) = (packed.q()?, packed.k()?, packed.v()?);
        let tokens = read.len();
        let mut o = Tensor::zeros(device, [1, tokens, HEADS, DIM])?;
        let mut lse = Tensor::zeros(device, [1, HEADS, tokens])?;
        let mut by_head = o.view_mut().transpose(1, 2)?;
        attention.forward_into(&q, &k, &v, &mut by_head, &mut lse)?;
        let logits = rows(&model.logits(o.try_clone()?)?)?;
        let (loss, d_logits) = cross_entropy(&logits, &next);
        let d_logits = Tensor::new(device, [tokens, VOCABULARY], &d_logits)?;
        let d_o = model.logits_backward(&d_logits)?;
        let d_o = d_o.reshape([1, tokens, HEADS, DIM])?.transpose(1, 2)?;

        // The gradients lie as the projection's output does.
        let mut packed_gradient = Tensor::zeros(device, [1, tokens, HEADS + 2 * KV_HEADS, DIM])?;
        let [of_q, mut others] = packed_gradient.split_mut(2, HEADS)?;
        let [of_k, of_v] = others.split_mut(2, KV_HEADS)?;
        let mut dq = of_q.transpose(1, 2)?;
        let mut dk = of_k.transpose(1, 2)?;
        let mut dv = of_v.transpose(1, 2)?;
        let o = o.view().transpose(1, 2)?;
        let inputs = BackwardInputs::new(&q, &k, &v, &o, &lse, &d_o);
        attention.backward_into(&inputs, GradientsMut::new(&mut dq, &mut dk, &mut dv))?;

        let columns = packed_gradient
            .reshape([tokens, PROJECTED])?
            .transpose(0, 1)?
            .try_clone()?;
        let states = states.transpose(0, 1)?.try_clone()?;
        let gradient = Gemm::new().forward(&columns, &states)?.to_vec()?;
        for (weight, gradient) in self.weights.iter_mut().zip(gradient) {
            *weight -= size * gradient.to_f32();
        }
        let rounded: Vec<f16> = self
            .weights
            .iter()
            .map(|&weight| f16::from_f32(weight))
            .collect();
        debug_assert_eq!(rounded.len(), PROJECTED * WIDTH);
        self.model.projection.copy_from_slice(&rounded)?;
        Ok(loss)
    }
}

/// The mean loss of logits, and its gradient.
fn cross_entropy(logits: &[Vec<f32>], next: &[u8]) -> (f32, Vec<f16>) {
    let count = next.len() as f32;
    let mut loss = 0.0;
    let mut gradient = Vec::new();
    for (logits, &next) in logits.iter().zip(next) {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
        loss += (most + sum.ln() - logits[usize::from(next)]) / count;
        for (token, logit) in logits.iter().enumerate() {
            let p = (logit - most).exp() / sum;
            let target = f32::from(token == usize::from(next));
            gradient.push(f16::from_f32((p - target) / count));
        }
    }
    (loss, gradient)
}
