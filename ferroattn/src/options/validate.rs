//! Checks of the tensors of options, and that options go with one another.

use super::prefix::PREFIX_PAGES;
use super::raw::score_shape;
use super::{
    CACHE, E4M3_CACHE, FP8, INVARIANT, MaskElement, PACKED_QUERIES, PAGES, PREFIX, RawBias,
    RawE4m3Cache, RawMask, RawOptions, RawPrefix, Sequences, Window, first_not_in_fp8,
    first_of_pairs,
};
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::tensor::{RawTensor, expect_shape};

/// Keys of the smallest pages that may have descales of their own: a product of tensor cores takes so many.
const LEAST_PAGE: usize = 16;

/// Numbers of e4m3 in 16 bytes.
const VECTOR: usize = 16;

impl RawOptions {
    /// Checks every tensor.
    pub(crate) fn validate(&self, p: &Problem) -> Result<()> {
        // Which entries a cache has is known where the numbers are checked.
        for numbers in self.numbers(p, 0)? {
            numbers.validate()?;
        }
        if self.packed_sequences().is_some() && self.first_keys.is_some() {
            return Err(Error::Excluded("first_keys", "packed sequences"));
        }
        self.expect_packed_queries(p)?;
        if let Some(pages) = &self.pages {
            if self.cache_entries.is_some() {
                return Err(Error::Excluded(CACHE, PAGES));
            }
            let entries = p.batch * self.key_entries();
            expect_shape(PAGES, &[entries, pages.shape[1]], &pages.shape)?;
            pages.expect_rows(PAGES, "its last axis")?;
        }
        if let Some(alibi) = &self.alibi {
            let [slopes, _] = alibi.shape;
            let slopes = match self.packed_sequences() {
                Some(sequences) if slopes == sequences => sequences,
                _ => p.batch,
            };
            expect_shape("alibi", &[slopes, p.heads], &alibi.shape)?;
            alibi.expect_span("alibi")?;
        }
        if let Some(sinks) = &self.sinks {
            expect_shape("sinks", &[p.heads], &sinks.shape)?;
            sinks.expect_span("sinks")?;
        }
        if let Some(RawBias { tensor, .. }) = &self.bias {
            expect_shape("bias", &score_shape(p, 1), &tensor.shape)?;
            tensor.expect_rows("bias", "seqlen_kv")?;
        }
        if let Some(RawMask { bits, tensor }) = &self.mask {
            let (keys, axis) = match bits {
                true => (u32::KEYS, "ceil(seqlen_kv / 32)"),
                false => (u8::KEYS, "seqlen_kv"),
            };
            expect_shape("mask", &score_shape(p, keys), &tensor.shape)?;
            tensor.expect_rows("mask", axis)?;
        }
        self.expect_spreadable(p)?;
        if let (Some(_), Some(option)) = (self.fp8, first_not_in_fp8(p, self)) {
            return Err(Error::Excluded(FP8, option));
        }
        if self.f32_o && self.fp8.is_none() {
            return Err(Error::Needs("o in f32", FP8));
        }
        self.e4m3.map_or(Ok(()), |e4m3| e4m3.validate(p))?;
        self.custom.map_or(Ok(()), |custom| custom.validate())?;
        self.validate_prefix(p)
    }

    /// Checks that packed queries have keys in pages, and no option with an element for each pair of query and key.
    fn expect_packed_queries(&self, p: &Problem) -> Result<()> {
        let of_pairs = Problem { dim_v: p.dim, ..*p };
        match (self.has_packed_queries(), &self.pages) {
            (false, _) => Ok(()),
            (true, None) => Err(Error::Needs(PACKED_QUERIES, PAGES)),
            (true, Some(_)) => match first_of_pairs(&of_pairs, self) {
                None => Ok(()),
                Some(option) => Err(Error::Excluded(option, PACKED_QUERIES)),
            },
        }
    }

