//! A block's work: the rows of a query tile, on a split of the keys.

use super::heads::Heads;
use super::key_rows::KeyRows;
use super::sequence::{Sequence, Split};
use super::units;
use super::visits::Visits;
use crate::abi::{ForwardParams, QueryTile, TensorRef};
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::score::Score;
use crate::layout::rows::{Rows, Strided};
use crate::ptx::{global, special, switch};
use crate::tile::Numbers;
use crate::tile::registers::opaque;

/// A query tile of a batch entry and its heads, and a split of the keys.
pub struct WorkTile<H> {
    /// The batch entry.
    pub sequence: Sequence,
    /// The heads whose queries are the tile's rows.
    pub heads: H,
    /// The first row of the tile.
    pub first: u32,
    split: u32,
    dim: u32,
    /// Whether there may be packed queries: a constant of each kernel. What asks for their tile reads the switch.
    may_be_packed: bool,
    /// The tile of packed queries, where the switch is on.
    packed: QueryTile,
}

impl<H: Heads> WorkTile<H> {
    /// The work of this block, in tiles of `br` rows.
    #[inline(always)]
    pub fn of_block<C: Score>(params: &ForwardParams, br: u32) -> Self {
        Self::at::<C>(params, special::block(), br)
    }

    /// The work of this block, in tiles of `br` rows or, where the switch is on, of a split of its cluster's tile.
    #[inline(always)]
    pub fn of_split<C: Score>(params: &ForwardParams, br: u32) -> Self {
        let place = match switch::cluster() {
            true => special::block_in_cluster() * special::clusters() + special::cluster(),
            false => special::block(),
        };
        Self::at::<C>(params, place, br)
    }

    /// The work at a place of the [order](crate::abi::Order), in tiles of `br` rows.
    #[inline(always)]
    pub fn at<C: Score>(params: &ForwardParams, place: u32, br: u32) -> Self {
        let (split, tile, head) = params.order.place(place);
        let (mut batch, head) = params.tile_heads.divide(head);
        let mut first = tile * br;
        if has_packed_tiles::<C>() {
            (batch, first) = (tile, load_packed_tile(params, tile).first);
        }
        Self::new::<C>(params, split, batch, head, first)
    }

    /// The rows from `first` on of heads `tile_head` of a batch entry, on a split of the keys; or, of packed queries, of their tile
    /// number `batch`.
    #[inline(always)]
    pub fn new<C: Score>(
        params: &ForwardParams,
        split: u32,
        batch: u32,
        tile_head: u32,
        first: u32,
    ) -> Self {
        let (mut entry, mut packed) = (batch, QueryTile::default());
        if has_packed_tiles::<C>() {
            (entry, packed) = (0, load_packed_tile(params, batch));
        }
        WorkTile {
            sequence: Sequence::new(params, entry),
            heads: H::new(params, tile_head),
            first,
            split,
            dim: opaque(params.dim),
            may_be_packed: !C::SCALED,
            packed,
        }
    }

    /// Whether the tile is one of packed queries.
    #[inline(always)]
    fn is_packed(&self) -> bool {
        self.may_be_packed && switch::tiles()
    }

    /// Rows of all tiles of these heads or, of packed queries, up to the end of the tile's sequence; in a kernel with such scores.
    #[inline(always)]
    pub fn row_count<C: Score>(&self) -> u32 {
        self.rows(!C::SCALED)
    }

    /// [`row_count`](Self::row_count) in a kernel with such a mask.
    #[inline(always)]
    pub fn row_count_of<M: Mask>(&self) -> u32 {
        self.rows(M::Keys::HAS_START)
    }

    /// The rows, in kernels that may have packed queries or, by a constant, in others: there the compiler copies loops otherwise.
    #[inline(always)]
    fn rows(&self, may_be_packed: bool) -> u32 {
        match may_be_packed && switch::tiles() {
            true => self.packed.end,
            false => self.heads.row_count(self.sequence.queries),
        }
    }

