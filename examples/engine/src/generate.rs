//! Prompts of any lengths at once, then a token of each request at a time.

use crate::cache::Cache;
use crate::model::{DIM, HEADS, Model, VOCABULARY};
use ferroattn::{Attention, Device, Result, Tensor, f16};

/// Offsets of sequences that lie one after another.
pub fn offsets(device: &Device, lengths: impl Iterator<Item = usize>) -> Result<Tensor<i32, 1>> {
    let mut offsets = vec![0];
    offsets.extend(lengths.scan(0, |end, length| {
        *end += length as i32;
        Some(*end)
    }));
    Tensor::new(device, [offsets.len()], &offsets)
}

/// Fills the cache with prompts, and gives the logits behind each.
pub fn prefill(model: &Model, cache: &mut Cache, prompts: &[&[u8]]) -> Result<Vec<Vec<f32>>> {
    let tokens = prompts.concat();
    let packed = model.project(&model.embed(&tokens)?)?;
    let offsets = offsets(&model.device, prompts.iter().map(|prompt| prompt.len()))?;
    // One call: each query sees the keys of its own prompt.
    let attention = Attention::new().causal(true).packed(&offsets, &offsets);
    let mut o = Tensor::zeros(&model.device, [1, tokens.len(), HEADS, DIM])?;
    let mut lse = Tensor::zeros(&model.device, [1, HEADS, tokens.len()])?;
    let (q, k, v) = (packed.q()?, packed.k()?, packed.v()?);
    // A view of the output has the axes of q; its memory stays row by row.
    let mut by_head = o.view_mut().transpose(1, 2)?;
    attention.forward_into(&q, &k, &v, &mut by_head, &mut lse)?;
    let logits = rows(&model.logits(o)?)?;
    let mut first = 0;
    let mut last = Vec::new();
    for (request, prompt) in prompts.iter().enumerate() {
        let of_prompt = |tensor: ferroattn::TensorView<'_, f16>| {
            tensor
                .narrow(2, first, prompt.len())
                .and_then(|rows| rows.try_clone())
        };
        let (k, v) = (of_prompt(packed.k()?)?, of_prompt(packed.v()?)?);
        cache.append(request, &k.view(), &v.view())?;
        first += prompt.len();
        last.push(logits[first - 1].clone());
    }
    Ok(last)
}

/// Tensors that decoding writes, step after step.
pub struct Decoder {
    o: Tensor<f16>,
    lse: Tensor<f32, 3>,
    /// A query of each request.
    ones: Tensor<i32, 1>,
    lengths: Tensor<i32, 1>,
}

impl Decoder {
    pub fn new(device: &Device, batch: usize) -> Result<Self> {
        Ok(Decoder {
            o: Tensor::zeros(device, [batch, HEADS, 1, DIM])?,
            lse: Tensor::zeros(device, [batch, HEADS, 1])?,
            ones: Tensor::new(device, [batch], &vec![1; batch])?,
            lengths: Tensor::zeros(device, [batch])?,
        })
    }

    /// Appends a token to each request, and gives the logits behind it.
    pub fn step(
        &mut self,
        model: &Model,
        cache: &mut Cache,
        tokens: &[u8],
    ) -> Result<Vec<Vec<f32>>> {
        let packed = model.project(&model.embed(tokens)?)?;
        let (k, v) = (packed.k()?, packed.v()?);
        for request in 0..tokens.len() {
            let [k, v] = [k, v].map(|all| all.narrow(2, request, 1));
            cache.append(request, &k?, &v?)?;
        }
        let lengths: Vec<i32> = cache.lengths.iter().map(|&length| length as i32).collect();
        self.lengths.copy_from_slice(&lengths)?;
        // Requests are entries of the batch here: [1, heads, requests, dim] as [requests, heads, 1, dim].
        let q = packed.q()?.permute([2, 1, 0, 3])?;
        let [k, v] = cache.views()?;
        let attention = Attention::new().padded(&self.ones, &self.lengths);
        attention.forward_into(&q, &k, &v, &mut self.o, &mut self.lse)?;
        let o = self.o.view().permute([2, 0, 1, 3])?.try_clone()?;
        rows(&model.logits(o)?)
    }
}

/// The token of the largest logit.
pub fn greedy(logits: &[f32]) -> u8 {
    let tokens = logits.iter().enumerate();
    let best = tokens.max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary").0 as u8
}

/// Tokens behind each prompt, by the largest logits.
pub fn generate(model: &Model, prompts: &[&[u8]], count: usize) -> Result<Vec<Vec<u8>>> {
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let mut cache = Cache::new(&model.device, prompts.len(), longest + count)?;
    let mut decoder = Decoder::new(&model.device, prompts.len())?;
    let mut logits = prefill(model, &mut cache, prompts)?;
    let mut generated = vec![Vec::new(); prompts.len()];
    for step in 0..count {
        let tokens: Vec<u8> = logits.iter().map(|logits| greedy(logits)).collect();
        for (text, &token) in generated.iter_mut().zip(&tokens) {
            text.push(token);
        }
        if step + 1 < count {
            logits = decoder.step(model, &mut cache, &tokens)?;
        }
    }
    Ok(generated)
}

/// Logits on the host, by token.
pub fn rows(logits: &Tensor<f16, 2>) -> Result<Vec<Vec<f32>>> {
    let all = logits.to_vec()?;
    let rows = all.chunks(VOCABULARY);
    Ok(rows
        .map(|row| row.iter().map(|x| x.to_f32()).collect())
        .collect())
}
