//! Keys and values of requests that grow.

use crate::model::{DIM, KV_HEADS};
use ferroattn::{Device, Result, Tensor, TensorView, f16};

/// Room for the tokens of a batch of requests, `[batch, rows, heads, dim]`: a token's row is in one piece.
pub struct Cache {
    k: Tensor<f16>,
    v: Tensor<f16>,
    /// Tokens of each request.
    pub lengths: Vec<usize>,
}

impl Cache {
    pub fn new(device: &Device, batch: usize, rows: usize) -> Result<Self> {
        let zeros = || Tensor::zeros(device, [batch, rows, KV_HEADS, DIM]);
        Ok(Cache {
            k: zeros()?,
            v: zeros()?,
            lengths: vec![0; batch],
        })
    }

    /// Appends rows of keys and values, `[1, KV_HEADS, tokens, DIM]`, to a request.
    pub fn append(
        &mut self,
        request: usize,
        k: &TensorView<f16>,
        v: &TensorView<f16>,
    ) -> Result<()> {
        let (first, [_, _, tokens, _]) = (self.lengths[request], k.shape());
        for (cache, rows) in [(&mut self.k, k), (&mut self.v, v)] {
            let place = cache.view_mut().narrow(0, request, 1)?;
            place
                .narrow(1, first, tokens)?
                .transpose(1, 2)?
                .copy_from(rows)?;
        }
        self.lengths[request] += tokens;
        Ok(())
    }

    /// Keys and values `[batch, KV_HEADS, rows, DIM]`, as many rows as the longest request has.
    pub fn views(&self) -> Result<[TensorView<'_, f16>; 2]> {
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let [k, v] =
            [&self.k, &self.v].map(|all| all.view().narrow(1, 0, longest)?.transpose(1, 2));
        Ok([k?, v?])
    }
}
