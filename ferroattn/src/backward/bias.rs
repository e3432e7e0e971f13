//! Steps for the gradient of a bias.

use super::draft::Draft;
use crate::entry::Entry;
use crate::error::Result;
use crate::options;
use crate::tensor::RawTensor;
use kernels::abi::{Switch, Switches};
use kernels::catalog::{self, Backward, Family};

/// How the gradient of a bias is computed.
#[derive(Clone, Copy)]
pub(super) enum BiasGradient {
    /// It is not wanted.
    None,
    /// The main kernel adds dS, pair by pair or four keys at a time: in any order where several pairs have one element.
    Added { in_vectors: bool },
    /// A kernel of its own computes dS again, and sums it in one order.
    Summed,
}

impl BiasGradient {
    /// The way to a gradient of the shape of all pairs, whose axes of extent 1 repeat.
    pub fn new(d_bias: Option<RawTensor>, deterministic: bool, is_hopper: bool) -> Self {
        let Some(d_bias) = d_bias else {
            return BiasGradient::None;
        };
        let mut axes = d_bias.shape.into_iter().zip(d_bias.strides).take(3);
        match deterministic && axes.any(|(extent, stride)| extent > 1 && stride == 0) {
            true => BiasGradient::Summed,
            false => BiasGradient::Added {
                // Only Hopper adds four numbers at a time.
                in_vectors: is_hopper && d_bias.has_vectors(4),
            },
        }
    }

    /// The switches of a main kernel, with those of the other options.
    pub fn switches(self, options: Switches) -> Switches {
        let is = |vectors| matches!(self, Self::Added { in_vectors } if in_vectors == vectors);
        options
            .with(Switch::BiasGradient, is(false))
            .with(Switch::BiasGradientVectors, is(true))
    }
}

impl Draft<'_> {
    /// Writes zeros in the place of the gradient, before kernels add to it.
    pub fn launch_zero_bias(&mut self, way: BiasGradient) -> Result<()> {
        let (BiasGradient::Added { .. }, Some(d_bias)) = (way, self.args.d_bias) else {
            return Ok(());
        };
        let blocks = d_bias.shape[..3].iter().map(|&n| n as u128).product();
        self.launch(Backward::ZeroBias, blocks)
    }

    /// Sums the gradient over its axes of extent 1, behind the sums of far rows.
    pub fn launch_sum_bias(&mut self, way: BiasGradient) -> Result<()> {
        let (BiasGradient::Summed, Some(d_bias)) = (way, self.args.d_bias) else {
            return Ok(());
        };
        let (dims, widest) = (Backward::BIAS_DIMS, self.problem.widest() as u32);
        let dim = dims.into_iter().min_by_key(|&dim| (dim < widest, dim));
        let dim = dim.expect("there are kernels");
        let tile = Backward::bias_tile(dim).map(|rows| rows as usize);
        let [batch, heads, queries, keys] = d_bias.shape;
        let [key_tiles, query_tiles] = [keys.div_ceil(tile[0]), queries.div_ceil(tile[1])];
        let tiles = [batch, heads, query_tiles, key_tiles].map(|n| n as u128);
        let sums = Backward::SumBias(self.dtype, dim);
        let kernel = catalog::kernel(Family::Backward(sums));
        let entry = Entry {
            switches: options::switches(&self.problem, &self.args.options),
            ..kernel.into()
        };
        let (shared_bytes, params) = (kernel.launch.shared_bytes, self.params);
        let blocks = tiles.iter().product();
        self.steps.launch(entry, blocks, shared_bytes, &params)?;
        Ok(())
    }
}
