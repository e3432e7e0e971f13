//! A boolean mask on a GPU: a launch finds the blocks in which it shows a pair, and the main kernel visits these.

use super::RawOptions;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::{Step, Steps};
use kernels::abi::{BlockMapParams, BlockMapRef, Options};
use kernels::catalog::{self, Auxiliary, Family};
use std::mem::offset_of;

/// Rows of a warpgroup's part of a tile: queries, or of gradients keys.
pub(crate) const WARPGROUP_ROWS: u32 = 64;

/// How a main kernel divides the pairs of a head.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// Queries of a tile or a step.
    pub queries: u32,
    /// Keys of a step or a tile.
    pub keys: u32,
    /// Whether tiles of queries end at the last one, and not begin at the first.
    pub at_end: bool,
    /// Rows of a part of a tile of queries or, of gradients, of keys: a warpgroup's, or the tile's.
    pub part: u32,
    /// Query heads that share a map.
    pub group: usize,
}

impl Tiles {
    /// Number and rows of tiles of queries, and of blocks of keys.
    fn counted(&self, p: &Problem) -> [[u32; 2]; 2] {
        let of = |rows: usize, size: u32| [(rows as u32).div_ceil(size), size];
        [of(p.seqlen_q, self.queries), of(p.seqlen_kv, self.keys)]
    }
}

impl Steps {
    /// Adds the launches that map the mask, if there is one, for a kernel of these tiles: the blocks of keys of each query tile
    /// and, for `gradients`, the query tiles of each key tile. `options`, which stand at `place` of the kernel's parameter
    /// block, get the maps.
    ///
    /// # Errors
    /// If there are too many tiles for a launch, or the workspace overflows.
    pub(crate) fn map_mask(
        &mut self,
        p: &Problem,
        tensors: &RawOptions,
        tiles: Tiles,
        gradients: bool,
        options: &mut Options,
        place: usize,
    ) -> Result<()> {
        if tensors.mask.is_none() {
            return Ok(());
        }
        let of_queries = match gradients {
            true => tiles.queries,
            false => tiles.part,
        };
        options.blocks = self.map(p, tensors, tiles, of_queries, false, options)?;
        self.places
            .push(place + offset_of!(Options, blocks.address));
        if gradients {
            options.query_blocks = self.map(p, tensors, tiles, tiles.part, true, options)?;
            self.places
                .push(place + offset_of!(Options, query_blocks.address));
        }
        Ok(())
    }

    /// A map of the mask that is in the options, with parts of so many rows.
    fn map(
        &mut self,
        p: &Problem,
        tensors: &RawOptions,
        tiles: Tiles,
        part_rows: u32,
        transposed: bool,
        options: &Options,
    ) -> Result<BlockMapRef> {
        let mask = options.mask;
        let [queries, keys] = tiles.counted(p);
        let [[count, tile_rows], [blocks, block_rows]] = match transposed {
            true => [keys, queries],
            false => [queries, keys],
        };
        // An axis that repeats counts once.
        let extent = |stride: i64, extent: usize| if stride == 0 { 1 } else { extent };
        let heads = extent(mask.head_stride, p.heads / tiles.group);
        let all_heads = extent(mask.batch_stride, p.batch) * heads;
        let stride = |stride: i64, heads: usize| match stride {
            0 => 0,
            _ => heads as u64 * u64::from(count),
        };
        let tile_bytes = BlockMapRef::tile_bytes(blocks) as usize;
        let map = BlockMapRef {
            address: self.reserve([all_heads, count as usize, tile_bytes])?,
            batch_tiles: stride(mask.batch_stride, heads),
            head_tiles: stride(mask.head_stride, 1),
        };
        let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Blocks));
        let params = BlockMapParams {
            mask,
            map: map.address,
            bits: tensors.mask.is_some_and(|mask| mask.bits).into(),
            transposed: transposed.into(),
            heads: heads as u32,
            group: extent(mask.head_stride, tiles.group) as u32,
            tiles: count,
            tile_rows,
            first_row: match tiles.at_end {
                true => (p.seqlen_q as i64 - i64::from(count) * i64::from(tile_rows)) as i32,
                false => 0,
            },
            blocks,
            block_rows,
            queries: extent(mask.query_stride, p.seqlen_q) as u32,
            keys: p.seqlen_kv as u32,
            part_rows,
        };
        let launched = all_heads as u128 * u128::from(count);
        let step = Step::new(
            kernel.into(),
            launched,
            kernel.launch.shared_bytes,
            &params,
            &[offset_of!(BlockMapParams, map)],
        )?;
        self.steps.push(step);
        Ok(map)
    }
}