    /// The first row of these heads or, of packed queries, of the tile's sequence; in a kernel with such scores.
    #[inline(always)]
    pub fn first_row<C: Score>(&self) -> i32 {
        match has_packed_tiles::<C>() {
            true => self.packed.start as i32,
            false => 0,
        }
    }

    /// The sequence whose keys the rows see: of packed queries, whose own entry is the only one, with the entry of its keys.
    #[inline(always)]
    pub fn of_keys(&self) -> Sequence {
        let mut sequence = self.sequence;
        if self.is_packed() {
            sequence.batch = self.packed.sequence;
        }
        sequence
    }

    /// The query of a row.
    #[inline(always)]
    pub fn query(&self, row: u32) -> i32 {
        self.heads.query_and_head(row).0 as i32
    }

    /// The keys of the split; none for a tile without rows.
    #[inline(always)]
    pub fn keys(&self, params: &ForwardParams) -> Split {
        let mut split = self.sequence.split(params, self.split);
        if self.is_packed() && self.packed.first == self.packed.end {
            split.keys = 0;
        }
        split
    }

    /// The keys of the split, or of the [unit](units) of that number, whose entry the work then has; none if there are fewer units.
    ///
    /// # Safety
    /// All threads of the block make the same call, each with its number.
    #[inline(always)]
    pub unsafe fn take_keys<C: Score>(
        &mut self,
        params: &ForwardParams,
        thread: u32,
    ) -> Option<Split> {
        if !has_units::<C>(params) {
            return Some(self.keys(params));
        }
        // SAFETY: the caller's promise; a launch with units has lengths.
        let unit = unsafe { units::find(params, self.split)? };
        self.sequence.batch = unit.entry;
        if self.first + self.heads.kv_head() + thread == 0 {
            // SAFETY: a launch with units has offsets, and tiles with rows of all heads that share keys: of the unit's blocks one has
            // the first row.
            unsafe { units::write_offset(params, self.split, unit) }
        }
        Some(Split {
            first: unit.first,
            keys: unit.keys,
            is_first: unit.number == 0,
        })
    }

    /// Which keys of the split the queries see.
    #[inline(always)]
    pub fn mask<M: Mask>(&self, params: &ForwardParams, split: Split) -> M {
        let mask = M::new(params, self.sequence, split);
        // A constant: a call that does nothing would cost some kernels local memory.
        match M::HAS_HEADS {
            true => mask.of_head(params, self.heads.first()),
            false => mask,
        }
    }

    /// The rows of q, or of o where `dim_v` is `dim`.
    #[inline(always)]
    pub fn q_rows(&self, tensor: &TensorRef) -> H::Rows {
        self.rows_of_heads(tensor, self.dim)
    }

    /// The rows of o, in a kernel with such scores.
    #[inline(always)]
    pub fn o_rows<C: Score>(&self, params: &ForwardParams) -> H::Rows {
        self.rows_of_heads(&params.o, self.value_dim::<C>(params))
    }

    /// The batch entry's own rows of k, or of v where `dim_v` is `dim`, from key `first` on.
    #[inline(always)]
    pub fn kv_rows(&self, tensor: &TensorRef, first: u32) -> Strided {
        let head = self.heads.kv_head();
        let rows = self.sequence.head_rows(tensor, head, self.dim);
        rows.skip(first)
    }

    /// The rows of k, or of v where `dim_v` is `dim`, from key `first` on, where `R` says; their elements hold numbers `B`.
    #[inline(always)]
    pub fn key_rows<R: KeyRows, B: Numbers>(
        &self,
        params: &ForwardParams,
        tensor: &TensorRef,
        first: u32,
    ) -> R::Rows {
        self.rows_of_keys::<R>(params, tensor, first, self.dim / B::SLICES as u32)
    }

    /// The rows of k from key `first` on, in a kernel with such scores.
    #[inline(always)]
    pub fn k_rows<C: Score>(
        &self,
        params: &ForwardParams,
        first: u32,
    ) -> <C::Keys as KeyRows>::Rows {
        self.rows_of_keys::<C::Keys>(params, &params.k, first, self.dim)
    }

