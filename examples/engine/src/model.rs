//! A layer of attention between an embedding and logits.

use ferroattn::{Device, Gemm, Result, Tensor, TensorView, f16};

/// Tokens that there are.
pub const VOCABULARY: usize = 32;
pub const HEADS: usize = 4;
/// Each serves two query heads.
pub const KV_HEADS: usize = 2;
pub const DIM: usize = 16;
/// Elements of a token's state.
pub const WIDTH: usize = HEADS * DIM;
/// Elements that the projection makes of a state.
pub const PROJECTED: usize = (HEADS + 2 * KV_HEADS) * DIM;

/// The weights, on a device.
pub struct Model {
    pub device: Device,
    /// `[VOCABULARY, WIDTH]`.
    embedding: Tensor<f16, 2>,
    /// The rows of the embedding, on the host.
    rows: Vec<f16>,
    /// `[PROJECTED, WIDTH]`.
    pub projection: Tensor<f16, 2>,
}

/// Queries, keys and values of tokens, one beside the other in each token's row.
pub struct Packed {
    /// `[1, tokens, HEADS + 2 * KV_HEADS, DIM]`.
    all: Tensor<f16>,
}

impl Model {
    /// Small weights that follow from a seed.
    pub fn new(device: &Device, seed: u64) -> Result<Self> {
        let mut state = seed.wrapping_mul(2) + 1;
        let mut random = |len: usize, size: f32| -> Vec<f16> {
            let mut number = || {
                // A linear congruential generator, whose upper bits are random enough here.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                f16::from_f32(size * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0))
            };
            (0..len).map(|_| number()).collect()
        };
        let rows = random(VOCABULARY * WIDTH, 1.0);
        let projection = random(PROJECTED * WIDTH, 0.2);
        Ok(Model {
            device: device.clone(),
            embedding: Tensor::new(device, [VOCABULARY, WIDTH], &rows)?,
            rows,
            projection: Tensor::new(device, [PROJECTED, WIDTH], &projection)?,
        })
    }

    /// The model on another device.
    pub fn on(&self, device: &Device) -> Result<Self> {
        let copy =
            |weights: &Tensor<f16, 2>| Tensor::new(device, weights.shape(), &weights.to_vec()?);
        Ok(Model {
            device: device.clone(),
            embedding: copy(&self.embedding)?,
            rows: self.rows.clone(),
            projection: copy(&self.projection)?,
        })
    }

    /// The states of tokens, `[tokens, WIDTH]`.
    pub fn embed(&self, tokens: &[u8]) -> Result<Tensor<f16, 2>> {
        let rows = tokens.iter().flat_map(|&token| {
            let first = usize::from(token) * WIDTH;
            &self.rows[first..first + WIDTH]
        });
        let rows: Vec<f16> = rows.copied().collect();
        Tensor::new(&self.device, [tokens.len(), WIDTH], &rows)
    }

    /// Queries, keys and values of states.
    pub fn project(&self, states: &Tensor<f16, 2>) -> Result<Packed> {
        let [tokens, _] = states.shape();
        let all = Gemm::new().forward(states, &self.projection)?;
        let all = all.reshape([1, tokens, HEADS + 2 * KV_HEADS, DIM])?;
        Ok(Packed { all })
    }

    /// The logits `[tokens, VOCABULARY]` of outputs `[1, tokens, HEADS, DIM]`.
    pub fn logits(&self, outputs: Tensor<f16>) -> Result<Tensor<f16, 2>> {
        let [_, tokens, ..] = outputs.shape();
        Gemm::new().forward(&outputs.reshape([tokens, WIDTH])?, &self.embedding)
    }

    /// The gradients of outputs, `[tokens, WIDTH]`, from those of logits.
    pub fn logits_backward(&self, d_logits: &Tensor<f16, 2>) -> Result<Tensor<f16, 2>> {
        let transposed = self.embedding.view().transpose(0, 1)?.try_clone()?;
        Gemm::new().forward(d_logits, &transposed)
    }
}

impl Packed {
    /// Queries `[1, HEADS, tokens, DIM]`.
    pub fn q(&self) -> Result<TensorView<'_, f16>> {
        self.part(0, HEADS)
    }

    /// Keys `[1, KV_HEADS, tokens, DIM]`.
    pub fn k(&self) -> Result<TensorView<'_, f16>> {
        self.part(HEADS, KV_HEADS)
    }

    /// Values `[1, KV_HEADS, tokens, DIM]`.
    pub fn v(&self) -> Result<TensorView<'_, f16>> {
        self.part(HEADS + KV_HEADS, KV_HEADS)
    }

    fn part(&self, first: usize, heads: usize) -> Result<TensorView<'_, f16>> {
        self.all.view().narrow(2, first, heads)?.transpose(1, 2)
    }
}
