//! Tensors of a call by address.

use crate::error::{Error, Result, expect_at_most};
use crate::options::RawE4m3Cache;
use crate::tensor::{Dtype, RawTensor, expect_shape};
use kernels::abi::MAX_SEQLEN;
use kernels::catalog::MAX_HEAD_DIM;

/// Tensors by address, for [`append_raw`](super::append_raw); `None` where an option is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawAppend {
    /// New keys, `[batch, kv_heads, rows, dim]`; like all tensors of four axes, with stride 1 in the last one.
    pub k: RawTensor,
    /// New values, `[batch, kv_heads, rows, dim_v]`.
    pub v: RawTensor,
    /// The keys of the cache, `[entries or pages, kv_heads, keys, dim]`.
    pub k_cache: RawTensor,
    /// The values of the cache, `[entries or pages, kv_heads, keys, dim_v]`.
    pub v_cache: RawTensor,
    /// Queries `[batch, heads, rows, dim]`, of any number of rows, and where their rotated copies go, which may be the same place.
    pub q: Option<[RawTensor; 2]>,
    /// The [pages](super::Append::pages), `i32[batch, most]`.
    pub pages: Option<RawTensor<2>>,
    /// The [entries of the cache](super::Append::cache_entries), `i32[batch]`.
    pub cache_entries: Option<RawTensor<1>>,
    /// The [keys](super::Append::lengths) that each entry has before, `i32[batch]`.
    pub lengths: Option<RawTensor<1>>,
    /// Where to write how many keys each entry has behind, `i32[batch]`, which may be the place of no other tensor.
    pub new_lengths: Option<RawTensor<1>>,
    /// The [slots](super::Append::slots), `i64[batch, rows]`.
    pub slots: Option<RawTensor<2>>,
    /// The [positions](super::Append::positions), `i32[batch, rows]`.
    pub positions: Option<RawTensor<2>>,
    /// The rotary embedding.
    pub rotary: Option<RawRotary>,
    /// Descales of caches that hold e4m3, if they do.
    pub e4m3_cache: Option<RawE4m3Cache>,
    /// Whether a GPU [checks](super::Append::check_lengths) all numbers.
    pub check_lengths: bool,
}

/// A [rotary embedding](super::Append::rotary) by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawRotary {
    /// The type of cosines and sines: f32, or that of the rows.
    pub dtype: Dtype,
    /// Cosines, `[positions, rotary_dim / 2]`.
    pub cos: RawTensor<2>,
    /// Sines, of the cosines' shape.
    pub sin: RawTensor<2>,
    /// Whether [neighbours](super::Append::interleaved) are a pair.
    pub interleaved: bool,
    /// Whether all queries of an entry have the [position of the first one](super::Append::q_at_first).
    pub q_at_first: bool,
}

impl RawAppend {
    /// New keys and values, and those of the cache, without options.
    pub fn new([k, v]: [RawTensor; 2], [k_cache, v_cache]: [RawTensor; 2]) -> Self {
        RawAppend {
            k,
            v,
            k_cache,
            v_cache,
            q: None,
            pages: None,
            cache_entries: None,
            lengths: None,
            new_lengths: None,
            slots: None,
            positions: None,
            rotary: None,
            e4m3_cache: None,
            check_lengths: false,
        }
    }

    /// Checks shapes and strides.
    pub(super) fn validate(&self, dtype: Dtype) -> Result<()> {
        let [batch, kv_heads, rows, dim] = self.k.shape;
        let [entries, _, keys, _] = self.k_cache.shape;
        let dim_v = self.v.shape[3];
        for (dim, wrong) in [(dim, Error::Dim(dim)), (dim_v, Error::ValueDim(dim_v))] {
            if !(1..=MAX_HEAD_DIM as usize).contains(&dim) {
                return Err(wrong);
            }
        }
        for (argument, tensor, shape) in [
            ("v", self.v, [batch, kv_heads, rows, dim_v]),
            ("k_cache", self.k_cache, [entries, kv_heads, keys, dim]),
            ("v_cache", self.v_cache, [entries, kv_heads, keys, dim_v]),
        ] {
            expect_shape(argument, &shape, &tensor.shape)?;
        }
        for (argument, tensor) in [
            ("k", self.k),
            ("v", self.v),
            ("k_cache", self.k_cache),
            ("v_cache", self.v_cache),
        ] {
            tensor.expect_rows(argument, "dim")?;
        }
        for (argument, tensor) in [("k_cache", self.k_cache), ("v_cache", self.v_cache)] {
            tensor.layout().expect_injective(argument)?;
        }
        for (argument, value) in [("rows", rows), ("keys", keys)] {
            expect_at_most(argument, value, MAX_SEQLEN)?;
        }
        expect_at_most("entries", entries, i32::MAX as u32)?;
        if let Some([q, to]) = self.q {
            let [_, heads, rows, _] = q.shape;
            expect_shape("q", &[batch, heads, rows, dim], &q.shape)?;
            expect_shape("rotated", &q.shape, &to.shape)?;
            expect_at_most("rows", rows, MAX_SEQLEN)?;
            q.expect_rows("q", "dim")?;
            to.expect_rows("rotated", "dim")?;
            to.layout().expect_injective("rotated")?;
        }
        if let Some(cache) = &self.e4m3_cache {
            self.validate_descales(cache)?;
        }
        self.validate_places()?;
        self.validate_rotary(dtype)
    }