    /// The rows of v from key `first` on, in a kernel with such scores.
    #[inline(always)]
    pub fn v_rows<C: Score>(
        &self,
        params: &ForwardParams,
        first: u32,
    ) -> <C::Keys as KeyRows>::Rows {
        let elements = self.value_dim::<C>(params);
        self.rows_of_keys::<C::Keys>(params, &params.v, first, elements)
    }

    /// Elements of a row of v or o: without options they take no register of their own.
    #[inline(always)]
    fn value_dim<C: Score>(&self, params: &ForwardParams) -> u32 {
        match C::SCALED {
            true => self.dim,
            false => opaque(C::value_dim(params)),
        }
    }

    #[inline(always)]
    fn rows_of_heads(&self, tensor: &TensorRef, elements: u32) -> H::Rows {
        let first = self.heads.first();
        let first_head = self.sequence.head_rows(tensor, first, elements);
        self.heads.rows(tensor, first_head)
    }

    #[inline(always)]
    fn rows_of_keys<R: KeyRows>(
        &self,
        params: &ForwardParams,
        tensor: &TensorRef,
        first: u32,
        elements: u32,
    ) -> R::Rows {
        let mut sequence = self.sequence;
        // A constant: else what is known of plain kernels comes too late.
        if R::HAS_PAGES {
            sequence = self.of_keys();
        }
        let keys = R::new(params, sequence);
        keys.rows(tensor, self.heads.kv_head(), first, elements)
    }

    /// The blocks of `bc` keys that query tile number `tile` visits, on a split.
    #[inline(always)]
    pub fn visits<M: Mask>(
        &self,
        params: &ForwardParams,
        split: Split,
        tile: u32,
        bc: u32,
    ) -> Visits<M> {
        let blocks = [split.first / bc, self.sequence.keys.div_ceil(bc)];
        let tile = [self.sequence.batch, self.heads.first(), tile];
        Visits::new(&params.options.blocks, tile, blocks)
    }

    /// Address of the lse of a row.
    #[inline(always)]
    pub fn lse(&self, params: &ForwardParams, row: u32) -> u64 {
        let (query, head) = self.heads.query_and_head(row);
        params.lse + 4 * self.sequence.row_index(params, head, query)
    }

    /// Index of a row among the partial results of all splits.
    #[inline(always)]
    pub fn partial(&self, params: &ForwardParams, row: u32) -> u64 {
        let head = self.heads.first();
        self.sequence.partial_index(params, self.split, head, row)
    }

    /// Index of a row among the partial results of all splits or units.
    #[inline(always)]
    pub fn partial_of_unit<C: Score>(&self, params: &ForwardParams, row: u32) -> u64 {
        match has_units::<C>(params) {
            true => Sequence::unit_index(params, self.split, self.heads.first(), row),
            false => self.partial(params, row),
        }
    }
}

/// Whether blocks take units, in a kernel with such scores.
#[inline(always)]
pub fn has_units<C: Score>(params: &ForwardParams) -> bool {
    // Lengths alone make units: without them the assembler drops all of this.
    C::HAS_UNITS && switch::lengths() && params.options.units.offsets != 0
}

/// Whether tiles are those of packed queries, in a kernel with such scores.
#[inline(always)]
pub fn has_packed_tiles<C: Score>() -> bool {
    !C::SCALED && switch::tiles()
}

/// Tile number `tile` of packed queries.
#[inline(always)]
pub fn load_packed_tile(params: &ForwardParams, tile: u32) -> QueryTile {
    let address = params.options.tiles + size_of::<QueryTile>() as u64 * u64::from(tile);
    // SAFETY: a launch with packed queries has one for each query tile of a head.
    let [sequence, first, start, end] = unsafe { global::load_u32x4(address) };
    QueryTile {
        sequence,
        first,
        start,
        end,
    }
}
