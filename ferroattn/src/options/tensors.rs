//! Tensors of options that a call borrows.

use super::raw::{PAIRS, PAIRS_OF_BITS, full, full_of, score_shape};
use super::{
    Borrowed, BorrowedCustom, BorrowedDescales, BorrowedPrefix, Fp8, Part, RawBias, RawMask,
    RawOptions, Sequences,
};
use crate::device::Device;
use crate::error::Result;
use crate::forward::Problem;
use crate::tensor::{Dtype, expect_device};

/// Tensors of options, as their owner shaped them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorOptions<'a> {
    /// `[batch or 1, heads]`, of which the owner's tensor has this many last axes.
    pub alibi: Option<(usize, Borrowed<'a, 2>)>,
    /// `[heads]`.
    pub sinks: Option<Borrowed<'a, 1>>,
    /// `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]`.
    pub bias: Option<(Dtype, Borrowed<'a, 4>)>,
    /// `[batch or 1, heads or 1, seqlen_q or 1, elements]`, with this many keys in an element.
    pub mask: Option<(usize, Borrowed<'a, 4>)>,
    pub sequences: Option<Sequences<Borrowed<'a, 1>>>,
    /// `[batch]`.
    pub first_keys: Option<Borrowed<'a, 1>>,
    /// `[batch]`.
    pub cache_entries: Option<Borrowed<'a, 1>>,
    /// `[batch, most pages]`.
    pub pages: Option<Borrowed<'a, 2>>,
    /// Whether a GPU checks these numbers.
    pub check_lengths: bool,
    pub batch_invariant: bool,
    pub split_keys: u32,
    pub fp8: Option<Fp8>,
    /// Of inputs of e4m3, what multiplies q, k and v.
    pub descales: Option<[Borrowed<'a, 2>; 3]>,
    /// Of a cache of e4m3.
    pub cache_descales: Option<BorrowedDescales<'a>>,
    pub custom: Option<BorrowedCustom<'a>>,
    pub prefix: Option<BorrowedPrefix<'a>>,
}

impl TensorOptions<'_> {
    /// Checks that all tensors are on the device of the others.
    pub fn expect_device(&self, device: &Device) -> Result<()> {
        let tensors = [
            ("alibi", self.alibi.as_ref().map(|(_, alibi)| &alibi.device)),
            ("sinks", self.sinks.as_ref().map(|sinks| &sinks.device)),
            ("bias", self.bias.as_ref().map(|(_, bias)| &bias.device)),
            ("mask", self.mask.as_ref().map(|(_, mask)| &mask.device)),
            (
                "first_keys",
                self.first_keys.as_ref().map(|first| &first.device),
            ),
            (
                "cache_entries",
                self.cache_entries.as_ref().map(|entries| &entries.device),
            ),
            ("pages", self.pages.as_ref().map(|pages| &pages.device)),
        ];
        let descales = self.descales.iter().flatten();
        let descales = descales.map(|descale| ("descales", Some(&descale.device)));
        let sequences = self.sequences.iter().flat_map(Sequences::named);
        let sequences = sequences.map(|(argument, numbers)| (argument, Some(&numbers.device)));
        let given = tensors.into_iter().chain(sequences).chain(descales);
        let given = given.filter_map(|(argument, found)| Some((argument, found?.clone())));
        let custom = self.custom.iter().flat_map(BorrowedCustom::devices);
        expect_device(device, given.chain(custom.map(|found| ("custom", found))))?;
        let descales = self.cache_descales.iter();
        let descales = descales.flat_map(|descales| &descales.of);
        let descales = ["k_descales", "v_descales"].into_iter().zip(descales);
        expect_device(
            device,
            descales.map(|(argument, found)| (argument, found.device.clone())),
        )?;
        let prefix = self.prefix.iter().flat_map(BorrowedPrefix::devices);
        expect_device(
            device,
            prefix.map(|(argument, found)| (argument, found.clone())),
        )
    }

    /// The tensors at their addresses, in full shape.
    pub fn raw(&self, p: &Problem) -> Result<RawOptions> {
        let alibi = self.alibi.as_ref().map(|(axes, Borrowed { raw, .. })| {
            let offsets = self.sequences.as_ref().and_then(Sequences::offsets_q);
            let sequences = offsets.map_or(p.batch, |q| q.raw.shape[0].saturating_sub(1));
            let (slopes, allowed) = match raw.shape[0] == sequences {
                true => (sequences, "[heads] or [sequences, heads]"),
                false => (p.batch, "[heads] or [batch, heads]"),
            };
            let owner_shape = &raw.shape[2 - axes..];
            full_of(raw, owner_shape, "alibi", allowed, [slopes, p.heads])
        });
        let bias = self.bias.as_ref().map(|(dtype, bias)| {
            let tensor = full(&bias.raw, "bias", PAIRS, score_shape(p, 1))?;
            Ok(RawBias {
                dtype: *dtype,
                tensor,
            })
        });
        let mask = self.mask.as_ref().map(|(keys, mask)| {
            let (bits, allowed) = match keys {
                1 => (false, PAIRS),
                _ => (true, PAIRS_OF_BITS),
            };
            let tensor = full(&mask.raw, "mask", allowed, score_shape(p, *keys))?;
            Ok(RawMask { bits, tensor })
        });
        Ok(RawOptions {
            alibi: alibi.transpose()?,
            sinks: self.sinks.as_ref().map(|sinks| sinks.raw),
            bias: bias.transpose()?,
            mask: mask.transpose()?,
            sequences: self
                .sequences
                .as_ref()
                .map(|all| all.map(|numbers| numbers.raw)),
            first_keys: self.first_keys.as_ref().map(|first| first.raw),
            cache_entries: self.cache_entries.as_ref().map(|entries| entries.raw),
            pages: self.pages.as_ref().map(|pages| pages.raw),
            values_in_keys: false,
            check_lengths: self.check_lengths,
            batch_invariant: self.batch_invariant,
            split_keys: self.split_keys,
            fp8: self.fp8,
            f32_o: false,
            e4m3: None,
            e4m3_cache: self.cache_descales.as_ref().map(BorrowedDescales::raw),
            custom: self.custom.as_ref().map(BorrowedCustom::raw).transpose()?,
            prefix: self.prefix.as_ref().map(BorrowedPrefix::raw),
            part: Part::default(),
        })
    }
}