    /// Checks that a batch invariant call of packed sequences has no option that counts keys from the first of all: their keys are
    /// moved.
    fn expect_spreadable(&self, p: &Problem) -> Result<()> {
        let is_packed = matches!(self.sequences, Some(Sequences::Packed { .. }));
        if !self.batch_invariant || !is_packed {
            return Ok(());
        }
        let split = (self.split_keys > 0).then_some("split_keys");
        let of_pairs = Problem { dim_v: p.dim, ..*p };
        match split.or(first_of_pairs(&of_pairs, self)) {
            Some(option) => Err(Error::Excluded(
                option,
                "packed sequences that are batch_invariant",
            )),
            None => Ok(()),
        }
    }

    /// Checks the prefix's tensors, and that it goes with the other options.
    fn validate_prefix(&self, p: &Problem) -> Result<()> {
        let Some(prefix) = self.prefix else {
            return Ok(());
        };
        // These count keys from an entry's last one, or name each of its own.
        for (option, is_on) in [
            ("window", p.window != Window::NONE),
            ("alibi", self.alibi.is_some()),
            ("bias", self.bias.is_some()),
            ("mask", self.mask.is_some()),
            ("first_keys", self.first_keys.is_some()),
            ("custom", self.custom.is_some()),
        ] {
            if is_on {
                return Err(Error::Excluded(PREFIX, option));
            }
        }
        match prefix {
            RawPrefix::Keys { k, v, .. } => {
                let keys = k.shape[2];
                expect_shape("the prefix's k", &[1, p.kv_heads, keys, p.dim], &k.shape)?;
                expect_shape("the prefix's v", &[1, p.kv_heads, keys, p.dim_v], &v.shape)?;
                k.expect_rows("the prefix's k", "dim")?;
                v.expect_rows("the prefix's v", "dim")?;
            }
            RawPrefix::Pages { table, .. } => {
                if self.pages.is_none() {
                    return Err(Error::Needs(PREFIX_PAGES, PAGES));
                }
                table.expect_rows(PREFIX_PAGES, "its axis")?;
            }
        }
        match self.sequences {
            None => expect_own(p, 0, [p.seqlen_q, p.seqlen_kv]),
            Some(_) => Ok(()),
        }
    }
}

impl RawE4m3Cache {
    /// Checks the call's keys and values, of a valid problem, and the descales.
    pub(crate) fn validate(
        &self,
        p: &Problem,
        options: &RawOptions,
        [k, v]: [&RawTensor; 2],
    ) -> Result<()> {
        let of_problem = first_of_pairs(p, options);
        let others = [
            (FP8, options.fp8.is_some()),
            (PREFIX, options.prefix.is_some()),
            (INVARIANT, options.batch_invariant),
        ];
        let other = others.into_iter().find(|(_, is_on)| *is_on);
        if let Some(other) = of_problem.or(other.map(|(name, _)| name)) {
            return Err(Error::Excluded(E4M3_CACHE, other));
        }
        for (argument, tensor) in [("k", k), ("v", v)] {
            if !tensor.has_vectors(VECTOR) && !p.is_empty() {
                return Err(Error::E4m3Rows(argument));
            }
        }
        let entries = match self.of_pages {
            false => p.batch * options.key_entries(),
            true if options.pages.is_none() => {
                return Err(Error::Needs("descales of pages", PAGES));
            }
            true if k.shape[2] < LEAST_PAGE => return Err(Error::E4m3Page(k.shape[2])),
            true => k.shape[0],
        };
        self.expect_descales([entries, p.kv_heads])
    }
}

/// Checks that the first query of an entry sees all keys before the entry's own.
pub(super) fn expect_own(p: &Problem, entry: usize, [queries, keys]: [usize; 2]) -> Result<()> {
    match p.causal && keys.saturating_add(1) < queries {
        false => Ok(()),
        true => Err(Error::OwnKeys {
            entry,
            queries,
            keys,
        }),
    }
}
