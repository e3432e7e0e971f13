//! A model of Llama's shape, of candle's layers that have gradients, with weights from a seed.

use candle_core::{D, DType, Device, IndexOp, Module, Result, Tensor, Var};
use candle_nn::{Embedding, Linear, RmsNorm, ops, rotary_emb};

/// Causal attention of q `[batch, rows, heads, dim]`, k and v.
pub type Attend = fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>;

/// This crate's attention. A GPU has none in f32: what a model has in f32 is rounded to bf16 for it.
pub fn ferroattn(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    if q.device().is_cpu() || q.dtype() != DType::F32 {
        return ferroattn_candle::flash_attn(q, k, v, scale, true);
    }
    let [q, k, v] = [q, k, v].map(|tensor| tensor.to_dtype(DType::BF16));
    ferroattn_candle::flash_attn(&q?, &k?, &v?, scale, true)?.to_dtype(DType::F32)
}

/// Attention as candle's models write it where there is no flash attention.
pub fn plain(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let (_, rows, heads, _) = q.dims4()?;
    let [q, k, v] = [q, k, v].map(|tensor| {
        let (batch, rows, own, dim) = tensor.dims4()?;
        let tensor = tensor.transpose(1, 2)?.unsqueeze(2)?;
        let shared = tensor.broadcast_as((batch, own, heads / own, rows, dim))?;
        shared.contiguous()?.reshape((batch, heads, rows, dim))
    });
    let scores = (q?.matmul(&k?.t()?.contiguous()?)? * f64::from(scale))?;
    let hidden: Vec<f32> = (0..rows * rows)
        .map(|pair| {
            if pair % rows > pair / rows {
                f32::NEG_INFINITY
            } else {
                0.0
            }
        })
        .collect();
    let hidden =
        Tensor::from_vec(hidden, (rows, rows), scores.device())?.to_dtype(scores.dtype())?;
    let weights = ops::softmax(&scores.broadcast_add(&hidden)?, D::Minus1)?;
    weights.matmul(&v?)?.transpose(1, 2)
}

/// Sizes of a model.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub vocabulary: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    /// Most tokens of a sequence.
    pub rows: usize,
}

/// Weights from a seed, in the order in which they are asked for.
struct Weights {
    state: u64,
    dtype: DType,
    device: Device,
    vars: Vec<Var>,
}

impl Weights {
    fn number(&mut self) -> f32 {
        // An xorshift generator.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Numbers that keep the size of what `columns` of them are multiplied with.
    fn matrix(&mut self, rows: usize, columns: usize) -> Result<Tensor> {
        let size = (3.0 / columns as f32).sqrt();
        let numbers: Vec<f32> = (0..rows * columns).map(|_| size * self.number()).collect();
        let numbers = Tensor::from_vec(numbers, (rows, columns), &self.device)?;
        self.var(&numbers)
    }

    fn linear(&mut self, from: usize, to: usize) -> Result<Linear> {
        Ok(Linear::new(self.matrix(to, from)?, None))
    }

    fn norm(&mut self, size: usize) -> Result<RmsNorm> {
        let ones = Tensor::ones(size, DType::F32, &self.device)?;
        Ok(RmsNorm::new(self.var(&ones)?, 1e-5))
    }

    fn var(&mut self, numbers: &Tensor) -> Result<Tensor> {
        let var = Var::from_tensor(&numbers.to_dtype(self.dtype)?)?;
        self.vars.push(var.clone());
        Ok(var.as_tensor().clone())
    }
}

struct Block {
    norms: [RmsNorm; 2],
    /// Of queries, of keys, of values, and of the output.
    projections: [Linear; 4],
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Token embeddings, blocks of attention and a gated layer, and logits.
pub struct Model {
    sizes: Sizes,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    /// Cosines and sines of the rotary embedding.
    angles: [Tensor; 2],
    pub vars: Vec<Var>,
}

impl Model {
    pub fn new(sizes: Sizes, dtype: DType, device: &Device) -> Result<Self> {
        let Sizes {
            heads,
            kv_heads,
            dim,
            ..
        } = sizes;
        let width = heads * dim;
        let mut weights = Weights {
            state: 0x9e37_79b9_7f4a_7c15,
            dtype,
            device: device.clone(),
            vars: Vec::new(),
        };
        let embedding = Embedding::new(weights.matrix(sizes.vocabulary, width)?, width);
        let block = |weights: &mut Weights| -> Result<Block> {
            Ok(Block {
                norms: [weights.norm(width)?, weights.norm(width)?],
                projections: [
                    weights.linear(width, width)?,
                    weights.linear(width, kv_heads * dim)?,
                    weights.linear(width, kv_heads * dim)?,
                    weights.linear(width, width)?,
                ],
                gate: weights.linear(width, 2 * width)?,
                up: weights.linear(width, 2 * width)?,
                down: weights.linear(2 * width, width)?,
            })
        };
        let blocks: Result<Vec<_>> = (0..sizes.layers).map(|_| block(&mut weights)).collect();
        let angles: Vec<f32> = (0..sizes.rows * dim / 2)
            .map(|index| {
                let (row, pair) = (index / (dim / 2), index % (dim / 2));
                row as f32 / 10_000_f32.powf(2.0 * pair as f32 / dim as f32)
            })
            .collect();
        let angles = Tensor::from_vec(angles, (sizes.rows, dim / 2), device)?;
        Ok(Model {
            sizes,
            embedding,
            blocks: blocks?,
            norm: weights.norm(width)?,
            head: weights.linear(width, sizes.vocabulary)?,
            angles: [
                angles.cos()?.to_dtype(dtype)?,
                angles.sin()?.to_dtype(dtype)?,
            ],
            vars: weights.vars,
        })
    }

    /// Logits `[batch, rows, vocabulary]` of tokens `[batch, rows]`.
    pub fn forward(&self, tokens: &Tensor, attend: Attend) -> Result<Tensor> {
        let mut x = self.embedding.forward(tokens)?;
        for block in &self.blocks {
            let [before_attention, before_gate] = &block.norms;
            x = (&x + self.attention(block, &before_attention.forward_diff(&x)?, attend)?)?;
            let y = before_gate.forward_diff(&x)?;
            let gated = (block.gate.forward(&y)?.silu()? * block.up.forward(&y)?)?;
            x = (x + block.down.forward(&gated)?)?;
        }
        self.head.forward(&self.norm.forward_diff(&x)?)
    }

    fn attention(&self, block: &Block, x: &Tensor, attend: Attend) -> Result<Tensor> {
        let Sizes {
            heads,
            kv_heads,
            dim,
            ..
        } = self.sizes;
        let (batch, rows, _) = x.dims3()?;
        let [of_q, of_k, of_v, of_o] = &block.projections;
        let [cos, sin] = self.angles.each_ref().map(|angles| angles.i(..rows));
        let (cos, sin) = (cos?, sin?);
        let split = |tensor: Tensor, heads| tensor.reshape((batch, rows, heads, dim));
        // Candle turns rows of heads: views, which attention takes.
        let turn = |tensor: Tensor| {
            rotary_emb::rope_slow(&tensor.transpose(1, 2)?, &cos, &sin)?.transpose(1, 2)
        };
        let q = turn(split(of_q.forward(x)?, heads)?)?;
        let k = turn(split(of_k.forward(x)?, kv_heads)?)?;
        let v = split(of_v.forward(x)?, kv_heads)?;
        let o = attend(&q, &k, &v, (dim as f32).sqrt().recip())?;
        of_o.forward(&o.reshape((batch, rows, heads * dim))?)
    }
}
