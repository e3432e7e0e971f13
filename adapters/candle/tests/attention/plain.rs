//! Attention of candle's own operations, as its definition says it.

use candle_core::{DType, Result, Tensor};

/// Options of attention, for q `[batch, seqlen_q, heads, dim]`, k and v of such axes, all in f32 on the CPU.
#[derive(Clone, Default)]
pub struct Plain {
    pub scale: f32,
    pub causal: bool,
    pub left: Option<usize>,
    pub right: Option<usize>,
    pub softcap: Option<f32>,
    /// `[heads]`.
    pub slopes: Option<Vec<f32>>,
    /// `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]`.
    pub bias: Option<Tensor>,
    /// Of a bias's shape.
    pub mask: Option<Tensor>,
    /// `[heads]`.
    pub sinks: Option<Tensor>,
    /// Lengths of queries and keys of each entry of the batch.
    pub lengths: Option<Vec<[usize; 2]>>,
}

impl Plain {
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let heads = q.dim(2)?;
        let [q, k, v] = [q, k, v].map(|tensor| tensor.transpose(1, 2)?.contiguous());
        let (q, k, v) = (q?, shared(&k?, heads)?, shared(&v?, heads)?);
        let scores = q.matmul(&k.transpose(2, 3)?.contiguous()?)?;
        let mut scores = (scores * f64::from(self.scale))?;
        if let Some(cap) = self.softcap.map(f64::from) {
            scores = ((scores / cap)?.tanh()? * cap)?;
        }
        let (batch, heads, seqlen_q, seqlen_kv) = scores.dims4()?;
        scores = (scores - self.penalties(batch, heads, seqlen_q, seqlen_kv)?)?;
        if let Some(bias) = &self.bias {
            scores = scores.broadcast_add(bias)?;
        }
        let visible = self.visible(batch, heads, seqlen_q, seqlen_kv)?;
        let weights = visible.to_dtype(DType::F32)?;
        // Hidden scores have no part, whatever they are.
        scores = visible.where_cond(&scores, &scores.zeros_like()?)?;
        // Scores of tests are small: no maximum is subtracted.
        let weights = (scores.exp()? * weights)?;
        let mut sums = weights.sum_keepdim(3)?;
        if let Some(sinks) = &self.sinks {
            sums = sums.broadcast_add(&sinks.exp()?.reshape((1, heads, 1, 1))?)?;
        }
        let nothing = sums.eq(0.0)?.to_dtype(DType::F32)?;
        let weights = weights.broadcast_div(&(sums + nothing)?)?;
        weights.matmul(&v)?.transpose(1, 2)
    }

    /// Queries and keys of an entry of the batch.
    fn lengths(&self, entry: usize, full: [usize; 2]) -> [usize; 2] {
        self.lengths.as_ref().map_or(full, |lengths| lengths[entry])
    }

    /// The part of the scores that slopes take off.
    fn penalties(
        &self,
        batch: usize,
        heads: usize,
        seqlen_q: usize,
        seqlen_kv: usize,
    ) -> Result<Tensor> {
        each_pair(
            [batch, heads, seqlen_q, seqlen_kv],
            |[entry, head, i, j]| {
                let slope = self.slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
                let [queries, keys] = self.lengths(entry, [seqlen_q, seqlen_kv]);
                let distance = (i + keys) as f32 - (queries + j) as f32;
                slope * distance.abs()
            },
        )
    }

    /// Which pairs are seen.
    fn visible(
        &self,
        batch: usize,
        heads: usize,
        seqlen_q: usize,
        seqlen_kv: usize,
    ) -> Result<Tensor> {
        let visible = each_pair([batch, heads, seqlen_q, seqlen_kv], |[entry, _, i, j]| {
            let [queries, keys] = self.lengths(entry, [seqlen_q, seqlen_kv]);
            let place = i as i64 + keys as i64 - queries as i64;
            let right = if self.causal { Some(0) } else { self.right };
            let after_left = self.left.is_none_or(|left| j as i64 >= place - left as i64);
            let before_right = right.is_none_or(|right| j as i64 <= place + right as i64);
            f32::from(i < queries && j < keys && after_left && before_right)
        })?;
        let visible = visible.to_dtype(DType::U8)?;
        match &self.mask {
            Some(mask) => visible.broadcast_mul(&mask.ne(0_u8)?),
            None => Ok(visible),
        }
    }
}

/// A number for each entry, head, query and key.
fn each_pair(shape: [usize; 4], number: impl Fn([usize; 4]) -> f32) -> Result<Tensor> {
    let [batch, heads, seqlen_q, seqlen_kv] = shape;
    let mut numbers = Vec::new();
    for entry in 0..batch {
        for head in 0..heads {
            for i in 0..seqlen_q {
                numbers.extend((0..seqlen_kv).map(|j| number([entry, head, i, j])));
            }
        }
    }
    Tensor::from_vec(
        numbers,
        (batch, heads, seqlen_q, seqlen_kv),
        &candle_core::Device::Cpu,
    )
}

/// `[batch, kv_heads, rows, dim]` with each head as often as query heads share it.
fn shared(tensor: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, kv_heads, rows, dim) = tensor.dims4()?;
    let shape = (batch, kv_heads, heads / kv_heads, rows, dim);
    let repeated = tensor.unsqueeze(2)?.broadcast_as(shape)?.contiguous()?;
    repeated.reshape((batch, heads, rows, dim))
}