    /// Checks descales of the caches.
    fn validate_descales(&self, cache: &RawE4m3Cache) -> Result<()> {
        let [batch, kv_heads, ..] = self.k.shape;
        let entries = match cache.of_pages {
            true if self.pages.is_none() && self.slots.is_none() => {
                return Err(Error::Needs("descales of pages", "pages or slots"));
            }
            true => self.k_cache.shape[0],
            false => batch,
        };
        cache.expect_descales([entries, kv_heads])
    }

    /// Checks what says where rows go.
    fn validate_places(&self) -> Result<()> {
        let [batch, _, rows, _] = self.k.shape;
        let [entries, _, keys, _] = self.k_cache.shape;
        let places = [
            ("pages", self.pages.is_some()),
            ("cache_entries", self.cache_entries.is_some()),
            ("slots", self.slots.is_some()),
        ];
        let mut given = places.iter().filter(|(_, is_on)| *is_on);
        if let (Some((first, _)), Some((second, _))) = (given.next(), given.next()) {
            return Err(Error::Excluded(first, second));
        }
        if places.iter().all(|(_, is_on)| !is_on) {
            expect_shape("k_cache", &[batch], &[entries])?;
        }
        if let Some(pages) = self.pages {
            crate::options::read_pages(keys, pages.shape[1])?;
            expect_shape("pages", &[batch, pages.shape[1]], &pages.shape)?;
            pages.expect_rows("pages", "its last axis")?;
        }
        for (argument, tensor) in [
            ("cache_entries", self.cache_entries),
            ("lengths", self.lengths),
            ("new_lengths", self.new_lengths),
        ] {
            let Some(tensor) = tensor else { continue };
            expect_shape(argument, &[batch], &tensor.shape)?;
            tensor.expect_rows(argument, "its axis")?;
        }
        for (argument, tensor) in [("slots", self.slots), ("positions", self.positions)] {
            let Some(tensor) = tensor else { continue };
            expect_shape(argument, &[batch, rows], &tensor.shape)?;
            tensor.expect_rows(argument, "its last axis")?;
        }
        match (self.q, self.positions) {
            (Some([q, _]), Some(_)) => expect_shape("the rows of q", &[rows], &[q.shape[2]]),
            _ => Ok(()),
        }
    }

    fn validate_rotary(&self, dtype: Dtype) -> Result<()> {
        let Some(RawRotary {
            dtype: of_rotary,
            cos,
            sin,
            ..
        }) = self.rotary
        else {
            return Ok(());
        };
        let dim = self.k.shape[3];
        let [positions, pairs] = cos.shape;
        if pairs > dim / 2 {
            return Err(Error::RotaryDim { pairs, dim });
        }
        if of_rotary != Dtype::F32 && of_rotary != dtype {
            return Err(Error::RotaryDtype {
                found: of_rotary,
                dtype,
            });
        }
        if positions == 0 {
            return Err(Error::Zero("the number of positions"));
        }
        expect_shape("sin", &cos.shape, &sin.shape)?;
        cos.expect_rows("cos", "its last axis")?;
        sin.expect_rows("sin", "its last axis")?;
        expect_at_most("positions", positions, i32::MAX as u32)
    }

    /// Rows of q, k and v of an entry of the batch.
    pub(super) fn rows_of_entry(&self) -> u128 {
        let rows = |tensor: RawTensor| tensor.shape[1] as u128 * tensor.shape[2] as u128;
        2 * rows(self.k) + self.q.map_or(0, |[q, _]| rows(q))
    }
}
