//! A boolean mask on a GPU: a launch finds the blocks of keys in which it shows a pair, and the main kernel visits these.

use super::RawOptions;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::{Step, Steps};
use kernels::abi::{BlockMapParams, BlockMapRef, Options};
use kernels::catalog::{self, Auxiliary, Family};
use std::mem::offset_of;

/// How a main kernel divides the pairs of a head.
pub(crate) struct Tiles {
    /// Query tiles.
    pub tiles: u32,
    /// Queries of a tile (Br).
    pub queries: u32,
    /// Keys of a block (Bc).
    pub keys: u32,
    /// The first query of the first tile, which may lie before query 0.
    pub first_query: i32,
}

impl Steps {
    /// Adds the launch that maps the mask, if there is one, for the kernel of these tiles. `options`, which stand at `place` of
    /// its parameter block, get the map.
    ///
    /// # Errors
    /// If there are too many tiles for a launch, or the workspace overflows.
    pub(crate) fn map_mask(
        &mut self,
        p: &Problem,
        tensors: &RawOptions,
        tiles: &Tiles,
        options: &mut Options,
        place: usize,
    ) -> Result<()> {
        let Some(mask) = &tensors.mask else {
            return Ok(());
        };
        let pairs = options.mask;
        // An axis that repeats counts once.
        let extent = |stride: i64, extent: usize| if stride == 0 { 1 } else { extent };
        let heads = extent(pairs.head_stride, p.heads);
        let all_heads = extent(pairs.batch_stride, p.batch) * heads;
        let blocks = (p.seqlen_kv as u32).div_ceil(tiles.keys);
        let tile_bytes = BlockMapRef::tile_bytes(blocks) as usize;
        let stride = |stride: i64, heads: usize| match stride {
            0 => 0,
            _ => heads as u64 * u64::from(tiles.tiles),
        };
        options.blocks = BlockMapRef {
            address: self.reserve([all_heads, tiles.tiles as usize, tile_bytes])?,
            batch_tiles: stride(pairs.batch_stride, heads),
            head_tiles: stride(pairs.head_stride, 1),
        };
        let address = offset_of!(Options, blocks) + offset_of!(BlockMapRef, address);
        self.places.push(place + address);
        let params = BlockMapParams {
            mask: pairs,
            map: options.blocks.address,
            bits: mask.bits.into(),
            heads: heads as u32,
            tiles: tiles.tiles,
            tile_queries: tiles.queries,
            block_keys: tiles.keys,
            queries: extent(pairs.query_stride, p.seqlen_q) as u32,
            keys: p.seqlen_kv as u32,
            first_query: tiles.first_query,
        };
        let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Blocks));
        let step = Step::new(
            kernel.into(),
            all_heads as u128 * u128::from(tiles.tiles),
            kernel.shared_bytes(),
            &params,
            &[offset_of!(BlockMapParams, map)],
        )?;
        self.steps.push(step);
        Ok(())
    }
}
